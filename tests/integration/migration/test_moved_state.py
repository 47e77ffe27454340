"""A crawl that is moved to another number of shards is the same crawl, page by page and to the grain."""

import random
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backup_crawls import HALF, LOG, crossing_log, ledger_of
from conftest import ONE_SERVER
from linked_web import PAGES, Web
from logs import NOW_US, PARTITION, forget
from migrations import answers_of, known_since_of, links_of, moved, opened, pages_of
from same_state import assert_same
from servers import Server

from opic.errors import CrawlStopped
from opic.ingest import Writer
from opic.migration import migrate
from opic.migration.migrate import Migration, begin
from opic.model.classes import check_classes, encode_classes
from opic.model.crawl_clock import Clocks
from opic.model.events import CrawlEvent, Record, decode_crawl_event, encode_crawl_event, encode_forgotten
from opic.model.ledger_page import LedgerPage
from opic.ops.load_importance import load_importance
from opic.query.loaded import LoadedImportance
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.replica.known_since import ENTRY
from opic.store import Keys

CHAIN = (16, 4, 1, 16, 1)


def filled(server: Server, log: tuple[Record, ...], **options: object) -> Crawl:
    crawl = Crawl.open(server.client(), "first", **{"keep_links": True, **options})  # type: ignore[arg-type]
    Writer(crawl).apply(PARTITION, log)
    Writer(crawl).drain()
    return crawl


@ONE_SERVER
@pytest.mark.parametrize("log", [LOG, crossing_log()[:3_000]], ids=["a real history", "links between hosts"])
def test_pages_links_and_totals_are_the_same_on_any_number_of_shards(servers: Server, log: tuple[Record, ...]) -> None:
    crawl = filled(servers, log)
    pages, links, totals, name = pages_of(crawl), links_of(crawl), answers_of(crawl), "first"
    for at, shards in enumerate(CHAIN):
        report = moved(servers, name, name := f"crawl{at}", shards=shards)
        assert (report.shards, report.links_left_out) == (shards, 0)
        now = opened(servers, name)
        whole, parts = now.audit()
        assert whole.conserved, whole.mismatches
        assert (len(parts), now.resume(PARTITION)) == (shards, log[-1].offset + 1)
        assert pages_of(now) == pages
        assert links_of(now) == links
        assert answers_of(now) == totals


@pytest.mark.parametrize("shards", [1, 3])
def test_ids_of_forgotten_pages_are_given_back_unless_a_link_leads_to_them(valkey: Server, shards: int) -> None:
    hub, fresh = "http://hub.org/", [f"http://h{number % 5}.org/{number}" for number in range(40)]
    links = [fresh[:30], fresh[20:40]]  # Of two reads: to the first twenty no link leads any more.
    events = [encode_crawl_event(CrawlEvent(hub, shown)) for shown in links]
    log = [Record(number, NOW_US + number, value) for number, value in enumerate(events)]
    log.append(forget(2, *fresh[:25]))
    crawl = filled(valkey, tuple(log), shards=shards)
    assert sum(map(len, crawl.follow())) == 41
    report = moved(valkey, "first", "second", shards=shards)
    now = opened(valkey, "second")
    assert sum(map(len, now.follow())) == 41 - 20  # Five forgotten pages are still linked to.
    assert report.notes == ["the ids of 20 forgotten pages, to which no kept link leads, are given back"]
    assert pages_of(now) == pages_of(crawl)
    assert links_of(now) == links_of(crawl)
    back = CrawlEvent("http://other.org/", fresh[:25])
    Writer(now).apply(PARTITION, [Record(3, NOW_US + 3, encode_crawl_event(back))])
    Writer(now).drain()
    assert links_of(now)[hub] == set(fresh[20:])  # Those to pages that came back count again.
    assert {page.url for page in now.pages()} == {hub, back.url, *fresh}
    whole, parts = now.audit()
    assert whole.conserved
    assert all(part.conserved for part in parts)


def without_measures(pages: Mapping[str, LedgerPage]) -> dict[str, LedgerPage]:
    return {url: replace(page, measures=deque()) for url, page in pages.items()}


