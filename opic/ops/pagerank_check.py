"""What shows that the scores of a file can't be PageRank of this graph: their sum, pages left out, digits, one step."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s
from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.ops.export_pages import CrawlPicture

SUM_ERROR: Final = 1e-3  # Of a list whose scores were rounded.
ERROR_MAX: Final = 1e-3  # L1 distance from PageRank over which a list is told not to be it.
DIGITS_MIN: Final = 7  # Significant digits under which the order of pages suffers.
FLOAT32_DIGITS: Final = 9  # Of a decimal number that tells each float32 from the next.
SAMPLE: Final = 1_000


@dataclass(frozen=True, slots=True)
class OneStep:
    """What one step of PageRank does to scores. Attributes:

    change     L1 norm of the change of the scores, scaled to sum 1
    carried    the part of all scores that links carry, of 1
    unlinked   (rows,) pages without a link in either direction
    """

    change: float
    carried: float
    unlinked: Bools

    def error(self, damping: float) -> tuple[float, float]:
        """Return the least and the greatest L1 distance from PageRank that scores with this change can have."""
        return self.change / (1 + damping), self.change / (1 - damping)


def jump(picture: CrawlPicture) -> Float64s:
    """Return where the random jump goes, by row: (rows,), sum 1, 0 for pages that are gone."""
    state = picture.snapshot.state.astype(np.int64)
    live = (state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN
    weights = live * (1 + np.array(picture.snapshot.books.extra)[state & CLASS_BITS] / MILLION)
    by_row: Float64s = np.zeros(picture.pages)
    by_row[picture.rows[picture.rows >= 0]] = weights[picture.rows >= 0]
    by_row /= by_row.sum()
    return by_row


def one_step(picture: CrawlPicture, scores: Float64s, damping: float) -> OneStep:
    """Take one step of PageRank from scores.

    Args:
        picture: with the links of the crawl, which are used up.
        scores: (rows,), at least 0, sum over 0.
        damping: share of a page's rank that follows its links.
    """
    share = scores / scores.sum()
    carried, unlinked = np.zeros(len(share)), np.ones(len(share), np.bool_)
    for sources, targets in picture.link_batches():  # All links of a page are in one of them.
        pages, source, links = np.unique(sources, return_inverse=True, return_counts=True)
        np.add.at(carried, targets, (share[pages] / links)[source])
        unlinked[pages] = unlinked[targets] = False
    after = damping * carried
    after += (1 - after.sum()) * jump(picture)
    return OneStep(float(np.abs(after - share).sum()), float(carried.sum()), unlinked)


def sum_notes(total: float, pages: int, step: OneStep | None, damping: float) -> list[str]:
    """Tell what the sum of the scores of all pages says about the tool that computed them."""
    if abs(total - 1) <= SUM_ERROR:
        return []
    says, scale = f"the scores sum to {total:.6g}, those of PageRank to 1", 1.0
    if abs(total / pages - 1) <= SUM_ERROR:
        return [f"{says}: divided by {pages:,}, the number of pages, they are on its scale (GraphX, GraphFrames)"]
    if step is not None:
        for scale in (1.0, float(pages)):
            # Where pages without links lose their rank, each page has (1-d)/N beside what links carry to it.
            if abs(total / scale * (1 - damping * step.carried) / (1 - damping) - 1) <= SUM_ERROR:
                return [f"{says}: the tool loses what pages without links have. Scaled to sum 1 they are PageRank"]
    return [f"{says}: they are not PageRank as they are"]


def step_notes(step: OneStep, damping: float) -> list[str]:
    """Tell that scores are not PageRank of this graph, if one step of it shows that."""
    least, most = step.error(damping)
    if least <= ERROR_MAX:
        return []
    why = "too few steps, another damping, other links, or pages without links treated otherwise"
    return [f"the scores are off PageRank of this graph by {least:.2g} to {most:.2g} in L1: {why}"]


def missing_notes(missing: Bools, step: OneStep | None) -> list[str]:
    """Tell how many pages a file lacks, and whether they are those without links; `missing` is by row."""
    count = int(missing.sum())
    if not count:
        return []
    unlinked = int((missing & step.unlinked).sum()) if step is not None else 0
    told = f"the file lacks {count:,} pages of the crawl"
    if unlinked * 2 > count:
        told += f", {unlinked:,} of them without any link: a tool that makes pages from links does not know these"
    return [told]


def precision_notes(scores: Float64s) -> list[str]:
    """Tell that scores have few digits, so that they can't order pages that differ by less.

    >>> precision_notes(np.array([0.123, 0.02, 0.0071]))
    ['the scores have 3 significant digits: pages that differ by less are in no order']
    >>> precision_notes(np.float32([0.1, 0.2, 0.7]).astype(float))
    ['the scores are of 32 bits: pages that differ by less than 1e-7 of theirs are in no order']
    """
    if (scores == np.round(scores)).all():
        return []  # Counts and places are exact.
    digits = _digits(scores[:: max(1, len(scores) // SAMPLE)], 1)
    if digits <= FLOAT32_DIGITS:
        digits = _digits(scores, digits)
    if digits < DIGITS_MIN:
        return [f"the scores have {digits} significant digits: pages that differ by less are in no order"]
    if digits > FLOAT32_DIGITS and (scores == scores.astype(np.float32)).all():
        return ["the scores are of 32 bits: pages that differ by less than 1e-7 of theirs are in no order"]
    return []


def _digits(scores: Float64s, least: int) -> int:
    """Return the least number of significant digits that tells each score."""
    values = scores.tolist()
    return next((n for n in range(least, 17) if all(float(f"{value:.{n - 1}e}") == value for value in values)), 17)
