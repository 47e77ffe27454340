"""Pages that rules or traps keep back cost other pages nothing: no call fails or stays empty because of them."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import pytest
from logs import PARTITION
from servers import Server

from opic.admission import Admission, check_policy
from opic.frontier import Frontier, PolitenessSettings, choices, hot_crawl, page_counts
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.query.coverage import CoverageQuery
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow

NOW_US = 1_790_000_000_000_000
NEXT, CALLS, UNFIT = 10, 12, 2_400
FREE = [f"http://h{n % 150}.org/{n}" for n in range(300)]
DENIED = [f"http://big.example/{n}" for n in range(UNFIT)]
TRAPS = [f"http://trap{n % 400}.example/{n}/" + "a" * 1_100 for n in range(UNFIT)]
RULE = {"rules": [{"effect": "deny", "host": "big.example"}]}
MODES: Mapping[str, Mapping[str, Any]] = {
    "any": {},
    "discover": {"mode": "discover"},
    "refresh": {"mode": "refresh"},
    "policy": {"mode": "refresh", "policy": "U"},
    "coverage": {"mode": "coverage"},
    "domains": {"domains": ["org", "example"]},
    "depth": {"max_depth": 2},
}

ALIKE = MODES.keys() - {"any", "refresh"}  # Those that differ on one shard, or without a delay, in nothing else.


class World:
    """A crawl with free pages, among which unfit ones have the most cash, and an endpoint that knows it all."""

    def __init__(self, server: Server, shards: int, delay: float) -> None:
        self.crawl = Crawl.open(server.client(), "unfit", given={"shards": shards, "regrant_ppm": 0}, keep_links=True)
        self._writer, self._offset, self._delay = Writer(self.crawl), count(), delay

    def apply(self, value: bytes, kind: str) -> None:
        offset = next(self._offset)
        self._writer.apply(PARTITION, [Record(offset, NOW_US + offset, value, kind)])
        while self._writer.deliver():
            pass

    def link(self, source: str, urls: list[str]) -> None:
        self.apply(encode_crawl_event(CrawlEvent(url=source, links=urls)), "event")

    def fill(self, unfit: list[str], *, read: bool) -> None:
        """Free pages, and unfit ones with more cash; both read before if `read`."""
        self.apply(encode_seeds(FREE, 0, trust=1.0), "seeds")
        hub = "http://hub.example/"
        self.apply(encode_seeds([hub], 0, trust=1_000.0), "seeds")
        if read:
            for url in [*FREE, *unfit[: len(FREE)]]:
                self.link(url, [hub])
            unfit = unfit[: len(FREE)]
        self.link(hub, [*unfit, *FREE] if read else unfit)

    def endpoint(self) -> tuple[Frontier, Admission]:
        crawl = Crawl.open(self.crawl.client, "unfit", create=False)
        admission, coverage = Admission(crawl), CoverageQuery(PageFlows(KeptLinks(crawl)))
        return Frontier(crawl, PolitenessSettings(self._delay), admission=admission, coverage=coverage), admission


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store is a large one, and only pages that are chosen are judged."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    monkeypatch.setattr(hot_crawl, "JUDGE_REST", 1e12)
    monkeypatch.setattr(hot_crawl, "JUDGE_REST_SUSPECTS", 1e12)
    monkeypatch.setattr(choices, "JUDGE_SECONDS", 5.0)  # The machine may be busy.
    monkeypatch.setattr(choices, "JUDGE_SECONDS_MAX", 5.0)
    return


@pytest.fixture
def world(valkey: Server) -> Callable[[int, float], World]:
    valkey.reset()
    return lambda shards, delay: World(valkey, shards, delay)


@pytest.mark.parametrize(
    ("mode", "shards", "delay"),
    [
        pytest.param(mode, *terms, marks=pytest.mark.thorough if terms != (3, 60.0) and mode in ALIKE else ())
        for terms in ((1, 60.0), (1, 0.0), (3, 60.0))
        for mode in MODES
    ],
)
@pytest.mark.usefixtures("large")
def test_denied_pages_with_the_most_cash_leave_every_answer_full(
    world: Callable[[int, float], World], mode: str, shards: int, delay: float
) -> None:
    made = world(shards, delay)
    made.fill(DENIED, read=MODES[mode].get("mode") == "refresh")
    frontier, admission = made.endpoint()
    admission.put(check_policy(RULE))
    for _ in range(CALLS):
        found: Any = frontier.next(NEXT, **MODES[mode]).pages
        assert len(found) == NEXT
        assert "big.example" not in {host_of(page.url) for page in found}


@pytest.mark.parametrize("mode", ["any", "domains"])
@pytest.mark.usefixtures("large")
def test_traps_on_many_hosts_leave_every_answer_full(world: Callable[[int, float], World], mode: str) -> None:
    made = world(1, 60.0)
    made.fill(TRAPS, read=False)
    frontier, _ = made.endpoint()
    for _ in range(CALLS):
        found: Any = frontier.next(NEXT, **MODES[mode]).pages
        assert len(found) == NEXT
        assert not any("trap" in page.url for page in found)


@pytest.mark.usefixtures("large")
def test_page_behind_thousands_of_denied_ones_of_its_host_is_found(world: Callable[[int, float], World]) -> None:
    made = world(1, 60.0)
    made.fill(DENIED, read=False)
    made.apply(encode_seeds(["http://big.example/last"], 0), "seeds")
    frontier, admission = made.endpoint()
    admission.put(check_policy({"rules": [{"effect": "allow", "path": "/last"}, *RULE["rules"]]}))
    found: Any = frontier.next(NEXT, domains=["big.example"]).pages
    assert [page.url for page in found] == ["http://big.example/last"]


def test_counts_are_right_after_a_rule_is_added_or_removed(world: Callable[[int, float], World]) -> None:
    made = world(2, 0.0)
    made.apply(encode_seeds(DENIED[:50]), "seeds")
    frontier, admission = made.endpoint()
    admission.put(check_policy(RULE))
    answer: Any = frontier.next(NEXT)
    assert (answer.pages, answer.exhausted, answer.waiting.denied) == ([], True, 50)
    admission.put(check_policy({"rules": [*RULE["rules"], {"effect": "deny", "path": "/x"}]}))
    assert frontier.next(NEXT).exhausted is True
    admission.put(check_policy({"rules": [{"effect": "deny", "path": "/1"}]}))
    answer = frontier.next(50, mode="discover")
    assert len(answer.pages) > 0
    assert not any("/1" in page.url for page in answer.pages)
    assert answer.waiting.denied == 11


@pytest.mark.usefixtures("large")
def test_nothing_is_exhausted_while_former_rules_hold_pages_back(
    world: Callable[[int, float], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(1, 0.0)
    made.apply(encode_seeds(DENIED), "seeds")
    frontier, admission = made.endpoint()
    admission.put(check_policy(RULE))
    assert frontier.next(NEXT).exhausted is True
    monkeypatch.setattr(choices, "JUDGE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(choices, "JUDGE_BATCHES", 0)
    admission.put(check_policy({"rules": [{"effect": "deny", "host": "other.example"}]}))
    answer: Any = frontier.next(NEXT)
    assert (answer.pages, answer.exhausted) == ([], False)
    assert answer.retry_after < 1.0
    monkeypatch.undo()
    assert len(frontier.next(NEXT).pages) == NEXT


@pytest.mark.usefixtures("large")
def test_verdicts_made_while_counting_pages_reach_the_order(world: Callable[[int, float], World]) -> None:
    made = world(1, 60.0)
    made.fill(DENIED, read=False)
    frontier, admission = made.endpoint()
    assert len(frontier.next(NEXT).pages) == NEXT
    admission.put(check_policy(RULE))
    admission.check_policy()
    while admission.judge_next(0):  # As /metrics does, in another thread.
        pass
    (order,) = frontier._scheduler.hot.orders
    order.settle()
    assert page_counts.total(order.counts.totals.reshape(-1, 2), "denied") == UNFIT - 1  # One is leased.
    assert len(frontier.next(NEXT).pages) == NEXT
