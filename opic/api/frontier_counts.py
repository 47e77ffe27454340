"""Count the pages of the frontier by class and state, from a snapshot, for /metrics."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opic.admission.verdicts import is_shut
from opic.arrays import Int64s
from opic.model.cash import CLASS_BITS, CLASSES_MAX, Flag
from opic.model.classes import OTHERS
from opic.query.snapshots import Snapshot
from opic.replica import Crawl
from opic.service.backend import Backend

# Each known page has one kind. Pages of the kinds before "leased" could be handed out, apart from host delays.
KINDS: Final = (
    "unread", "read", "leased", "retry", "revisit", "not_before", "denied", "spent", "given_up", "excluded",
    "gone",
)  # fmt: skip
UNREAD, READ, LEASED, RETRY, REVISIT, NOT_BEFORE, DENIED, SPENT, GIVEN_UP, EXCLUDED, GONE = range(len(KINDS))
UNKNOWN: Final = len(KINDS)
HELD_MAX: Final = 100_000  # Maximum number of leases and waits read; costs the store about 20 ms.


@dataclass(frozen=True, slots=True)
class Census:
    """Page counts by class and kind, and the age of the state they were counted in."""

    pages: dict[tuple[str, str], int]
    age_seconds: float


def count(backend: Backend) -> Census:
    """Count the pages in a current snapshot. Costs about 100 ms of CPU time per million pages, plus the snapshot.

    Only the first HELD_MAX leases and waits are counted as such; the other such pages count as their previous kind.

    Raises:
        StoreError: the store is unavailable.
    """
    return backend.crawl.steadily(lambda: _counted(backend))


def _counted(backend: Backend) -> Census:
    snapshot = backend.snapshots.fresh()
    age, kinds = max(time.time() - snapshot.as_of, 0.0), _kinds(snapshot)
    for kind, positions in zip((RETRY, LEASED), _held(backend.crawl, snapshot), strict=True):
        at = positions[positions < len(kinds)]
        kinds[at[kinds[at] < LEASED]] = kind
    frontier = backend.frontier
    # Regardless of their cash, which grows while they wait.
    for kind, pages in ((REVISIT, frontier.revisiting()), (NOT_BEFORE, frontier.postponed())):
        for at in _at(snapshot, pages):
            kinds[at[(kinds[at] < LEASED) | (kinds[at] == REVISIT) | (kinds[at] == SPENT)]] = kind
    timed = (kinds == REVISIT) | (kinds == NOT_BEFORE)
    kinds[is_shut(backend.admission.verdicts(snapshot)) & ((kinds < LEASED) | timed)] = DENIED
    for at in _at(snapshot, frontier.given_up()):
        kinds[at[(kinds[at] != LEASED) & (kinds[at] < GIVEN_UP)]] = GIVEN_UP
    width = UNKNOWN + 1
    counts = np.bincount((snapshot.state & CLASS_BITS) * np.uint8(width) + kinds, minlength=CLASSES_MAX * width)
    names = backend.query.class_names() if counts[width:].any() else {}
    pages_of: dict[tuple[str, str], int] = {}
    for slot, row in enumerate(counts.reshape(CLASSES_MAX, width)[:, :UNKNOWN].tolist()):
        if slot and not any(row):
            continue
        for kind_name, pages in zip(KINDS, row, strict=True):
            place = (names.get(slot, OTHERS), kind_name)
            pages_of[place] = pages_of.get(place, 0) + pages
    return Census(pages_of, age)


def _kinds(snapshot: Snapshot) -> Any:
    """Return each page's kind by its columns alone, (n,) uint8."""
    cash, kinds = snapshot.cash, _BY_STATE[snapshot.state]
    # A page that was read and is overdrawn is offered again.
    kinds[((cash == 0) & (kinds < LEASED)) | ((cash < 0) & (kinds == UNREAD))] = SPENT
    return kinds


def _of_state(state: int) -> int:
    if not state & Flag.KNOWN:
        return UNKNOWN
    if state & Flag.GONE:
        return GONE
    if state & Flag.EXCLUDED:
        return EXCLUDED
    return READ if state & Flag.OPEN else UNREAD


_BY_STATE: Final = np.array([_of_state(state) for state in range(256)], np.uint8)


def _held(crawl: Crawl, snapshot: Snapshot) -> tuple[Int64s, Int64s]:
    """Return the positions of pages in back-off after a failure, and of leased pages."""
    now, most = time.time(), HELD_MAX // (2 * len(crawl))
    commands = [
        ["ZRANGE", name, least, "+inf", "BYSCORE", "LIMIT", 0, most]
        for shard in crawl.shards
        for name, least in ((shard.keys.waits, f"({now:.6f}"), (shard.keys.leases, f"({now * 1e6:.0f}"))
    ]
    answers = crawl.ask(commands)
    waiting, leased = (
        [(shard, int(page)) for shard, ids in enumerate(answers[kind::2]) for page in ids] for kind in (0, 1)
    )
    return _positions(snapshot, waiting), _positions(snapshot, leased)


def _at(snapshot: Snapshot, pages: Iterable[tuple[int, Int64s]]) -> Iterator[Int64s]:
    """Yield the positions of pages of each shard, as far as the snapshot has them."""
    for shard, ids in pages:
        at = snapshot.positions(np.full(len(ids), shard), ids)
        yield at[at < len(snapshot.state)]


def _positions(snapshot: Snapshot, pages: list[tuple[int, int]]) -> Int64s:
    columns = np.array(pages, np.int64).reshape(-1, 2)
    return snapshot.positions(columns[:, 0], columns[:, 1])
