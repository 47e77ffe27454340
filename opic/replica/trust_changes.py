"""How a batch of events changes the trust of pages, and whose links it keeps.

A shard keeps the links of pages from the first trusted page on, or from the first batch of a writer that was told to
(OPIC_KEEP_LINKS). A writer that is told not to ends that, unless a page of the crawl was ever trusted: all links that
were kept then count no more, for they would outlive the next read of their page.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from opic.arrays import Int64s
from opic.replica.effect import Effect
from opic.replica.remote_pages import RemotePages
from opic.replica.replica import Replica
from opic.replica.shown_links import ShownLinks


class TrustChanges:
    """The changes of one batch. The links of its reads from number `kept_from` on are kept; -1 keeps none."""

    def __init__(self, replica: Replica, wanted: bool | None) -> None:
        """Start a batch on a replica; `wanted` is what the writer was told, None changes nothing."""
        keeps, by_setting = replica.trust is not None, replica.keeping.by_setting
        begins, self.ends = bool(wanted) and not keeps, wanted is False and by_setting
        keeps = keeps and not self.ends
        self.by_setting = begins or (keeps and by_setting)
        # Of pages whose trust changed; empty if the keeping began.
        self.weights: dict[int, float] | None = {} if begins else None
        self.kept_from = 0 if keeps or begins else -1

    def give(self, weight: float, pages: Iterable[int], reads: int) -> None:
        """Give pages a weight, after `reads` reads of the batch. The first weight over 0 begins the keeping of links.

        Links are kept from then on even if no page of this shard is trusted: those of others lead here.
        """
        if not weight and (self.kept_from < 0 or self.by_setting):
            return  # No page is trusted.
        if self.kept_from < 0:
            self.kept_from = reads
        self.by_setting = False
        self.weights = (self.weights or {}) | dict.fromkeys(pages, weight)

    def effect_fields(self, places: Sequence[int], links: Sequence[Int64s], far: RemotePages) -> dict[str, Any]:
        """Return the fields of the effect about trust, and about links that are kept.

        Args:
            places: the event of each read.
            links: per event, the numbers of the pages of other shards that it links to; empty with one shard.
            far: the table of these numbers.
        """
        fields: dict[str, Any] = {"trusted": self.weights, "ends_links": self.ends}
        if self.kept_from < 0:
            return fields
        parts = [links[index] for index in places[self.kept_from :]] if links else []
        fields |= {"kept_from": self.kept_from, "by_setting": self.by_setting and self.weights is not None}
        if any(map(len, parts)):
            numbers = np.concatenate(parts)
            fields["far_counts"] = np.array(list(map(len, parts)), np.uint32)
            fields["far_links"] = far.fingerprint[numbers]
            fields["far_shards"] = far.shards_of(numbers).astype(np.uint16)
        return fields

    def note_new_links(self, effect: Effect, again: Sequence[int], shown: ShownLinks | None) -> None:
        """Say in the effect which of the links that are kept are new.

        Args:
            effect: of the batch.
            again: how each read relates to the one before of its page; see `opic.replica.shown_links`.
            shown: what pages showed before the batch; None if nobody wants to know.
        """
        if shown is None or not any(again[self.kept_from :]):
            return
        fresh = shown.fresh(effect.lsn - 1, effect.kept(), np.array(again[self.kept_from :], np.uint8))
        effect.compared, effect.near_new, effect.far_new = fresh
