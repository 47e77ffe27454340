"""Classes of pages in a crawl of many shards: one definition for all, whoever is killed while it spreads."""

import json
import random
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import httpx
import pytest
from crashing_worker import run_worker
from logs import NOW_US, PARTITION, record, seeds
from same_state import small_blocks
from servers import Server
from serving import serving

from opic.ingest import Writer
from opic.ingest.class_sweeps import unclassified
from opic.ingest.event_log import EventLog
from opic.model.books import DEBT_MAX
from opic.model.cash import CrawlRules
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record, encode_ids
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import connect

SHARDS = 4
HOSTS = [f"{name}.org" for name in "abcdefgh"]
PAGES = [f"http://{host}/{name}" for host in HOSTS for name in "pqrs"]
DEADLINE_SECONDS = 60.0
GRANT = CrawlRules().grant


def definition(offset: int, *classes: dict[str, object]) -> Record:
    return Record(offset, NOW_US + offset, encode_classes(check_classes(list(classes))), "classes")


def named(name: str, weight: float, **what: list[str]) -> dict[str, object]:
    return {"name": name, "weight": weight, **what}


def opened(server: Server) -> tuple[Crawl, Writer]:
    crawl = Crawl.open(server.client(), given={"regrant_ppm": 0}, shards=SHARDS)
    return crawl, Writer(crawl)


def drain(*writers: Writer) -> None:
    while sum(writer.deliver() for writer in writers):
        pass


def cash_of(crawl: Crawl) -> dict[str, int]:
    found = {}
    for shard, replica in enumerate(crawl.follow()):
        for page in crawl.pages():
            if crawl.ids_of([page.url]) == [(shard, page.id)]:
                found[page.url] = page.v + replica.books.credit_of(page.slot)
    return found


def test_weights_change_in_all_shards_and_each_page_has_its_class(valkey: Server) -> None:
    crawl, writer = opened(valkey)
    writer.apply(PARTITION, [definition(0, named("docs", 3, contains=["/q"])), seeds(1, *PAGES)])
    drain(writer)
    assert cash_of(crawl) == {url: 3 * GRANT if url.endswith("q") else GRANT for url in PAGES}
    changed = [named("docs", 5, contains=["/q"]), named("some", 0.5, hosts=["a.org", "b.org"])]
    writer.apply(PARTITION, [definition(2, *changed)])
    drain(writer)
    expected = {url: 5 * GRANT if url.endswith("q") else GRANT // 2 if url[7] in "ab" else GRANT for url in PAGES}
    assert cash_of(crawl) == expected
    whole, parts = crawl.audit()
    assert whole.conserved, whole.mismatches
    assert whole.minted == CrawlRules().minted
    assert all(part.conserved for part in parts)


def test_pages_that_become_known_while_a_definition_spreads_are_classified(valkey: Server) -> None:
    """Shard 0 has the definition; the others learn of pages before they take it, and after."""
    crawl, writer = opened(valkey)
    writer.apply(PARTITION, [seeds(0, *PAGES[:8]), definition(1, named("docs", 3, contains=["/q"]))])
    assert len({replica.classes.version for replica in crawl.follow()}) == 2
    query = Query(crawl, Snapshots(crawl))
    assert query.error_bound(crawl.books()) is None
    writer.apply(PARTITION, [seeds(2, *PAGES[8:])])
    assert unclassified(crawl)
    drain(writer)
    assert not unclassified(crawl)
    assert cash_of(crawl) == {url: 3 * GRANT if url.endswith("q") else GRANT for url in PAGES}


def test_two_partitions_may_define_at_once_and_one_follows_the_other(valkey: Server) -> None:
    crawl, one = opened(valkey)
    other = Writer(crawl)
    one.apply("log/0", [seeds(0, *PAGES), definition(1, named("docs", 3, contains=["/q"]))])
    other.apply("log/1", [definition(0, named("docs", 7, contains=["/r"]))])
    one.apply("log/0", [definition(2, named("docs", 2, contains=["/s"]))])
    drain(one, other)
    assert {replica.classes.version for replica in crawl.follow()} == {3}
    assert cash_of(crawl) == {url: 2 * GRANT if url.endswith("s") else GRANT for url in PAGES}


def test_undecodable_definition_becomes_a_dead_letter_and_the_partition_goes_on(valkey: Server) -> None:
    crawl, writer = opened(valkey)
    partitions = {crawl.home(name).number: name for name in (f"log/{number}" for number in range(40))}
    for partition in (partitions[number] for number in range(SHARDS)):
        writer.apply(partition, [Record(0, NOW_US, b"\xc1", "classes")])
        assert writer.resume(partition) == Writer(crawl).resume(partition) == 1
    assert crawl.totals().dead_letters == SHARDS


def test_a_class_number_is_reused_once_no_shard_has_a_page_in_it(valkey: Server) -> None:
    crawl, writer = opened(valkey)
    old = [named(f"old-{n}", 2, hosts=[host]) for n, host in enumerate(HOSTS[:7])]
    new = [named(f"new-{n}", 4, hosts=[host]) for n, host in enumerate(HOSTS[:7])]
    writer.apply(PARTITION, [definition(0, *old), seeds(1, *PAGES), definition(2, *new)])
    assert crawl.totals().dead_letters == 1  # Each place has a page in some shard, though not in shard 0.
    writer.apply(PARTITION, [definition(3)])
    drain(writer)
    writer.apply(PARTITION, [definition(4, *new)])
    drain(writer)
    assert crawl.totals().dead_letters == 1
    assert cash_of(crawl) == {url: GRANT if url[7] == "h" else 4 * GRANT for url in PAGES}


def test_weights_that_the_virtual_page_cannot_pay_are_refused_in_all_shards(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), given={"grant": 1 << 50}, shards=SHARDS)
    writer = Writer(crawl)
    writer.apply(PARTITION, [definition(0, named("all", 2, hosts=["org"])), seeds(1, *PAGES)])
    drain(writer)
    before = cash_of(crawl)
    writer.apply(PARTITION, [definition(2, named("all", 1_000, hosts=["org"]))])
    drain(writer)
    assert crawl.totals().dead_letters == 1
    assert {replica.classes.version for replica in crawl.follow()} == {1}
    assert cash_of(crawl) == before
    # What fits as a definition, no page being in it yet, may be too much for the pages: some stay where they are.
    writer.apply(PARTITION, [definition(3, named("heavy", 1_000, contains=["/q", "/r", "/s", "/p"]))])
    drain(writer)
    assert crawl.totals().pool > -DEBT_MAX
    assert 0 < crawl.totals().known_by[2] < len(PAGES)
    assert crawl.audit()[0].conserved


