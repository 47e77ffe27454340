"""A replica that changes in the middle of a question: the answer is of one state, the one before or the one after."""

import re
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any

import pytest
from example_counts import THOROUGH
from logs import PARTITION, record, seeds
from msgspec.structs import replace
from servers import Server

from opic.admission import Admission, check_policy
from opic.admission import admission as admissions
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.events import Record
from opic.query.explain import explain
from opic.query.inflow import inflow
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.stored_crawls import begin_anew
from opic.store import Shard

POINTS_MAX = 200
EACH = 1 if THOROUGH else 3  # Of the points one in so many is tried; each question begins at another one.
KNOWN = "http://b.one.org/1"  # In both stores, under another id.
PAGES = [f"http://{host}.one.org/{i}" for i in range(8) for host in "abcde"]
FEWER = [KNOWN, "http://x.two.org/", "http://y.two.org/", "http://z.two.org/"]


def reads(first: int, urls: list[str]) -> list[Record]:
    """Each page but the last links to the first and to the one after it, so that all have other cash."""
    return [record(first + i, url, [urls[0], urls[i + 1]]) for i, url in enumerate(urls[:-1])]


BEFORE = [seeds(0, *PAGES), *reads(1, PAGES[::5])]
AFTER = [seeds(0, *FEWER), *reads(1, FEWER[:3])]
GROWN = [record(30, KNOWN, [f"http://new{i}.three.org/" for i in range(40)])]


def write(server: Server, records: list[Record]) -> None:
    """As another process: with a connection of its own."""
    with server.client() as client:
        store = ShardWriter(Shard.open(client))
        store.apply(PARTITION, records)
        crawl = Crawl([store.shard])
        Admission(crawl).put(check_policy({"traps": {"host_pages": 2}}))


