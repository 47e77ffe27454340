"""The scope of a crawl: pages outside are known and ranked, count when they are read, and are never offered."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logs import PARTITION
from servers import Server
from serving import serving

from opic.admission import Admission, check_policy
from opic.client import Client, Event
from opic.frontier import Frontier, PolitenessSettings, choices, hot_crawl
from opic.ingest import Writer
from opic.messages.importance import AppliedRule
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.query.coverage import CoverageQuery
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.urls.scope import Scope

pytestmark = pytest.mark.slow

NOW_US = 1_790_000_000_000_000
SCOPE = Scope.of("in.example,https://half.example/docs/")
INSIDE = [f"http://w{n}.in.example:8080/" for n in range(40)] + [f"https://half.example/docs/{n}" for n in range(20)]
OUTSIDE = [f"http://w{n}.out.example/" for n in range(400)] + [f"https://half.example/{n}" for n in range(200)]
HUB = "http://hub.example/"
MODES: dict[str, dict[str, Any]] = {
    "any": {},
    "discover": {"mode": "discover"},
    "refresh": {"mode": "refresh"},
    "refresh U": {"mode": "refresh", "policy": "U"},
    "discover GAI": {"mode": "discover", "policy": "GAI"},
    "discover AI": {"mode": "discover", "policy": "AI"},
    "coverage": {"mode": "coverage"},
    "domain": {"domains": ["example"]},
    "outside domain": {"domains": ["out.example"]},
    "depth": {"max_depth": 2},
    "hosts": {"host_pages": 3, "hosts": 5},
}


class World:
    """A crawl of which most pages are outside, and those have the most cash."""

    def __init__(self, server: Server, shards: int) -> None:
        self.crawl = Crawl.open(server.client(), "scope", given={"shards": shards, "regrant_ppm": 0}, keep_links=True)
        self._writer, self._offset = Writer(self.crawl), count()

    def apply(self, value: bytes, kind: str) -> None:
        offset = next(self._offset)
        self._writer.apply(PARTITION, [Record(offset, NOW_US + offset, value, kind)])
        while self._writer.deliver():
            pass

    def read(self, url: str, *links: str) -> None:
        self.apply(encode_crawl_event(CrawlEvent(url=url, links=list(links))), "event")

    def fill(self) -> None:
        self.apply(encode_seeds([HUB, *INSIDE, *OUTSIDE], 0, trust=1.0), "seeds")
        for url in [*INSIDE[::2], *OUTSIDE[::2]]:
            self.read(url, HUB)
        self.read(HUB, *INSIDE, *OUTSIDE)

    def endpoint(self, scope: Scope = SCOPE) -> tuple[Frontier, Admission]:
        crawl = Crawl.open(self.crawl.client, "scope", create=False)
        admission, links = Admission(crawl, scope), KeptLinks(crawl)
        coverage = CoverageQuery(PageFlows(links))
        politeness = PolitenessSettings(host_delay_seconds=0.0, lease_seconds=600.0)
        return Frontier(crawl, politeness, admission=admission, coverage=coverage, links=links), admission


def drained(frontier: Frontier, **terms: Any) -> tuple[set[str], Any]:
    """Take all pages that there are, and give them back; return their URLs, and the answer that had none."""
    found, leases = set[str](), list[str]()
    while True:
        answer: Any = frontier.next(100, **terms)
        if not answer.pages:
            frontier.release(leases)
            return found, answer
        found |= {page.url for page in answer.pages}
        leases += [page.lease for page in answer.pages]


@pytest.fixture
def world(valkey: Server) -> Callable[[int], World]:
    valkey.reset()
    return lambda shards: World(valkey, shards)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a large store only pages that are chosen are judged."""
    if request.param == "large":
        monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
        monkeypatch.setattr(hot_crawl, "JUDGE_REST", 1e12)
        monkeypatch.setattr(hot_crawl, "JUDGE_REST_SUSPECTS", 1e12)
        monkeypatch.setattr(choices, "JUDGE_SECONDS", 2.0)  # The machine may be busy.
        monkeypatch.setattr(choices, "JUDGE_SECONDS_MAX", 2.0)
    return str(request.param)


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        ("small", 4),
        ("large", 1),
        pytest.param("small", 1, marks=pytest.mark.thorough),
        pytest.param("large", 4, marks=pytest.mark.thorough),
    ],
    indirect=["size"],
)
@pytest.mark.usefixtures("size")
def test_no_mode_offers_a_page_outside_and_each_offers_all_inside(world: Callable[[int], World], shards: int) -> None:
    made = world(shards)
    made.fill()
    for mode, terms in MODES.items():
        frontier, _ = made.endpoint()
        found, answer = drained(frontier, **terms)
        read = {"discover": INSIDE[1::2], "coverage": INSIDE[1::2], "refresh": INSIDE[::2]}
        wanted = set(read.get(str(terms.get("mode")), INSIDE)) if mode != "outside domain" else set()
        assert found == wanted, mode
        assert answer.waiting.denied, mode
        peeked: Any = frontier.peek(100, mode=terms.get("mode", "any")).pages
        assert peeked
        assert {page.url for page in peeked} <= set(INSIDE), mode


