"""Window policies: estimate the importance of pages from their last measures, and so from their recent past.

Static OPIC never forgets: its estimate counts everything that a page ever received. On a changing graph, what a page
received recently is a better estimate. The time axis is the clock G, the grains spent by reads of all pages, so a
window of T grains is the time in which reads spent T. A policy estimates a page's rate: grains received per grain of
the clock, dimensionless. The rates are then divided by their sum over live pages, so that estimates always sum to 1.

Notation: `now` is the clock, `C_now` the cash of a page, `H` its total history, (G_1, C_1) ... (G_n, C_n) its measures,
oldest first, each a read at G_i that spent C_i, and `U` all cash on live pages (the paper's 1, as in its G + 1).

- whole life: (H + C_now) / (now + U). The static estimate, also used for pages too young for their policy.
- fixed, T: sum of C_i with G_i > now - T, over min(T, now). A page not read within the window has 0.
- variable, k: (C_2 + ... + C_k + C_now) / (now - G_1) over the last k measures. C_1 was received before G_1, so it does
  not count; counting it would overestimate the rate by 1/(k - 1). With fewer than k measures: whole life.
- improved: fixed if at least 3 measures are in the window, else variable with k = 3.
- interpolation, T: the history h of a page is what it received during T before its last read at g, assuming that cash
  arrives evenly. At the next read, d = G - g later: h' = h * (T - d)/T + C if d < T, else C * T/d. The rate is h / T as
  of the last read if that is less than T ago, else C_now / (now - g), as in the second case.

Cases that the paper leaves open (docs/decisions/0005 has the reasons):

- Cold start: an exponential average takes long to forget its start. Under the continuous payout T therefore means, at
  each read of a page, min(T, (G + U)/2): a window is at most half of the past, so the start is forgotten while the
  window grows. h' = h * (T' - d)/T with T' and T those of the two reads. Until now >= 8 U, when pages have been read
  some three times, interpolation uses whole life. Under grants all of the past is best while the first grant drains:
  there T means min(T, G + U), which forgets nothing, and interpolation uses whole life until now >= 2.5 T.
- Time of the estimate: right after a read the first case is unbiased. Treating `now` as a read, with the current cash,
  would increase the mean error by half.
- Only the last measures are stored, not h. So h starts, at the oldest measure, from the page's whole life until then:
  H_1 * T / (G_1 + U), where H_1 is all that the page had spent after that read. One measure is enough.
- fixed, if there were older reads but the stored measures do not reach back to the window's start: the window of that
  page is shortened to the stored measures, (C_2 + ... + C_n + C_now) / (now - G_1).
- A page never read has its cash and a default history; in the paper, a new page has the history of pages introduced
  recently. Under grants this default is what all pages were granted before this one became known. That is already part
  of the page's cash, so its estimate is whole life.

Under the continuous payout, a page that becomes known starts with nothing, so its whole life underestimates it: the
later it became known, the more. Each page that was read therefore has an anchor: the clock and the page's total
spending at a read 4 to 8 rounds ago (or at its first read, if later). Under grants, `anchors` is None. With anchors:

- interpolation starts from the page's rate between its anchor, or its oldest measure if that is older, and its last
  read; from its whole life only if that is less than a round. It is warm at once, without waiting for 8 U.
- A page never read has, under any policy except static, the rate of its whole life plus, as in the paper, the mean rate
  of pages introduced recently: the last tenth of those read, in order of first sight.

Every policy takes O(pages + measures): 0.05 s (interpolation 0.15 s) for a million pages, a third of them read.

Source: Abiteboul, Preda, Cobena (2003), section 3.3.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.errors import BadInput

POLICIES: Final = ("static", "interpolation", "fixed", "variable", "improved")
IMPROVED_MEASURES_MIN: Final = 3  # Minimum in the window; with fewer, variable over 3 measures (the paper's "say 3").
LATELY_SHARE: Final = 10  # One tenth of the pages that were read counts as introduced recently.
# Before this many windows (under grants) or rounds (if all pages were known from the start and the virtual page pays at
# once) have passed, interpolation is less accurate than whole life: docs/decisions/0005.
WARM_WINDOWS: Final = 2.5
WARM_ROUNDS: Final = 8
RAMP: Final = 2  # Under the continuous payout, a window is at most the past divided by this.
# Measures per page that a store must keep for each policy. With fewer, nearly all estimates would be whole life.
MEASURES_MIN: Final = {"static": 1, "interpolation": 1, "fixed": 2, "variable": 2, "improved": IMPROVED_MEASURES_MIN}


@dataclass(frozen=True, slots=True)
class Past:
    """The past of n pages, all as of the same instant. Amounts are in grains.

    The measures of page i are those from starts[i] to starts[i + 1], oldest first: the clock after each read, and the
    cash that the read spent.
    """

    starts: Int64s  # (n + 1,), from 0, not decreasing.
    clock: Int64s  # (m,), not decreasing within a page, at most `now`.
    spent: Int64s  # (m,), >= 0; the sum over a page is at most its history.
    cash: Int64s  # (n,), cash of each page. The rate of an overdrawn page is at least 0.
    history: Int64s  # (n,), total spent by each page, minus what reads took back.
    live: Bools  # (n,), pages that count; all others have the estimate 0.
    now: int  # The clock.
    # (n,), (n,): the clock of each page's anchor, or 0 if it has none, and its total spending until then; see above.
    anchors: tuple[Int64s, Int64s] | None = None
    all_at_once: bool = False  # Continuous payout without anchors: all pages were known from the start.
    unit: int | None = None  # U; if None, the cash on these pages, which must then be all pages.
    # (s + 1,), first page of each shard (in order of first sight within a shard), and the end; None for a single shard.
    shards: Int64s | None = None

    def __len__(self) -> int:
        return len(self.cash)


def check_measures(policy: str, measures_max: int) -> None:
    """Check that the store keeps enough measures for a policy.

    Raises:
        BadInput: the policy needs more measures per page than the store keeps.
    """
    if measures_max < MEASURES_MIN[policy]:
        raise BadInput(
            f"policy={policy} needs {MEASURES_MIN[policy]} measures per page, but this store was made with "
            f"OPIC_HISTORY_MEASURES={measures_max}: use static or interpolation, or replay the log into a new store"
        )


def warm(policy: str, past: Past, window: float) -> bool:
    """Return whether a policy has enough past for its own estimates; if not, they are the static ones."""
    if policy != "interpolation" or past.anchors is not None:
        return True
    return past.now >= (WARM_ROUNDS * _cash_total(past) if past.all_at_once else WARM_WINDOWS * window)


def estimate(policy: str, past: Past, window: float, measures: int) -> Float64s:
    """Estimate the importance of pages.

    Args:
        policy: one of POLICIES.
        past: the past of all pages, since estimates are shares of a total.
        window: T in grains, > 0; ignored by `static` and `variable`.
        measures: k of `variable`, >= 2.

    Returns:
        (n,) float64, >= 0, 0 for pages that are not live. Sums to 1 if any page is live. If nothing flowed, all live
        pages have the same estimate.

    >>> past = Past(
    ...     starts=np.array([0, 2, 3, 3]), clock=np.array([60, 90, 80]), spent=np.array([40, 30, 10]),
    ...     cash=np.array([0, 5, 15]), history=np.array([70, 10, 0]), live=np.array([True, True, True]), now=100,
    ... )
    >>> estimate("fixed", past, window=30.0, measures=2).round(3)  # 30/30, 10/30 and 15/120, over their sum.
    array([0.686, 0.229, 0.086])
    >>> estimate("static", past, window=30.0, measures=2).round(3)
    array([0.7 , 0.15, 0.15])
    """
    return shares(rates(policy, past, window, measures), past.live)


def rates(policy: str, past: Past, window: float, measures: int) -> Float64s:
    """Return the rate of each page, grains received per grain of the clock, 0 for pages that are not live.

    Arguments are those of `estimate`.
    """
    page_rates = np.where(past.live, np.maximum(_rates(policy, past, window, measures), 0), 0.0)
    if past.anchors is not None and policy != "static":
        _give_defaults(past, page_rates)
    return page_rates


def shares(rates: Float64s, live: Bools) -> Float64s:
    """Return each page's share of the sum of all rates; equal shares for all live pages if nothing flowed."""
    total = float(rates.sum())
    if total > 0:
        return rates / total
    return live / max(int(np.count_nonzero(live)), 1)


