"""How often the reads of a page showed other links than the read before: columns of crawls that keep links.

`changes` counts these reads. `since` is when the page's observation began: the time of the last read before its first
one that counts. Both are 0 for a page that was read once, so a crawl that fetches each page once has no such column.

Reads count whose links are kept. The counts follow from the journal alone and are part of the checkpoint: they survive
a restart, and are the same in every replica. Links are compared by the digest that histories have.
"""

from typing import Final

import numpy as np

from opic.arrays import Int64s, Uint32s, Uint64s, turns
from opic.model.cash import MILLION
from opic.replica.columns import Undo
from opic.replica.page_columns import PageColumns

CHANGES_MAX: Final = (1 << 16) - 1  # The count stops here.
SECONDS_MAX: Final = (1 << 32) - 1


def note_changed_links(  # noqa: PLR0917 - columns of one table
    columns: PageColumns,
    pages: Uint32s,
    at_us: Int64s,
    digest: Uint64s,
    before_us: Int64s,
    before_digest: Uint64s,
    undo: Undo | None,
) -> None:
    """Record reads, in the order of the log. All arrays have shape (n,).

    Args:
        columns: those of the replica.
        pages: the pages that were read; a page may be read several times.
        at_us: time of each fetch.
        digest: digest of the page's links at each read.
        before_us: time of the page's last fetch before these; 0 for none.
        before_digest: digest of the links at the page's last read before these.
        undo: receives the old values; may be None.
    """
    order, nth = turns(pages)
    ids, last_us, last_digest = pages[order], before_us[order], before_digest[order]
    repeated = np.flatnonzero(nth)
    last_us[repeated], last_digest[repeated] = at_us[order][repeated - 1], digest[order][repeated - 1]
    again = last_us > 0
    if not again.any():
        return
    ids, last_us, changed = ids[again], last_us[again], (digest[order] != last_digest)[again]
    changes, since = columns.keep(ids, undo, "changes", "since")
    some, counts = np.unique(ids[changed], return_counts=True)
    changes[some] = np.minimum(changes[some] + counts, CHANGES_MAX)
    first = np.flatnonzero(np.diff(ids, prepend=-1) != 0)
    first = first[since[ids[first]] == 0]
    since[ids[first]] = np.clip(last_us[first] // MILLION, 1, SECONDS_MAX)
