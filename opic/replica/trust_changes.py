"""How a batch of events changes the trust of pages, and whose links it keeps.

A shard keeps the links of pages from the first trusted page on, or from the first batch of a writer that was told to
(OPIC_KEEP_LINKS), and never stops: links that were kept once would otherwise outlive the next read of their page.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opic.replica.fingerprints import Fingerprints
from opic.replica.remote_pages import RemotePages

Int64s = NDArray[np.int64]


class TrustChanges:
    """The changes of one batch. The links of its reads from number `kept_from` on are kept; -1 keeps none."""

    def __init__(self, *, keeps: bool, begins: bool = False) -> None:
        """Start a batch; `keeps` tells whether the shard keeps links already, `begins` that it does from now on."""
        # Of pages whose trust changed; empty if the keeping began.
        self.weights: dict[int, float] | None = {} if begins and not keeps else None
        self.kept_from = 0 if keeps or begins else -1

    def give(self, weight: float, pages: Iterable[int], reads: int) -> None:
        """Give pages a weight, after `reads` reads of the batch. The first weight over 0 begins the keeping of links.

        Links are kept from then on even if no page of this shard is trusted: those of others lead here.
        """
        if self.kept_from < 0:
            if not weight:
                return
            self.kept_from = reads
        self.weights = (self.weights or {}) | dict.fromkeys(pages, weight)

    def far_links(
        self, places: Sequence[int], links: Sequence[Int64s], far: RemotePages, fingerprints: Fingerprints
    ) -> dict[str, Any]:
        """Return the fields of the effect about links that are kept.

        Args:
            places: the event of each read.
            links: per event, the numbers of the pages of other shards that it links to; empty with one shard.
            far: the table of these numbers.
            fingerprints: of URLs.
        """
        if self.kept_from < 0:
            return {}
        parts = [links[place] for place in places[self.kept_from :]] if links else []
        found: dict[str, Any] = {"kept_from": self.kept_from}
        if any(map(len, parts)):
            numbers, at = np.unique(np.concatenate(parts), return_inverse=True)
            found["far_counts"] = np.array(list(map(len, parts)), np.uint32)
            found["far_links"] = fingerprints.of(far.urls_of(numbers.tolist()))[at]
            found["far_shards"] = far.shards_of(numbers)[at].astype(np.uint16)
        return found