class WatchedLock:
    """A replica's lock that tells whenever it is free again."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._lock, self._depth, self._told = RLock(), 0, told

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        depth = self._depth
        self._lock.release()
        if not depth:
            self._told()


class Endpoint:
    """What an endpoint has, with a place for something to happen wherever another thread might get a word in."""

    def __init__(self, server: Server, deed: Callable[["Endpoint"], None]) -> None:
        self.server, self.settings = server, None
        self.crawl = Crawl.open(server.client(), create=False)
        self._points, self._wanted, self._deed = 0, -1, deed
        self.crawl.replicas[0].lock = WatchedLock(self._point)  # type: ignore[assignment]
        self.snapshots = Snapshots(self.crawl)
        self.query, self.admission = Query(self.crawl, self.snapshots), Admission(self.crawl)
        self.frontier = Frontier(self.crawl, PolitenessSettings(host_delay_seconds=0.0), admission=self.admission)
        one_each = PolitenessSettings(host_delay_seconds=0.0, host_in_flight=1)
        self.in_turns = Frontier(self.crawl, one_each, share=0.5, admission=self.admission)
        self._ask, self.crawl.ask = self.crawl.ask, self._asked  # type: ignore[method-assign]
        self.frontier.peek(3)  # It has been asked before.

    def next(self) -> object:
        return self._next(self.frontier, 3)

    def next_in_turns(self) -> object:
        """Of hosts that may have one page in flight, so that most of what is chosen is refused at first."""
        return self._next(self.in_turns, 6)

    def _next(self, frontier: Frontier, n: int) -> object:
        self.leased: Any = frontier.next(n).pages
        return [replace(page, lease="", lease_until=0.0) for page in self.leased]

    def _asked(self, commands: Any) -> list[Any]:
        answers = self._ask(commands)
        self._point()
        return answers

    def _point(self) -> None:
        if self.crawl._following.locked():
            return  # The thread that lets the replicas follow is the one that would change them.
        self._points += 1
        if self._points - 1 == self._wanted:
            self._wanted = -1
            self._deed(self)
            self.crawl.follow()

    def change_at(self, point: int) -> None:
        """Let the deed be done at a point from here on."""
        self._points, self._wanted = 0, point

    @property
    def changed(self) -> bool:
        return self._wanted == -1


def make_anew(endpoint: Endpoint) -> None:
    endpoint.server.client().flushall()
    begin_anew(endpoint.server.client(), "default", {}, 1)
    write(endpoint.server, AFTER)


def load_again(endpoint: Endpoint) -> None:
    """As after the journal was trimmed under it."""
    endpoint.crawl._followers[0].load()


def grow(endpoint: Endpoint) -> None:
    write(endpoint.server, GROWN)


def standing(endpoint: Endpoint) -> object:
    """What stands against a page, without the times, which go on."""
    found = endpoint.frontier.explain(KNOWN)
    assert found is not None
    return found.state, found.host, found.failures, found.place, found.next, found.host_in_flight, found.rules


QUESTIONS: dict[str, Callable[[Endpoint], object]] = {
    "next": Endpoint.next,
    "next in turns": Endpoint.next_in_turns,
    "peek": lambda asked: asked.frontier.peek(3).pages,
    "why next": standing,
    "importance": lambda asked: asked.query.importance([KNOWN, PAGES[0], FEWER[1]]),
    "window": lambda asked: asked.query.importance([KNOWN, PAGES[0]], "interpolation"),
    "top": lambda asked: asked.query.top(3),
    "top of a domain": lambda asked: asked.query.top(3, "one.org"),
    "history": lambda asked: asked.query.history(KNOWN),
    "hosts": lambda asked: asked.query.sites("host", 3)["hosts"],
    "explain": lambda asked: {**explain(asked.query, KNOWN), "as_of": 0},
    "inflow": lambda asked: {**inflow(asked.query, "one.org"), "as_of": 0},
    "census": lambda asked: asked.frontier.census(),
    "pages held back": lambda asked: asked.admission.counts(asked.snapshots.fresh()),
}


def first_point(question: str) -> int:
    return list(QUESTIONS).index(question) % EACH


@pytest.fixture(autouse=True)
def always_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "WEIGH_REST", 0)
    monkeypatch.setattr(admissions, "WEIGH_SECONDS_MIN", 0.0)
    monkeypatch.setattr(admissions, "LOOK_SECONDS", 0.0)


def nothing(_: Endpoint) -> None:
    pass


def begun(server: Server, deed: Callable[[Endpoint], None] = nothing) -> Endpoint:
    server.client().flushall()
    write(server, BEFORE)
    return Endpoint(server, deed)


def answers_at_each_point(
    server: Server, ask: Callable[[Endpoint], object], deed: Callable[[Endpoint], None], first: int = 0, each: int = 1
) -> Iterator[tuple[int, Endpoint, object]]:
    """Yield what an endpoint answers under which a deed is done at its first point, the next one with the second .."""
    for point in range(first, POINTS_MAX, each):
        endpoint = begun(server, deed)
        endpoint.change_at(point)
        answer = ask(endpoint)
        if not endpoint.changed:
            return
        yield point, endpoint, answer
    raise AssertionError("there is no end to it")


@pytest.mark.slow
@pytest.mark.parametrize("deed", [make_anew, load_again])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answer_is_of_one_state_whenever_a_replica_is_reloaded(
    valkey: Server, question: str, deed: Callable[[Endpoint], None]
) -> None:
    ask, endpoint = QUESTIONS[question], begun(valkey)
    expected = [ask(endpoint)]
    deed(begun(valkey))
    expected.append(ask(Endpoint(valkey, nothing)))
    for point, _, answer in answers_at_each_point(valkey, ask, deed, first_point(question), EACH):
        assert answer in expected, f"at point {point}"


@pytest.mark.slow
@pytest.mark.parametrize("ask", [Endpoint.next, Endpoint.next_in_turns])
def test_pages_suggested_from_a_recreated_store_are_the_leased_ones(
    valkey: Server, ask: Callable[[Endpoint], object]
) -> None:
    """Not those that had these ids before."""
    after = 0
    for point, endpoint, _ in answers_at_each_point(valkey, ask, make_anew):
        keys = endpoint.crawl.shards[0].keys
        leased = set(map(int, endpoint.crawl.client.zrange(keys.leases, 0, -1)))
        places = endpoint.crawl.ids_of([page.url for page in endpoint.leased])
        if None not in places:
            after += 1
            assert {place[1] for place in places if place} == leased, f"at point {point}"
    assert after > 3


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_query_is_answered_whenever_pages_and_hosts_become_known(valkey: Server, question: str) -> None:
    known = {*PAGES, *(f"http://new{i}.three.org/" for i in range(40))}
    for point, _, answer in answers_at_each_point(valkey, QUESTIONS[question], grow, first_point(question), EACH):
        assert known >= set(re.findall(r"http://[^']+", repr(answer))), f"at point {point}"


def test_explanation_of_a_page_is_of_one_state(valkey: Server) -> None:
    for point, _, answer in answers_at_each_point(valkey, QUESTIONS["explain"], grow):
        assert isinstance(answer, dict)
        history = answer["history"]
        assert answer["reads"] == history["reads"] == len(history["measures"]), f"at point {point}"
        assert answer["last_read_clock"] == (history["measures"][-1]["clock"] if history["reads"] else None)
        assert answer["cash"] == answer["cash_parts"]["deposits"] + answer["cash_parts"]["credit"]