@dataclass(frozen=True, slots=True)
class EstimateReason:
    """How a page's rate was computed: the rule that applied, its formula, and the numbers in it."""

    rule: str
    formula: str  # A negative result, for an overdrawn page, counts as 0.
    numbers: dict[str, float]


def reason(policy: str, past: Past, window: float, measures: int, page: int) -> EstimateReason:
    """Return the formula and the numbers that a page's rate is computed from.

    H is its total history, C its cash, G the clock, U all cash on live pages, T the window in grains, S the spending of
    the reads that count, G1 the clock at the first of these reads and g at the last; for interpolation, h is what the
    page received in the window before its last read, and W the width of that window; D is the default for pages never
    read.

    Args:
        policy: as in `estimate`.
        past: as in `estimate`.
        window: as in `estimate`.
        measures: as in `estimate`.
        page: index of a live page.

    >>> past = Past(
    ...     starts=np.array([0, 2, 3, 3]), clock=np.array([60, 90, 80]), spent=np.array([40, 30, 10]),
    ...     cash=np.array([0, 5, 15]), history=np.array([70, 10, 0]), live=np.array([True, True, True]), now=100,
    ... )
    >>> reason("fixed", past, 30.0, 2, page=0)
    EstimateReason(rule='fixed', formula='S / min(T, G)', numbers={'S': 30, 'T': 30.0, 'G': 100})
    """
    own = _alone(past, page)
    kept = len(own.clock)
    inside = int(_in_window(own, window)[0])
    asked, k = policy, measures
    if policy == "improved":
        k = IMPROVED_MEASURES_MIN
        policy = "fixed" if inside >= k else "variable"
    if policy == "interpolation" and kept and warm(policy, past, window):
        return _interpolation_reason(own, window)
    count = 0
    if policy == "fixed" and kept:
        spent = int(own.spent[kept - inside :].sum())
        if inside < kept or int(own.history[0]) <= int(own.spent.sum()):
            return EstimateReason("fixed", "S / min(T, G)", {"S": spent, "T": window, "G": own.now})
        count = kept  # The window reaches further back than what is kept.
    if policy == "variable" and kept >= k:
        count = k
    if count >= 2 and own.now > (first := int(own.clock[kept - count])):
        spent = int(own.spent[kept - count + 1 :].sum())
        return EstimateReason(
            policy, "(S + C) / (G - G1)", {"S": spent, "C": int(own.cash[0]), "G": own.now, "G1": first}
        )
    numbers: dict[str, float] = {"H": int(own.history[0]), "C": int(own.cash[0]), "G": own.now, "U": _cash_total(own)}
    if past.anchors is None or policy == "static" or kept or own.history[0] > 0:
        return EstimateReason("whole life", "(H + C) / (G + U)", numbers)
    default = float(rates(asked, past, window, measures)[page] - max(_whole_life(own)[0], 0))
    return EstimateReason("whole life", "(H + C) / (G + U) + D", {**numbers, "D": default})


