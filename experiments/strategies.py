"""Crawling strategies: which page a simulated crawl reads next.

Random, Greedy and Cycle are the paper's. The others choose a batch of pages at a time, those of the highest score, and
read each once; a batch is a hundredth of the known pages unless its name says otherwise.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from experiments.opic_engine import READ, Engine, payment_shares
from opic.arrays import Float64s, Int64s

Read = Callable[[int], None]  # Reads so many pages.
BATCH: Final = 0.01
CUT: Final = 0.5  # A batch that is cut ends where a page has less than this share of the best page's cash.
REWEIGH: Final = 0.1  # Weights are taken anew after so many reads for each known page.


def random_order(engine: Engine, rng: np.random.Generator) -> Read:
    """Return the strategy Random: any known page, with equal probability."""

    def read(count: int) -> None:
        while count:
            # A page found now can be drawn from the next block on.
            block = min(count, max(1, round(BATCH * len(engine.known))))
            engine.read(rng.choice(engine.known, block))
            count -= block

    return read


def cycle(engine: Engine, rng: np.random.Generator) -> Read:
    """Return the strategy Cycle: the known pages in the order in which they became known, over and over."""
    del rng
    place = 0

    def read(count: int) -> None:
        nonlocal place
        while count:
            if place >= len(engine.known):
                place = 0
            order = engine.known[place : place + count].copy()
            engine.read(order)
            place += len(order)
            count -= len(order)

    return read


def greedy(engine: Engine, rng: np.random.Generator) -> Read:
    """Return the strategy Greedy: the page with the most cash."""
    del rng
    return engine.read_greedily


def in_batches(
    engine: Engine,
    rng: np.random.Generator,
    *,
    size: float = BATCH,
    cut: bool = False,
    weigh: Callable[[Engine], Float64s] | None = None,
) -> Read:
    """Return a strategy that chooses batches of pages by cash times weight.

    Args:
        engine: the crawl.
        rng: not used.
        size: of a batch, as a share of the known pages.
        cut: end a batch at half of its best page's cash.
        weigh: returns the weight of each page of the graph; equal ones if None.
    """
    del rng
    weights, weighed_at = np.ones(len(engine)), -np.inf
    done = 0

    def read(count: int) -> None:
        nonlocal weights, weighed_at, done
        while count:
            known = engine.known
            if weigh is not None and done - weighed_at >= REWEIGH * len(known):
                weights, weighed_at = weigh(engine), done
            batch = best(engine.cash[known] * weights[known], min(count, max(1, round(size * len(known)))), cut)
            engine.read(known[batch])
            count -= len(batch)
            done += len(batch)

    return read


def best(scores: Float64s, count: int, cut: bool) -> Int64s:
    """Return the places of the highest scores, descending."""
    places = np.flatnonzero(scores >= CUT * scores.max()) if cut else np.arange(len(scores))
    if count < len(places):
        places = places[np.argpartition(-scores[places], count - 1)[:count]]
    return places[np.argsort(-scores[places], kind="stable")]


def per_link(engine: Engine) -> Float64s:
    """(N,) Return 1/(links + 1) for pages that were read; their mean for others, whose links nobody knows."""
    return _mean_for_unread(engine, 1 / (engine.links.degrees + 1))


def expected_change(engine: Engine) -> Float64s:
    """(N,) Return by how much the read of a page moves the estimates, in L1, for each grain that it spends.

    A read of page i with cash c adds c to the total T = sum of H + C, and p_i c to the pages, where p_i is the page's
    row of the transition matrix. So x = (H + C)/T moves by c/(T + c) |p_i - x|, and |p - x| = 2 (1 - sum of min(p, x)).
    A page of which nobody knows the links has the mean of the others.
    """
    x, links = engine.estimate(), engine.links
    shares, virtual = payment_shares(links, engine.rules)
    each = virtual / len(engine)
    ordered = np.sort(x)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    place = np.searchsorted(ordered, each)
    common = sums[place] + each * (len(engine) - place)
    source = np.repeat(np.arange(len(engine)), links.degrees)
    to = x[links.targets]
    more = np.minimum((shares + each)[source], to) - np.minimum(each[source], to)
    return _mean_for_unread(engine, 1 - common - np.bincount(source, more, len(engine)))


def relative_change(engine: Engine) -> Float64s:
    """(N,) Return the sum over all pages of p_i / x: by how much a read moves the estimates, relative to each."""
    x, links = np.maximum(engine.estimate(), 1e-12), engine.links
    shares, virtual = payment_shares(links, engine.rules)
    source = np.repeat(np.arange(len(engine)), links.degrees)
    found = np.bincount(source, 1 / x[links.targets], len(engine)) * shares + virtual * (1 / x).mean()
    return _mean_for_unread(engine, found)


def _mean_for_unread(engine: Engine, weights: Float64s) -> Float64s:
    read = engine.columns.state == READ
    return np.where(read, weights, weights[read].mean()) if read.any() else np.ones(len(engine))


# By name: from a crawl and a source of random numbers, what reads its next pages.
STRATEGIES: Final[dict[str, Callable[[Engine, np.random.Generator], Read]]] = {
    "Greedy": greedy,
    "Cycle": cycle,
    "Random": random_order,
    "cash per link": partial(in_batches, weigh=per_link),
    "expected change": partial(in_batches, weigh=expected_change),
    "relative change": partial(in_batches, weigh=relative_change),
    "batches of 1 %": in_batches,
    "batches of 10 %": partial(in_batches, size=0.1),
    "batches of 25 %": partial(in_batches, size=0.25),
    "batches of 25 %, cut": partial(in_batches, size=0.25, cut=True),
    "batches of 100 %, cut": partial(in_batches, size=1.0, cut=True),
}
