"""Class sweeps: after a change of classes in a crawl of many shards, each shard classifies the pages it knew again.

The offset of the partition SWEEP says how far a shard is: the version of its classes, then the number of pages. So a
sweep survives its worker, and starts over with the next version (docs/decisions/0019).
"""

from typing import Final

from opic.model.classes import WeightClasses
from opic.model.events import CLASSIFIED_MAX, Record, encode_ids
from opic.model.transfer import SWEEP, SWEEP_BITS
from opic.replica.crawl import Crawl

RECORDS_A_DELIVERY: Final = 10


def pages_left(classes: WeightClasses, offset: int) -> range:
    """Return the ids of the pages that a shard has to classify again.

    >>> pages_left(WeightClasses((), version=2, known=5), (2 << SWEEP_BITS) + 3)
    range(3, 5)
    >>> pages_left(WeightClasses((), version=2, known=5), (1 << SWEEP_BITS) + 3)
    range(0, 5)
    """
    return range(max(offset - (classes.version << SWEEP_BITS), 0), classes.known)


def next_records(classes: WeightClasses, offset: int, time_us: int) -> list[Record]:
    """Return the next records of a shard's sweep: each names the pages that it has classified again."""
    left, base = pages_left(classes, offset), classes.version << SWEEP_BITS
    parts = [left[start : start + CLASSIFIED_MAX] for start in range(0, len(left), CLASSIFIED_MAX)]
    return [
        Record(base + part.stop - 1, time_us, encode_ids((part.start, part.stop)), "classify")
        for part in parts[:RECORDS_A_DELIVERY]
    ]


def unclassified(crawl: Crawl) -> int:
    """Return how many pages of a crawl of many shards may not be in their present classes yet."""
    replicas = crawl.follow()
    offsets = crawl.ask([["HGET", shard.keys.offsets, SWEEP] for shard in crawl.shards])
    latest = replicas[0].classes.version
    return sum(
        len(pages_left(replica.classes, int(offset or 0))) if replica.classes.version == latest else len(replica) + 1
        for replica, offset in zip(replicas, offsets, strict=True)
    )