def a_read_and_what_is_forgotten(rng: random.Random, log: list[Record]) -> list[Record]:
    """Return a read and a record that forgets pages, the next ones of the log, to which they are appended."""
    pages = [f"http://h{number % 7}.org/{number}" for number in range(60)]
    shown = encode_crawl_event(CrawlEvent(rng.choice(pages), rng.sample(pages, rng.randrange(9))))
    new = [Record(len(log), NOW_US + len(log), shown), forget(len(log) + 1, *rng.sample(pages, 12))]
    log.extend(new)
    return new


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shards", [1, 3])
def test_pages_that_are_forgotten_or_come_back_during_the_copy_are_as_they_are(
    valkey: Server, shards: int, seed: int
) -> None:
    rng, log = random.Random(seed), list[Record]()
    first = [record for _ in range(6) for record in a_read_and_what_is_forgotten(rng, log)]
    crawl = filled(valkey, tuple(first), shards=shards)
    writer, states, messages = Writer(opened(valkey, "first")), list[tuple[Any, ...]](), list[str]()

    def write_on(message: str) -> None:
        messages.append(message)
        if not any("no writes" in earlier or "equally far" in earlier for earlier in messages):
            writer.apply(PARTITION, a_read_and_what_is_forgotten(rng, log))
            writer.drain()
            states.append((pages_of(crawl), links_of(crawl), answers_of(crawl)))

    begin(opened(valkey, "first"), valkey.client(), Migration("second"), write_on)
    now = opened(valkey, "second")
    assert len(states) > 2
    pages, links, answers = states[-1]
    if shards == 1:
        assert pages_of(now) == pages
    # Clocks of measures are on an axis of their shard where there are many.
    assert without_measures(pages_of(now)) == without_measures(pages)
    assert links_of(now) == links
    assert answers_of(now) == answers
    assert now.audit()[0].conserved


@ONE_SERVER
@pytest.mark.parametrize("shards", [1, 4])
def test_crawl_of_many_shards_is_the_same_after_it_was_moved(servers: Server, shards: int) -> None:
    crawl = filled(servers, crossing_log()[:3_000], shards=16)
    before = pages_of(crawl)
    moved(servers, "first", "second", shards=shards)
    now = opened(servers, "second")
    assert now.audit()[0].conserved
    after = pages_of(now)
    assert after.keys() == before.keys()
    for url, page in after.items():  # Only the clocks of their measures are on another axis.
        old = before[url]
        assert replace(page, measures=old.measures) == old
        assert [replace(one, clock=0) for one in page.measures] == [replace(one, clock=0) for one in old.measures]


@ONE_SERVER
def test_estimates_of_all_windows_are_the_same(servers: Server) -> None:
    crawl = filled(servers, crossing_log()[:3_000])

    def estimates(of: Crawl) -> dict[str, dict[str, float]]:
        query = Query(of, Snapshots(of))
        urls = sorted(pages_of(of))[:200]
        return {
            policy: {one["url"]: one["importance"] for one in query.importance(urls, policy) if one is not None}
            for policy in ("static", "interpolation", "fixed", "variable", "improved")
        }

    before = estimates(crawl)
    moved(servers, "first", "second", shards=16)
    for policy, found in estimates(opened(servers, "second")).items():
        assert found == pytest.approx(before[policy], rel=1e-9), policy


@ONE_SERVER
def test_loaded_importance_goes_along(servers: Server, tmp_path: Path) -> None:
    """To each page on any number of shards; pages without a number have none there either."""
    crawl = filled(servers, crossing_log()[:3_000])
    urls = sorted(pages_of(crawl))
    given = {url: float(at) for at, url in enumerate(urls) if at % 7}
    file = tmp_path / "scores.txt"
    file.write_text("".join(f"{url} {score / sum(given.values())!r}\n" for url, score in given.items()))
    told = load_importance(Query(crawl, Snapshots(crawl)), file, error_bound=0.5)

    def importance(of: Crawl) -> dict[str, object]:
        return {
            str(one["url"]): one["importance"] for one in Query(of, Snapshots(of)).importance(urls, "loaded") if one
        }

    before, name = importance(crawl), "first"
    for at, shards in enumerate(CHAIN):
        moved(servers, name, name := f"crawl{at}", shards=shards)
        now = opened(servers, name)
        assert importance(now) == pytest.approx(before)
        about = LoadedImportance(now).columns().about
        assert (about.given, about.loaded_at, about.error_bound) == (len(given), told["loaded_at"], 0.5)


