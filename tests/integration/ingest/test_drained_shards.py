"""A replay is over, and `opic stats --wait` answers, once every shard has what the others sent it."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from processes import environment, wait_until
from repository import ROOT
from servers import Server
from serving import working

from opic.ingest import Writer
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.ops.feeder import Progress
from opic.ops.replay import Plan, replay
from opic.service.backend import Backend
from opic.settings import Settings

SHARDS, HOSTS, SECONDS_MAX = 16, 40, 60.0
names = count()


def opened(server: Server, shards: int = SHARDS) -> Backend:
    """A crawl of many shards that nobody works at."""
    return Backend(Settings(store=server.url, crawl=f"drained-{next(names)}", shards=shards), server.url)


def chain(path: Path) -> int:
    """A crawl in which every event, the last one too, links to pages of other hosts that nothing else names."""
    rows = [
        {"url": f"http://h{host}.example/", "links": [f"http://new{host}.h{(host + step) % HOSTS}.example/{step}"]}
        for host in range(HOSTS)
        for step in (1, 7, 11)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HOSTS + len(rows)


def entries_kept(backend: Backend) -> int:
    crawl = backend.crawl
    return sum(crawl.client.xlen(shard.keys.outbox(to)) for shard in crawl.shards for to in range(len(crawl)))


def assert_drained(backend: Backend, pages: int) -> None:
    assert (backend.lag(), backend.crawl.undelivered()) == (0, 0)
    assert entries_kept(backend) == 0
    assert sum(books.net for books in backend.crawl.books()) == 0
    assert backend.crawl.totals().live == pages
    assert Writer(backend.crawl).deliver() == 0


def test_replay_ends_with_every_page_known_and_nothing_between_shards(valkey: Server, tmp_path: Path) -> None:
    pages, backend, told = chain(tmp_path / "crawl.jsonl"), opened(valkey), list[int]()

    def on_progress(progress: Progress) -> None:
        told.append(progress.undelivered)

    with working(backend):
        summary = replay(backend, [tmp_path / "crawl.jsonl"], Plan("jsonl"), on_progress)
    assert_drained(backend, pages)
    assert (summary.pages, told[-1]) == (pages, 0)


@pytest.mark.slow
def test_replay_with_a_worker_running_ends_once_drained(valkey: Server, tmp_path: Path) -> None:
    pages, backend = chain(tmp_path / "crawl.jsonl"), opened(valkey)
    settings = backend.settings
    env = {**environment(), "OPIC_STORE": valkey.url, "OPIC_CRAWL": settings.crawl, "OPIC_WORKER_PORT": "0"}
    worker = subprocess.Popen([sys.executable, "-m", "consumers.crawl_events"], env=env, stderr=subprocess.DEVNULL)
    try:
        summary = replay(backend, [tmp_path / "crawl.jsonl"], Plan("jsonl"))
        assert summary.pages == pages
        # What the worker took it trims a moment later.
        wait_until(lambda: entries_kept(backend) == 0)
        assert_drained(backend, pages)
    finally:
        worker.terminate()
        worker.wait(SECONDS_MAX)


def web(path: Path) -> None:
    """The graph of a college's pages, put onto hosts: edges in the order in which a crawl from one seed finds them."""
    with gzip.open(ROOT / "tests/data/hollins/hollins.dat.gz", "rt") as lines:
        pages, *_ = map(int, next(lines).split())
        links: dict[int, list[int]] = {}
        for line in itertools.islice(lines, pages, None):
            if line.strip():
                source, target = map(int, line.split())
                links.setdefault(source, []).append(target)
    found = {1: None}
    with path.open("w") as file:
        for source in (queue := [1]):
            for target in links.get(source, []):
                file.write(f"http://h{source % 300}.example/{source} http://h{target % 300}.example/{target}\n")
                if target not in found:
                    found[target] = None
                    queue.append(target)


@pytest.mark.slow
def test_rounds_of_a_replay_are_the_same_with_one_shard_and_with_many(valkey: Server, tmp_path: Path) -> None:
    """Within 10 %: cash that crosses between shards is spent later, and pages there are known later."""
    web(tmp_path / "web.txt")
    rounds = {}
    for shards in (1, SHARDS):
        backend = opened(valkey, shards)
        with working(backend):
            replay(backend, [tmp_path / "web.txt"], Plan("edges"))
        rounds[shards] = float(str(backend.stats()["rounds"]))
        backend.close()
    assert rounds[SHARDS] == pytest.approx(rounds[1], rel=0.1)


def stats(backend: Backend, *words: str) -> list[str]:
    settings = backend.settings
    store = ("--store", settings.store, "--crawl", settings.crawl)
    return [sys.executable, "-m", "opic.cli.main", "stats", *words, *store, "--json"]


@pytest.mark.slow
def test_stats_wait_for_events_then_for_transfers_and_report_a_timeout_with_a_remedy(valkey: Server) -> None:
    """Exit status 1, and the counts all the same, when the time is out; 0 once all has arrived."""
    backend = opened(valkey)
    links = [f"http://h{host}.example/" for host in range(1, HOSTS)]
    end = backend.accept([encode_crawl_event(CrawlEvent(url="http://h0.example/", links=links))])

    def refused() -> str:
        command = stats(backend, "--wait", "--timeout", "0.3")
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["shards"] == SHARDS
        return done.stderr

    assert "1 events and 0 transfers between shards wait after 0.3 s: check that a worker runs" in refused()
    writer = Writer(backend.crawl)
    (partition,) = end
    writer.apply(partition, backend.log.read(0, 10))  # type: ignore[attr-defined]
    others = len({backend.crawl.shard_of(url).number for url in links} - {backend.crawl.shard_of("http://h0.example/")})
    waiting = backend.crawl.waiting()
    assert 0 < waiting <= others
    assert f"0 events and {waiting} transfers between shards wait" in refused()
    with subprocess.Popen(stats(backend, "--wait"), env=environment(), stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        writer.drain()
        out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == os.EX_OK
    assert json.loads(out)["known_pages"] == HOSTS
    assert_drained(backend, HOSTS)


def test_stats_wait_for_a_grant_that_is_due(valkey: Server) -> None:
    """Cash that has drained is granted anew by the delivery: until then the counts are not the last ones."""
    backend = opened(valkey)
    urls = [f"http://h{host}.example/" for host in range(HOSTS)]
    writer = Writer(backend.crawl)
    for _ in range(60):
        backend.accept([encode_crawl_event(CrawlEvent(url=url)) for url in urls])
        partition = next(iter(backend.log.ends()))
        writer.apply(partition, backend.log.read(writer.resume(partition), 1_000))  # type: ignore[attr-defined]
        assert backend.crawl.waiting() == 0
        if backend.crawl.undelivered():
            break
    assert backend.crawl.undelivered() == 1
    credit = backend.crawl.books()[0].credit
    writer.drain()
    assert backend.crawl.books()[-1].credit > credit
    assert_drained(backend, HOSTS)
