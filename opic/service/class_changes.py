"""Changes of the classes of pages, through the log like everything that moves cash."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from opic.errors import BadInput, ChangedMeanwhile, Refused
from opic.ingest.class_sweeps import unclassified
from opic.ingest.event_log import Positions
from opic.model.cash import CLASSES_MAX, MILLION
from opic.model.classes import NO_WEIGHTS, OTHERS, ClassesChange, encode_change, version_of
from opic.model.events import CLASSIFIED_MAX, encode_ids
from opic.service.backend import Backend

SETTLE_SECONDS: Final = 5.0  # How long a change waits for known pages; 10 million take longer.


class ClassChange(NamedTuple):
    """The effect of a change of classes on known pages."""

    pages: int  # Number of pages classified again.
    settled: bool  # Whether all of them are in their new classes already.
    end: Positions  # Where its last record ended.


def define(backend: Backend, change: ClassesChange) -> ClassChange:
    """Change the classes of pages, through the log like everything that moves cash.

    Weights take effect at once. Known pages are classified again by further records, which are also appended here,
    and awaited for a while.

    With many shards, shard 0 has the new weights first, and each other shard when it takes what shard 0 sent.

    The change itself is in the log. So where two callers change some classes each, neither undoes the other's.

    Args:
        change: of the definitions.

    Raises:
        BadInput: the payout is continuous, or the change can't be made.
        ChangedMeanwhile: the classes are of another version than the change wants.
        Refused: there are too many classes, or the weights would grant more cash than a shard has.
    """
    if len(backend.crawl) == 1 and not backend.log.single:
        raise BadInput("classes are set in an order that many partitions do not have: use a topic of one partition")
    if backend.shard.rules.continuous:
        raise BadInput(NO_WEIGHTS)
    backend.crawl.follow()[0].classes.redefined(change, backend.crawl.totals().known_by)
    end = backend.accept([encode_change(change)], "classes")
    backend.settle(end)
    replicas = backend.crawl.follow()
    if not change.holds_in([weight_class for _, weight_class in replicas[0].classes.placed]):
        if change.version:
            raise ChangedMeanwhile("other classes were set at the same time: read them again, and change those")
        raise Refused(
            "the classes were accepted, but are not in effect: other classes were set at the same time, or the "
            "weights would grant known pages more than a shard has; read the present classes, and try again"
        )
    if len(replicas) > 1:
        settled = backend.in_time(lambda: not unclassified(backend.crawl), SETTLE_SECONDS)
        return ClassChange(sum(map(len, replicas)), settled, end)
    known = len(replicas[0])
    ranges = range(0, known, CLASSIFIED_MAX)
    records = [encode_ids((first, min(first + CLASSIFIED_MAX, known))) for first in ranges]
    settled = True
    if records:
        end = backend.accept(records, "classify")
        if backend.works_here:
            backend.settle(end)
        else:
            settled = backend.takes_effect(end, SETTLE_SECONDS)
    return ClassChange(known, settled, end)


def shown_classes(backend: Backend) -> dict[str, object]:
    """Return the defined classes, in order, with their numbers of pages and their shares of each grant."""
    classes, books = backend.crawl.follow()[0].classes, backend.crawl.totals()
    weights = [MILLION + extra for extra in books.extra]
    granted = sum(weights[slot] * books.live_of(slot) for slot in range(CLASSES_MAX)) or 1

    def counts(slots: Sequence[int]) -> dict[str, object]:
        share = sum(weights[slot] * books.live_of(slot) for slot in slots) / granted
        pages, read = sum(map(books.live_of, slots)), sum(map(books.open_of, slots))
        return {"known_pages": pages, "read_pages": read, "grant_share": share}

    defined = [slot for slot, _ in classes.placed]
    rest = [slot for slot in range(CLASSES_MAX) if slot not in defined]
    return {
        "classes": [{**weight_class.shown(), **counts([slot])} for slot, weight_class in classes.placed],
        OTHERS: {"weight": 1.0, **counts(rest)},
        "version": version_of([weight_class for _, weight_class in classes.placed]),
    }
