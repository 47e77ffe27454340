"""A store with its frontier, fed event by event: what tests of the frontier share."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logs import PARTITION
from servers import Server

from opic.admission import Admission
from opic.frontier import Frontier, PagesRequest, PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.replica import Crawl as Shards
from opic.store import Shard

AT_ONCE = PolitenessSettings(host_delay_seconds=0.0)
WAIT_SECONDS_MAX = 20.0
CLOCK_SECONDS = 2e-6  # Times are microseconds that passed through floats.


class Crawl:
    """A store with its frontier, fed event by event, at the times that the events take effect."""

    def __init__(
        self, server: Server, politeness: PolitenessSettings = AT_ONCE, regrant_ppm: int = 0, **more: Any
    ) -> None:
        """Without further grants, so that a page has nothing but what its first grant and its links gave it."""
        self.server = server
        shard = Shard.open(server.client(), given={"regrant_ppm": regrant_ppm})
        self.store = ShardWriter(shard, retry_seconds=politeness.retry_seconds)
        self.pages = Shards.open(server.client())
        self.frontier = self.endpoint(politeness, **more)
        self.offset = 0

    def endpoint(self, politeness: PolitenessSettings = AT_ONCE, *, admitted: bool = False, **more: Any) -> Frontier:
        """One more endpoint on the same store, as if in another process: its connection and replicas are its own."""
        crawl = Shards.open(self.server.client())
        return Frontier(crawl, politeness, admission=Admission(crawl) if admitted else None, **more)

    def seed(self, urls: Iterable[str]) -> None:
        self._apply(encode_seeds(list(urls)), "seeds")

    def event(self, url: str, links: Iterable[str] = (), arrived: float | None = None, **more: Any) -> None:
        """An event that takes effect now; `arrived`: when it was accepted, if it had to wait for the worker."""
        self._apply(encode_crawl_event(CrawlEvent(url=url, links=list(links), **more)), "event", arrived)

    def _apply(self, value: bytes, kind: str, arrived: float | None = None) -> None:
        time_us = time.time_ns() // 1000 if arrived is None else round(arrived * 1e6)
        self.store.apply(PARTITION, [Record(self.offset, time_us, value, kind)])
        self.offset += 1

    def next(self, n: int = 10, **more: Any) -> list[dict[str, Any]]:
        return self.frontier.next(n, **more).pages

    def urls(self, n: int = 10, **more: Any) -> list[str]:
        return [page.url for page in self.next(n, **more)]

    def fails(self) -> int:
        """How often fetches of all pages failed, each page since its last success."""
        keys = self.store.shard.keys
        return sum(map(int, self.store.shard.client.hvals(keys.fails)))


def drawn_places(frontier: Frontier, request: PagesRequest, draws: int) -> Iterator[list[tuple[int, int]]]:
    """Shards and ids of the pages that are chosen again and again, as if each was released at once."""
    frontier._scheduler.peek(request)  # The choices are of the state as of now, without a look at the store each.
    choices, by = frontier._scheduler.choices, request.choice(request.mode)
    for _ in range(draws):
        picked = choices.pick(by, request.n)
        if by.policy is not None:
            choices.taken(by, picked)
        yield list(zip(picked.shards.tolist(), picked.ids.tolist(), strict=True))


def until(found: Callable[[], Any]) -> Any:
    """Ask until the answer is not empty."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (answer := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
    return answer


def pages_of(hosts: int, each: int) -> list[str]:
    return [f"http://h{h}.org/{i}" for i in range(each) for h in range(hosts)]
