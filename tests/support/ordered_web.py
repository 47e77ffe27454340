"""A crawl whose pages are suggested by exact importance, and beside it the order by the plain formula."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from frontiers import AT_ONCE
from linked_web import Web
from plain_flow import transitions
from servers import Server

from opic.frontier import Frontier
from opic.model.cash import MILLION, Flag
from opic.model.events import Record, encode_seeds
from opic.query.fetch_order import FetchOrder
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl

DAMPING = 0.85
MANY = [f"http://h{page % 6}.org/{page}" for page in range(60)]


class Ordered(Web):
    """A crawl that keeps links, and an endpoint that suggests its pages by importance."""

    def __init__(self, server: Server, name: str, shards: int = 1, seed_share: float = 0.2, **more: Any) -> None:
        super().__init__(server, name, shards)
        self.seeds: list[str] = []
        self.reads: dict[str, list[tuple[int, set[str]]]] = {}  # By page: when it was read, and the links shown.
        self.seed_share = seed_share
        self.pages = Crawl.open(server.client(), name)
        self.flows = PageFlows(KeptLinks(self.pages))
        self.order = FetchOrder(self.flows, seed_share, 2e-9)
        self.frontier = Frontier(self.pages, **{"politeness": AT_ONCE, "worth": self.order, **more})

    def seed(self, urls: Sequence[str], depth: int | None = 0, trust: float | None = None) -> None:
        value = encode_seeds(list(urls), depth, trust=trust)
        self.writer.apply("log/0", [Record(self.offset, self.at_us, value, "seeds")])
        self.offset += 1
        self.seeds += urls if depth == 0 else ()
        self.writer.drain()

    def read(self, url: str, links: Sequence[str], status: int = 200) -> None:
        if status < 400:
            self.reads.setdefault(url, []).append((self.at_us, set(links) - {url}))
        super().read(url, links, status)
        self.writer.drain()

    def next(self, n: int = 10, **more: Any) -> dict[str, Any]:
        return self.frontier.next(n, **more)

    def urls(self, n: int = 10, **more: Any) -> list[str]:
        return [page.url for page in self.next(n, **more).pages]

    @staticmethod
    def first_again(frontier: Frontier) -> str:
        """The page that would be read again first."""
        found: Any = frontier.peek(1, mode="refresh").pages
        return str(found[0].url)

    def keys(self, mode: str) -> dict[str, float]:
        """By page that may be suggested: its key, by solving the equations."""
        found = [page for page in self.crawl.pages() if not page.has(Flag.GONE)]
        at = {page.url: number for number, page in enumerate(found)}
        opened = {page.url for page in found if page.has(Flag.OPEN)}
        links = {at[url]: [at[link] for link in self.links[url] if link in at] for url in opened}
        moves = transitions(links, set(), len(found))
        seeds = np.array([page.url in self.seeds for page in found], np.float64)
        visits = [
            np.linalg.solve(np.eye(len(found)) - DAMPING * moves, weights / max(weights.sum(), 1))
            for weights in (np.ones(len(found)), seeds)
        ]
        mixed = (1 - self.seed_share) * visits[0] + self.seed_share * visits[1] if seeds.any() else visits[0]
        if mode == "discover":
            return {url: float(mixed[number]) for url, number in at.items() if url not in opened}
        now_us, rates = time.time() * MILLION, self.rates(sorted(opened))
        return {
            url: float(np.sqrt(visits[0][at[url]] * rates[url]) * (now_us - self.reads[url][-1][0])) for url in opened
        }

    def rates(self, urls: Sequence[str]) -> dict[str, float]:
        """The learned rate of change of each page: of all reads, those that showed other links."""
        times = {url: [at for at, _ in self.reads[url]] for url in urls}
        observed = {
            url: found[-1] / MILLION - found[0] // MILLION if len(found) > 1 else 0.0 for url, found in times.items()
        }
        again = [observed[url] / (len(self.reads[url]) - 1) for url in urls if observed[url] > 0]
        interval = float(np.mean(again)) if again else 1.0
        rates = {}
        for url in urls:
            changes = sum(one != other for (_, one), (_, other) in pairwise(self.reads[url]))
            rates[url] = (changes + 0.5) / (observed[url] / interval + 1)
        return rates

    def cash(self, urls: Sequence[str]) -> dict[str, int]:
        self.crawl.follow()
        places, rows = self.crawl.find_rows(urls)
        assert None not in places
        return dict(zip(urls, rows.cash.tolist(), strict=True))
