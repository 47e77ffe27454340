"""How a batch of events changes the depths of pages; skipped for a batch without depths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opic.model.events import CheckedEvent
from opic.model.page_notes import one_deeper
from opic.replica.page_depths import PageDepths
from opic.replica.page_lookup import PageLookup, distinct

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DepthChanges:
    """The effect of a batch on depths."""

    pages: Int64s  # Pages whose depth becomes known or falls, ascending,
    nearness: Int64s  # and their nearness afterwards.
    of_links: list[int]  # Per event: the nearness that its links get at least; 0 if none.


def depth_changes(depths: PageDepths, named: PageLookup, events: Sequence[CheckedEvent]) -> DepthChanges:
    """Compute the depths after a batch, event by event; `opic.model.ledger` does the same page by page."""
    own = np.array(named.own, np.int64)
    seeds = [np.array(pages, np.int64) for pages in named.seeds.values()]
    ids = distinct(np.concatenate((named.links, own[own >= 0], *seeds)))
    before = depths.of(ids)
    now, of_links = before.copy(), [0] * len(events)
    at_link, at_own, edges = np.searchsorted(ids, named.links), np.searchsorted(ids, own).tolist(), named.edges

    def bring_near(at: Int64s, nearness: Int64s | int) -> None:
        now[at] = np.maximum(now[at], nearness)

    for place, event in enumerate(events):
        links = slice(edges[place], edges[place + 1])
        if named.own[place] >= 0:
            nearness = max(int(now[at_own[place]]), event.nearness)
            now[at_own[place]] = nearness
            of_links[place] = nearness = one_deeper(event.nearness or nearness)
            if nearness:
                bring_near(at_link[links], nearness)
        elif event.transfer is not None:
            if event.transfer.nearness.any():
                bring_near(at_link[links], event.transfer.nearness[named.order[place]])
        elif event.nearness and place in named.seeds:
            bring_near(np.searchsorted(ids, named.seeds[place]), event.nearness)
    changed = np.flatnonzero(now > before)
    return DepthChanges(ids[changed], now[changed], of_links)
