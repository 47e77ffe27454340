"""The frontier's interface for the HTTP endpoint, the command line and replays: next, peek, explain, release."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import asdict

from opic.admission import Admission
from opic.arrays import Int64s
from opic.errors import NotKept
from opic.frontier import page_counts
from opic.frontier.crawl_orders import CrawlOrders
from opic.frontier.held_pages import read_host_politeness, write_host_politeness
from opic.frontier.leases import await_leases, leases_of, release_leases, renew_leases, server_runs
from opic.frontier.next_answers import Shares, static_shares
from opic.frontier.page_counts import CENSUS_KINDS
from opic.frontier.page_keys import GREEDY, OFFERED_BITS
from opic.frontier.requests import (
    DOMAIN_BYTES,
    NEED_YIELDS,
    FrontierTerms,
    PagesRequest,
    PolitenessSettings,
    check_lease_seconds,
)
from opic.frontier.scheduler import FrontierScheduler, Peeked
from opic.frontier.standing import PageStanding, place_in_order, read_group, state_of
from opic.messages import sentences
from opic.messages.frontier import (
    FrontierPage,
    FrontierPreview,
    HostGroup,
    HostPoliteness,
    NextPages,
    Released,
    Renewed,
    RenewedLease,
)
from opic.messages.importance import Standing
from opic.model.cash import MILLION, Flag
from opic.model.classes import OTHERS
from opic.query.coverage import CoverageQuery
from opic.query.fetch_order import FetchOrder
from opic.query.kept_links import KeptLinks
from opic.query.loaded_order import LoadedOrder
from opic.replica import Crawl
from opic.urls.canonical import URL_BYTES_MAX, canonical_host, canonical_url, host_of, shard_of

JUDGE_BATCHES_COUNTED: Final = 40  # Takes some 50 ms.


class PagesToFetch(NamedTuple):
    """The known pages that were never read."""

    pages: int  # Still to be fetched: free, leased, or to be offered later.
    failed: int  # Given up.
    denied: int  # Not to be fetched: 401, 403, 451, robots.txt, a rule, a trap.
    outside: int  # Outside the scope of the crawl.


class Frontier:
    """Hands out the pages of a crawl. Thread-safe."""

    def __init__(
        self,
        crawl: Crawl,
        politeness: PolitenessSettings | None = None,
        discovery: float = 1.0,
        *,
        strategy: str = GREEDY,
        share: float | None = None,
        admission: Admission | None = None,
        pending: Callable[[], bool] = lambda: False,
        coverage: CoverageQuery | None = None,
        links: KeptLinks | None = None,
        worth: FetchOrder | LoadedOrder | None = None,
        domain_bytes: int = DOMAIN_BYTES,
        shares: Shares = static_shares,
    ) -> None:
        """Offer the pages of an open crawl.

        Args:
            crawl: the crawl whose pages are offered.
            politeness: host delay, retry delay, lease duration and host cap.
            discovery: factor on the cash of pages never read, in the greedy order.
            strategy: what orders the pages: "greedy", "random" or "cycle"; see `opic.frontier.page_keys`.
            share: fraction of never-read pages in answers with mode "any", as far as there are such pages; purely by
                the strategy if None.
            admission: filters pages that must not be offered.
            pending: whether accepted events have yet to take effect; then no answer says that pages are exhausted.
            coverage: the coverage of the crawl, for mode "coverage".
            links: the kept links of the crawl, for the policies LDU, GAI and AI.
            worth: the order by importance, which comes before the strategy as soon as there is one; None for never.
            domain_bytes: how much the cached hosts and pages of domains that requests name may take.
            shares: tells the importance of pages by the default policy, without asking the store.
        """
        self.crawl, self.politeness = crawl, politeness or PolitenessSettings()
        self.admission, self._orders = admission, CrawlOrders(crawl, coverage, worth, links)
        self._terms = FrontierTerms(
            self.politeness, discovery, strategy, share, domain_bytes, importance=worth.name if worth else "exact"
        )
        self._scheduler = FrontierScheduler(crawl, self._terms, admission, pending, self._orders, shares=shares)
        self._shares = shares

    def next(self, n: int = 10, crawler: str = "", **terms: Any) -> NextPages:
        """Lease the first pages by the strategy, by default those with the most cash, to a crawler.

        Args:
            n: maximum number of pages; at most one page of a host that has a delay. While `n` plus the active leases
                exceed a tenth of the live pages, the batch ends at half of its best page's cash, if greedy.
            crawler: name of the crawler. Its events, and not those of an earlier crawler, end its leases.
            terms: the other parameters of `request`.

        Returns:
            The pages in the order of the strategy. Without any, `retry_after` is at most a minute, and at most 5 s
            while leases are active, because their fetches move cash; with some, `waiting` does not consider
            `max_depth`. `exhausted`: no page is held back but for good, and all accepted events took effect.

        Raises:
            BadInput: a parameter is invalid.
            NotKept: the policy needs what the service does not keep.
            NoTrust: the mode is "coverage", and no page is trusted.
        """
        return self.next_many([self.request(n, crawler=crawler, **terms)])[0]

    def request(self, n: int, *, lease_seconds: float | None = None, mode: str = "any", **more: Any) -> PagesRequest:
        """Validate a request for pages.

        Args:
            n: maximum number of pages.
            lease_seconds: duration of the leases; the configured duration if None.
            mode: a field of `PagesRequest`.
            more: the other parameters of `PagesRequest.of`.

        Raises:
            BadInput: a parameter is invalid.
            NotKept: the policy needs what the service does not keep.
        """
        seconds = self.politeness.lease_seconds if lease_seconds is None else lease_seconds
        request = PagesRequest.of(n, seconds, mode=mode, normalization=self.crawl.rules.normalization, **more)
        if request.policy in NEED_YIELDS and not self.crawl.replicas[0].keeps_yields:
            raise NotKept(
                f"policy={request.policy} needs what past reads of each page discovered, which "
                "OPIC_YIELDS=off does not keep; policy=U works without"
            )
        return request

    @property
    def refusals(self) -> int:
        """How many pages were chosen here and not leased: another endpoint leased them, or their host, or they wait."""
        return self._scheduler.refusals

    def next_many(self, requests: Sequence[PagesRequest]) -> list[NextPages]:
        """Answer several requests together, mostly in one round trip, as if they had come one after the other."""
        return self._scheduler.serve(requests)

    def peek(self, n: int = 10, domain: str | None = None, mode: str = "any") -> FrontierPreview:
        """Return the pages that would be handed out next, without leasing them. It is for inspection and no guarantee.

        Args:
            n: maximum number of pages; at most one page of a host that has a delay.
            domain: only pages of this host or domain and its subdomains.
            mode: as in `next`.

        Raises:
            BadInput: a parameter is invalid.
        """
        request, as_of = self.request(n, domain=domain, mode=mode), time.time()
        peeked, policy, pages = self.crawl.steadily(lambda: self._peeked(request))
        waiting, exhausted, _ = peeked.shortage
        outside = self.outside() if domain is None else 0
        why = sentences.held_back(asdict(waiting), bool(pages), self.crawl.totals().live, outside)
        return FrontierPreview(pages, policy, peeked.order, exhausted, waiting, why, as_of)

    def _peeked(self, request: PagesRequest) -> tuple[Peeked, str, list[FrontierPage]]:
        """Return what would be handed out next, the policy of importance, and the pages with their values."""
        peeked = self._scheduler.peek(request)
        places = peeked.places
        policy, shares = self._shares(places)
        if not places:
            return peeked, policy, []
        rows, urls = self.crawl.rows(places), self.crawl.urls_of(places)
        total = self._scheduler.hot.total(rows.books)
        columns = (rows.cash.tolist(), rows.spent.tolist(), rows.reads.tolist())
        pages = [
            FrontierPage(
                url=urls[shard_page],
                host=host_of(urls[shard_page]),
                cash=cash,
                importance=min(max(spent + cash, 0) / total, 1.0) if share is None else share,
                fetched_before=reads > 0,
                key=key,
            )
            for shard_page, share, key, cash, spent, reads in zip(places, shares, peeked.keys, *columns, strict=True)
            if urls[shard_page]  # It was forgotten a moment ago.
        ]
        return peeked, policy, pages

    def explain(self, url: str, url_bytes_max: int = URL_BYTES_MAX) -> Standing | None:
        """Explain why a page is or is not handed out next; None for a page never seen.

        Raises:
            BadUrl: the URL is invalid.
        """
        canonical = canonical_url(url, url_bytes_max, self.crawl.rules.normalization)
        return self.crawl.steadily(lambda: self._explained(canonical))

    def _explained(self, canonical: str) -> Standing | None:
        (shard_page,) = self.crawl.ids_of([canonical])
        if shard_page is None:
            return None
        if self.admission is not None:
            self.admission.check_policy()
            self.admission.judge({shard_page[0]: np.array([shard_page[1]])})
        standing = PageStanding.read(self.crawl, shard_page, canonical, self.politeness, self.admission)
        hindrances = standing.hindrances()
        why_not = [row.why(standing) for row in hindrances]
        if not standing.state & Flag.KNOWN:
            hindrances, why_not = [], ["the page is not known"]
        ranked = self._orders.by_importance()
        return Standing(
            state=state_of(standing),
            held_back=list(dict.fromkeys(row.word for row in hindrances if row.word)),
            host=standing.host,
            lease_until=standing.lease_until,
            waits_until=standing.waits_until,
            failures=standing.failures,
            failed_fetches=standing.failed_fetches,
            max_failures=self.politeness.max_failures or None,
            not_before=standing.not_before,
            priority=standing.priority,
            refused=standing.refused,
            revisit_at=standing.revisit_at,
            revisit_seconds=standing.revisit_seconds,
            host_free_at=standing.host_free_at,
            host_address=standing.group.address,
            host_group=standing.group.name,
            host_delay_seconds=standing.delay,
            host_in_flight=standing.in_flight,
            host_in_flight_max=standing.cap or None,
            rules=standing.rules,
            place=place_in_order(self.crawl.replicas, shard_page, self._terms, ranked),
            order=self._terms.order(ranked=ranked is not None),
            next=not why_not,
            why_not=why_not,
        )

    def to_fetch(self) -> PagesToFetch:
        """Count the pages that were never read, by whether they are still to be fetched. Looks at no page."""
        never = self._scheduler.ask(self._scheduler.hot.kinds)[:, 0]
        denied = page_counts.total(never, "denied")
        outside = min(self.outside(), denied)
        return PagesToFetch(
            pages=int(never[page_counts.TEMPORARY].sum()),
            failed=page_counts.total(never, "given_up"),
            denied=denied - outside,
            outside=outside,
        )

    def census(self) -> dict[tuple[str, str], int]:
        """Count all pages by the name of their class and by what holds them back, one of `CENSUS_KINDS`.

        Costs some 10 ms for a million pages. Leases of other endpoints count once this one has heard of them, and what
        rules deny once they have judged it.
        """
        counts = self._scheduler.ask(self._scheduler.hot.census).tolist()
        totals, names = Counter[tuple[str, str]](), self.crawl.replicas[0].classes.names
        for slot, row in enumerate(counts):
            if any(row) or not slot:
                totals.update({(names.get(slot, OTHERS), kind): n for kind, n in zip(CENSUS_KINDS, row, strict=True)})
        return totals

    def group_counts(self) -> tuple[int, int]:
        """Count the politeness groups of hosts, and the pages that nothing but their rests holds back."""
        return self._scheduler.ask(self._scheduler.hot.group_counts)

    def given_up(self) -> Iterator[tuple[int, Int64s]]:
        """Yield each shard with its pages that are given up, and neither gone nor excluded."""
        for shard, replica in enumerate(self.crawl.replicas):
            with replica.lock:
                ids = replica.given_up_pages(self.politeness.patience)
                ids = ids[(replica.state[ids] & OFFERED_BITS) == Flag.KNOWN]
            yield shard, ids

    def outside(self) -> int:
        """Count the known pages outside the crawl's scope, as far as they were judged."""
        if self.admission is None:
            return 0
        self._scheduler.ask(lambda: self._scheduler.hot.judge_batches(JUDGE_BATCHES_COUNTED))
        return self.admission.outside()

    def host_politeness(self) -> dict[str, HostPoliteness]:
        """Return what an operator set for each host: delay, cap, revisit time; None where the default applies."""
        return read_host_politeness(self.crawl)

    def host_group(self, host: str) -> HostGroup:
        """Return the address of a host, and the politeness group that it belongs to.

        Raises:
            BadInput: `host` is not a host.
        """
        name = self._host(host)
        keys = self.crawl.shards[shard_of(name, len(self.crawl))].keys
        (address,) = self.crawl.ask([["HGET", keys.addresses, name]])
        group = read_group(self.crawl, name, address, self.politeness.by)
        return HostGroup(name, group.address, group.name, group.rests_seconds)

    def set_host_politeness(self, hosts: Mapping[str, HostPoliteness]) -> None:
        """Replace the delays, caps and revisit times of all hosts, for all endpoints.

        Args:
            hosts: by canonical host; 0 means no delay, no cap, no revisit time.
        """
        write_host_politeness(self.crawl, hosts)
        self._scheduler.forget()

    def report_delay(self, host: str, seconds: float) -> None:
        """Store the crawl-delay of a host, for all endpoints; 0 removes it. Ignored if the host has no pages.

        Unlike the delays in a request for pages, it is not cut to CRAWL_DELAY_SECONDS_MAX.

        Raises:
            BadInput: `host` is not a host.
        """
        self.crawl.follow()
        self._scheduler.hot.report({self._host(host): seconds})

    def block(self, host: str, until: float) -> None:
        """Hand out no page of a host before a time, in Unix seconds, at all endpoints; a past time ends the block.

        Existing leases are unaffected. Ignored if the host has no pages.

        Raises:
            BadInput: `host` is not a host.
        """
        self.crawl.follow()
        self._scheduler.hot.block(self._host(host), until)

    def limit(self, host: str, pages: int) -> bool:
        """Hand out no page of a host once `pages` of its pages were read, at all endpoints; 0 ends the limit.

        Pages leased by then may still be read.

        Returns:
            Whether the host has pages; otherwise it can't have a limit.

        Raises:
            BadInput: `host` is not a host.
        """
        self.crawl.follow()
        return self._scheduler.hot.limit(self._host(host), pages)

    def _host(self, name: str) -> str:
        """Return a host as it stands in the URLs of the crawl's pages."""
        return canonical_host(name, self.crawl.rules.normalization)

    def release(self, leases: Sequence[str]) -> Released:
        """Release leases without fetching the pages; host delays stay in effect.

        A lease that ended, or whose page is now leased to another crawler, is not counted.

        Raises:
            BadInput: a string is not a lease; then none is released.
        """
        named = leases_of(self.crawl, leases).values()
        return Released(release_leases(self.crawl, [lease for lease in named if lease is not None]))

    def renew(self, leases: Sequence[str], lease_seconds: float | None = None) -> Renewed:
        """Let leases run for `lease_seconds` from now, the configured duration if None. They keep their tokens.

        Raises:
            BadInput: a string is not a lease, or the duration is invalid; then none is renewed.
        """
        seconds = check_lease_seconds(self.politeness.lease_seconds if lease_seconds is None else lease_seconds)
        named = leases_of(self.crawl, leases)
        runs = server_runs(self.crawl)
        ends = renew_leases(self.crawl, [lease for lease in named.values() if lease is not None], seconds)
        await_leases(self.crawl, ends, runs)
        renewed = {
            token: ends[lease] / MILLION for token, lease in named.items() if lease is not None and lease in ends
        }
        lost = [token for token in named if token not in renewed]
        return Renewed([RenewedLease(token, until) for token, until in renewed.items()], lost)
