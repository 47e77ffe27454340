"""How a batch of events changes failures, earliest times and priorities of pages; skipped where none is concerned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opic.model.events import CheckedEvent
from opic.model.page_notes import failures_after
from opic.replica.page_lookup import PageLookup, distinct
from opic.replica.page_offers import PageOffers


@dataclass(frozen=True, slots=True)
class OfferChanges:
    """The effect of a batch on what is said of pages: (n,) each, and the values afterwards."""

    pages: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))  # Ascending.
    failures: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    not_before_us: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    priority: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    revived: Sequence[int] = ()  # Pages whose last failures a seed has ended: their back-offs end too.

    def effect_fields(self) -> dict[str, Any]:
        """Return the fields of the effect."""
        columns = {name: getattr(self, name) for name in ("failures", "not_before_us", "priority")}
        return {"offer_page": self.pages, **columns}


def offer_changes(offers: PageOffers, named: PageLookup, events: Sequence[CheckedEvent]) -> OfferChanges:
    """Compute the changes of a batch, event by event; `opic.model.page_notes.note` does the same page by page.

    Args:
        offers: the columns before the batch.
        named: the pages and seeds of the events.
        events: the events.
    """
    says = any(event.failed or event.not_before_us is not None or event.priority is not None for event in events)
    if not says and not offers.used:
        return OfferChanges()
    own = [page for page in named.own if page >= 0]
    ids = distinct(np.array([*own, *chain.from_iterable(named.seeds.values())], np.int64))
    before = offers.of(ids)
    if not says and not before[0].any():
        return OfferChanges()
    now: dict[int, list[Any]] = dict(
        zip(ids.tolist(), map(list, zip(*(column.tolist() for column in before), strict=True)), strict=True)
    )
    revived: dict[int, None] = {}
    for place, event in enumerate(events):
        own_page = named.own[place]
        for page in (own_page,) if own_page >= 0 else named.seeds.get(place, ()):
            row = now[page]
            if own_page >= 0:
                revived.pop(page, None)
            elif row[0]:
                revived[page] = None
            row[0] = failures_after(row[0], failed=event.failed, give_up=event.give_up)
            if event.not_before_us is not None:
                row[1] = event.not_before_us
            if event.priority is not None:
                row[2] = event.priority
    rows = list(now.values())
    failures, not_before_us, priority = (
        np.array([row[at] for row in rows], before[at].dtype) for at in range(len(before))
    )
    changed = (failures != before[0]) | (not_before_us != before[1]) | (priority != before[2])
    return OfferChanges(
        ids[changed].astype(np.uint32), failures[changed], not_before_us[changed], priority[changed], list(revived)
    )
