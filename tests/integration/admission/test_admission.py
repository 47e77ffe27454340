"""What is said of pages and hosts: a byte a page as they become known, the same at every endpoint, over all shards."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from servers import Server

from opic.admission import Admission, check_policy
from opic.admission import admission as admissions
from opic.admission.shares import Weighed
from opic.admission.verdicts import DENIED
from opic.ingest import Writer
from opic.messages.importance import AppliedRule
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.query.snapshots import Snapshot, Snapshots
from opic.replica import Crawl
from opic.replica.hosts import HostTable
from opic.urls.canonical import shard_of
from opic.urls.traps import WINDOW, Shapes

pytestmark = pytest.mark.slow

NOW_US = 1_790_000_000_000_000
HOSTS = [f"h{n}.example" for n in range(8)]


class Crawled:
    """A crawl of a few shards, and an endpoint's part of it."""

    def __init__(self, server: Server, shards: int, name: str = "admission") -> None:
        self.crawl = Crawl.open(server.client(), name, shards=shards)
        self.snapshots, self.admission = Snapshots(self.crawl), Admission(self.crawl)
        self._writer, self._offset = Writer(self.crawl), count()

    def apply(self, value: bytes, kind: str) -> None:
        offset = next(self._offset)
        self._writer.apply("test/0", [Record(offset, NOW_US + offset, value, kind)])
        for _ in range(10):
            if not self._writer.deliver():
                break

    def seed(self, *urls: str) -> Snapshot:
        self.apply(encode_seeds(list(urls)), "seeds")
        snapshot = self.snapshots.fresh()
        assert len(snapshot.host) == len(snapshot)  # From now on the table knows them.
        return snapshot

    def read(self, url: str, links: Sequence[str] = ()) -> None:
        self.apply(encode_crawl_event(CrawlEvent(url=url, links=list(links))), "event")

    def put(self, **given: Any) -> None:
        self.admission.put(check_policy(given))

    def held(self) -> set[str]:
        """Return the URLs that are held back."""
        snapshot = self.snapshots.fresh()
        shut = self.admission.verdicts(snapshot) >= DENIED
        assert shut.shape == (len(snapshot),)
        return set(self.crawl.urls_of(snapshot.places(shut.nonzero()[0])).values())