def _interpolation_reason(own: Past, window: float) -> EstimateReason:
    _, average = _averages(own, window)
    gap = own.now - int(average.clock[0])
    if gap < min(window, max(own.now + _cash_total(own), 1)):
        return EstimateReason("interpolation", "h / W", {"h": float(average.history[0]), "W": float(average.width[0])})
    return EstimateReason("interpolation", "C / (G - g)", {"C": int(own.cash[0]), "G": own.now, "g": own.now - gap})


def _alone(past: Past, page: int) -> Past:
    """Return the past of a single page, with U of all pages."""
    rows, some = slice(int(past.starts[page]), int(past.starts[page + 1])), slice(page, page + 1)
    return Past(
        starts=np.array([0, rows.stop - rows.start]),
        clock=past.clock[rows],
        spent=past.spent[rows],
        cash=past.cash[some],
        history=past.history[some],
        live=past.live[some],
        now=past.now,
        anchors=past.anchors and (past.anchors[0][some], past.anchors[1][some]),
        all_at_once=past.all_at_once,
        unit=_cash_total(past),
    )


def _rates(policy: str, past: Past, window: float, measures: int) -> Float64s:
    if policy == "fixed":
        return _fixed(past, window)
    if policy == "variable":
        return _variable(past, measures)
    if policy == "improved":
        enough = _in_window(past, window) >= IMPROVED_MEASURES_MIN
        return np.where(enough, _fixed(past, window), _variable(past, IMPROVED_MEASURES_MIN))
    if policy == "interpolation" and warm(policy, past, window):
        return _interpolation(past, window)
    return _whole_life(past)


