"""Cash as whole grains: how a read splits it, what a page is granted, and how wrong the estimate can be.

Everything here is integer arithmetic until the last step, the error bound. Cash is signed: a shard's virtual
account may owe, and so may a page that is gone (it gives its grants back, its children keep what it paid).
"""

from dataclasses import dataclass, fields
from enum import IntEnum

from opic.errors import SettingsError, StoreFull

MILLION = 1_000_000
MINTED_GRAINS = 1 << 52  # Genesis. No balance reaches 2^53, so a double holds each one exactly.
GRANT_GRAINS = 1 << 21  # What one page is granted: 2^52 / 2^21 pages is 2 * 10^9.
BALANCE_LIMIT = 1 << 53  # Past it a Lua number, a double, is not exact.
CLOCK_LIMIT = 1 << 62  # The clock and total history only grow; an int64 ends at 2^63.
ROUND_BITS = 32  # Rounds are kept in units of 2^-32.
DAY_US = 86_400 * MILLION
GONE_DOUBLINGS_MAX = 10  # A page that keeps going away is looked at again after 1,024 days at the latest.


class Flag(IntEnum):
    """Bits of the state byte that the store keeps for each page; 0 is an id that is not known yet."""

    KNOWN = 0x08
    OPEN = 0x10  # Read since it became known or came back: its cash is residual, not final.
    GONE = 0x20  # 404 or 410: in a class of weight 0.
    EXCLUDED = 0x40  # 401, 403, 451 or robots.txt: keeps its cash, is not offered.


