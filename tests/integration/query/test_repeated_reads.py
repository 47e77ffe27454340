"""A crawl that reads the same pages hundreds of times never runs out of cash, nor of pages to offer."""

import random
from dataclasses import asdict

import numpy as np
import pytest
from logs import NOW_US, PARTITION
from same_state import assert_same
from servers import Server

from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.cash import GRANT_GRAINS, CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.store import Shard

PAGES, READABLE, SWEEPS = 30, 10, 300
POOL_GRANTS = 10  # Of each page: grants that grew would take most of them within SWEEPS.
DAMPING = 0.85


def web_of(seed: int) -> dict[str, list[str]]:
    """Links between PAGES pages at random, of which only the first READABLE are ever read."""
    draw = random.Random(seed)
    urls = [f"http://site{page}.example/" for page in range(PAGES)]
    return {url: draw.sample(urls, draw.randint(0, 6)) for url in urls}


def pagerank(web: dict[str, list[str]]) -> np.ndarray:
    """PageRank of what is known: a page that was not read has no links yet."""
    row = {url: at for at, url in enumerate(web)}
    walk = np.full((PAGES, PAGES), 1 / PAGES)
    for url in list(web)[:READABLE]:
        if targets := {to for to in web[url] if to != url}:
            walk[:, row[url]] = 0
            walk[[row[to] for to in targets], row[url]] = 1 / len(targets)
    fixed = np.linalg.solve(np.eye(PAGES) - DAMPING * walk, np.full(PAGES, (1 - DAMPING) / PAGES))
    return np.asarray(fixed)


@pytest.mark.slow
def test_hundreds_of_sweeps_leave_the_pool_full_and_narrow_the_error(valkey: Server) -> None:
    """A thousand of them, by the ledger alone, are in tests/properties/model/test_ledger.py."""
    web, rules = web_of(seed=1), CrawlRules(minted=PAGES * POOL_GRANTS * GRANT_GRAINS)
    ledger = Ledger(rules)
    writer = ShardWriter(Shard.open(valkey.client(), given=asdict(rules)))
    crawl = Crawl.open(valkey.client())
    frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0))
    exact, log = pagerank(web), list[Record]()

    def apply(values: list[tuple[bytes, str]]) -> None:
        records = [Record(len(log) + at, NOW_US, value, kind) for at, (value, kind) in enumerate(values)]
        writer.apply(PARTITION, records)
        ledger.apply(PARTITION, records)
        log.extend(records)

    def read(urls: list[str]) -> None:
        apply([(encode_crawl_event(CrawlEvent(url=url, links=web[url])), "event") for url in urls])

    def error_and_bound() -> tuple[float, float]:
        pages = [ledger.pages[url] for url in web]
        held = np.array([page.spent + ledger.cash(page) for page in pages], np.float64)
        bound = ledger.books.error_bound(rules.minted, rules.q)
        return float(np.abs(held / ledger.books.importance_total(rules.minted) - exact).sum()), bound

    apply([(encode_seeds(list(web)), "seeds")])
    read(list(web)[:READABLE])
    seen: dict[int, tuple[float, float]] = {}
    reads = 0
    while reads < SWEEPS * READABLE:
        offered = frontier.next(READABLE // 2, mode="refresh").pages
        assert offered, f"after {reads:,} reads no page is offered"
        read([page.url for page in offered])
        reads += len(offered)  # type: ignore[arg-type]
        seen.setdefault(reads // (100 * READABLE), error_and_bound())
    (first, first_bound), (last, last_bound) = seen[1], error_and_bound()
    assert last <= first
    assert last_bound <= first_bound
    assert all(error <= bound for error, bound in seen.values())
    assert ledger.books.pool > rules.minted // 4
    assert (ledger.books.sweeps_left(rules) or 0) > 100
    assert_same(writer.shard, ledger)
