"""The limit on known pages of a host: which links of a batch of events make no page known.

A trap makes up new URLs without end. With `OPIC_MAX_PAGES_PER_HOST`, a link to a page that is not known makes it known
only while its host has room; `opic.model.ledger` decides the same link by link. A page that an event or a seed names
becomes known in any case.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from opic.arrays import Bools, Int64s
from opic.model.cash import Flag
from opic.replica.effect import Effect, Head
from opic.replica.replica import Replica

REFUSED: Final = -3  # Instead of an id: the link makes no page known.


class HostPageCounts:
    """The number of known pages of each host of a replica: counted once, then kept up with what is applied."""

    def __init__(self, replica: Replica) -> None:
        """Count nothing before `counts` is called."""
        self._replica = replica
        self._head: Head | None = None
        self._counts = np.zeros(0, np.int64)

    def counts(self) -> Int64s:
        """Return the known pages of each host, by its number, (hosts,)."""
        replica = self._replica
        if self._head is None:
            replica.effect_listeners.append(self._applied)
        if self._head != replica.head:  # After a load, or an effect that was undone.
            known = (replica.state & Flag.KNOWN) != 0
            self._counts = np.bincount(replica.host[known], minlength=len(replica.hosts)).astype(np.int64)
            self._head = replica.head
        return self._counts

    def _applied(self, effect: Effect) -> None:
        if self._head is None or (self._head.lsn + 1, self._head.digest) != (effect.lsn, effect.previous):
            return  # It is counted again when it is needed.
        hosts, host = len(self._replica.hosts), self._replica.columns.host
        if hosts > len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros(hosts - len(self._counts), np.int64)))
        np.add.at(self._counts, effect.hosts, 1)
        np.add.at(self._counts, host[list(effect.again)], 1)
        np.subtract.at(self._counts, host[effect.forgotten], 1)
        self._head = self._replica.head


class NewPages(NamedTuple):
    """The pages that a batch would make known without the limit."""

    first: int  # The id of the first; the others follow.
    named: Int64s  # (new,) where each is named for the first time, increasing.
    hosts: Int64s  # (new,)


def refuse_links(  # noqa: PLR0917 - what a batch names, and the limit
    ids: Int64s,
    explicit: Bools,
    event_of: Int64s,
    new: NewPages,
    forgotten: Mapping[int, int],
    known: Int64s,
    most: int,
) -> tuple[Int64s, Int64s, set[tuple[int, int]]]:
    """Replace ids by REFUSED where a link makes no page known, and number the pages that become known again, in order.

    Args:
        ids: (n,) the page of each string of a batch, in order; changed in place.
        explicit: (n,) whether the string is an event's own URL, or a seed.
        event_of: (n,) the event of each string.
        new: the pages that are not known.
        forgotten: pages that were forgotten and are named again -> host.
        known: (hosts,) the known pages of each host.
        most: how many known pages a host may have.

    Returns:
        Which of the new pages become known, in order, and where each of them is named for the first time that makes it
        known; and the links that are refused, each once for its event: event, page.
    """
    host_of, room = _full_hosts(new, forgotten, known, most)
    if not host_of:
        return np.arange(len(new.named)), new.named, set()
    admitted, refused, pairs = dict[int, int](), list[int](), set[tuple[int, int]]()
    for position in np.flatnonzero(np.isin(ids, list(host_of))).tolist():
        page = int(ids[position])
        if page in admitted:
            continue
        host = host_of[page]
        if explicit[position] or room[host] > 0:
            room[host] -= 1
            admitted[page] = position
        else:
            refused.append(position)
            pairs.add((int(event_of[position]), page))
    ids[refused] = REFUSED
    places = new.named.copy()
    doubtful = np.array([page for page in host_of if page >= new.first], np.int64)
    places[doubtful - new.first] = [admitted.get(page, -1) for page in doubtful.tolist()]
    kept = np.flatnonzero(places >= 0)
    kept = kept[np.argsort(places[kept])]
    number = np.zeros(len(places), np.int64)
    number[kept] = new.first + np.arange(len(kept))
    ours = (ids >= new.first) & (ids < new.first + len(places))
    ids[ours] = number[ids[ours] - new.first]
    return kept, places[kept], pairs


def _full_hosts(
    new: NewPages, forgotten: Mapping[int, int], known: Int64s, most: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the pages that may not all become known, with their hosts; and the room that each of these hosts has."""
    on = np.concatenate((new.hosts, np.array(list(forgotten.values()), np.int64)))
    there = np.concatenate((known, np.zeros(max(0, int(on.max(initial=-1)) + 1 - len(known)), np.int64)))
    full = there + np.bincount(on, minlength=len(there)) > most
    doubtful = np.flatnonzero(full[new.hosts])
    host_of = dict(zip((new.first + doubtful).tolist(), new.hosts[doubtful].tolist(), strict=True))
    host_of |= {page: host for page, host in forgotten.items() if full[host]}
    return host_of, {host: most - int(there[host]) for host in host_of.values()}
