"""Greedy cash revisits: on a real graph, what was not read for long is next, the important sooner than the rest."""

import gzip
import heapq
import random

import numpy as np
import pytest
from repository import ROOT

from opic.model.cash import CrawlRules, split

pytestmark = pytest.mark.slow

GRAPH = ROOT / "tests/data/hollins/hollins.dat.gz"
READS_A_PAGE = 5
RULES = CrawlRules()


def links() -> list[list[int]]:
    """The web of hollins.edu, January 2004: pages by number, with their links."""
    with gzip.open(GRAPH, "rt") as lines:
        pages, edges, _ = map(int, next(lines).split())
        found: list[list[int]] = [[] for _ in range(pages)]
        rows = [line.split() for line in lines]
    for row in rows[-edges:]:
        source, target = int(row[0]) - 1, int(row[1]) - 1
        if source != target:
            found[source].append(target)
    return [sorted(set(some)) for some in found]


def crawl(graph: list[list[int]]) -> list[int]:
    """Read the page with most cash, again and again; the virtual page pays all alike whenever it has a grain for each.

    Such a payment changes no order, so a heap of the cash less what all were paid will do.
    """
    cash, pool, paid = [RULES.grant] * len(graph), 0, 0
    heap = [(-amount, page) for page, amount in enumerate(cash)]
    heapq.heapify(heap)
    reads: list[int] = []
    while len(reads) < READS_A_PAGE * len(graph):
        key, page = heapq.heappop(heap)
        if -key != cash[page]:
            continue  # It changed since.
        parts = split(cash[page] + paid, len(graph[page]), RULES.q)
        cash[page] = -paid
        pool += parts.virtual
        for target in graph[page]:
            cash[target] += parts.share
            heapq.heappush(heap, (-cash[target], target))
        heapq.heappush(heap, (-cash[page], page))
        paid, pool = paid + pool // len(graph), pool % len(graph)
        reads.append(page)
    return reads


def importance(graph: list[list[int]]) -> np.ndarray:
    rank, d = np.full(len(graph), 1 / len(graph)), 1 - RULES.q / 1e6
    counts = np.array([max(len(some), 1) for some in graph])
    sources = np.repeat(np.arange(len(graph)), [len(some) for some in graph])
    targets = np.array([target for some in graph for target in some])
    for _ in range(60):
        after = np.zeros(len(graph))
        np.add.at(after, targets, d * (rank / counts)[sources])
        rank = after + (1 - after.sum()) / len(graph)
    return rank


def test_greedy_cash_reads_important_pages_more_often_and_lets_none_wait_for_ever() -> None:
    graph = links()
    rank, reads = importance(graph), np.array(crawl(graph))
    times = np.bincount(reads, minlength=len(graph))
    assert times.min() >= 1
    top, rest = np.argsort(-rank)[: len(graph) // 10], np.argsort(-rank)[len(graph) // 2 :]
    assert times[top].mean() > 3 * times[rest].mean()

    # Of pages about as important as the one that is read, most were read later.
    last, shares = np.full(len(graph), -1), []
    order = np.argsort(rank)
    place = np.argsort(order)
    chosen = set(random.Random(7).sample(range(len(reads) // 2, len(reads)), 500))
    for at, page in enumerate(reads.tolist()):
        if at in chosen:
            peers = order[max(place[page] - 50, 0) : place[page] + 50]
            shares.append(float((last[peers] > last[page]).mean()))
        last[page] = at
    assert np.median(shares) > 0.75
    assert np.mean(shares) > 0.65  # Were it by chance, both would be a half.
