"""Rounds are a property of the crawl: one log gives the same on any number of shards, and so do windows of rounds."""

import random
from functools import cache
from itertools import count

import numpy as np
import pytest
from example_counts import THOROUGH
from servers import Server

from opic.ingest import Writer
from opic.ingest.worker import LogSource
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.model.series import Window
from opic.service.backend import Backend
from opic.settings import Settings

SHARDS = (1, 4, 16) if THOROUGH else (1, 16)
START_US, STEP_US = 1_790_000_000_000_000, 400_000
names = count()


def event(url: str, links: list[str]) -> bytes:
    return encode_crawl_event(CrawlEvent(url=url, links=links))


@cache
def growing_log() -> list[bytes]:
    """A crawl from one page that finds three new pages with each read, in the order in which it finds them."""
    rng, found, log = random.Random(7), ["http://h0.example/0"], []
    for number in range(600):
        new = [f"http://h{rng.randrange(200)}.example/{3 * number + at}" for at in (1, 2, 3)]
        links = new + rng.choices(found, k=5)
        log.append(event(found[number], links))
        found += new
    return log


@cache
def widened_log() -> list[bytes]:
    """A crawl that reads few pages of few hosts again and again; then it finds ten times as many on other hosts."""
    rng = random.Random(8)
    few = [f"http://few{page % 5}.example/{page}" for page in range(20)]
    many = [f"http://many{page % 60}.example/{page}" for page in range(200)]
    links = {url: rng.sample(few, 6) for url in few} | {url: rng.sample(few + many, 6) for url in many}
    log = [event(url, links[url]) for url in few + rng.choices(few, k=300)]
    log += [event(few[page], [*links[few[page]], *many[10 * page : 10 * page + 10]]) for page in range(20)]
    return log + [event(url, links[url]) for url in many + rng.choices(few + many, k=300)]


def crawled(server: Server, shards: int, log: list[bytes], *, a_call: int) -> Backend:
    """The log, taken by a worker that keeps up with calls of so many events each."""
    settings = Settings(
        store=server.url, crawl=f"rounds-{next(names)}", shards=shards, history_measures=64, keep_links=False,
    )  # fmt: skip
    backend = Backend(settings, server.url)
    writer = Writer.of(backend.crawl, settings)
    source = LogSource(backend.log, backend.crawl.resume)  # type: ignore[arg-type]
    for at in range(0, len(log), a_call):
        backend.accept(log[at : at + a_call], time_us=START_US + at * STEP_US)
        while batches := source.poll(0):
            for taken in batches:
                writer.apply(taken.partition, taken.records, since=taken.since)
                source.done(taken)
        writer.deliver()
    writer.drain()
    return backend


def reads_in(backend: Backend, window: str) -> dict[str, int]:
    """How many reads of each page are in a window of the whole crawl."""
    snapshot = backend.snapshots.fresh()
    view = snapshot.view("fixed", Window.parse(window))
    inside = np.append(0, np.cumsum(view.past.clock > view.past.now - view.grains))
    reads = inside[view.past.starts[1:]] - inside[view.past.starts[:-1]]
    places = snapshot.places(np.arange(len(snapshot)))
    urls = backend.crawl.urls_of(places)
    return {urls[place]: number for place, number in zip(places, reads.tolist(), strict=True)}


@pytest.mark.parametrize("a_call", [25, 600])
def test_a_crawl_that_finds_its_pages_has_the_same_rounds_on_any_number_of_shards(valkey: Server, a_call: int) -> None:
    """Within a tenth, the clock too, however much of the log waits for the worker."""
    found = {}
    for shards in SHARDS:
        backend = crawled(valkey, shards, growing_log(), a_call=a_call)
        found[shards] = [float(str(backend.stats()[name])) for name in ("rounds", "clock")]
        backend.close()
    for shards in SHARDS[1:]:
        assert found[shards] == pytest.approx(found[1], rel=0.1), (shards, found)


def test_windows_of_rounds_have_the_same_reads_on_any_number_of_shards(valkey: Server) -> None:
    """But for one in ten, at the window's start. What one call brings is half of the crawl at its beginning."""
    found, rounds = {}, {}
    for shards in SHARDS:
        backend = crawled(valkey, shards, widened_log(), a_call=10)
        found[shards] = {window: reads_in(backend, window) for window in ("2", "4", "8")}
        rounds[shards] = float(str(backend.stats()["rounds"]))
        backend.close()
    for shards in SHARDS[1:]:
        assert rounds[shards] == pytest.approx(rounds[1], rel=0.05)
        for window, expected in found[1].items():
            reads = [(found[shards][window][url], number) for url, number in expected.items()]
            shared, all_ = (sum(f(pair) for pair in reads) for f in (min, max))
            assert shared >= 0.9 * all_ > 0, (shards, window, shared, all_)
