"""How a batch of events changes what is noted of pages: depths, statuses, failures, earliest times, priorities.

`opic.model.page_notes.note` does the same page by page. What no event of a batch concerns is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from opic.arrays import Float64s, Int64s, Uint8s, Uint16s, Uint32s
from opic.model.events import CheckedEvent
from opic.model.host_failures import HostFailures, host_failures_after, says_of_host
from opic.model.page_notes import failures_after, one_deeper
from opic.replica.inputs import Item
from opic.replica.page_lookup import PageLookup, distinct
from opic.replica.page_offers import PageOffers
from opic.replica.page_table import PageDepths, PageStatuses
from opic.replica.replica import Replica


def status_changes(statuses: PageStatuses, named: PageLookup, events: Sequence[CheckedEvent]) -> dict[str, Any]:
    """Return the fields of an effect: the pages whose status a batch changes, and the statuses of their last events."""
    last = {page: event.status for page, event in zip(named.own, events, strict=True) if page >= 0}
    if not statuses.used and not any(last.values()):
        return {}
    ids = np.array(sorted(last), np.int64)
    noted = np.array([last[page] for page in ids.tolist()], np.uint16)
    changed = noted != statuses.of(ids)
    return {"status_page": ids[changed].astype(np.uint32), "noted": noted[changed]}


def host_changes(
    replica: Replica, named: PageLookup, events: Sequence[CheckedEvent], items: Sequence[Item]
) -> dict[str, Any]:
    """Return the fields of an effect: the hosts whose failures in a row a batch changes, event by event.

    `opic.model.ledger` does the same.
    """
    table, said = replica.host_failures, list(map(says_of_host, events))
    if not table.used and True not in said:
        return {}
    now: dict[int, HostFailures] = {}
    for place, failed in enumerate(said):
        own = named.own[place]
        if failed is None or (own < 0 and place not in named.seeds):
            continue
        ids = np.array((own,) if own >= 0 else named.seeds[place], np.int64)
        new = ids >= named.first
        hosts = replica.columns.host[np.where(new, 0, ids)].astype(np.int64)
        hosts[new] = named.new_hosts[ids[new] - named.first]
        for host in set(hosts.tolist()):
            before = now.get(host) or table.of(host)
            now[host] = host_failures_after(before, failed=failed, time_us=items[place].record.time_us)
    changed = sorted((host, found) for host, found in now.items() if found != table.of(host))
    columns = zip(*((host, *found) for host, found in changed), strict=True) if changed else ()
    dtypes = {"host": np.uint32, "times": np.uint16, "first_us": np.int64, "last_us": np.int64}
    pairs = zip(dtypes.items(), columns, strict=False)
    return {f"failing_{name}": np.array(column, dtype) for (name, dtype), column in pairs}


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


@dataclass(frozen=True, slots=True)
class OfferChanges:
    """The effect of a batch on what is said of pages: (n,) each, and the values afterwards."""

    pages: Uint32s = field(default_factory=lambda: np.empty(0, np.uint32))  # Ascending.
    failures: Uint8s = field(default_factory=lambda: np.empty(0, np.uint8))
    not_before_us: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    priority: Float64s = field(default_factory=lambda: np.empty(0))
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
    says = any(event.unread or event.not_before_us is not None or event.priority is not None for event in events)
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
            row[0] = failures_after(row[0], failed=event.unread, give_up=event.give_up)
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