@pytest.mark.parametrize("shards", [1, 4])
def test_pages_outside_keep_cash_and_rank_and_count_when_read(world: Callable[[int], World], shards: int) -> None:
    made = world(shards)
    made.fill()
    frontier, admission = made.endpoint()
    url = OUTSIDE[1]
    found: Any = frontier.explain(url)
    assert (found.state, found.held_back, found.next) == ("unread", ["denied"], False)
    assert found.why_not == ["it is outside the crawl's scope"]
    assert found.rules == [AppliedRule("scope", f"deny: outside OPIC_SCOPE={SCOPE}")]
    assert found.place is not None
    assert frontier.outside() == admission.outside() == len(OUTSIDE) + 1  # And the hub.
    made.read(url, INSIDE[0])
    found = frontier.explain(url)
    assert (found.state, found.held_back) == ("read", ["denied"])
    snapshot = Snapshots(made.crawl).fresh()
    counts = admission.counts(snapshot)
    assert (counts["outside"], counts["denied"]) == (len(OUTSIDE) + 1, 0)


def test_rule_that_allows_a_page_outside_does_not_bring_it_in(world: Callable[[int], World]) -> None:
    made = world(1)
    made.fill()
    frontier, admission = made.endpoint()
    rules = [{"effect": "allow", "domain": "out.example"}, {"effect": "deny", "host": "w1.in.example"}]
    admission.put(check_policy({"rules": rules}))
    found, _ = drained(frontier)
    assert found == set(INSIDE) - {"http://w1.in.example:8080/"}


def test_other_scope_after_a_restart_counts_at_once(world: Callable[[int], World]) -> None:
    made = world(3)
    made.fill()
    for scope, wanted in (
        ("out.example", OUTSIDE[:400]), ("https://half.example/", [*INSIDE[40:], *OUTSIDE[400:]]),
        ("", [*INSIDE, *OUTSIDE]), ("nowhere.example", []),
    ):  # fmt: skip
        frontier, _ = made.endpoint(Scope.of(scope))
        found, answer = drained(frontier)
        assert found == set(wanted)
        assert answer.exhausted == (not wanted)


def test_size_of_a_site_in_the_scope_is_no_reason_to_hold_it_back(world: Callable[[int], World]) -> None:
    made = world(1)
    pages = [f"http://one.example/{n}" for n in range(300)]
    made.apply(encode_seeds([*pages, *(f"http://other.example/{n}" for n in range(200))]), "seeds")
    traps = {"traps": {"host_pages": 100, "host_share": 0.1}}
    for scope, given in (("", 10), ("one.example,other.example", 150), ("example", 10)):
        frontier, admission = made.endpoint(Scope.of(scope))
        admission.put(check_policy(traps))
        found: Any = frontier.next(150, mode="discover")
        of_one = [page for page in found.pages if "//one" in page.url]
        assert len(of_one) <= given
        assert len(found.pages) == (150 if "one" in scope else 20)
        frontier.release([page.lease for page in found.pages])
        large = [rule.rule for rule in frontier.explain(pages[0]).rules]  # type: ignore[union-attr]
        assert large == ([] if "one" in scope else ["large host one.example"])


def test_crawl_of_one_large_host_is_handed_out_whole(world: Callable[[int], World]) -> None:
    made = world(2)
    pages = [f"http://one.example/{n}" for n in range(300)]
    made.apply(encode_seeds(pages), "seeds")
    frontier, admission = made.endpoint(Scope())
    admission.put(check_policy({"traps": {"host_pages": 100, "host_share": 0.5}}))
    found, calls = list[str](), 0
    while len(found) < len(pages):
        answer: Any = frontier.next(10, mode="discover")
        assert len(answer.pages) == 10
        found += [page.url for page in answer.pages]
        calls += 1
    assert (sorted(found), calls) == (sorted(pages), 30)


def test_service_shows_its_scope(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path, host_delay_seconds=0.0, scope="a.example")
    with EmbeddedService(settings) as service, serving(service) as url, Client(url) as client:
        client.seed(["https://a.example/", "https://www.a.example/"])
        client.events([Event("https://a.example/", ["https://b.example/", "https://a.example/1"])])
        client.seed(["https://b.example/2"])
        stats, found = client.call("GET", "/v1/stats"), client.next(10, mode="discover")
        assert (stats["scope"], stats["outside_pages"]) == ("a.example", 2)
        assert {page.url for page in found.pages} == {"https://www.a.example/", "https://a.example/1"}
        shown = client.call("GET", "/v1/frontier")
        assert (shown["pages"], shown["exhausted"]) == ([], False)
        assert (shown["waiting"]["denied"], shown["waiting"]["leased"]) == (2, 2)
        assert client.explain("https://b.example/").frontier.why_not == ["it is outside the crawl's scope"]
        top = client.call("GET", "/v1/top")
        assert "https://b.example/" in {page["url"] for page in top["pages"]}
        assert np.isclose(sum(page["importance"] for page in top["pages"]), 1)
