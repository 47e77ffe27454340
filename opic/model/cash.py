"""Cash in whole grains: the rules that say how it moves, flags of pages, and the split of a page's cash on a read.

All arithmetic is on integers. What a shard's pages hold in all is in `opic.model.books`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from opic.errors import SettingsError
from opic.model.rounds import UNIT_BITS
from opic.urls.normalization import Normalization

MILLION = 1_000_000
MINTED_GRAINS = 1 << 62  # Genesis: the most that leaves room in an int64 for what is minted and the clock together.
MINTED_CONTINUOUS = 1 << 46  # Under the continuous payout the clock's limit is then 65,536 rounds, not 1,024.
GRANT_GRAINS = 1 << 21  # The grant of one page: 2^62 grains suffice for 2,200 grants to each of 10^9 pages.
CLOCK_LIMIT = 1 << 62  # The clock and total history only grow.
ROUND_BITS = UNIT_BITS  # Rounds are kept in units of 2^-32.
DAY_US = 86_400 * MILLION
ANCHOR_ROUNDS = 4  # Between the two anchors of a page: the older one is 4 to 8 rounds old, up to a default window.
GONE_DOUBLINGS_MAX = 10  # A page that keeps going away can come back after 1,024 days at the latest.


class Flag:
    """Bits of a page's state byte; a state of 0 is an id that is not known yet.

    Plain numbers: those of an enumeration make 64-bit arrays out of arrays of bytes, and cost a microsecond to name.
    """

    KNOWN: Final = 0x08
    OPEN: Final = 0x10  # Read since it became known or came back: its cash is residual, not final.
    GONE: Final = 0x20  # 404 or 410: in a class of weight 0.
    EXCLUDED: Final = 0x40  # 401, 403, 451 or robots.txt: keeps its cash, is not offered.
    TAGGED: Final = 0x80  # In its class because of a tag of its last event that had tags, not because of its URL.


# The state of an id whose page was forgotten: gone, and not known either. A page of the same URL takes it up again.
FORGOTTEN = Flag.GONE
# A page that became known and was not heard of since has none of these.
HEARD_OF: Final = Flag.OPEN | Flag.GONE | Flag.EXCLUDED
CLASS_BITS = 0x07  # The page's weight class; class 0 holds the pages in no other class.
CLASSES_MAX = 8
NONE_BY_CLASS = (0,) * CLASSES_MAX


@dataclass(frozen=True)
class CrawlRules:
    """The rules that determine how cash moves. They are fixed when a store is created."""

    q: int = 150_000  # 1 - damping, in parts of a million.
    regrant_ppm: int = 10_000  # A further grant is this share of `grant`, and due below this residual; 0 = never.
    measures_max: int = 4  # Measures kept per page.
    inflow: bool = True  # Count cash that arrives by links from other registered domains.
    grant: int = GRANT_GRAINS
    minted: int = MINTED_GRAINS
    virtual: str = "grants"  # How the virtual page pays: "grants", or "continuous", at once, as in the paper.
    normalize: str = ""  # Names of the normalization rules of URLs, which decide what a page is.

    @cached_property
    def continuous(self) -> bool:
        """Whether the virtual page pays out at once; `grant` and `regrant_ppm` are then not used."""
        return self.virtual == "continuous"

    @cached_property
    def normalization(self) -> Normalization:
        return Normalization.of(self.normalize)

    def round_grains(self, live: int) -> int:
        """Return by how much the clock advances per round: a grant for each live page, or all cash if continuous."""
        return self.minted if self.continuous else self.grant * live


# The paper's payout. All cash is always on the pages, so the clock advances by all minted grains per round. 2^46 grains
# allow 65,536 rounds, and give 2^21 grains, the size of a grant, to each of 33 million pages.
CONTINUOUS: Final = CrawlRules(minted=MINTED_CONTINUOUS, virtual="continuous")


class Split(NamedTuple):
    """How one read splits its cash: `share` to each link, `virtual` to the virtual page."""

    share: int
    virtual: int
    rounding: int  # Difference of the links' sum from the exact amount, in grains, rounded up.


def damping_ppm(damping: float) -> int:
    """Return the share of the virtual page, q = 1 - damping, in whole parts per million.

    >>> damping_ppm(0.85)
    150000
    """
    q = MILLION - round(damping * MILLION) if 0 < damping < 1 else 0  # NaN is neither.
    if not 0 < q < MILLION:
        raise SettingsError(f"OPIC_DAMPING={damping} must lie between 0.000001 and 0.999999")
    return q


def split(cash: int, links: int, q: int) -> Split:
    """Split the cash of a page that is read.

    floor(q/10^6 * cash) goes to the virtual page, the rest in equal parts to the links, and the remainder of the
    division also to the virtual page. The product is computed in two parts, neither of which exceeds the cash, so that
    the same formula is exact in 64-bit integers for any |cash| < 2^63, q < 10^6.

    A page with negative cash, because its weight was cut after it had spent its grants, takes back what it overpaid:
    the same amounts, negative.

    Args:
        cash: grains.
        links: number of distinct links to other pages.
        q: 1 - damping in parts per million.
    Source: Abiteboul, Preda, Cobena (2003), section 2; the virtual page takes the place of the "small edges".

    >>> split(1_000_003, links=4, q=150_000)
    Split(share=212500, virtual=150003, rounding=3)
    """
    if links == 0:
        return Split(0, cash, 0)
    if cash < 0:
        back = split(-cash, links, q)
        return Split(-back.share, -back.virtual, back.rounding)
    whole, part = divmod(cash, MILLION)
    leaving = whole * q + part * q // MILLION
    share, remainder = divmod(cash - leaving, links)
    # A remainder exceeds the fraction that flooring `leaving` gave to the links; without one only that fraction counts.
    rounding = remainder if remainder else int(part * q % MILLION != 0)
    return Split(share, leaving + remainder, rounding)


# A clock value and the page's total history at that time: the start of the interval for its recent rate.
Anchor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PageMeasure:
    """One read of a page: the clock after it, the cash it spent, when it was fetched (microseconds)."""

    clock: int
    cash: int
    fetched_at_us: int


def roll(anchors: tuple[Anchor, ...], clock: int, spent: int, rules: CrawlRules) -> tuple[Anchor, ...]:
    """Return the anchors of a page after a read. Under the continuous payout: the first one, later the last two.

    >>> roll(((70, 5), (90, 6)), 101, 9, CrawlRules(minted=3, virtual="continuous")), roll((), 101, 9, CrawlRules())
    (((70, 5), (90, 6)), ())
    >>> roll(((70, 5), (90, 6)), 102, 9, CrawlRules(minted=3, virtual="continuous"))
    ((90, 6), (102, 9))
    """
    if not rules.continuous or (anchors and clock - anchors[-1][0] < ANCHOR_ROUNDS * rules.minted):
        return anchors
    return (*anchors, (clock, spent))[-2:]


def gone_until_us(at_us: int, times_gone: int) -> int:
    """Return when a link may bring back a page that went away at `at_us`: after a day, doubled for each time it did.

    >>> gone_until_us(0, times_gone=3) == 4 * DAY_US
    True
    """
    return at_us + (DAY_US << min(times_gone - 1, GONE_DOUBLINGS_MAX))


def by_weight(grains: int, extra: int) -> int:
    """Scale an amount for a page of weight 1 to a page whose weight is 1 plus `extra` parts per million.

    >>> by_weight(1_000, 500_000), by_weight(1_000, -999_999)
    (1500, 0)
    """
    return grains + grains * extra // MILLION if extra else grains