@ONE_SERVER
@pytest.mark.parametrize("shards", [4, 1])
def test_forgotten_pages_stay_forgotten_and_come_back(servers: Server, shards: int) -> None:
    """Each shard counts those that it forgot: it looks for none unless it did."""
    log = crossing_log()[:600]
    crawl = filled(servers, log, shards=5 - shards)
    urls = sorted(pages_of(crawl))[::3]
    forget = Record(log[-1].offset + 1, log[-1].time_us, encode_forgotten(urls), "forget")
    Writer(crawl).apply(PARTITION, [forget])
    Writer(crawl).drain()
    moved(servers, "first", "second", shards=shards)
    now = opened(servers, "second")
    assert now.totals().forgotten == len(urls)
    assert Query(now, Snapshots(now)).importance(urls) == [None] * len(urls)
    again = [replace(one, offset=forget.offset + 1 + at) for at, one in enumerate(log)]
    Writer(now).apply(PARTITION, again)
    Writer(now).drain()
    assert set(pages_of(now)) >= {decode_crawl_event(record.value).url for record in log}
    whole, parts = now.audit()
    assert whole.conserved, whole.mismatches
    assert all(part.conserved for part in parts), parts


@ONE_SERVER
def test_crawl_at_rest_is_moved_on_without_a_worker(servers: Server) -> None:
    """One shard pays a grant with its next record, many shards by a delivery: the move leaves it due."""
    three = [
        Record(at, at, encode_crawl_event(CrawlEvent("http://a.org/", [f"http://b.org/{at}", f"http://d{at}.org/"])))
        for at in range(3)
    ]
    crawl = filled(servers, tuple(three))
    pages, totals, name = pages_of(crawl), answers_of(crawl), "first"
    for at, shards in enumerate((4, 3, 1)):
        moved(servers, name, name := f"crawl{at}", shards=shards)
        now = opened(servers, name)
        assert now.waiting() == 0
        assert (now.undelivered() > 0) == (shards > 1)
        assert (pages_of(now), answers_of(now)) == (pages, totals)
        assert now.audit()[0].conserved
    Writer(now).apply(PARTITION, [replace(three[0], offset=3)])
    Writer(crawl := Crawl.open(servers.client(), "still", keep_links=True)).apply(
        PARTITION, [*three, replace(three[0], offset=3)]
    )
    assert pages_of(now) == pages_of(crawl)


@ONE_SERVER
def test_series_has_each_entry_once(servers: Server) -> None:
    crawl = filled(servers, LOG)
    before, name = entries_of(crawl), "first"
    for at, shards in enumerate(CHAIN):
        moved(servers, name, name := f"crawl{at}", shards=shards)
        assert entries_of(opened(servers, name)) == before


def entries_of(crawl: Crawl) -> list[tuple[int, int]]:
    """Rounds and clock of each entry of the crawl's series, and of now."""
    replicas = crawl.follow()
    of = [replica.series for replica in replicas], [replica.books for replica in replicas]
    clocks = Clocks(*of, crawl.rules, replicas[0].round_counts)
    now = clocks.books.rounds, clocks.books.clock
    found = [(entry.rounds, entry.clock) for entry in clocks.series]
    return [*(entry for entry in found if entry != now), now]


@ONE_SERVER
def test_crawl_that_keeps_its_shard_goes_on_as_the_ledger_does(servers: Server) -> None:
    crawl = Crawl.open(servers.client(), "first")
    Writer(crawl).apply(PARTITION, LOG[:HALF])
    moved(servers, "first", "second", regrant_ppm=crawl.rules.regrant_ppm)
    now = opened(servers, "second")
    Writer(now).apply(PARTITION, LOG[HALF:])
    assert_same(now.shards[0], ledger_of())


@ONE_SERVER
@pytest.mark.parametrize("shards", [4, 1])
def test_pages_that_show_the_same_links_as_before_do_not_move_the_bound(servers: Server, shards: int) -> None:
    log = crossing_log()[:1_000]
    filled(servers, log, shards=5 - shards)
    moved(servers, "first", "second", shards=shards)
    now = opened(servers, "second")
    before = now.totals()
    last = {decode_crawl_event(record.value).url: record for record in log}  # The last links of a page count.
    again = [replace(record, offset=log[-1].offset + 1 + at) for at, record in enumerate(last.values())]
    Writer(now).apply(PARTITION, again)
    after = now.totals()
    assert after.reads == before.reads + len(again)
    assert (after.drift_plus, after.drift_minus) == (before.drift_plus, before.drift_minus)
    assert now.audit()[0].conserved


