"""The books: the totals of a shard, from which come grants, what a change of classes costs, and the error bound.

All arithmetic is on integers, except the last step, the error bound. Amounts are signed: a shard's virtual account may
be negative, and so may the cash of a gone page (it returns its grants, but its children keep what it paid).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from opic.errors import StoreFull
from opic.model.cash import (
    CLASS_BITS,
    CLASSES_MAX,
    CLOCK_LIMIT,
    MILLION,
    NONE_BY_CLASS,
    CrawlRules,
    Flag,
    by_weight,
)
from opic.model.rounds import RoundCount

BALANCE_LIMIT = 1 << 63  # The int64 limit. The pool of a shard may exceed the grains minted, if others are negative.
DEBT_MAX = 1 << 61  # Maximum debt of the pool after a change of classes; pages that become known may add to it.


@dataclass(slots=True)
class Books:
    """The totals of a shard: each is the sum of a column, or a count that is stored nowhere else.

    The step updates them by differences; `opic audit` recounts them. Counts are pages, amounts are grains. All are
    Python integers, never NumPy's: a product of two totals may exceed 2^63, for instance open_cash * 10^6.
    """

    version: int = 0  # Number of steps applied. The fence: a step computed from another version is refused.
    clock: int = 0  # G: grains ever spent by reads.
    taken_back: int = 0  # Grains of the clock that reads of pages with negative cash took back.
    rounds: int = 0  # The clock in grants for every known page, in units of 2^-32; of many shards, for their own.
    time_us: int = 0  # Time of the last record that took effect; it may go backwards.
    pool: int = 0  # Cash of the virtual page; with many shards, this shard's account with it.
    net: int = 0  # Grains sent to other shards minus grains received from them.
    credit: int = 0  # Total granted, or paid, so far to a page of class 0.
    live: int = 0  # Known pages, not gone.
    gone: int = 0
    open: int = 0  # Live pages read since they became known or came back.
    open_cash: int = 0  # Cash on open pages: the residual, what a read could still move.
    v_gone: int = 0  # Sum of v over gone pages: what links sent them, minus what they owe.
    h_gone: int = 0  # Sum of total history over gone pages.
    rounding: int = 0  # Total rounding error of payments to links, in grains.
    drift_plus: int = 0  # History spent before pages had their current links.
    drift_minus: int = 0  # History spent along links that no longer exist.
    reads: int = 0
    failures: int = 0
    departures: int = 0
    exclusions: int = 0
    seeds: int = 0
    links: int = 0
    bad_links: int = 0
    dead_letters: int = 0
    repeats: int = 0  # Records of calls with an Idempotency-Key that had already taken effect.
    cuts: int = 0  # How often the weight of a page or a class fell. If not 0, pages may have negative cash.
    counted_rounds: int = 0  # The last count of the whole crawl's rounds, in shard 0 of many,
    counted_clock: int = 0  # the crawl's clock at that time,
    counted_live: int = 0  # and its known pages.
    forgotten: int = 0  # Pages forgotten; one that was known again and forgotten again counts twice.
    sent_to_forgotten: int = 0  # What links had sent to each, |v + history|; and what they sent to refused pages.
    h_forgotten: int = 0  # Sum of their total histories.
    # By class; 0 for class 0, which has weight 1 and the pages that are in no other class.
    extra: tuple[int, ...] = NONE_BY_CLASS  # Weight minus 1, in parts per million.
    known_by: tuple[int, ...] = NONE_BY_CLASS  # Pages, including gone ones.
    live_by: tuple[int, ...] = NONE_BY_CLASS
    open_by: tuple[int, ...] = NONE_BY_CLASS
    # Grains of the clock that pages of other shards spent before a migration divided the crawl: the shards of the new
    # crawl share the clock up to then. It is the last field, so that a record may leave it out.
    elsewhere: int = 0

    @classmethod
    def genesis(cls, rules: CrawlRules, shard: int = 0) -> "Books":
        """Return the books before the first record: all grains on the virtual page, one grant promised to each page.

        With many shards, the first one has the grains; the others' accounts with the virtual page may be negative.
        """
        return cls(pool=0 if shard else rules.minted, credit=0 if rules.continuous else rules.grant)

    @classmethod
    def merged(cls, parts: Sequence["Books"], rules: CrawlRules) -> "Books":
        """Return the books of a crawl, given those of its shards.

        Counts and amounts are sums. The credit is the largest, because a grant reaches the shards one after the other.
        The time is the latest. With grants, rounds are those of the last count and what has passed since; with the
        continuous payout, where each shard counts its share of all cash, they are summed. Class weights are those of
        the first shard, which has new ones before the others.
        """
        if len(parts) == 1:
            return parts[0]
        sums = map(sum, zip(*map(_scalars_of, parts), strict=True))  # Each answer has one of these.
        scalars: dict[str, Any] = dict(zip(SCALARS, sums, strict=True))
        books = cls(**scalars, extra=parts[0].extra)
        books.clock, books.elsewhere = books.clock - books.elsewhere, 0
        for name in ("known_by", "live_by", "open_by"):
            setattr(books, name, tuple(map(sum, zip(*map(attrgetter(name), parts), strict=True))))
        books.credit, books.time_us = (max(getattr(part, name) for part in parts) for name in ("credit", "time_us"))
        if not rules.continuous:
            least = 1 + books.links // max(books.reads, 1)
            books.rounds = books.round_count.until(books.clock, books.live, least, rules.grant).rounds
        return books

    @property
    def round_count(self) -> RoundCount:
        """The last count of the whole crawl's rounds."""
        return RoundCount(self.counted_rounds, self.counted_clock, self.counted_live)

    def take_count(self, count: RoundCount) -> bool:
        """Take a count, unless a later one was taken before; return whether the clock has moved since the last."""
        if count.clock < self.counted_clock or count.rounds < self.counted_rounds:
            return False
        moved = count.clock > self.counted_clock
        self.counted_rounds, self.counted_clock, self.counted_live = count
        return moved

    # Classes of pages. The total granted to a page follows from `credit` and the weight of its class. So neither a
    # grant nor a change of weight touches a page: its cash changes by the difference, which the pool pays or receives.

    @property
    def weighted(self) -> bool:
        """Whether the weight of any class differs from 1."""
        return self.extra != NONE_BY_CLASS

    def credit_of(self, slot: int) -> int:
        """Return the total granted so far to a live page of a class."""
        return by_weight(self.credit, self.extra[slot])

    def credits(self) -> list[int]:
        if self.extra == NONE_BY_CLASS:
            return [self.credit] * CLASSES_MAX
        return [self.credit_of(slot) for slot in range(CLASSES_MAX)]

    def count(self, slot: int, *, known: int = 0, live: int = 0, opened: int = 0) -> None:
        """Add to the counts of known, live and open pages of a class; negative numbers subtract."""
        self.live += live
        self.open += opened
        if slot:
            self.known_by = _moved(self.known_by, slot, known)
            self.live_by = _moved(self.live_by, slot, live)
            self.open_by = _moved(self.open_by, slot, opened)

    def live_of(self, slot: int) -> int:
        return self.live_by[slot] if slot else self.live - sum(self.live_by)

    def open_of(self, slot: int) -> int:
        return self.open_by[slot] if slot else self.open - sum(self.open_by)

    def has_room(self, grains: int, floor: int = -DEBT_MAX) -> bool:
        """Return whether the pool may pay this for a change of classes. Half of its possible debt is kept for pages."""
        return grains <= 0 or self.pool - grains > floor

    def reclass(self, old: int, new: int, *, live: bool, opened: bool, floor: int = -DEBT_MAX) -> bool:
        """Move a page to another class; return False if the pool can't pay for it. `floor` is that of `pool_floor`."""
        more = self.credit_of(new) - self.credit_of(old) if live else 0
        if not self.has_room(more, floor):
            return False
        self.cuts += self.extra[new] < self.extra[old]
        self.count(old, known=-1, live=-live, opened=-opened)
        self.count(new, known=1, live=live, opened=opened)
        self.pool -= more
        self.open_cash += more * opened
        return True

    def reweigh(self, extra: Sequence[int], *, surely: bool = False) -> bool:
        """Change the weights of all classes; return False if the pool can't pay for it.

        With many shards, `surely`: whether all of them can was decided before; see `room_for`.
        """
        before, old = self.credits(), self.extra
        self.extra = tuple(extra)
        more, more_open = self._difference(before)
        if not (surely or self.has_room(more)):
            self.extra = old
            return False
        self.cuts += any(a > b and n for a, b, n in zip(old, extra, self.known_by, strict=True))
        self.pool -= more
        self.open_cash += more_open
        return True

    def _difference(self, before: Sequence[int]) -> tuple[int, int]:
        """Return by how much the cash of live pages, and of open pages, has grown since the credits were `before`."""
        rises = [b - a for a, b in zip(before, self.credits(), strict=True)]
        return (
            sum(rise * self.live_of(slot) for slot, rise in enumerate(rises)),
            sum(rise * self.open_of(slot) for slot, rise in enumerate(rises)),
        )

    def importance_total(self, minted: int) -> int:
        """Sum of history and cash over live pages: the denominator of the static estimate."""
        pages = minted - self.pool - self.net  # Cash on all pages, gone ones among them.
        return (self.clock - self.taken_back - self.h_gone - self.h_forgotten) + (pages - self.v_gone)

    def static_total(self, minted: int, overdrawn: int = 0) -> int:
        """Return the denominator of the static estimates as they are shown, at least 1.

        Args:
            minted: grains minted.
            overdrawn: what live pages with a negative sum of history and cash lack to 0, as which that sum is shown.
        """
        return max(self.importance_total(minted) + overdrawn, 1)

    def due(self, rules: CrawlRules) -> int:
        """Return the grains due to each live page now: its part of the pool, or the share `regrant_ppm` of a grant.

        A grant is due when the cash on open pages has fallen below `regrant_ppm` of one grant for each of them,
        weighted. It is a share of one grant, not of all grants so far: that share would grow with each further grant,
        so that the credit would grow exponentially with the reads, not linearly. Cash on pages that were never read
        does not delay a grant (most pages of a crawl are never read). A grant waits while the pool can't pay it, and
        while pages owe: what they take back comes first.
        """
        if rules.continuous:
            # With many shards the pool may be negative for a while, if pages became known during a payout.
            return max(self.pool, 0) // self.live if self.live else 0
        if not rules.regrant_ppm or not self.open:
            return 0
        one_each = rules.grant * self.open
        if self.weighted:
            one_each = sum(self.open_of(slot) * by_weight(rules.grant, extra) for slot, extra in enumerate(self.extra))
        if abs(self.open_cash) * MILLION >= rules.regrant_ppm * one_each:
            return 0
        amount = rules.grant * rules.regrant_ppm // MILLION
        cost = amount * self.live
        if self.weighted:  # Rounded up for each page.
            cost += sum((amount * e // MILLION + 1) * n for e, n in zip(self.extra, self.live_by, strict=True))
        return amount if cost <= self.pool else 0

    def grant_all(self, amount: int) -> None:
        """Pay `amount` grains from the virtual page to every live page."""
        before = self.credits() if self.weighted else []
        self.credit += amount
        more, more_open = self._difference(before) if before else (amount * self.live, amount * self.open)
        self.pool -= more
        self.open_cash += more_open

    def sweeps_left(self, rules: CrawlRules) -> float | None:
        """Forecast how often all read pages can be read again before the pool is empty or the clock is at its limit.

        A sweep is as many reads as there are open pages. The forecast assumes that reads move the clock and cause
        grants as they did on average so far. It ignores what reads return to the pool and includes the first reads of
        pages, which spend most, so it errs on the low side. None before the clock has moved.

        >>> books = Books(clock=1 << 61, pool=1 << 61, credit=3 << 21, live=1_000, open=500, reads=50_000)
        >>> books.sweeps_left(CrawlRules())
        100.0
        """
        if not (self.reads and self.open and self.clock > 0):
            return None
        sweeps = self.reads / self.open
        left = (CLOCK_LIMIT - self.clock) / self.clock * sweeps
        granted = 0 if rules.continuous else self.credit - rules.grant
        if granted > 0:
            pages = sum(self.live_of(slot) * (MILLION + extra) for slot, extra in enumerate(self.extra))
            left = min(left, self.pool * MILLION / max(granted * pages, 1) * sweeps)
        return max(left, 0.0)

    def error_bound(self, minted: int, q: int, debt: int = 0, late: int = 0) -> float:
        """Bound on the L1 distance of the normalised static estimate from exact PageRank of the known graph.

        The exact vector is the estimate's grains, plus at most A, less at most B: what is still to come from cash on
        open pages or on its way between shards, from the grains that rounding moved, from links that are no more or
        were not yet, and from all that links ever sent to pages that are gone or forgotten (were those links left out,
        the others would have received it); each with its geometric series. docs/decisions/0001 has the proof. 2 says
        nothing: the distance is never more. Under grants only: a continuous payout gives pages known late less
        teleport, which nothing here counts.

        Args:
            minted: at genesis.
            q: 1 - damping in parts of a million.
            debt: what open pages owe in all, where any does; it is no total of the books.
            late: of many shards, what pages lack of grants that other shards' pages have.
        """
        if max(self.drift_plus, self.drift_minus, self.sent_to_forgotten) >= CLOCK_LIMIT:
            return 2.0  # They stopped counting.
        damping = 1 - q / MILLION
        parked = self.v_gone + self.h_gone + self.sent_to_forgotten
        coming = abs(self.net) + late  # It has left a page, or the virtual page, and will reach one whole.
        more = (damping * (self.open_cash + self.drift_plus) + self.rounding + parked + coming) / (1 - damping)
        less = (damping * self.drift_minus + self.reads) / (1 - damping)
        if self.weighted:
            more += self.live / (1 - damping)  # What was granted by weight was rounded down, for each page.
        if self.cuts:  # Pages may owe: what could be wrong one way only counts both ways.
            wrong = self.drift_plus + self.drift_minus
            lost = abs(self.v_gone + self.h_gone) + self.sent_to_forgotten
            either = self.rounding + self.reads + lost + self.live + coming
            less = (damping * (debt + 2 * wrong) + either) / (1 - damping)
            more = less + damping * self.open_cash / (1 - damping)
        total = self.importance_total(minted)
        return min(2.0, 2 * max(more / max(total, total + more - less), less / total)) if total > 0 else 2.0

    def forget(self, state: int, v: int, spent: int, *, drifts: bool) -> None:
        """Forget a known page, whose cash goes to the virtual page.

        Args:
            state: its state.
            v: its cash, without its credit.
            spent: its total history.
            drifts: whether it had links when it was last read.
        """
        slot, gone, opened = state & CLASS_BITS, bool(state & Flag.GONE), bool(state & Flag.OPEN)
        cash = v if gone else v + self.credit_of(slot)
        if gone:
            self.gone -= 1
            self.v_gone -= v
            self.h_gone -= spent
        if opened:
            self.open_cash -= cash
            self.misplace(0, spent if drifts else 0)
        self.count(slot, known=-1, live=-(not gone), opened=-opened)
        self.pool += cash
        self.forgotten += 1
        self.sent_to_forgotten = min(self.sent_to_forgotten + abs(v + spent), CLOCK_LIMIT)
        self.h_forgotten += spent

    def refuse(self, grains: int, sent: int) -> None:
        """Give the virtual page what links send to pages that they don't make known, since their host is full.

        It is as if these pages became known, received it and were forgotten.

        Args:
            grains: what they send in all.
            sent: the sum of what each link sends, without its sign.
        """
        self.pool += grains
        self.sent_to_forgotten = min(self.sent_to_forgotten + sent, CLOCK_LIMIT)

    def misplace(self, plus: int, minus: int) -> None:
        """Count history spent along links other than a page's current ones. It saturates at CLOCK_LIMIT."""
        self.drift_plus = min(self.drift_plus + abs(plus), CLOCK_LIMIT)
        self.drift_minus = min(self.drift_minus + abs(minus), CLOCK_LIMIT)

    def flat(self) -> dict[str, int]:
        """Return the books as numbers by name, as stored; zeros of classes, and of `elsewhere`, are omitted."""
        numbers: dict[str, int] = {name: getattr(self, name) for name in SCALARS if name != LAST or self.elsewhere}
        for name in BY_CLASS:
            numbers |= {f"{name}_{slot}": n for slot, n in enumerate(getattr(self, name)) if n}
        return numbers

    @classmethod
    def unflat(cls, stored: Mapping[bytes, bytes]) -> "Books":
        """Create books from the output of `flat` as a hash of the store has it; missing numbers are 0."""
        books, numbers = cls(), {name.decode(): int(number) for name, number in stored.items()}
        for name in SCALARS:
            setattr(books, name, numbers.get(name, 0))
        for key in numbers.keys() - set(SCALARS):
            name, _, slot = key.rpartition("_")
            setattr(books, name, _moved(getattr(books, name), int(slot), numbers[key]))
        return books

    def check(self, minted: int = 0) -> None:
        """Raise an error, before anything is written, if a total no longer fits a 64-bit integer.

        Args:
            minted: at genesis, in this shard: then history and cash of all pages are checked to fit one, too, and so
                does the score H + C of each page that does not owe.

        Raises:
            StoreFull: the clock or another sum that only grows, credit among them, nears 2^62, or a balance 2^63.
        """
        sums = {name: getattr(self, name) for name in SUMS}
        for name, sum_ in {**sums, "credit": by_weight(self.credit, max(self.extra))}.items():
            if sum_ >= CLOCK_LIMIT:
                raise StoreFull(f"the {name}, {sum_}, reached its limit of 2^62: start a new store and replay the log")
        for name in BALANCES:
            if not -BALANCE_LIMIT < getattr(self, name) < BALANCE_LIMIT:
                raise StoreFull(f"{name}, {getattr(self, name)}, left the range of 2^63: use more shards")
        scores = self.clock + minted - self.pool - self.net
        if scores >= BALANCE_LIMIT:
            raise StoreFull(
                f"clock and cash of all pages together, {scores}, reached 2^63: start a new store and replay the log"
            )


@dataclass(frozen=True, slots=True)
class BooksAudit:
    """The books recounted from the pages: `minted = pages + virtual + in_flight`, or something is wrong."""

    minted: int
    pages: int
    virtual: int
    in_flight: int
    mismatches: tuple[str, ...]  # Totals that differ from their recount, in words.

    @property
    def conserved(self) -> bool:
        """True when no grain is missing or too many, and every total agrees with its column."""
        return self.minted == self.pages + self.virtual + self.in_flight and not self.mismatches


def count_by(slots: Iterable[int]) -> tuple[int, ...]:
    """Count by class, as the books do: without class 0."""
    counts = [0] * CLASSES_MAX
    for slot in slots:
        counts[slot] += 1
    return (0, *counts[1:])


def pool_floor(minted: int, shard: int, shards: int) -> int:
    """Return how far pages that change their class may take a shard's account with the virtual page.

    The accounts together may owe DEBT_MAX; each shard has the same part of what all may spend.

    >>> [pool_floor(1 << 62, shard, 2) >> 60 for shard in (0, 1)], pool_floor(1 << 62, 0, 1) == -DEBT_MAX
    ([1, -3], True)
    """
    return (0 if shard else minted) - (minted + DEBT_MAX) // shards


def _moved(counts: tuple[int, ...], slot: int, by: int) -> tuple[int, ...]:
    return (*counts[:slot], counts[slot] + by, *counts[slot + 1 :])


SUMS: Final = ("clock", "taken_back", "rounds", "rounding", "h_gone", "h_forgotten")
BALANCES: Final = ("pool", "net", "open_cash", "v_gone")
BY_CLASS: Final = ("extra", "known_by", "live_by", "open_by")
BOOK_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Books))
LAST: Final = "elsewhere"  # Left out where it is 0, as in a crawl that was never moved.
SCALARS = tuple(name for name in BOOK_FIELDS if name not in BY_CLASS)
_scalars_of = attrgetter(*SCALARS)
numbers_of = attrgetter(*BOOK_FIELDS)
