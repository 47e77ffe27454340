"""A small web that changes while it is crawled, and a witness of what must be so: shared by tests of the ledger.

The witness keeps a second account of the same crawl from the words of the contract alone: which pages are known and
gone, what links sent to each page, and the links that each shows. Exact PageRank comes from a dense solve.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from opic.model.cash import CLOCK_LIMIT, CONTINUOUS, DAY_US, MILLION, MINTED_GRAINS, CrawlRules, Flag
from opic.model.events import CrawlEvent, EventLimits, Record, encode_crawl_event, encode_forgotten, encode_seeds
from opic.model.ledger import Ledger
from opic.query.inflow import SiblingsSent, host_bounds, inflow_error_bound
from opic.urls.canonical import host_of

FIRST_DAY_S = 1_600_000_000
LOG_US = (FIRST_DAY_S + 60 * 86_400) * MILLION  # The log's time; events may be weeks older.
HOUR_US = DAY_US // 24
FLOAT_SLACK = 1e-9  # Of the dense solve and the sums in float64.

DOMAINS = {  # Page -> registered domain. Two hosts share one.
    "http://a.example/": "a.example",
    "http://a.example/1": "a.example",
    "http://a.example/2": "a.example",
    "http://b.example/": "b.example",
    "http://www.b.example/": "b.example",
    "http://www.b.example/1": "b.example",
    "https://c.example:8443/": "c.example",
}
URLS = tuple(DOMAINS)
SPELLINGS: dict[str, str | None] = {  # How a link may be written -> the page it names; None is a bad link.
    **{url: url for url in URLS},
    **{url + "#part": url for url in URLS},
    "HTTP://A.example:80": "http://a.example/",
    "http://b.example/x/..": "http://b.example/",
    "/1": None,
    "javascript:void(0)": None,
    "http://b.example/" + "x" * 3_000: None,
}

PAGES = st.sampled_from(URLS)
LINKS = st.lists(st.sampled_from(tuple(SPELLINGS)), max_size=6)
HOURS = st.integers(0, 24 * 40)
HOST_PAGES_MAX = st.sampled_from((0, 0, 1, 2))
TINY = CrawlRules(
    grant=64, minted=64 * 12, regrant_ppm=100_000
)  # The pool of seven pages is soon short of a further grant.
RULES = (
    CrawlRules(),
    CrawlRules(regrant_ppm=0),
    CrawlRules(regrant_ppm=500_000),
    CrawlRules(q=500_000, inflow=False),
    CrawlRules(q=1_234, measures_max=1),
    CrawlRules(grant=64),  # One per cent of it is less than a grain: there are no further grants.
    TINY,
    CONTINUOUS,
    replace(CONTINUOUS, minted=1_009, q=300_000, inflow=False, measures_max=1),  # Hardly a remainder is 0.
    replace(CONTINUOUS, minted=(1 << 53) - 1),
    CrawlRules(minted=MINTED_GRAINS),
    CrawlRules(
        minted=MINTED_GRAINS, grant=1 << 50
    ),  # Clock and cash pass 2^53; no test reads so often as to pass 2^62.
)


def domain(url: str) -> str:
    return DOMAINS.get(url) or url.split("/")[2]


@dataclass
class Witness:
    """What the contract says must be so after the same events, kept apart from the ledger."""

    known: dict[str, None] = field(default_factory=dict)  # In order of first sight.
    spent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)  # All that links ever sent to a page.
    inflow: dict[str, int] = field(default_factory=dict)
    inflow_of_host: dict[str, int] = field(default_factory=dict)  # From other hosts.
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)  # Read since it became known or came back.
    gone: set[str] = field(default_factory=set)
    times_gone: dict[str, int] = field(default_factory=dict)
    back_from_us: dict[str, int] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)  # Cash, where it is paid at once; here page by page.
    forgotten: set[str] = field(default_factory=set)
    pool: int | None = None  # The virtual page's cash; None under grants.
    host_pages_max: int = 0  # Links make no more pages of a host known than this; 0 is no limit.

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def is_new(self, url: str) -> bool:
        """Whether a page becomes known, or known anew, once it is named."""
        return url not in self.known or url in self.forgotten

    def see(self, url: str) -> None:
        if self.is_new(url):
            self.known[url] = None
            self.forgotten.discard(url)
            self.spent[url] = self.received[url] = self.inflow[url] = self.held[url] = self.inflow_of_host[url] = 0

    def links_to(self, url: str) -> bool:
        """Make the page that a link names known; False if its host is full: the link then pays the virtual page."""
        there = sum(host_of(page) == host_of(url) for page in self.known if page not in self.forgotten)
        if self.is_new(url) and 0 < self.host_pages_max <= there:
            return False
        self.see(url)
        return True

    def cash(self, url: str, granted: int) -> int:
        """What a live page holds: all it was granted and sent less what it spent, or what was paid to it at once."""
        return granted + self.received[url] - self.spent[url] if self.pool is None else self.held[url]

    def end_record(self) -> None:
        """Let the virtual page pay what it holds, where it does so at once."""
        if self.pool is not None and (live := self.live()):
            paid, self.pool = divmod(self.pool, len(live))
            for url in live:
                self.held[url] += paid

    def read(self, url: str, links: Sequence[str], at_us: int, granted: int, q: int) -> None:
        self.see(url)
        self.gone.discard(url)
        self.excluded.discard(url)
        named = [SPELLINGS.get(link, link) for link in links]
        linked = tuple(dict.fromkeys(child for child in named if child and child != url))
        children = tuple(child for child in linked if self.links_to(child))
        for child in children:
            if child in self.gone and at_us >= self.back_from_us[child]:
                self.gone.discard(child)
        before, cash = self.shown.get(url), self.cash(url, granted)
        if before is None or set(before) != set(children):
            self.count("drift_plus", abs(self.spent[url]) if children else 0)
            self.count("drift_minus", abs(self.spent[url]) if before else 0)
        size, sign = abs(cash), -1 if cash < 0 else 1  # A page that owes takes back.
        gives = cash >= 0 or (before is not None and set(before) == set(children))
        if linked and gives:
            exact = Fraction(size * (MILLION - q), MILLION)
            shared = (size - size * q // MILLION) // len(linked) * len(linked)
            self.count("rounding", math.ceil(abs(shared - exact)))
        self.spent[url] += cash
        self.held[url] -= cash
        self.pool = None if self.pool is None else self.pool + cash
        for child in children if gives else ():
            share = sign * ((size - size * q // MILLION) // len(linked))
            self.received[child] += share
            self.held[child] += share
            self.pool = None if self.pool is None else self.pool - share
            self.inflow[child] += share if domain(child) != domain(url) else 0
            self.inflow_of_host[child] += share if host_of(child) != host_of(url) else 0
        self.shown[url] = children
        self.count("reads")
        self.count("links", len(linked))
        self.count("bad_links", named.count(None))
        self.end_record()

    def go_away(self, url: str, at_us: int) -> None:
        self.see(url)
        if url not in self.gone and self.pool is not None:
            self.pool, self.held[url] = self.pool + self.held[url], 0
        self.gone.add(url)
        self.count("drift_minus", abs(self.spent[url]) if self.shown.pop(url, None) else 0)
        self.times_gone[url] = self.times_gone.get(url, 0) + 1
        until_us = at_us + DAY_US * min(2 ** (self.times_gone[url] - 1), 1_024)
        self.back_from_us[url] = max(until_us, self.back_from_us.get(url, 0))  # News that comes late shortens nothing.
        self.count("departures")
        self.end_record()

    def forget(self, urls: Sequence[str]) -> None:
        """Nothing of a page is left, and the virtual page has its cash."""
        for url in (url for url in dict.fromkeys(urls) if url in self.known and url not in self.forgotten):
            self.count("drift_minus", abs(self.spent[url]) if self.shown.pop(url, None) else 0)
            self.pool = None if self.pool is None else self.pool + self.held[url]
            for column in (self.spent, self.received, self.inflow, self.held, self.inflow_of_host):
                column[url] = 0
            for column in (self.times_gone, self.back_from_us):
                column.pop(url, None)
            self.gone.discard(url)
            self.excluded.discard(url)
            self.forgotten.add(url)
            self.count("forgotten")
        self.end_record()

    def notice(self, url: str, name: str) -> None:
        """A fetch that moved nothing."""
        self.see(url)
        self.count(name)
        self.end_record()

    def seed(self, urls: Sequence[str]) -> None:
        for url in urls:
            self.see(url)
            self.gone.discard(url)
            self.excluded.discard(url)
        self.count("seeds", len(set(urls)))
        self.end_record()

    def weight(self, url: str) -> float:
        """How much of each grant a page gets."""
        return 1.0

    def live(self) -> list[str]:
        return [url for url in self.known if url not in self.gone | self.forgotten]

    def pagerank(self, damping: float, *, links_to_gone_keep_their_share: bool = False) -> npt.NDArray[np.float64]:
        """Exact PageRank of the known graph, by a dense solve; dangling mass goes where teleport goes."""
        live = self.live()
        row = {url: i for i, url in enumerate(live)}
        walk = np.zeros((len(live), len(live)))
        for url, links in self.shown.items():
            kept = [link for link in links if link in row]
            for link in kept:
                walk[row[link], row[url]] = damping / len(links if links_to_gone_keep_their_share else kept)
        rank = np.linalg.solve(np.eye(len(live)) - walk, np.array([self.weight(url) for url in live]))
        return np.asarray(rank / rank.sum(), np.float64)

    def exact_inflow(self, damping: float) -> npt.NDArray[np.float64]:
        """What flows to each live page from other domains, by exact PageRank."""
        live, ranks = self.live(), self.pagerank(damping)
        row = {url: i for i, url in enumerate(live)}
        flows = np.zeros(len(live))
        for url, links in self.shown.items():
            kept = [link for link in links if link in row]
            for link in kept:
                flows[row[link]] += damping * ranks[row[url]] / len(kept) * (domain(link) != domain(url))
        return flows


@dataclass
class Crawl:
    """A ledger, its witness and the log that both were fed, one record at a time."""

    rules: CrawlRules
    ledger: Ledger = field(init=False)
    witness: Witness = field(default_factory=Witness)
    log: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.rules, EventLimits(host_pages_max=self.witness.host_pages_max))
        self.witness.pool = self.rules.minted if self.rules.continuous else None

    def append(self, value: bytes, kind: str = "event") -> None:
        record = Record(len(self.log), LOG_US + len(self.log), value, kind)
        self.log.append(record)
        self.ledger.apply("p", [record])

    def event(self, event: CrawlEvent, hours: int) -> None:
        event.fetched_at = FIRST_DAY_S + hours * 3_600
        self.append(encode_crawl_event(event))

    def read(
        self, url: str, links: Sequence[str], hours: int = 0, redirect: str | None = None, status: int = 200
    ) -> None:
        granted = self.granted_to(url)
        children = links if status < 300 else [redirect] if redirect else []
        self.event(CrawlEvent(url, list(links), status=status, redirect=redirect), hours)
        self.witness.read(url, children, FIRST_DAY_S * MILLION + hours * HOUR_US, granted, self.rules.q)

    def granted_to(self, url: str) -> int:
        return self.ledger.books.credit

    def richest(self) -> str:
        pages = [page for page in self.ledger.pages.values() if not page.has(Flag.GONE)]
        return min(pages, key=lambda page: (-abs(self.ledger.cash(page)), page.id)).url

    def estimate(self) -> npt.NDArray[np.float64]:
        pages = [self.ledger.pages[url] for url in self.witness.live()]
        held = [page.spent + self.ledger.cash(page) for page in pages]
        assert sum(held) == self.ledger.books.importance_total(self.rules.minted)
        shown = [max(grains, 0) for grains in held]  # Only pages that owe, after their links changed, show 0 for less.
        # Once a weight was cut to a millionth, pages that owe may be all there are: each shows 0, and they sum to it.
        return np.asarray(np.array(shown, np.float64) / max(sum(shown), 1), np.float64)

    def error(self, *, links_to_gone_keep_their_share: bool = False) -> float:
        exact = self.witness.pagerank(
            1 - self.rules.q / MILLION, links_to_gone_keep_their_share=links_to_gone_keep_their_share
        )
        return float(np.abs(self.estimate() - exact).sum())

    def bound(self) -> float:
        pages = self.ledger.pages.values()
        debt = sum(max(-self.ledger.cash(page), 0) for page in pages if page.has(Flag.OPEN))
        return self.ledger.books.error_bound(self.rules.minted, self.rules.q, debt)


def state(ledger: Ledger) -> tuple[object, ...]:
    """Everything that a ledger keeps, the order of first sight with it."""
    return copy.deepcopy((ledger.books, list(ledger.pages.items())))


class LedgerMachine(RuleBasedStateMachine):
    """A small web that changes while crawlers read it, in any order, with clocks that disagree."""

    crawl: Crawl
    web: dict[str, list[str]]

    @initialize(
        rules=st.sampled_from(RULES), web=st.fixed_dictionaries(dict.fromkeys(URLS, LINKS)), most=HOST_PAGES_MAX
    )
    def genesis(self, rules: CrawlRules, web: dict[str, list[str]], most: int) -> None:
        self.crawl, self.web = Crawl(rules, Witness(host_pages_max=most)), web

    @rule(url=PAGES, hours=HOURS)
    def fetch(self, url: str, hours: int) -> None:
        self.crawl.read(url, self.web[url], hours)

    @rule(reads=st.integers(1, 40), hours=HOURS)
    def crawl_greedily(self, reads: int, hours: int) -> None:
        if self.crawl.witness.live():
            for _ in range(reads):
                richest = self.crawl.richest()
                self.crawl.read(richest, self.web[richest], hours)
                self.bound_covers_the_true_error()

    @rule(url=PAGES, links=LINKS)
    def change_links(self, url: str, links: list[str]) -> None:
        self.web[url] = links

    @rule(url=PAGES, redirect=st.none() | st.sampled_from(tuple(SPELLINGS)), links=LINKS, hours=HOURS)
    def redirect(self, url: str, redirect: str | None, links: list[str], hours: int) -> None:
        self.crawl.read(url, links, hours, redirect, status=301)

    @rule(url=PAGES, status=st.sampled_from([404, 410]), hours=HOURS)
    def go_away(self, url: str, status: int, hours: int) -> None:
        self.crawl.event(CrawlEvent(url, self.web[url], status=status), hours)
        self.crawl.witness.go_away(url, FIRST_DAY_S * MILLION + hours * HOUR_US)

    @rule(url=PAGES, status=st.sampled_from([0, 429, 500, 503]), hours=HOURS)
    def fail(self, url: str, status: int, hours: int) -> None:
        self.crawl.event(CrawlEvent(url, self.web[url], status=status), hours)
        self.crawl.witness.notice(url, "failures")

    @rule(url=PAGES, status=st.sampled_from([200, 401, 403, 451]), hours=HOURS)
    def exclude(self, url: str, status: int, hours: int) -> None:
        self.crawl.event(CrawlEvent(url, self.web[url], status=status, excluded=status == 200), hours)
        self.crawl.witness.notice(url, "exclusions")
        self.crawl.witness.excluded.add(url)

    @rule(urls=st.lists(PAGES, max_size=4))
    def seed(self, urls: list[str]) -> None:
        self.crawl.append(encode_seeds([url + "#seed" for url in urls]), "seeds")
        self.crawl.witness.seed(urls)

    @rule(urls=st.lists(PAGES, max_size=3))
    def forget(self, urls: list[str]) -> None:
        self.crawl.append(encode_forgotten([url + "#part" for url in urls]), "forget")
        self.crawl.witness.forget(urls)

    @rule(value=st.sampled_from([b"", b"nonsense", b'{"url": "/relative"}', b"\x81\x01\x02"]))
    def dead_letter(self, value: bytes) -> None:
        self.crawl.append(value)
        self.crawl.witness.count("dead_letters")

    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        before = state(self.crawl.ledger)
        first = data.draw(st.integers(0, len(self.crawl.log)))
        last = data.draw(st.integers(first, len(self.crawl.log)))
        self.crawl.ledger.apply("p", self.crawl.log[first:last])
        assert state(self.crawl.ledger) == before

    def check_in_flow(self) -> None:
        """Check that in-flow is within its bounds; once an example, as it takes another dense solve."""
        crawl, books, rules = self.crawl, self.crawl.ledger.books, self.crawl.rules
        live = crawl.witness.live()
        if not rules.inflow or not live:
            return
        pages = [crawl.ledger.pages[url] for url in live]
        inflow = np.array([page.inflow for page in pages])
        for host in {host_of(url) for url in live}:
            at = [i for i, url in enumerate(live) if host_of(url) == host]
            spent = sum(
                max(page.spent, 0)
                for url, page in crawl.ledger.pages.items()
                if domain(url) == domain(live[at[0]]) and host_of(url) != host
            )
            spent += max(books.h_forgotten, 0)  # Any of it may have been theirs.
            received = None if rules.continuous else np.array([pages[i].v + pages[i].spent for i in at])
            least, most = host_bounds(inflow[at], received, SiblingsSent(spent, books.taken_back, books.reads), rules.q)
            true = [crawl.witness.inflow_of_host[live[i]] for i in at]
            assert np.all(least <= true)
            assert np.all(true <= most)
            assert spent or books.taken_back or np.array_equal(least, most)
        if not rules.continuous and not books.cuts:
            exact = crawl.witness.exact_inflow(1 - rules.q / MILLION)
            error = np.abs(inflow / books.static_total(rules.minted) - exact).sum()
            bound = inflow_error_bound(books, crawl.bound(), rules.minted, rules.q)
            assert error <= bound + FLOAT_SLACK, (error, bound, crawl.bound())

    @invariant()
    def cash_is_conserved_and_the_totals_agree_with_a_recount(self) -> None:
        audit = self.crawl.ledger.audit()
        assert audit.conserved, audit
        self.crawl.ledger.books.check()

    @invariant()
    def live_pages_hold_no_debt(self) -> None:
        ledger = self.crawl.ledger
        assert ledger.books.cuts or all(
            ledger.cash(page) >= 0 for page in ledger.pages.values() if not page.has(Flag.GONE)
        )

    @invariant()
    def what_a_page_holds_and_spent_is_what_it_was_granted_and_what_links_sent(self) -> None:
        witness, ledger = self.crawl.witness, self.crawl.ledger
        for url, page in ledger.pages.items():
            if witness.pool is None:
                assert page.v + page.spent == witness.received[url]
            else:
                assert ledger.cash(page) == witness.held[url]
            assert page.spent == witness.spent[url]
            assert page.inflow == (witness.inflow[url] if self.crawl.rules.inflow else 0)

    @invariant()
    def what_links_sent_is_a_share_of_the_history_of_each_page_that_shows_them(self) -> None:
        """Lemma 2.3 of the paper: H[j] + C[j] = C0[j] + sum of d H[i]/out[i], C0 being what was granted.

        It holds but for whole grains, and for history spent along other links than those shown now.
        """
        witness, books = self.crawl.witness, self.crawl.ledger.books
        if books.cuts or witness.host_pages_max or witness.counts.get("forgotten"):
            return  # Some of the links that a page divides by are not among those that `shown` has.
        damping = Fraction(MILLION - self.crawl.rules.q, MILLION)
        left = {url: Fraction(grains) for url, grains in witness.received.items()}
        for url, links in witness.shown.items():
            for link in links:
                left[link] -= damping * self.crawl.ledger.pages[url].spent / len(links)
        misplaced = damping * (witness.counts.get("drift_plus", 0) + witness.counts.get("drift_minus", 0))
        assert sum(map(abs, left.values())) <= misplaced + witness.counts.get("links", 0)

    @invariant()
    def paid_at_once_less_than_a_grain_a_page_stays_behind(self) -> None:
        live = self.crawl.witness.live()
        if self.crawl.rules.continuous and live:
            assert self.crawl.ledger.books.pool == self.crawl.witness.pool
            assert 0 <= self.crawl.ledger.books.pool < len(live)

    @invariant()
    def pages_are_known_gone_excluded_and_read_as_the_contract_says(self) -> None:
        witness, pages = self.crawl.witness, self.crawl.ledger.pages
        assert list(pages) == list(witness.known)
        assert [page.id for page in pages.values()] == list(range(len(pages)))

        def flagged(flag: int) -> set[str]:
            return {url for url, page in pages.items() if page.has(flag)}

        assert flagged(Flag.GONE) == witness.gone | witness.forgotten
        assert flagged(Flag.EXCLUDED) == witness.excluded
        assert flagged(Flag.OPEN) == set(witness.shown)
        assert flagged(Flag.KNOWN) == set(pages) - witness.forgotten

    @invariant()
    def everything_that_happened_was_counted(self) -> None:
        names = [
            "reads",
            "links",
            "bad_links",
            "failures",
            "departures",
            "exclusions",
            "seeds",
            "dead_letters",
            "forgotten",
        ]
        counted = {name: getattr(self.crawl.ledger.books, name) for name in names}
        assert counted == {name: self.crawl.witness.counts.get(name, 0) for name in names}

    @invariant()
    def what_makes_the_estimate_wrong_was_counted(self) -> None:
        books, counts = self.crawl.ledger.books, self.crawl.witness.counts
        assert books.drift_plus == min(counts.get("drift_plus", 0), CLOCK_LIMIT)  # It stops counting there.
        assert books.drift_minus == min(counts.get("drift_minus", 0), CLOCK_LIMIT)
        assert books.rounding == counts.get("rounding", 0)

    @invariant()
    def measures_are_the_last_reads_in_order(self) -> None:
        ledger = self.crawl.ledger
        for page in ledger.pages.values():
            assert len(page.measures) == min(page.reads, self.crawl.rules.measures_max)
            assert all(a.clock <= b.clock - b.cash for a, b in pairwise(page.measures))
            assert all(measure.clock <= ledger.books.clock for measure in page.measures)

    @invariant()
    def bound_covers_the_true_error(self) -> None:
        if self.crawl.witness.live() and not self.crawl.rules.continuous:
            assert self.crawl.error() <= self.crawl.bound() + FLOAT_SLACK

    @invariant()
    def bound_covers_the_error_also_where_links_to_gone_pages_keep_their_share(self) -> None:
        if self.crawl.witness.live() and not self.crawl.rules.continuous:
            error = self.crawl.error(links_to_gone_keep_their_share=True)
            assert error <= self.crawl.bound() + FLOAT_SLACK

    @invariant()
    def estimates_of_live_pages_sum_to_one(self) -> None:
        if self.crawl.witness.live():
            estimate = self.crawl.estimate()
            # Paid at once, all cash may have gone to gone pages: a few reads of the one live page that links to one.
            may_have_none = self.crawl.ledger.books.cuts or self.crawl.rules.continuous
            nobody_has_any = may_have_none and not estimate.any()
            assert nobody_has_any or estimate.sum() == pytest.approx(1, abs=1e-12)

    def teardown(self) -> None:
        if not hasattr(self, "crawl"):
            return
        self.check_in_flow()
        twin = Ledger(self.crawl.rules, self.crawl.ledger.limits)
        twin.apply("p", self.crawl.log)
        assert state(twin) == state(self.crawl.ledger), "one batch gives another state than many"
        twin.apply("p", self.crawl.log)
        assert state(twin) == state(self.crawl.ledger), "the log applied again changed something"
