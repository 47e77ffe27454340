"""RankMass: which page to download next, and how much of all importance the downloaded pages are known to hold.

Importance is personalized PageRank r: a surfer follows a link with probability d, or jumps to a trusted page. The
coverage of the downloaded pages is the sum of their r. It depends on pages not yet seen, but has a lower bound
that the links of the downloaded pages alone give: the probabilities of the surfer's paths that stay among them.

rm[i] is the probability of the known paths to page i that were not continued yet. To expand a downloaded page is to
count its rm as covered, CRM, and to continue its paths along its links:

    CRM += rm[i];  rm[j] += d/c[i] * rm[i] for each of the c[i] links i -> j;  rm[i] = 0

A path of probability p goes on, in all its continuations, with at most p d/(1-d). So r sums to at most CRM + the sum of
rm/(1-d) over all pages, and the downloaded pages hold CRM and their own rm for certain.

The paper leaves pages without links to a normalization. Here their rank goes to the trusted pages, as the random jump
does. Then r is proportional to the sums over paths that end at such pages, and no path needs to be continued there:

    guaranteed = (CRM + sum of rm of downloaded pages) / (CRM + sum of all rm/(1-d) + missing trust)

The denominator is 1 if no downloaded page lacks links. Amounts are float64; rounding moves the bound by less than 1e-9.
What counts is the number of downloads: to expand a downloaded page again takes time, but no download.

Source: Cho, Schonfeld (2007).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from experiments.algorithms.trust import Trust
from opic.arrays import Float64s, Int64s
from opic.errors import BadInput
from opic.graph.crawled import LinkMatrix
from opic.graph.pagerank import DAMPING

BLOCK_MIN: Final = 64  # Pages; the maximum of fewer costs as much.
PARTS: Final = 256  # Of a sweep: of the links to pages with higher numbers, nearly all are to later parts.
SETTLED: Final = 1e-12  # Coverage; a guarantee this close to its limit has reached it.

Bools = NDArray[np.bool_]


class OutOfReach(BadInput):
    """A guarantee that cannot be given, however many pages are downloaded."""


@dataclass(frozen=True, slots=True)
class CoverageCrawl:
    """What a crawl downloaded, and what was known of its coverage. Attributes:

    order       (m,) pages in the order of their download
    guaranteed  (m,) coverage guaranteed after each download, before the next one; it never decreases
    iterations  batches of downloads: levels of L-Neighbor, windows, single pages
    expansions  times that a page's rm was passed to its links
    """

    order: Int64s
    guaranteed: Float64s
    iterations: int
    expansions: int


class _Account:
    """Probabilities of the paths so far, and the coverage that they guarantee.

    covered  CRM
    waiting  sum of rm of the downloaded pages
    lost     what the paths that end at pages without links would have become with links: 1 - lost is the denominator
             of the guarantee, and rounds less than the sum
    """

    def __init__(self, missing: float, damping: float, target: float | None) -> None:
        """Begin with no path.

        Raises:
            OutOfReach: too much trust is missing for the target.
        """
        self.missing, self.target, self.ratio = missing, target, damping / (1 - damping)
        self.covered = self.waiting = self.lost = 0.0
        self.end(0.0)

    @property
    def guaranteed(self) -> float:
        return min((self.covered + self.waiting) / (1 - self.lost), self.limit)

    @property
    def limit(self) -> float:
        """Upper limit of all later guarantees."""
        return (1 - self.missing - self.lost) / (1 - self.lost)

    @property
    def reached(self) -> bool:
        return self.target is not None and self.guaranteed >= self.target

    @property
    def settled(self) -> bool:
        """Whether the guarantee is at its limit, if all pages with rm > 0 are downloaded."""
        return not self.missing or self.waiting * self.ratio < SETTLED

    def end(self, amount: float) -> None:
        """Count paths that end at a page without links.

        Raises:
            OutOfReach: the target is above the limit now.
        """
        self.lost += amount * self.ratio
        if self.target is not None and self.target > self.limit:
            raise _out_of_reach(self.target, self.limit, self.missing)


def _out_of_reach(target: float, limit: float, missing: float) -> OutOfReach:
    return OutOfReach(
        f"a coverage of {target:g} cannot be guaranteed: the trusted pages hold {1 - missing:g} of all trust, which "
        f"gives no more than {limit:g}; trust more pages, or lower the target"
    )


def l_neighbor(
    links: LinkMatrix,
    trust: Trust,
    *,
    target: float | None = None,
    downloads_max: int | None = None,
    damping: float = DAMPING,
) -> CoverageCrawl:
    """Download all pages within L links of the trusted pages, for L = 0, 1, 2 ..., until the target is guaranteed.

    The guarantee after level L is (1 - missing)(1 - d^(L+1)), by Theorems 2 and 3; 1 - missing where no page is left.
    Theorem 3 does not hold with pages without links: once one was downloaded and trust is missing, only what surfers
    spend on the trusted pages themselves counts. Within a level, pages are in the order of their numbers.
    O(links + pages log pages).

    Args:
        links: (n, n); [i, j] is 1 where page i links to page j. Only rows of downloaded pages are read.
        trust: the trusted pages.
        target: guaranteed coverage at which to stop; None is to download all that the trusted pages lead to.
        downloads_max: number of downloads at which to stop.
        damping: d, the probability that the surfer follows a link, 0 < d < 1.

    Raises:
        BadInput: trusted pages that the graph does not have, or equal trust in all pages.
        OutOfReach: the target is above what can be guaranteed.

    Source: Figure 2.
    """
    _check(links, trust, damping, target)
    if target is not None and target > 1 - trust.missing:
        raise _out_of_reach(target, 1 - trust.missing, trust.missing)
    degrees, done = np.diff(links.indptr), np.zeros(links.shape[0], np.bool_)
    room = links.shape[0] if downloads_max is None else downloads_max
    order, guaranteed, bound, dangling, level = list[Int64s](), list[Float64s](), 0.0, False, trust.pages
    while len(level) and room > 0 and (target is None or bound < target):
        whole, level = len(level) <= room, level[:room]
        done[level], room = True, room - len(level)
        order.append(level)
        guaranteed.append(np.full(len(level), bound))
        found = np.unique(links.indices[_entries(links, level)[0]])
        following = found[~done[found]]
        ends = bool((degrees[level] == 0).any())
        if whole:
            far = damping ** len(order) if len(following) else 0.0
            bound = _level_bound(trust.missing, far, damping, dangling=dangling or (ends and not len(following)))
            guaranteed[-1][-1] = bound
        level, dangling = following, dangling or ends
    if target is not None and bound < target and not len(level):
        raise _out_of_reach(target, bound, trust.missing)
    return _crawl(order, guaranteed, 0)


def _level_bound(missing: float, far: float, damping: float, *, dangling: bool) -> float:
    """Return the guarantee after a level; `far` is the probability to go beyond it.

    With missing trust and pages without links, a surfer who starts at a named page stays there with probability 1-d at
    least, so the downloaded pages hold (1-missing)(1-d) or more, and the others at most missing + (1-missing) far.
    """
    named = 1 - missing
    if not missing or not dangling:
        return named * (1 - far)
    return named * (1 - damping) / (named * (1 - damping) + missing + named * far)


def windowed_rankmass(
    links: LinkMatrix,
    trust: Trust,
    *,
    window: float,
    sweeps: int = 1,
    parts: int = PARTS,
    target: float | None = None,
    downloads_max: int | None = None,
    damping: float = DAMPING,
) -> CoverageCrawl:
    """Download the pages with the greatest rm, a window of them at a time, and expand all downloaded pages after each.

    The window is a share of the pages with rm > 0 that are not downloaded, rounded up; of pages with equal rm, the one
    with the lower number comes first. A sweep expands the downloaded pages in the order of their numbers, in `parts`
    parts; the pages of a part are expanded at once, and see what the parts before them have passed on. With as many
    parts as pages it is exactly the paper's. A sweep takes O(parts + pages) and the links of the pages expanded.

    Args:
        links, trust, target, downloads_max, damping: as for `l_neighbor`.
        window: 0 < window <= 1.
        sweeps: times that the downloaded pages are expanded before the next window; the paper's is 1.
        parts: number of parts of a sweep, 1 or more.

    Raises:
        BadInput, OutOfReach: as for `l_neighbor`; BadInput for a window that is no share.

    Source: Figure 6. It leaves open of what the window is a share.
    """
    if not 0 < window <= 1 or sweeps < 1 or parts < 1:
        raise BadInput(
            f"window {window:g}, sweeps {sweeps}, parts {parts}: give a window above 0, up to 1, and at least one of "
            "the others"
        )
    _check(links, trust, damping, target)
    rm = (1 - damping) * trust.vector(links.shape[0])
    done, account = np.zeros(links.shape[0], np.bool_), _Account(trust.missing, damping, target)
    room = links.shape[0] if downloads_max is None else downloads_max
    order, guaranteed, expansions = list[Int64s](), list[Float64s](), 0
    while not account.reached:
        seen = np.flatnonzero((rm > 0) & ~done)
        batch = _greatest(rm, seen, min(room, math.ceil(window * len(seen))))
        if len(batch):
            then = np.minimum(account.guaranteed + np.cumsum(rm[batch]) / (1 - account.lost), account.limit)
            batch = batch[: len(batch) if target is None else int(np.searchsorted(then, target)) + 1]
            done[batch], room = True, room - len(batch)
            order.append(batch)
            guaranteed.append(then[: len(batch)])
            account.waiting += float(rm[batch].sum())
        elif len(seen) or account.settled:
            if not len(seen):
                guaranteed[-1][-1] = account.limit
            break
        for _ in range(sweeps):
            for pages in np.array_split(np.arange(len(rm)), parts):
                expansions += _expand(links, rm, pages[done[pages] & (rm[pages] > 0)], account, damping)
            account.waiting = float(rm[done].sum())
        guaranteed[-1][-1] = account.guaranteed
    return _crawl(order, guaranteed, expansions)


def _greatest(rm: Float64s, pages: Int64s, count: int) -> Int64s:
    """Return the pages with the greatest rm, greatest first; of equal ones the lower number."""
    if 0 < count < len(pages):
        least = np.partition(rm[pages], len(pages) - count)[len(pages) - count]
        pages = pages[rm[pages] >= least]
    chosen: Int64s = pages[np.argsort(-rm[pages], kind="stable")[:count]]
    return chosen


def _expand(links: LinkMatrix, rm: Float64s, pages: Int64s, account: _Account, damping: float) -> int:
    """Expand downloaded pages at once, and return how many they are."""
    amounts = rm[pages]
    rm[pages] = 0
    entries, counts = _entries(links, pages)
    shares = damping / np.maximum(counts, 1) * amounts
    np.add.at(rm, links.indices[entries], np.repeat(shares, counts))
    account.covered += float(amounts.sum())
    account.end(float(amounts[counts == 0].sum()))
    return len(pages)


def _entries(links: LinkMatrix, pages: Int64s) -> tuple[Int64s, Int64s]:
    """Return where the links of some pages are in links.indices, and how many each page has."""
    starts = links.indptr[pages].astype(np.int64)
    counts = links.indptr[pages + 1] - starts
    offsets = np.cumsum(counts) - counts
    return np.repeat(starts - offsets, counts) + np.arange(counts.sum()), counts


def rankmass(
    links: LinkMatrix,
    trust: Trust,
    *,
    push_from: float = 1.0,
    target: float | None = None,
    downloads_max: int | None = None,
    damping: float = DAMPING,
) -> CoverageCrawl:
    """Expand the page with the greatest rm, again and again; download it first if it was not downloaded yet.

    Of equal ones, the lower number comes first. With push_from below 1, a downloaded page comes first while its rm is
    more than that share of the others': the guarantee is tighter for the same downloads, with more expansions.

    Pages are in blocks of about sqrt(n), of which each has its maximum at hand: an expansion of c links takes
    O(c + sqrt(n)), in a handful of numpy calls.

    Args:
        links, trust, target, downloads_max, damping: as for `l_neighbor`.
        push_from: 0 < push_from <= 1; 1 is the paper's algorithm.

    Raises:
        BadInput, OutOfReach: as for `l_neighbor`; BadInput for a push_from that is no share.

    Source: Figure 5. Its line 10 sets rm[i] to 0 after its links were paid; we do before, for pages that link to
    themselves.

    >>> from opic.graph.crawled import link_matrix
    >>> chain = link_matrix(np.array([0, 1, 2]), np.array([1, 2, 3]), (4, 4))
    >>> crawl = rankmass(chain, Trust.uniform([0]), target=0.3)
    >>> crawl.order, crawl.guaranteed.round(4)
    (array([0, 1, 2]), array([0.15  , 0.2775, 0.3859]))
    """
    if not 0 < push_from <= 1:
        raise BadInput(f"push_from is {push_from:g}: give a share above 0, at most 1")
    _check(links, trust, damping, target)
    account = _Account(trust.missing, damping, target)
    paths = _Paths(links, trust, damping, 1 / push_from)
    room = links.shape[0] if downloads_max is None else downloads_max
    order, guaranteed, expansions = list[int](), list[float](), 0
    while not account.reached:
        page = paths.first()
        if not paths.unseen and account.settled:
            guaranteed[-1] = account.limit
            break
        if not paths.done[page]:
            if len(order) == room:
                break
            order.append(page)
            guaranteed.append(0.0)
            paths.download(page, account)
        paths.expand(page, account)
        guaranteed[-1] = account.guaranteed
        expansions += 1
    return CoverageCrawl(np.array(order, np.int64), np.array(guaranteed), len(order), expansions)


class _Paths:
    """rm of all pages, and the page to expand next.

    worth   (n,) rm; times `prefer` for downloaded pages; padded to whole blocks
    unseen  number of pages with rm > 0 that are not downloaded
    """

    def __init__(self, links: LinkMatrix, trust: Trust, damping: float, prefer: float) -> None:
        pages = links.shape[0]
        self.starts: list[int] = links.indptr.tolist()
        self.targets = links.indices
        self.damping, self.prefer = damping, prefer
        self.block = max(BLOCK_MIN, math.isqrt(pages))
        self.worth = np.zeros(-(-pages // self.block) * self.block)
        self.worth[:pages] = (1 - damping) * trust.vector(pages)
        self.blocks = self.worth.reshape(-1, self.block)
        self.greatest = self.blocks.max(axis=1)
        self.done, self.unseen = np.zeros(pages, np.bool_), int(np.count_nonzero(self.worth))

    def first(self) -> int:
        """Return the page that is worth most; of equal ones the lower number."""
        block = int(self.greatest.argmax())
        return block * self.block + int(self.blocks[block].argmax())

    def download(self, page: int, account: _Account) -> None:
        """Count a page as downloaded."""
        account.waiting += float(self.worth[page])
        self.worth[page] *= self.prefer
        self.done[page] = True
        self.unseen -= 1

    def expand(self, page: int, account: _Account) -> None:
        """Pass the rm of a downloaded page to its links."""
        worth, block = self.worth, page // self.block
        amount = float(worth[page]) / self.prefer
        worth[page] = 0
        self.greatest[block] = self.blocks[block].max()
        account.covered += amount
        account.waiting -= amount
        first, end = self.starts[page], self.starts[page + 1]
        if first == end:
            account.end(amount)
            return
        children = self.targets[first:end]
        share, own = self.damping / (end - first) * amount, self.done[children]
        before = worth[children]
        after = before + np.where(own, share * self.prefer, share)
        worth[children] = after
        np.maximum.at(self.greatest, children // self.block, after)
        account.waiting += share * int(np.count_nonzero(own))
        self.unseen += int(np.count_nonzero((before == 0) & (after > 0) & ~own))


def _crawl(order: list[Int64s], guaranteed: list[Float64s], expansions: int) -> CoverageCrawl:
    if not order:
        return CoverageCrawl(np.zeros(0, np.int64), np.zeros(0), 0, 0)
    return CoverageCrawl(np.concatenate(order), np.concatenate(guaranteed), len(order), expansions)


def _check(links: LinkMatrix, trust: Trust, damping: float, target: float | None) -> None:
    """Raise BadInput where no guarantee can be given."""
    if not 0 < damping < 1:
        raise BadInput(f"damping {damping:g} is not between 0 and 1")
    if target is not None and not 0 < target <= 1:
        raise BadInput(f"target {target:g} is not a share of all importance: give a number above 0, at most 1")
    trust.vector(links.shape[0])
    if len(trust.pages) == links.shape[0] > 1 and np.ptp(trust.shares) == 0:
        raise BadInput(
            f"all {len(trust.pages):,} pages are trusted equally: nothing is guaranteed before all are "
            "downloaded; trust some of the pages, or give them different weights"
        )
