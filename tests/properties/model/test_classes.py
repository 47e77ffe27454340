"""Weighted classes: grants follow the weights, whatever changes and when, and the bound is that of weighted PageRank.

The crawl is that of the ledger's own machine. Its witness is told the classes in the words of the manual and decides
for each page by itself, pattern by pattern.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count

import networkx as nx
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from ledger_machine import FIRST_DAY_S, HOST_PAGES_MAX, LINKS, PAGES, URLS, Crawl, LedgerMachine, Witness
from logs import NOW_US, PARTITION, pep_history
from logs import record as logged
from logs import seeds as logged_seeds
from same_state import BATCH_LINKS, assert_same, small_batches, small_blocks
from servers import Server

from opic.ingest import ShardWriter
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules, Flag
from opic.model.classes import ClassesChange, check_classes, encode_change, encode_classes, version_of
from opic.model.events import CrawlEvent, Record, encode_ids
from opic.model.ledger import Ledger
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl as Shards
from opic.store import Shard

numbers = count()
TAGS = ("news", "sport", "spam")
WEIGHTS = st.sampled_from([1, 2, 0.5, 10, 0.000001, 3.3, 1_000])
PATTERNS = {
    "hosts": st.lists(
        st.sampled_from(["a.example", "example", "www.b.example", "B.EXAMPLE", "c.net", "org"]), max_size=2
    ),
    "urls": st.lists(st.sampled_from([*URLS, "http://a.example", "HTTP://www.a.org/p"]), max_size=2),
    "contains": st.lists(st.sampled_from(["/1", "example", "https:", "q"]), max_size=1),
    "tags": st.lists(st.sampled_from(TAGS), max_size=2),
}


@st.composite
def definitions(draw: st.DrawFn) -> list[dict[str, object]]:
    names = draw(st.lists(st.sampled_from("abcdefghij"), max_size=7, unique=True))
    found = []
    for name in names:
        patterns = {kind: draw(some) for kind, some in PATTERNS.items()}
        if any(patterns.values()):
            found.append({"name": name, "weight": draw(WEIGHTS), **patterns})
    return found


def classes_record(offset: int, classes: list[dict[str, object]]) -> Record:
    return Record(offset, NOW_US + offset, encode_classes(check_classes(classes)), "classes")


def classify_record(offset: int, first: int, end: int) -> Record:
    return Record(offset, NOW_US + offset, encode_ids((first, end)), "classify")


@dataclass
class WeighedWitness(Witness):
    """Knows the definitions, and the class of each page by its own comparison."""

    classes: list[dict[str, object]] = field(default_factory=list)
    of: dict[str, str] = field(default_factory=dict)
    tagged: set[str] = field(default_factory=set)

    def see(self, url: str) -> None:
        if self.is_new(url):
            self.classify(url, ())
        super().see(url)

    def forget(self, urls: Sequence[str]) -> None:
        super().forget(urls)
        for url in self.forgotten:
            self.of.pop(url, None)
            self.tagged.discard(url)

    def classify(self, url: str, tags: tuple[str, ...]) -> None:
        host = url.split("/")[2].rpartition("@")[2].partition(":")[0]
        self.of.pop(url, None)
        self.tagged.discard(url)
        for one in self.classes:
            hosts = [str(h).lower() for h in one["hosts"]]  # type: ignore[attr-defined]
            prefixes = ["http://a.example/" if p == "http://a.example" else str(p).lower() for p in one["urls"]]  # type: ignore[attr-defined]
            by_url = any(host == h or host.endswith("." + h) for h in hosts)
            by_url = by_url or any(url.startswith(p) for p in prefixes)
            by_url = by_url or any(part in url for part in one["contains"])  # type: ignore[attr-defined]
            if by_url or set(tags) & set(one["tags"]):  # type: ignore[call-overload]
                self.of[url] = str(one["name"])
                if not by_url:
                    self.tagged.add(url)
                return

    def sweep(self, url: str) -> None:
        of = next((one for one in self.classes if one["name"] == self.of.get(url)), None)
        if not (url in self.tagged and of and of["tags"]):
            self.classify(url, ())

    def parts(self, url: str) -> int:
        """The weight of a page, in parts of a million. A class that is defined no more has weight 1."""
        weights = {str(one["name"]): one["weight"] for one in self.classes}
        return round(float(weights.get(self.of.get(url, ""), 1)) * MILLION)  # type: ignore[arg-type]

    def weight(self, url: str) -> float:
        return self.parts(url) / MILLION


class WeighedCrawl(Crawl):
    """The same crawl with the other witness."""

    witness: WeighedWitness

    def granted_to(self, url: str) -> int:
        if self.witness.is_new(url):
            self.witness.classify(url, ())
        return self.ledger.books.credit * self.witness.parts(url) // MILLION


class ClassesMachine(LedgerMachine):
    """The ledger's machine, while classes are defined anew, pages classified anew, and events come with tags."""

    crawl: WeighedCrawl

    @initialize(
        rules=st.sampled_from([CrawlRules(), CrawlRules(regrant_ppm=500_000), CrawlRules(q=500_000, inflow=False)]),
        web=st.fixed_dictionaries(dict.fromkeys(URLS, LINKS)),
        classes=definitions(),
        most=HOST_PAGES_MAX,
    )
    def genesis(
        self, rules: CrawlRules, web: dict[str, list[str]], classes: list[dict[str, object]], most: int
    ) -> None:
        self.crawl, self.web = WeighedCrawl(rules, witness=WeighedWitness(host_pages_max=most)), web
        self.define(classes)

    @rule(classes=definitions())
    def define_anew(self, classes: list[dict[str, object]]) -> None:
        self.define(classes)

    @rule(data=st.data(), weight=WEIGHTS)
    def reweigh(self, data: st.DataObject, weight: float) -> None:
        if self.crawl.witness.classes:
            at = data.draw(st.integers(0, len(self.crawl.witness.classes) - 1))
            classes = [dict(one) for one in self.crawl.witness.classes]
            classes[at]["weight"] = weight
            self.define(classes)

    @rule(data=st.data(), classes=definitions(), stale=st.booleans())
    def change_some(self, data: st.DataObject, classes: list[dict[str, object]], stale: bool) -> None:
        """Classes are set and removed by name; the change of another version is a dead letter and changes nothing."""
        witness, ledger = self.crawl.witness, self.crawl.ledger
        given = {str(one["name"]): one for one in classes}
        names = [str(one["name"]) for one in witness.classes]
        removed = [name for name in names if name not in given and data.draw(st.booleans())]
        present = version_of([one for _, one in ledger.classes.placed])
        version = "0" * 16 if stale else data.draw(st.sampled_from(["", present]))
        change = ClassesChange(check_classes(classes), tuple(removed), whole=False, version=version)
        wanted = [given.pop(str(one["name"]), one) for one in witness.classes if str(one["name"]) not in removed]
        wanted += list(given.values())
        if stale or len(wanted) > 7:
            letters = ledger.books.dead_letters
            self.crawl.append(encode_change(change), "classes")
            assert ledger.books.dead_letters == letters + 1
            witness.count("dead_letters")
        else:
            self.define(wanted, encode_change(change))

    def define(self, classes: list[dict[str, object]], value: bytes | None = None) -> None:
        books = self.crawl.ledger.books
        letters = books.dead_letters
        self.crawl.append(encode_classes(check_classes(classes)) if value is None else value, "classes")
        if books.dead_letters > letters:  # No slot was free.
            assert len({slot for slot, n in enumerate(books.known_by) if n} | {0}) + len(classes) > 7
            self.crawl.witness.count("dead_letters")
        else:
            self.crawl.witness.classes = classes
            names = {str(one["name"]) for one in classes}  # One that was left out and comes again is another class.
            self.crawl.witness.of = {url: name for url, name in self.crawl.witness.of.items() if name in names}

    @rule(first=st.integers(0, 7), count=st.integers(1, 9))
    def classify(self, first: int, count: int) -> None:
        self.crawl.append(encode_ids((first, first + count)), "classify")
        witness = self.crawl.witness
        for url in list(witness.known)[first : first + count]:
            if not witness.is_new(url):
                witness.sweep(url)

    @rule(
        url=PAGES, tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=2), status=st.sampled_from([200, 404, 500])
    )
    def tag(self, url: str, tags: list[str], status: int) -> None:
        """An event with tags decides the page's class anew before it takes effect."""
        witness, crawl = self.crawl.witness, self.crawl
        witness.see(url)
        if witness.classes:
            witness.classify(url, tuple(tags))
        granted = crawl.ledger.books.credit * witness.parts(url) // MILLION
        crawl.event(CrawlEvent(url, self.web[url], status=status, tags=tags), 0)
        if status == 200:
            witness.read(url, self.web[url], FIRST_DAY_S * MILLION, granted, crawl.rules.q)
        elif status == 404:
            witness.go_away(url, FIRST_DAY_S * MILLION)
        else:
            witness.notice(url, "failures")

    def teardown(self) -> None:
        if hasattr(self, "crawl"):
            self.pages_are_in_their_classes()
        super().teardown()

    def pages_are_in_their_classes(self) -> None:
        ledger, witness = self.crawl.ledger, self.crawl.witness
        names = {slot: one.name for slot, one in ledger.classes.placed}
        defined = {str(one["name"]) for one in witness.classes}
        for url, page in ledger.pages.items():
            meant = witness.of.get(url)
            assert names.get(page.slot) == (meant if meant in defined else None), url
            assert page.has(Flag.TAGGED) == (url in witness.tagged)