def _give_defaults(past: Past, rates: Float64s) -> None:
    """Add the mean rate of pages introduced recently to the rates of pages never read."""
    read = (np.diff(past.starts) > 0) | (past.history > 0)
    parts = [part for part in _by_shard(past, read & past.live) if len(part)]
    if parts:
        lately = np.concatenate([part[-max(1, len(part) // LATELY_SHARE) :] for part in parts])
        rates[past.live & ~read] += rates[lately].mean()


def _by_shard(past: Past, chosen: Bools) -> list[Int64s]:
    """Return the chosen pages of each shard, in order of first sight."""
    if past.shards is None:
        return [np.flatnonzero(chosen)]
    return [a + np.flatnonzero(chosen[a:b]) for a, b in pairwise(past.shards.tolist())]


def _whole_life(past: Past) -> Float64s:
    return (past.history + past.cash) / max(past.now + _cash_total(past), 1)


def _fixed(past: Past, window: float) -> Float64s:
    ends, inside = past.starts[1:], _in_window(past, window)
    sums = _sums(past)
    rates = (sums[ends] - sums[ends - inside]) / (min(window, past.now) or 1)
    kept = np.diff(past.starts)
    cut = (inside == kept) & (past.history > sums[ends] - sums[past.starts[:-1]])
    rates = np.where(cut, _since(past, kept), rates)
    return np.where(kept == 0, _whole_life(past), rates)


def _variable(past: Past, measures: int) -> Float64s:
    kept = np.diff(past.starts)
    return _since(past, np.where(kept >= measures, measures, 0))


def _since(past: Past, counts: Int64s) -> Float64s:
    """Return each page's rate since the first of its last `counts` measures; if no time has passed, whole life."""
    rates = _whole_life(past)
    pages = np.flatnonzero(counts >= 2)
    ends = past.starts[pages + 1]
    first = ends - counts[pages]
    span = past.now - past.clock[first]
    pages, ends, first, span = (a[span > 0] for a in (pages, ends, first, span))
    sums = _sums(past)
    rates[pages] = (sums[ends] - sums[first + 1] + past.cash[pages]) / span
    return rates


def _interpolation(past: Past, window: float) -> Float64s:
    rates = _whole_life(past)
    page, average = _averages(past, window)
    gap = past.now - average.clock
    lately = gap < min(window, max(past.now + _cash_total(past), 1))
    rates[page] = np.where(lately, average.history / average.width, past.cash[page] / np.maximum(gap, 1))
    return rates


def _averages(past: Past, window: float) -> "tuple[Int64s, _Average]":
    """Return the pages that were read, and what each received in the window before its last read."""
    counts, sums, unit = np.diff(past.starts), _sums(past), _cash_total(past)
    # Sort by number of measures, descending: the pages with at least i measures are then the head of the arrays.
    page = np.flatnonzero(counts)
    page = page[np.argsort(-counts[page], kind="stable")]
    first, counts = past.starts[page], counts[page]
    # Whole life until the oldest measure: what the page had spent by then, over the window at that time.
    clock = past.clock[first]
    spent = np.maximum(past.history[page] - (sums[past.starts[page + 1]] - sums[first + 1]), 0)
    start = spent / np.maximum(clock + unit, 1)
    if past.anchors is not None:
        anchored = (past.anchors[0][page] > 0) & (past.anchors[0][page] < clock)
        span = past.clock[past.starts[page + 1] - 1] - np.where(anchored, past.anchors[0][page], clock)
        since = past.history[page] - np.where(anchored, past.anchors[1][page], spent)
        start = np.where(span >= unit, since / np.maximum(span, 1), start)
    width = _ramp(past, window, clock)
    average = _Average(start * width, clock, width)
    for nth in range(1, int(counts.max(initial=0))):
        rows = first[: int(np.searchsorted(-counts, -nth))] + nth
        average.read(past.clock[rows], past.spent[rows], _ramp(past, window, past.clock[rows]))
    return page, average


@dataclass(slots=True)
class _Average:
    """What pages received in the window before their last read, interpolated: grains, clock and width of the window."""

    history: Float64s
    clock: Int64s
    width: Float64s

    def read(self, clock: Int64s, cash: Int64s, width: Float64s) -> None:
        """Apply a read of the first pages, at `clock` with `cash`, when the window is `width`."""
        head = slice(len(clock))
        gap = (clock - self.clock[head]).astype(np.float64)
        kept = self.history[head] * (width - gap) / self.width[head] + cash
        self.history[head] = np.where(gap < width, kept, cash * width / np.maximum(gap, 1))
        self.clock[head], self.width[head] = clock, width


def _ramp(past: Past, window: float, clock: Int64s) -> Float64s:
    """Return the width of the window at each clock: what was asked for, or as much of the past as counts until then."""
    at_most = (clock + _cash_total(past)) / (RAMP if past.all_at_once or past.anchors is not None else 1)
    return np.minimum(window, np.maximum(at_most, 1.0))


def _in_window(past: Past, window: float) -> Int64s:
    """Count each page's measures in the window, those with G > now - T."""
    counts = np.zeros(len(past.clock) + 1, np.int64)
    np.cumsum(past.now - past.clock < window, out=counts[1:])
    return counts[past.starts[1:]] - counts[past.starts[:-1]]


def _sums(past: Past) -> Int64s:
    """Return running sums over all measures. They are exact, because the total is at most the clock, below 2^62."""
    sums = np.zeros(len(past.spent) + 1, np.int64)
    np.cumsum(past.spent, out=sums[1:])
    return sums


def _cash_total(past: Past) -> int:
    """Return U, all cash on live pages."""
    return int(past.cash[past.live].sum()) if past.unit is None else past.unit
