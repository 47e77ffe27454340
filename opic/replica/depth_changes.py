"""How a batch of events changes the depths of pages; skipped for a batch without depths."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opic.arrays import Int64s, Uint16s, Uint32s
from opic.model.events import CheckedEvent
from opic.model.page_notes import one_deeper
from opic.replica.page_lookup import PageLookup, distinct
from opic.replica.page_table import PageDepths


@dataclass(frozen=True, slots=True)
class DepthChanges:
    """The effect of a batch on depths."""

    pages: Uint32s = field(default_factory=lambda: np.empty(0, np.uint32))  # Whose depth is new or less, ascending,
    nearness: Uint16s = field(default_factory=lambda: np.empty(0, np.uint16))  # and their nearness afterwards.
    of_links: Sequence[int] = ()  # Per event: the nearness that its links get at least, 0 if none; may be empty.

    def effect_fields(self) -> dict[str, Any]:
        """Return the fields of the effect."""
        return {"depth_page": self.pages, "nearness": self.nearness}


def depth_changes(
    depths: PageDepths, named: PageLookup, events: Sequence[CheckedEvent], *, given: bool
) -> DepthChanges:
    """Compute the depths after a batch, event by event; `opic.model.ledger` does the same page by page.

    Args:
        depths: the depths before the batch.
        named: the pages, seeds and links of the events.
        events: the events.
        given: whether any of them gives a depth. If not, and no page of an event has one, nothing changes.
    """
    if not given and not (depths.used and depths.of(np.maximum(named.own, 0)).any()):
        return DepthChanges()
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
    return DepthChanges(ids[changed].astype(np.uint32), now[changed].astype(np.uint16), of_links)