def test_classify_records_of_a_log_of_one_shard_change_nothing(valkey: Server) -> None:
    crawl, writer = opened(valkey)
    classify = Record(2, NOW_US, encode_ids((0, 2_000)), "classify")
    writer.apply(PARTITION, [seeds(0, *PAGES), definition(1, named("docs", 3, contains=["/q"])), classify])
    drain(writer)
    assert writer.resume(PARTITION) == 3
    assert crawl.totals().dead_letters == 0
    assert cash_of(crawl) == {url: 3 * GRANT if url.endswith("q") else GRANT for url in PAGES}


# Killed anywhere.


def history() -> list[Record]:
    rng, made = random.Random(7), [seeds(0, *PAGES[:6])]
    for offset in range(1, 90):
        if offset % 15 == 5:
            weight = 1 + offset % 4
            classes = [named("docs", weight, contains=[f"/{'pqrs'[offset % 4]}"]), named("news", 3, tags=["news"])]
            made.append(definition(offset, *classes[: 1 + offset % 2]))
        else:
            tags = ["news"] if rng.random() < 0.2 else []
            made.append(record(offset, rng.choice(PAGES), rng.sample(PAGES, 6), tags=tags))
    return made


def filled(server: Server, name: str, log: list[Record]) -> Crawl:
    crawl = Crawl.open(connect(server.url), name, shards=SHARDS)
    source = EventLog(crawl.client, crawl.shards[0].keys)
    for kind, records in groupby(log, lambda one: one.kind):
        source.append([one.value for one in records], NOW_US, kind)
    return crawl


