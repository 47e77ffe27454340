"""Which pages a user trusts, and how much: the vector that personalized PageRank teleports to.

Source: Cho, Schonfeld (2007), section 2.1 (trust score and trust vector) and section 3.3 (a finite part of the trust).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opic.arrays import Float64s, Int64s
from opic.errors import BadInput

NAMED_MAX = 3  # Pages that an error message names.


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted pages with their share of all trust. Attributes:

    pages   (s,) distinct page numbers, increasing, s > 0
    shares  (s,) positive, of sum 1 - missing
    missing share of all trust, 0 <= missing < 1, that pages have which are not named here: the paper's delta
    """

    pages: Int64s
    shares: Float64s
    missing: float = 0.0

    @classmethod
    def weighted(cls, pages: Sequence[int] | Int64s, weights: Sequence[float] | Float64s) -> "Trust":
        """Trust pages in proportion to their weights; those of weight 0 are left out.

        Raises:
            BadInput: the weights sum to nothing, or one is negative or not finite; a page comes twice.

        >>> Trust.weighted([4, 2], [1, 3])
        Trust(pages=array([2, 4]), shares=array([0.75, 0.25]), missing=0.0)
        """
        ids, amounts = np.asarray(pages, np.int64), np.asarray(weights, np.float64)
        if len(ids) != len(amounts):
            raise BadInput(f"{len(ids):,} trusted pages have {len(amounts):,} weights: give one for each")
        if len(wrong := np.flatnonzero(~(np.isfinite(amounts) & (amounts >= 0)))):
            raise BadInput(f"the trust of page {ids[wrong[0]]} is {amounts[wrong[0]]:g}: give 0 or more")
        ids, amounts = ids[amounts > 0], amounts[amounts > 0]
        if not len(ids):
            raise BadInput("trust sums to nothing: give at least one page a weight above 0")
        order = np.argsort(ids, kind="stable")
        ids, amounts = ids[order], amounts[order] / amounts.max()  # Divided first: a sum of large weights may overflow.
        if len(twice := np.flatnonzero(ids[1:] == ids[:-1])):
            raise BadInput(f"page {ids[twice[0]]} is trusted twice: give one weight for it")
        return cls(ids, amounts / amounts.sum())

    @classmethod
    def uniform(cls, pages: Sequence[int] | Int64s) -> "Trust":
        """Trust pages equally.

        Raises:
            BadInput: no page, or one twice.
        """
        return cls.weighted(pages, np.ones(len(pages)))

    @classmethod
    def by_host(
        cls, pages: Sequence[int] | Int64s, hosts: Sequence[str], weights: Mapping[str, float] | None = None
    ) -> "Trust":
        """Trust hosts, equally or by weight; the pages given for a host share its trust equally.

        Args:
            pages: (s,) trusted pages.
            hosts: (s,) host of each.
            weights: weight of each host; 1 for all by default, 0 for a host that it does not have.

        Raises:
            BadInput: as for `weighted`.

        >>> Trust.by_host([0, 1, 2], ["a.example", "a.example", "b.example"]).shares
        array([0.25, 0.25, 0.5 ])
        """
        names, number, counts = np.unique(np.asarray(hosts, np.str_), return_inverse=True, return_counts=True)
        of_host = [1.0 if weights is None else weights.get(name, 0.0) for name in names.tolist()]
        return cls.weighted(pages, (np.array(of_host) / counts)[number])

    def most_trusted(self, count: int) -> "Trust":
        """Return the `count` pages with the most trust; what the others have is missing.

        No other choice of `count` seeds is better: by Theorem 3 their sum of trust bounds what can be guaranteed.
        """
        best = np.sort(np.argsort(-self.shares, kind="stable")[:count])
        if not len(best):
            raise BadInput(f"cannot keep {count} trusted pages: keep at least one")
        kept = self.shares[best]
        left_out = np.delete(self.shares, best)
        return Trust(self.pages[best], kept, self.missing + float(left_out.sum()))

    def vector(self, pages: int) -> Float64s:
        """Return the trust in each of the `pages` pages of a graph, of sum 1 - missing.

        Raises:
            BadInput: a trusted page is none of them.
        """
        if len(unknown := self.pages[(self.pages < 0) | (self.pages >= pages)]):
            named = ", ".join(map(str, unknown[:NAMED_MAX].tolist())) + (", ..." if len(unknown) > NAMED_MAX else "")
            raise BadInput(f"the graph has pages 0 to {pages - 1:,}, but these are trusted: {named}")
        trust = np.zeros(pages)
        trust[self.pages] = self.shares
        return trust
