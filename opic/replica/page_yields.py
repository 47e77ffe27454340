"""What reads of each page have discovered: columns that a replica has unless OPIC_YIELDS is off.

`seen` counts the links that a page has shown: all at its first read, and at each later read the new ones. `rate` is the
yield of its last read: new links, per second since the read before. Where links are kept, a link is new if the read
before did not show it, whatever it leads to; the journal record says which are (`opic.replica.shown_links`).

Where they are not, or those of the read before are not, only links to pages that became known by the read count: new
links to pages known already do not, and links to pages of other shards neither. A page has become known by a read if it
is new in the same journal record, and no earlier read of the record is of it or links to it. So a page that is seeded
in the same record may count as discovered by a read that links to it.

The counts begin when the setting is turned on. They follow from the journal alone and are part of the checkpoint, so
they survive a restart, and are the same in every replica.

Source: Kumar, Lang, Marlow, Tomkins (2008), section III: "total outlinks seen at this node to date", and yield.
"""

from typing import Final

import numpy as np

from opic.arrays import Int64s, Uint32s
from opic.replica.columns import Undo
from opic.replica.effect import Effect
from opic.replica.page_columns import PageColumns

ELAPSED_MIN_US: Final = 1_000_000  # Two reads at one time, or in the wrong order, count as a second apart.


def note_yields(  # noqa: PLR0917 - columns of one table
    columns: PageColumns,
    pages: Uint32s,
    links: Int64s,
    new: Int64s,
    at_us: Int64s,
    before_us: Int64s,
    turn: tuple[Int64s, Int64s],
    undo: Undo | None,
) -> None:
    """Record reads, in the order of the log. All arrays have shape (n,).

    Args:
        columns: those of the replica.
        pages: the pages that were read; a page may be read several times.
        links: number of links on each.
        new: number of new links of each read.
        at_us: time of each fetch.
        before_us: time of the page's last fetch before these; 0 for none.
        turn: `turns` of the pages.
        undo: receives the old values; may be None.
    """
    if not len(pages):
        return
    seen, rate = columns.keep(pages, undo, "seen", "rate")
    order, nth = turn
    before, again = before_us[order], np.flatnonzero(nth)
    before[again] = at_us[order][again - 1]
    for wave in range(int(nth.max()) + 1):  # Usually one wave: each page is read once.
        positions, last_us = order[nth == wave], before[nth == wave]
        ids = pages[positions]
        seen[ids] += np.where(seen[ids] == 0, links[positions], new[positions]).astype(np.uint32)
        seconds = np.maximum(at_us[positions] - last_us, ELAPSED_MIN_US) / 1e6
        rate[ids] = np.where(last_us == 0, 0.0, new[positions] / seconds)


def counts_by_read(effect: Effect) -> tuple[Int64s, Int64s]:
    """Return how many links each read of an effect shows, and how many of them are new, (n,) each.

    Where links are kept, those to other shards count too.
    """
    shown = effect.read_links.astype(np.int64)
    reads = len(shown)
    if not reads:
        return shown, shown
    of_read = np.repeat(np.arange(reads), shown)
    new_links = np.flatnonzero(effect.links >= effect.first_page)
    targets, first = np.unique(effect.links[new_links], return_index=True)
    by = of_read[new_links][first]
    own, own_first = np.unique(effect.read_page, return_index=True)  # A page that is read before is known by then.
    positions = np.minimum(np.searchsorted(own, targets), len(own) - 1)
    read_before = (own[positions] == targets) & (own_first[positions] < by)
    new = np.bincount(by[~read_before], minlength=reads)
    if len(effect.far_counts):
        shown[effect.kept_from :] += effect.far_counts
    if len(effect.compared):
        links, of_kept = effect.kept(), new[effect.kept_from :]
        rows = np.arange(len(links))
        unseen = np.bincount(np.repeat(rows, links.near_counts)[links.near_new], minlength=len(rows))
        unseen += np.bincount(np.repeat(rows, links.far_counts)[links.far_new], minlength=len(rows))
        of_kept[effect.compared] = unseen[effect.compared]
    return shown, new
