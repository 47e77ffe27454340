"""How a batch of events changes the columns that events give, and the failures of hosts in a row.

`opic.model.ledger_page.note` does the same page by page. A column that no event of a batch concerns is skipped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from opic.arrays import Int64s, distinct
from opic.model.events import CheckedEvent
from opic.model.host_failures import HostFailures, host_failures_after, says_of_host
from opic.model.ledger_page import Column
from opic.replica.effect import NOTHING, Noted
from opic.replica.inputs import Item
from opic.replica.page_columns import NOTED_ARRAYS, PageColumns
from opic.replica.page_lookup import PageLookup
from opic.replica.replica import Replica

Merge = Callable[[Any, Any], Any]


def host_changes(
    replica: Replica, named: PageLookup, events: Sequence[CheckedEvent], items: Sequence[Item]
) -> dict[str, Any]:
    """Return the fields of an effect: the hosts whose failures in a row a batch changes, event by event.

    `opic.model.ledger` does the same.
    """
    table, said = replica.host_failures, list(map(says_of_host, events))
    if not len(table.times) and True not in said:
        return {}
    now: dict[int, HostFailures] = {}
    for index, failed in enumerate(said):
        own = named.own[index]
        if failed is None or (own < 0 and index not in named.seeds):
            continue
        ids = np.array((own,) if own >= 0 else named.seeds[index], np.int64)
        new = ids >= named.first
        hosts = replica.columns.host[np.where(new, 0, ids)].astype(np.int64)
        hosts[new] = named.new_hosts[ids[new] - named.first]
        for host in set(hosts.tolist()):
            before = now.get(host) or table.failures_of(host)
            now[host] = host_failures_after(before, failed=failed, time_us=items[index].record.time_us)
    changed = sorted((host, failures) for host, failures in now.items() if failures != table.failures_of(host))
    columns = zip(*((host, *failures) for host, failures in changed), strict=True) if changed else ()
    dtypes = {"host": np.uint32, "times": np.uint16, "first_us": np.int64, "last_us": np.int64}
    pairs = zip(dtypes.items(), columns, strict=False)
    return {f"failing_{name}": np.array(column, dtype) for (name, dtype), column in pairs}


@dataclass(slots=True)
class NoteChanges:
    """What a batch changes in the columns that events give."""

    noted: dict[str, Noted] = field(default_factory=dict)  # As `Effect` has it.
    # By column that links get too, and event: the value that its links get at least, 0 if none.
    to_links: dict[str, Sequence[int]] = field(default_factory=dict)
    revived: Sequence[int] = ()  # Pages whose last failures a seed has ended: their back-offs end too.


def note_changes(columns: PageColumns, named: PageLookup, events: Sequence[CheckedEvent]) -> NoteChanges:
    """Compute the changes of a batch, event by event.

    Args:
        columns: as they are before the batch.
        named: the pages, seeds and links of the events.
        events: the events.
    """
    changes, used = NoteChanges(), columns.in_use()
    pages = [(page,) if page >= 0 else named.seeds.get(index, ()) for index, page in enumerate(named.own)]
    for column, merge in NOTED_ARRAYS:
        said = [getattr(event, column.name) for event in events]
        if column.to_links is not None:
            change, changes.to_links[column.name] = _spread(column, column.to_links, columns, named, events)
        else:
            change = _merged(column, merge, columns, pages, said) if any(said) or column.name in used else NOTHING
        if len(change[0]):
            changes.noted[column.name] = change
    if named.seeds and ("failures" in used or any(event.failures for event in events)):
        changes.revived = _revived(columns, named, pages, events)
    return changes


def _merged(
    column: Column, merge: Merge, columns: PageColumns, pages: Sequence[Sequence[int]], said: Sequence[Any]
) -> Noted:
    """Return the changes of a column, given the pages of each event, and what it says of them."""
    ids = np.array(sorted(set(chain.from_iterable(pages))), np.int64)
    if not any(said) and not columns.stored(column.name, ids).any():
        return NOTHING
    before = columns.values_of(column.name, ids)
    now = dict(zip(ids.tolist(), before.tolist(), strict=True))
    for some, value in zip(pages, said, strict=True):
        if value is not None:
            for page in some:
                now[page] = merge(now[page], value)
    after = np.array(list(now.values()), column.dtype)
    changed = after != before
    return ids[changed].astype(np.uint32), after[changed]


def _spread(
    column: Column,
    to_links: Callable[[int], int],
    columns: PageColumns,
    named: PageLookup,
    events: Sequence[CheckedEvent],
) -> tuple[Noted, Sequence[int]]:
    """Return the changes of a column whose greatest values are kept, and that links get too; and what links get."""
    given = any(
        getattr(event, column.name) or (event.transfer is not None and getattr(event.transfer, column.name).any())
        for event in events
    )
    if not given and not (
        len(getattr(columns, column.name)) and columns.values_of(column.name, np.maximum(named.own, 0)).any()
    ):
        return NOTHING, ()
    own = np.array(named.own, np.int64)
    seeds = [np.array(pages, np.int64) for pages in named.seeds.values()]
    ids = distinct(np.concatenate((named.links, own[own >= 0], *seeds)))
    before = columns.values_of(column.name, ids).astype(np.int64)
    now, of_links = before.copy(), [0] * len(events)
    at_link, at_own, edges = np.searchsorted(ids, named.links), np.searchsorted(ids, own).tolist(), named.edges

    def raise_to(positions: Int64s, value: Int64s | int) -> None:
        now[positions] = np.maximum(now[positions], value)

    for index, event in enumerate(events):
        links, said = slice(edges[index], edges[index + 1]), getattr(event, column.name)
        if named.own[index] >= 0:
            value = max(int(now[at_own[index]]), said)
            now[at_own[index]] = value
            of_links[index] = value = to_links(said or value)
            if value:
                raise_to(at_link[links], value)
        elif event.transfer is not None:
            if (sent := getattr(event.transfer, column.name)).any():
                raise_to(at_link[links], sent[named.order[index]])
        elif said and index in named.seeds:
            raise_to(np.searchsorted(ids, named.seeds[index]), said)
    changed = np.flatnonzero(now > before)
    return (ids[changed].astype(np.uint32), now[changed].astype(column.dtype)), of_links


def _revived(
    columns: PageColumns, named: PageLookup, pages: Sequence[Sequence[int]], events: Sequence[CheckedEvent]
) -> list[int]:
    """Return the pages that had failed, and that a seed names last."""
    seeded = {page: own < 0 for own, some in zip(named.own, pages, strict=True) for page in some}
    ids = [page for page, last in seeded.items() if last]
    before = dict(zip(ids, columns.values_of("failures", np.array(ids, np.int64)).tolist(), strict=True))
    failed = {own for own, event in zip(named.own, events, strict=True) if event.failures}
    return [page for page in ids if before[page] or page in failed]