@pytest.fixture
def small() -> Iterator[None]:
    """The same blocks of few pages as those of the workers."""
    with small_blocks(64, 8):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_worker_killed_anywhere_defines_each_time_once(valkey: Server) -> None:
    """Before statements of the writer, the sweeps and the step: then others go on, and in the end all is as ever."""
    log, rng = history(), random.Random(20030524)
    filled(valkey, "scratch", log)
    seen = json.loads(run_worker(valkey, "scratch", 20, {"record": True}).stdout)
    first = [where for where in sorted(seen) if where.startswith(("writer.py", "deliveries.py", "class_sweeps.py"))]
    rest = [
        where
        for where in sorted(seen)
        if where.startswith(("batch.py", "state_changes.py", "shard_writer.py", "replica.py"))
    ]
    crawl, killed = filled(valkey, "real", log), 0
    for where in [*rng.sample(first, 9), *rng.sample(rest, 4)]:
        until = min(crawl.resume(PARTITION) + len(log) // 11, len(log) - 1)
        plan = {"statement": where, "times": rng.randint(1, 3), "victim": 0, "until": until}
        killed += "killed the worker" in run_worker(valkey, "real", 20, plan).stderr
        whole, _ = crawl.audit()
        assert whole.conserved, (where, whole.mismatches)
    assert killed > 3
    done = run_worker(valkey, "real", 20, {"statement": "", "victim": 0})
    assert done.returncode == 0, done.stderr

    books, replicas = crawl.totals(), crawl.follow()
    assert books.reads == sum(one.kind == "event" for one in log)
    assert {replica.classes.version for replica in replicas} == {sum(one.kind == "classes" for one in log)}
    assert books.net == unclassified(crawl) == books.dead_letters == 0
    latest = replicas[0].classes
    for page in crawl.pages():
        assert page.slot == latest.slot_of(page.url)[0] or latest.has_tags(page.slot), page
    assert crawl.audit()[0].conserved


# As a user meets them.


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    given = {"host_delay_seconds": 0.0, "regrant": 0.0, "revisit_seconds": 0.0, "shards": SHARDS}
    given |= {"strategy": "greedy"}  # Pages in debt come first.
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", **given)) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as found,
    ):
        yield found


def settle(client: httpx.Client) -> dict[str, object]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := client.get("/v1/stats").raise_for_status().json())["lag"] or found["undelivered"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return dict(found)


@pytest.mark.slow
def test_weights_change_on_a_running_service_of_many_shards(client: httpx.Client) -> None:
    for page in PAGES[:8]:
        client.post("/v1/events", json={"url": page, "links": PAGES}).raise_for_status()
    settle(client)
    minted = client.get("/v1/audit").json()["minted"]

    def define(*classes: dict[str, object]) -> dict[str, object]:
        answer = client.put("/v1/classes", json={"classes": classes}).raise_for_status().json()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := client.get("/v1/classes").json())["other"]["known_pages"] != answer["other"]["known_pages"]:
            assert time.monotonic() < deadline, found
            answer = found
        settle(client)
        audit = client.get("/v1/audit").json()
        assert audit["conserved"], audit
        assert audit["minted"] == minted
        return dict(client.get("/v1/classes").json())

    docs, news = named("docs", 4, contains=["/q"]), named("news", 2, tags=["news"])
    found = define(docs, news)
    assert [one["known_pages"] for one in found["classes"]] == [len(HOSTS), 0]  # type: ignore[attr-defined]
    client.post("/v1/events", json={"url": PAGES[2], "links": PAGES, "tags": ["news"]}).raise_for_status()
    settle(client)
    answers = client.post("/v1/importance", json={"urls": [PAGES[1], PAGES[2], PAGES[3]]}).json()["pages"]
    assert [answer.get("class") for answer in answers] == ["docs", "news", None]
    assert answers[0]["teleport"] == "weighted"
    assert client.get("/v1/explain", params={"url": PAGES[1]}).json()["weight"] == 4

    version = client.get("/v1/classes").headers["ETag"]
    sport = named("sport", 3, tags=["sport"])
    added = (
        client.patch("/v1/classes", json={"classes": [sport]}, headers={"If-Match": version}).raise_for_status().json()
    )
    assert [one["name"] for one in added["classes"]] == ["docs", "news", "sport"]
    late = client.patch("/v1/classes", json={"remove": ["docs"]}, headers={"If-Match": version})
    assert late.status_code == 412

    define({**docs, "weight": 0.5}, news)
    owing = client.post("/v1/next", json={"n": 3, "mode": "refresh"}).json()["pages"]
    assert min(page["cash"] for page in owing) < 0
    client.post("/v1/events", json={"url": owing[0]["url"], "links": PAGES}).raise_for_status()
    found = define()
    assert found["classes"] == []
    assert found["other"]["known_pages"] == len(PAGES)  # type: ignore[index]
    settle(client)
    assert client.get("/v1/importance", params={"url": PAGES[0]}).json()["teleport"] == "uniform"