class ThoroughClassesMachine(ClassesMachine):
    """The same for longer."""


TestClasses = ClassesMachine.TestCase
TestClasses.settings = examples(100, stateful_step_count=30)
TestClassesThoroughly = pytest.mark.slow(ThoroughClassesMachine.TestCase)
TestClassesThoroughly.settings = examples(600, stateful_step_count=60)


# The store does the same.

STORE_PAGES = [f"http://{host}/{name}" for host in ("a.example", "www.a.example", "b.example") for name in "pqr"]
REMOVED = st.lists(st.sampled_from("abcdefghij"), max_size=1)
store_urls = st.sampled_from(STORE_PAGES)


@st.composite
def weighed_logs(draw: st.DrawFn) -> list[Record]:
    made = [classes_record(0, draw(definitions()))]
    for offset in range(1, draw(st.integers(2, 40))):
        kind = draw(st.sampled_from(["read"] * 8 + ["gone", "seeds", "tags", "tags", "classes", "classes", "classify"]))
        url, links = draw(store_urls), draw(st.lists(store_urls, max_size=6))
        at = NOW_US / MILLION - draw(st.integers(0, 20)) * 86_400
        if kind == "classes" and draw(st.booleans()):
            made.append(classes_record(offset, draw(definitions())))
        elif kind == "classes":
            change = ClassesChange(check_classes(draw(definitions())), tuple(draw(REMOVED)), whole=False)
            made.append(Record(offset, NOW_US + offset, encode_change(change), "classes"))
        elif kind == "classify":
            first = draw(st.integers(0, 8))
            made.append(classify_record(offset, first, first + draw(st.integers(1, 9))))
        elif kind == "seeds":
            made.append(logged_seeds(offset, url, *links))
        elif kind == "tags":
            made.append(
                logged(offset, url, links, tags=draw(st.lists(st.sampled_from(TAGS), min_size=1)), fetched_at=at)
            )
        else:
            made.append(logged(offset, url, links, status=404 if kind == "gone" else 200, fetched_at=at))
    return made