CLASS_BITS = 0x07  # The page's weight class, 0 to 7. Only class 0 is in use.


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers that decide how cash moves; a store is made with them and keeps them."""

    q: int = 150_000  # 1 - damping, in parts of a million.
    regrant_ppm: int = 10_000  # A further grant is this share of `grant`, and due below this residual; 0 = never.
    measures_max: int = 4  # Measures kept for a page.
    inflow: bool = True  # Count cash that arrives by links from other registered domains.
    grant: int = GRANT_GRAINS
    minted: int = MINTED_GRAINS


@dataclass(frozen=True, slots=True)
class Split:
    """What one read does with its cash: `share` to each link, `virtual` to the virtual page."""

    share: int
    virtual: int
    rounding: int  # Grains by which the links' sum is off the exact amount, rounded up.


def damping_ppm(damping: float) -> int:
    """Damping as the share that leaves to the virtual page, q = 1 - d, in whole parts of a million.

    >>> damping_ppm(0.85)
    150000
    """
    q = MILLION - round(damping * MILLION) if 0 < damping < 1 else 0  # NaN is neither.
    if not 0 < q < MILLION:
        raise SettingsError(f"OPIC_DAMPING={damping} must lie between 0.000001 and 0.999999")
    return q


def split(cash: int, links: int, q: int) -> Split:
    """Split the cash of a page that is read.

    floor(q/10^6 * cash) goes to the virtual page, the rest equally to the links, and what integer division leaves
    over to the virtual page too. The product is taken in two parts so that the same formula stays under 2^63 in
    every language: cash < 2^53 and q < 10^6.

    Args:
        cash: grains, >= 0.
        links: distinct links to other pages.
        q: 1 - damping in parts of a million.
    Source: Abiteboul, Preda, Cobena (2003), section 2; the virtual page takes the place of the "small edges".

    >>> split(1_000_003, links=4, q=150_000)
    Split(share=212500, virtual=150003, rounding=3)
    """
    if links == 0:
        return Split(0, cash, 0)
    whole, part = divmod(cash, MILLION)
    leaving = whole * q + part * q // MILLION
    share, remainder = divmod(cash - leaving, links)
    # A remainder outweighs the fraction that flooring `leaving` gave to the links; without one only that is off.
    rounding = remainder if remainder else int(part * q % MILLION != 0)
    return Split(share, leaving + remainder, rounding)


def gone_until_us(at_us: int, times_gone: int) -> int:
    """When a link may bring a page back that went away for the `times_gone`-th time at `at_us`: a day, doubling.

    >>> gone_until_us(0, times_gone=3) == 4 * DAY_US
    True
    """
    return at_us + (DAY_US << min(times_gone - 1, GONE_DOUBLINGS_MAX))


@dataclass(slots=True)
class Books:
    """The totals of a shard: each is the sum of a column, or a count that nothing else holds.

    The step moves them by differences, `opic audit` recounts them. Counts are pages, amounts are grains.
    """

    version: int = 0  # Steps applied. The fence: a step computed from another version is refused.
    clock: int = 0  # G: grains ever spent by reads.
    rounds: int = 0  # The clock in grants for every known page, in units of 2^-32.
    time_us: int = 0  # Of the last record that took effect; it may run backwards.
    pool: int = 0  # The virtual page.
    credit: int = 0  # All that was granted so far to a page of class 0.
    live: int = 0  # Known pages, not gone.
    gone: int = 0
    open: int = 0  # Live pages read since they became known or came back.
    v_open: int = 0  # Sum of v over open pages.
    v_gone: int = 0  # Sum of v over gone pages: what they owe, less what links sent them.
    h_gone: int = 0  # Sum of total history over gone pages.
    rounding: int = 0  # Grains by which integer division moved what links got.
    drift_plus: int = 0  # History spent before a page showed the links it shows now,
    drift_minus: int = 0  # and history spent along links that are no more.
    reads: int = 0
    failures: int = 0
    departures: int = 0
    exclusions: int = 0
    seeds: int = 0
    links: int = 0
    bad_links: int = 0
    dead_letters: int = 0

    def residual(self) -> int:
        """Cash on open pages: what a read could still move."""
        return self.v_open + self.open * self.credit

    def settled(self, minted: int) -> int:
        """S: all history of live pages, and the cash of live pages whose links are not known."""
        pages = minted - self.pool  # Cash on all pages, gone ones among them.
        return (self.clock - self.h_gone) + (pages - self.v_gone - self.residual())

    def importance_total(self, minted: int) -> int:
        """Sum of history and cash over live pages: the denominator of the static estimate."""
        return self.settled(minted) + self.residual()

    def grant_due(self, regrant_ppm: int, grant: int) -> int:
        """Grains that every live page is to be granted now: 0, or `regrant` of a grant.

        Due when the cash on open pages is below `regrant` of what those pages were granted. Cash on pages that were
        never read holds nothing back (most pages of a crawl never are), and a pool that could not pay waits.
        """
        if not regrant_ppm or not self.open:
            return 0
        if self.residual() * MILLION >= regrant_ppm * self.open * self.credit:
            return 0
        amount = grant * regrant_ppm // MILLION
        return amount if amount * self.live <= self.pool else 0

    def error_bound(self, minted: int, q: int) -> float:
        """Bound on the L1 distance of the normalised static estimate from exact PageRank of the known graph.

        The exact vector is the estimate's grains, plus at most A, less at most B: what is still to come from cash on
        open pages, from the grains that rounding moved, from links that are no more or were not yet, and from all
        that links ever sent to pages that are gone (were those links left out, the others would have received it);
        each with its geometric series. docs/decisions/0001 has the proof. 2 says nothing: the distance is never more.
        """
        if max(self.drift_plus, self.drift_minus) >= CLOCK_LIMIT:
            return 2.0  # They stopped counting.
        damping = 1 - q / MILLION
        parked = self.v_gone + self.h_gone
        more = (damping * (self.residual() + self.drift_plus) + self.rounding + parked) / (1 - damping)
        less = (damping * self.drift_minus + self.reads) / (1 - damping)
        total = self.importance_total(minted)
        return min(2.0, 2 * max(more / max(total, total + more - less), less / total)) if total else 2.0

    def misplace(self, plus: int, minus: int) -> None:
        """Count history that was spent along other links than a page shows now. Past CLOCK_LIMIT it says nothing."""
        self.drift_plus = min(self.drift_plus + plus, CLOCK_LIMIT)
        self.drift_minus = min(self.drift_minus + minus, CLOCK_LIMIT)

    def check(self) -> None:
        """Refuse, before anything is written, totals that are no longer exact.

        Raises:
            StoreFull: the clock or another sum that only grows nears 2^62, or a balance 2^53.
        """
        for name in ("clock", "rounds", "rounding", "h_gone"):
            if (sum_ := getattr(self, name)) >= CLOCK_LIMIT:
                raise StoreFull(f"the {name}, {sum_}, reached its limit of 2^62: start a new store and replay the log")
        for name in ("pool", "v_open", "v_gone", "credit"):
            if not -BALANCE_LIMIT < getattr(self, name) < BALANCE_LIMIT:
                raise StoreFull(
                    f"{name}, {getattr(self, name)}, left the range of 2^53: a shard takes 2 * 10^9 pages, use more"
                )


BOOK_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Books))
