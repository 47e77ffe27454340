"""The plain twin of `opic.graph.focused_walk`: the paper's walk written down as it is, every loop a step of its own."""

import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from opic.graph.focused_walk import SeenPage

Links = Sequence[Sequence[int]]


def edge_counts(links: Links, allowed: Sequence[bool]) -> np.ndarray:
    """How many edges join two pages on which the walk may be: a link either way is one."""
    counts = np.zeros((len(links), len(links)), np.int64)
    for page, targets in enumerate(links):
        for target in {*targets} - {page}:
            if allowed[page] and allowed[target]:
                counts[page, target] += 1
                counts[target, page] += 1
    return counts


def transition(counts: np.ndarray, virtual_degree: int) -> np.ndarray:
    """The chain of virtual steps: a uniform edge of the D, the missing ones loops."""
    chain = counts / virtual_degree
    np.fill_diagonal(chain, 1 - chain.sum(axis=1))
    return chain


def plain_walk(counts: np.ndarray, start: int, virtual_degree: int, rng: random.Random) -> Iterator[int]:
    """Yield the page at each virtual step."""
    at = start
    while True:
        yield at
        if rng.random() < counts[at].sum() / virtual_degree:
            neighbours = np.repeat(np.arange(len(counts)), counts[at])
            at = int(neighbours[rng.randrange(len(neighbours))])


def relaxation_time(chain: np.ndarray) -> float:
    """Virtual steps in which a symmetric chain forgets all but 1/e: one over its spectral gap."""
    return float(1 / (1 - np.sort(np.linalg.eigvalsh(chain))[-2]))


@dataclass
class SmallWeb:
    """A web in lists. `known`: the in-links that are known of each page; without it, all. `moved`, `gone`: no pages."""

    links: Links
    topic: Sequence[bool]
    hosts: Sequence[Hashable] | None = None
    known: Sequence[Sequence[int]] | None = None
    moved: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    looks: int = 0

    def load_page(self, page: int) -> SeenPage[int] | None:
        self.looks += 1
        page = self.moved.get(page, page)
        return None if page in self.gone else SeenPage(page, self.links[page], self.topic[page])

    def inlinks(self, page: int) -> list[int]:
        if self.known is not None:
            return list(self.known[page])
        return [source for source, targets in enumerate(self.links) if page in targets]

    def host(self, page: int) -> Hashable:
        return page if self.hosts is None else self.hosts[page]