@examples(60)
@given(
    log=weighed_logs(),
    rules=st.sampled_from([CrawlRules(), CrawlRules(regrant_ppm=500_000), CONTINUOUS]),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12),
    links=BATCH_LINKS,
    journal_bytes=st.sampled_from([1, 5_000, 1 << 20]),
)
def test_store_with_classes_ends_in_the_state_of_the_ledger(
    valkey: Server, log: list[Record], rules: CrawlRules, turns: list[tuple[int, int]], links: int, journal_bytes: int
) -> None:
    """Cut anywhere, sent by three workers in turns, each with caches of its own; then all of it again."""
    ledger, client = Ledger(rules), valkey.client()
    ledger.apply(PARTITION, log)
    shard = Shard.open(client, f"classes-{next(numbers)}", asdict(rules))
    workers = [ShardWriter(shard, journal_bytes=journal_bytes) for _ in range(3)]
    with small_batches(links), small_blocks():
        for worker, size in turns:
            at = workers[worker].next_offset(PARTITION)
            workers[worker].apply(PARTITION, log[max(0, at - size // 2) : at + size])
        for store in workers:
            store.apply(PARTITION, log)
        assert_same(shard, ledger)
        assert Shards([shard]).follow()[0].classes == ledger.classes
    client.close()


def test_real_history_with_classes_ends_in_the_state_of_the_ledger(valkey: Server) -> None:
    classes = [
        {"name": "recent", "weight": 5, "contains": ["-06", "-07"]},
        {
            "name": "heads",
            "weight": 0.2,
            "urls": ["https://peps.python.org/pep-0000/", "https://peps.python.org/pep-0"],
        },
    ]
    history = [Record(0, NOW_US, encode_classes(check_classes(classes)), "classes")]
    history += [Record(n, r.time_us, r.value) for n, r in enumerate(pep_history()[:6_000], 1)]
    classes = [{**classes[0], "weight": 0.5}, {"name": "others", "weight": 3, "hosts": ["org"]}]
    history.append(Record(len(history), NOW_US, encode_classes(check_classes(classes)), "classes"))
    history += [classify_record(len(history), 0, 2_000)]
    history += [Record(len(history) + n, r.time_us, r.value) for n, r in enumerate(pep_history()[6_000:9_000])]
    ledger, shard = Ledger(), Shard.open(valkey.client())
    ledger.apply(PARTITION, history)
    assert ledger.books.taken_back > 0
    store = ShardWriter(shard)
    for at in range(0, len(history), 1_000):
        store.apply(PARTITION, history[at : at + 1_000])
    assert_same(shard, ledger)


# By hand, and by other means.


def test_a_change_of_weight_moves_the_cash_of_all_pages_of_a_class_at_once() -> None:
    ledger = Ledger(CrawlRules(regrant_ppm=0))
    ledger.apply(PARTITION, [classes_record(0, [{"name": "a", "weight": 3, "hosts": ["a.example"]}])])
    ledger.apply(PARTITION, [logged_seeds(1, "http://a.example/", "http://x.a.example/", "http://b.example/")])
    grant = ledger.rules.grant
    assert [ledger.cash(page) for page in ledger.pages.values()] == [3 * grant, 3 * grant, grant]
    ledger.apply(PARTITION, [logged(2, "http://a.example/", ["http://b.example/"])])
    ledger.apply(PARTITION, [classes_record(3, [{"name": "a", "weight": 1, "hosts": ["a.example"]}])])
    owes, unread, other = ledger.pages.values()
    assert (ledger.cash(owes), ledger.cash(unread)) == (-2 * grant, grant)
    assert ledger.cash(other) == pytest.approx(grant + 3 * grant * 0.85, abs=2)
    ledger.apply(PARTITION, [logged(4, "http://a.example/", ["http://b.example/"])])
    assert ledger.cash(owes) == 0
    assert ledger.cash(other) == pytest.approx(grant + grant * 0.85, abs=2)
    assert (ledger.books.taken_back, owes.spent) == (2 * grant, grant)
    assert ledger.audit().conserved


def test_a_page_with_negative_cash_takes_nothing_from_new_links() -> None:
    ledger = Ledger(CrawlRules(regrant_ppm=0))
    log = [classes_record(0, [{"name": "a", "weight": 3, "hosts": ["a.example"]}])]
    log += [logged(1, "http://a.example/", ["http://b.example/"]), classes_record(2, [])]
    log += [classify_record(3, 0, 2_000), logged(4, "http://a.example/", ["http://c.example/"])]
    ledger.apply(PARTITION, log)
    assert ledger.cash(ledger.pages["http://a.example/"]) == 0
    assert ledger.cash(ledger.pages["http://c.example/"]) == ledger.rules.grant
    assert ledger.audit().conserved


def test_the_number_of_a_removed_class_is_reused_once_it_has_no_pages() -> None:
    ledger = Ledger()
    old = [{"name": f"old-{n}", "weight": 2, "hosts": [f"h{n}.example"]} for n in range(7)]
    new = [{"name": f"new-{n}", "weight": 2, "hosts": [f"h{n}.example"]} for n in range(7)]
    log = [classes_record(0, old), logged_seeds(1, *(f"http://h{n}.example/" for n in range(7)))]
    log += [classes_record(2, new), classes_record(3, []), classify_record(4, 0, 7), classes_record(5, new)]
    ledger.apply(PARTITION, log[:3])
    assert ledger.books.dead_letters == 1
    ledger.apply(PARTITION, log)
    assert ledger.books.dead_letters == 1
    assert [one.name for _, one in ledger.classes.placed] == [f"new-{n}" for n in range(7)]


def test_weights_that_no_shard_could_grant_are_a_dead_letter_and_change_nothing() -> None:
    ledger = Ledger(CrawlRules(minted=1 << 62, grant=1 << 54, regrant_ppm=0))
    log = [classes_record(0, [{"name": "a", "weight": 1, "hosts": ["a.example"]}])]
    log += [
        logged_seeds(1, "http://a.example/"),
        classes_record(2, [{"name": "a", "weight": 600, "hosts": ["a.example"]}]),
    ]
    ledger.apply(PARTITION, log)
    assert ledger.books.dead_letters == 1
    assert ledger.cash(ledger.pages["http://a.example/"]) == 1 << 54
    assert ledger.audit().conserved


def test_under_the_continuous_payout_classes_are_a_dead_letter() -> None:
    ledger = Ledger(CONTINUOUS)
    ledger.apply(PARTITION, [classes_record(0, [{"name": "a", "weight": 2, "hosts": ["a.example"]}])])
    assert (ledger.books.dead_letters, bool(ledger.classes)) == (1, False)


@pytest.mark.parametrize("changes", [False, True], ids=["from the start", "changed midway, with a cut"])
def test_a_weighted_crawl_ends_at_the_personalized_pagerank_of_networkx(changes: bool) -> None:
    graph = nx.karate_club_graph().to_directed()
    urls = {
        node: f"http://{'club' if data['club'] == 'Mr. Hi' else 'rival'}.example/{node}"
        for node, data in graph.nodes(data=True)
    }
    weights = {"club": 4.0, "rival": 0.25}
    first = {"club": 0.5, "rival": 10.0} if changes else weights
    ledger = Ledger(CrawlRules(regrant_ppm=500))

    def define(given: dict[str, float]) -> None:
        at = ledger.next_offset(PARTITION)
        classes = [{"name": name, "weight": weight, "hosts": [f"{name}.example"]} for name, weight in given.items()]
        ledger.apply(PARTITION, [classes_record(at, classes), classify_record(at + 1, 0, 2_000)])

    def bound() -> float:
        debt = sum(max(-ledger.cash(page), 0) for page in ledger.pages.values())
        return ledger.books.error_bound(ledger.rules.minted, ledger.rules.q, debt)

    define(first)
    ledger.apply(PARTITION, [logged_seeds(2, *urls.values())])
    node_of = {url: node for node, url in urls.items()}
    for reads in range(20_000):
        if reads == 200 and changes:
            define(weights)
        if reads > 200 and bound() < 0.01:
            break
        page = max(ledger.pages.values(), key=lambda page: (abs(ledger.cash(page)), -page.id))
        links = [urls[to] for to in graph.successors(node_of[page.url])]
        ledger.apply(PARTITION, [logged(ledger.next_offset(PARTITION), page.url, links)])
    assert bound() < 0.01
    assert (ledger.books.taken_back > 0) == changes
    teleport = {node: weights["club" if "club" in url else "rival"] for node, url in urls.items()}
    exact = nx.pagerank(
        graph, 0.85, personalization=teleport, dangling=teleport, tol=1e-12, max_iter=1_000, weight=None
    )
    total = ledger.books.importance_total(ledger.rules.minted)
    held = {node_of[page.url]: (page.spent + ledger.cash(page)) / total for page in ledger.pages.values()}
    error = sum(abs(held[node] - exact[node]) for node in graph)
    assert error <= bound()
    uniform = nx.pagerank(graph, 0.85, tol=1e-12, weight=None)
    assert sum(abs(exact[node] - uniform[node]) for node in graph) > 0.2


def test_tags_decide_until_an_event_with_tags_says_otherwise() -> None:
    ledger = Ledger()
    classes = [{"name": "spam", "weight": 0.1, "tags": ["spam"]}, {"name": "a", "weight": 2, "hosts": ["a.example"]}]
    url = "http://a.example/"

    def name_after(*records: Record) -> str | None:
        ledger.apply(PARTITION, records)
        names = {slot: one.name for slot, one in ledger.classes.placed}
        return names.get(ledger.pages[url].slot)

    assert name_after(classes_record(0, classes), logged(1, url)) == "a"
    assert name_after(logged(2, url, tags=["spam"])) == "spam"
    assert name_after(logged(3, url), classify_record(4, 0, 9)) == "spam"
    assert name_after(logged(5, url, tags=["news"])) == "a"
    assert name_after(logged(6, url, tags=["spam"]), classes_record(7, classes[1:]), classify_record(8, 0, 9)) == "a"


def test_a_page_with_negative_cash_shows_0_and_all_shares_sum_to_one(valkey: Server) -> None:
    """Its parent gave to others, then showed it alone, then took back there what the others had got."""
    a, b, c, d = (f"http://{name}.example/" for name in "abcd")
    heavy = [{"name": "a", "weight": 100, "hosts": ["a.example"]}]
    store = ShardWriter(Shard.open(valkey.client(), given={"regrant_ppm": 0}))
    log = [classes_record(0, heavy), logged_seeds(1, a, b, c, d), logged(2, a, [b]), logged(3, a, [c])]
    log += [classes_record(4, []), logged(5, a, [c])]
    store.apply(PARTITION, log)
    query = Query(Shards([store.shard]), Snapshots(Shards([store.shard])))
    found = [page for page in query.importance([a, b, c, d]) if page]
    assert [page["importance"] == 0 for page in found] == [False, False, True, False]
    assert sum(float(str(page["importance"])) for page in found) == pytest.approx(1)
    assert sum(float(str(page["importance"])) for page in query.top()) == pytest.approx(1)
    assert Shards([store.shard]).audit()[0].conserved