@pytest.fixture(params=[1, 3])
def crawled(request: pytest.FixtureRequest, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> Crawled:
    monkeypatch.setattr(admissions, "WEIGH_REST", 0)
    monkeypatch.setattr(admissions, "WEIGH_SECONDS_MIN", 0.0)
    return Crawled(valkey, request.param)


@pytest.fixture
def pages() -> list[str]:
    return [f"http://{host}/{path}" for host in HOSTS for path in ("a", "a/a/a/a", "cal/2100/01/", "x?" + "&" * 30)]


def ending(urls: Sequence[str], *ends: str) -> set[str]:
    return {url for url in urls if url.endswith(ends)}


def test_pages_are_judged_once_as_they_become_known(
    crawled: Crawled, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    judge: Callable[..., Any] = Shapes.judge_all
    monkeypatch.setattr(Shapes, "judge_all", lambda self, urls: judged.extend(urls) or judge(self, urls))
    crawled.seed(*pages[:9])
    assert crawled.held() == ending(pages[:9], "a/a", "/01/", "&")
    crawled.seed(*pages[9:])
    assert crawled.held() == ending(pages, "a/a", "/01/", "&")
    assert crawled.held() == ending(pages, "a/a", "/01/", "&")
    assert sorted(judged) == sorted(pages)


def test_rules_take_precedence_over_traps_and_apply_at_once(crawled: Crawled, pages: list[str]) -> None:
    crawled.seed(*pages)
    other = Admission(crawled.crawl)
    crawled.put(rules=[{"effect": "allow", "domain": "h0.example"}, {"effect": "deny", "path": "/a$", "note": "no"}])
    expected = {url for url in pages if "h0." not in url and not url.endswith("a/a/a")} | ending(pages[4:], "a/a")
    assert crawled.held() == expected
    shut = other.verdicts(snapshot := crawled.snapshots.fresh()) >= DENIED
    assert int(shut.sum()) == len(expected)
    assert crawled.admission.why("http://h1.example/a") == [AppliedRule("rule 1: no", "deny")]
    assert crawled.admission.why("http://h0.example/a/a/a/a") == [AppliedRule("rule 0", "allow")]
    counts = crawled.admission.counts(snapshot)
    assert counts["denied"] == counts["round"] == counts["far_date"] == counts["parameters"] == 7
    assert counts["allowed"] == 4
    crawled.put(traps={"on": False})
    assert crawled.held() == set()
    assert crawled.admission.counts(snapshot)["round"] == 0


def test_another_endpoint_follows_new_rules_after_its_next_check(
    crawled: Crawled, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = crawled.seed(*pages)
    other = Admission(crawled.crawl)
    assert (other.verdicts(snapshot) >= DENIED).any()
    crawled.put(traps={"on": False})
    assert (other.verdicts(snapshot) >= DENIED).any(), "it looks once a second"
    monkeypatch.setattr(admissions, "LOOK_SECONDS", 0.0)
    assert not (other.verdicts(snapshot) >= DENIED).any()


def test_why_says_which_trap_threshold_was_exceeded(crawled: Crawled, pages: list[str]) -> None:
    crawled.put(traps={"dates": 2})
    days = [f"http://h1.example/day/2020-01-0{day}" for day in range(1, 5)]
    crawled.seed(*days)
    assert crawled.held() == set(days[2:])
    (why,) = crawled.admission.why(days[3])
    assert why.rule == "trap: calendar"
    assert why.effect.startswith("deny: 2 pages that differ from it only in a date")
    assert crawled.admission.why(days[1]) == []
    assert crawled.admission.why("http://h1.example/never/seen") == []
    (why,) = crawled.admission.why("http://h1.example/" + "x" * 2_000)
    assert why == AppliedRule("trap: long", "deny: the URL is over 1,024 bytes long")


def having(crawled: Crawled, asked: Sequence[int], *, idle: bool = False) -> list[bool]:
    """Return which pages of hosts may be had."""
    crawled.admission.check_policy()
    ration = crawled.admission.ration(idle=idle)
    return [True] * len(asked) if ration is None else ration.fit(np.array(asked, np.int64)).tolist()


def test_a_large_host_has_half_of_the_last_suggestions_while_others_have_some(crawled: Crawled) -> None:
    crawled.put(traps={"host_pages": 10})
    snapshot = crawled.seed(*(f"http://big.example/{n}" for n in range(11)), "http://small.example/")
    big, small = (snapshot.hosts.number(f"{name}.example") or 0 for name in ("big", "small"))
    half = WINDOW // 2
    assert having(crawled, [big] * WINDOW) == [True] * half + [False] * half
    assert having(crawled, [small] * WINDOW) == [True] * WINDOW
    for _ in range(half):
        assert having(crawled, [big, small]) == [True, True]
        crawled.admission.note([big])
    assert having(crawled, [big, small, big]) == [False, True, False]
    assert having(crawled, [big, small, big], idle=True) == [True, True, True]
    (why,) = crawled.admission.why("http://big.example/1")
    assert why.rule == "large host big.example"
    crawled.admission.note([small] * half)
    assert having(crawled, [big]) == [False], "the window still has 50 of it"
    crawled.admission.note([small])
    assert having(crawled, [big, big]) == [True, False]
    crawled.put(traps={"host_pages": 10}, rules=[{"effect": "allow", "host": "big.example"}])
    assert having(crawled, [big] * WINDOW) == [True] * WINDOW


def test_ration_counts_only_the_suggestions_that_were_taken(crawled: Crawled) -> None:
    crawled.put(traps={"host_pages": 10})
    snapshot = crawled.seed(*(f"http://big.example/{n}" for n in range(11)), "http://small.example/")
    big = snapshot.hosts.number("big.example") or 0
    crawled.admission.check_policy()
    ration = crawled.admission.ration()
    assert ration is not None
    asked = np.full(30, big, np.int32)
    assert [int(ration.fit(asked).sum()) for _ in range(3)] == [30, 20, 0]
    assert ration.refused
    ration.count_chosen([big] * 45)
    assert int(ration.fit(asked).sum()) == 5


def test_a_site_without_cash_from_others_has_outgrown_them(crawled: Crawled, monkeypatch: pytest.MonkeyPatch) -> None:
    crawled.put(traps={"site_reads": 5})
    traps = [f"http://t{n}.trap.example/" for n in range(8)]
    good = [f"http://w{n}.good.example/" for n in range(8)]
    rest = [f"http://s{n}.example/" for n in range(8)]
    crawled.seed(*rest)
    for at, url in enumerate(rest):
        crawled.read(url, [good[at], rest[at - 1]])
    for urls in (traps, good):
        for at, url in enumerate(urls):
            crawled.read(url, [*urls[: at + 2]])
    snapshot = crawled.snapshots.fresh()
    assert len(snapshot.host) == len(snapshot)
    trap, new, honest = (snapshot.hosts.number(f"{name}.example") or 0 for name in ("t3.trap", "t7.trap", "w3.good"))
    tenth = [True] * 10 + [False] * 10
    assert having(crawled, [trap, new] * 10 + [honest] * 20) == tenth + [True] * 20
    crawled.admission.note([trap] * 10)
    assert having(crawled, [new, honest]) == [False, True]
    (why,) = crawled.admission.why("http://t3.trap.example/")
    assert why.rule == "outgrown site trap.example"
    assert crawled.admission.counts(snapshot)["outgrown_sites"] == 1
    # A crawler that would wait otherwise gets one of its pages a second.
    assert having(crawled, [trap, new], idle=True) == [False, False]
    monkeypatch.setattr(admissions, "SPARED_SECONDS", 0.0)
    assert having(crawled, [trap, new], idle=True) == [True, False]
    # Its new hosts are of it from the moment they are known.
    crawled.seed("http://t99.trap.example/")
    assert having(crawled, [snapshot.hosts.number("t99.trap.example") or 0]) == [False]


def test_hosts_that_become_known_during_a_lookup_of_groups_are_grouped_the_next_time(
    crawled: Crawled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread lets the replica follow between two looks at how many hosts there are."""
    crawled.seed("http://a.big.org/")
    table = crawled.crawl.replicas[shard_of("a.big.org", len(crawled.crawl))].hosts
    weighed, count_hosts = Weighed(crawled.crawl, sites=["big.org"]), HostTable.__len__
    later = [f"{i}.big.org" for i in range(8)]

    def counted(asked: HostTable) -> int:
        found = count_hosts(asked)
        if asked is table and later:
            table.append(later)
            later.clear()
        return found

    monkeypatch.setattr(HostTable, "__len__", counted)
    shards = len(crawled.crawl)
    for known in (1, 9):
        groups = weighed.groups()
        assert np.flatnonzero(groups >= 0).tolist() == [
            number * shards + shard_of("a.big.org", shards) for number in range(known)
        ]


def test_hosts_judged_by_former_rules_are_judged_again_at_once(
    crawled: Crawled, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may finish after the rules changed: what it found, and when, counts for nothing."""
    crawled.seed(*pages)
    admission = crawled.admission
    assert admission.counts(crawled.snapshots.fresh())["large_hosts"] == 0
    monkeypatch.setattr(admissions, "WEIGH_SECONDS_MIN", 3_600.0)
    former, table = admission._policy, admission._table
    crawled.put(traps={"host_pages": 3})
    admission.check_policy()
    admission._take_weighed(former, table)
    assert admission.counts(crawled.snapshots.fresh())["large_hosts"] == len(HOSTS)
