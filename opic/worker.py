"""The worker's loop: read records, let them take effect, go on from where the store says.

It keeps nothing of its own. The store holds the offset of the first record that has not taken effect, written in the
same call as the effect, so a worker may be killed and started anywhere.
"""

import logging
import random
from collections.abc import Callable

from opic.errors import StoreUnavailable
from opic.log import EventLog
from opic.store import Store

log = logging.getLogger("opic.worker")

RECORDS_A_READ = 500
IDLE_SECONDS = 0.5  # The longest wait for a record, after which we look whether to stop.
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0


def work(
    store: Store,
    source: EventLog,
    *,
    stopped: Callable[[], bool],
    pause: Callable[[float], object],
    until_offset: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Let records take effect until told to stop, or up to an offset.

    When the store is away it is asked again for ever, with a jittered wait that doubles up to BACKOFF_MAX_SECONDS.

    Args:
        store: that the effects go to.
        source: of records.
        stopped: asked between batches.
        pause: waits up to so many seconds, less when it is time to stop.
        until_offset: return once the records below it have taken effect.
        on_progress: told the next offset after each batch.
    """
    backoff = BACKOFF_FIRST_SECONDS
    offset: int | None = None
    while not stopped():
        try:
            if offset is None:
                offset = store.next_offset(source.partition)
            if until_offset is not None and offset >= until_offset:
                return
            records = source.read(offset, RECORDS_A_READ, wait_seconds=IDLE_SECONDS)
            if records:
                store.apply(source.partition, records)
                offset = records[-1].offset + 1
                source.trim(offset)
                on_progress(offset)
            backoff = BACKOFF_FIRST_SECONDS
        except StoreUnavailable as error:
            wait = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
            log.warning("%s; asking again in %.1f s", error, wait)
            pause(wait)
            backoff, offset = min(2 * backoff, BACKOFF_MAX_SECONDS), None