@ONE_SERVER
def test_classes_go_along_and_hold_for_new_pages(servers: Server) -> None:
    classes = check_classes([{"name": "some", "weight": 3.0, "hosts": ["h1.org", "h2.org"]}])
    log = crossing_log()[:500]
    crawl = filled(servers, log)
    define = Record(log[-1].offset + 1, log[-1].time_us + 1, encode_classes(classes), "classes")
    Writer(crawl).apply(PARTITION, [define])
    cash = {url: page.v for url, page in pages_of(crawl).items()}
    for name, to, shards in (("first", "second", 4), ("second", "third", 1)):
        moved(servers, name, to, shards=shards)
        now = opened(servers, to)
        Writer(now).drain()
        assert {url: page.v for url, page in pages_of(now).items()} == cash
        assert {page.slot for url, page in pages_of(now).items() if "//h1.org/" in url} == {1}
        assert now.audit()[0].conserved
    event = encode_crawl_event(CrawlEvent(url="http://h1.org/new"))
    Writer(now).apply(PARTITION, [Record(define.offset + 1, define.time_us + 1, event)])
    assert pages_of(now)["http://h1.org/new"].slot == 1


@ONE_SERVER
def test_rules_may_change_and_what_follows_is_said(servers: Server) -> None:
    crawl = filled(servers, LOG)
    before = pages_of(crawl)
    report = moved(servers, "first", "second", q=300_000, measures_max=2, inflow=False, regrant_ppm=20_000)
    assert len(report.notes) == 2
    now = opened(servers, "second")
    rules = asdict(now.rules)
    assert (rules["q"], rules["measures_max"], rules["inflow"], rules["regrant_ppm"]) == (300_000, 2, False, 20_000)
    for url, page in pages_of(now).items():
        assert list(page.measures) == list(before[url].measures)[-2:]
        assert (page.v, page.spent) == (before[url].v, before[url].spent)
    audit, _ = now.audit()
    assert audit.conserved, audit.mismatches
    books = now.totals()
    assert books.error_bound(now.rules.minted, now.rules.q) > 0.5


def test_when_pages_came_back_is_moved_along_and_so_are_notes_of_an_earlier_release(valkey: Server) -> None:
    """1.0 noted each page that came back beside those of the minutes, also of pages that were forgotten again."""
    web, now = Web(valkey, "first", keep_links=False), NOW_US // 1_000_000
    web.read(PAGES[0], PAGES[1:])
    web.forget(*PAGES[3:9])
    web.read(PAGES[0], PAGES[3:6])
    web.forget(PAGES[4])
    of_old = np.array([(now + 1_000_000, page, 1) for page in (1, 4, 5)], ENTRY)
    (shard,) = web.crawl.shards
    valkey.client().hset(shard.keys.known_since, "1", of_old.tobytes())
    before = known_since_of(web.crawl)
    assert set(map(len, (before, {*before.values()}))) == {len(PAGES) - 4, 3}
    for name, to, shards in (("first", "second", 3), ("second", "third", 1)):
        moved(valkey, name, to, shards=shards)
        crawl = opened(valkey, to)
        assert known_since_of(crawl) == before
        assert crawl.audit()[0].conserved
        notes = [b"".join(valkey.client().hvals(Keys(to, number).known_since)) for number in range(shards)]
        assert not np.frombuffer(b"".join(notes), ENTRY)["alone"].any()


@ONE_SERVER
@pytest.mark.parametrize("shards", [1, 4])
def test_what_a_worker_writes_while_links_and_urls_are_copied_is_in_the_copy(
    servers: Server, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """Segments of links and blocks may be ahead of the replicas of the migration, and name pages beyond them."""
    log = crossing_log()[:2_400]
    filled(servers, log[:800], shards=shards)
    worker, at = Writer(opened(servers, "first")), [800]
    read, urls_in = migrate.read_links, Crawl.urls_in

    def work() -> None:
        with suppress(CrawlStopped):  # The last URLs are read while it is stopped.
            worker.apply(PARTITION, log[at[0] : at[0] + 200])
            at[0] += 200
            for store in worker.stores:
                store.checkpoint()

    def reading(*args: Any) -> Any:
        work()
        for part in read(*args):
            yield part
            work()

    def asking(self: Crawl, shard: int, ids: range) -> list[str]:
        work()
        return urls_in(self, shard, ids)

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "read_links", reading)
        patch.setattr(Crawl, "urls_in", asking)
        patch.setattr(migrate, "REST_SECONDS", 5.0)
        patch.setattr(migrate.Source, "await_rest", lambda *_: worker.drain())
        moved(servers, "first", "second", shards=5 - shards)
    assert at[0] > 1_200
    servers.client().hdel(Keys("first", 0).meta, "moved")  # It is there for as long as nobody deletes it.
    before = opened(servers, "first")
    now = opened(servers, "second")
    assert now.audit()[0].conserved
    assert now.resume(PARTITION) == min(at[0], len(log))
    assert links_of(now) == links_of(before)
    assert pages_of(now).keys() == pages_of(before).keys()
    assert answers_of(now) == answers_of(before)
