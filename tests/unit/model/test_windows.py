"""Window policies: the formulas by hand, the vectors against a plain twin, and estimates that are shares."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadInput
from opic.model.windows import POLICIES, RAMP, WARM_ROUNDS, WARM_WINDOWS, Past, check_measures, estimate, warm

WARMING = ("interpolation", "static")
WINDOWED = [policy for policy in POLICIES if policy != "static"]


@dataclass
class One:
    """A page by itself, for the twin and for hand-worked examples."""

    measures: list[tuple[int, int]] = field(default_factory=list)  # (clock, cash), oldest first.
    cash: int = 0
    forgotten: int = 0  # Spent by reads whose measures are no longer kept.
    live: bool = True
    anchor: tuple[int, int] | None = None  # (clock, spent); only where the virtual page pays at once.

    @property
    def history(self) -> int:
        return self.forgotten + sum(cash for _, cash in self.measures)


def past_of(pages: list[One], now: int, anchored: bool = False, all_at_once: bool = False) -> Past:
    measures = [measure for page in pages for measure in page.measures]
    clocks, spent = zip(*(page.anchor or (0, 0) for page in pages), strict=True) if pages else ((), ())
    anchors = np.array(clocks, np.int64), np.array(spent, np.int64)
    return Past(
        starts=np.cumsum([0, *(len(page.measures) for page in pages)]).astype(np.int64),
        clock=np.array([clock for clock, _ in measures], np.int64),
        spent=np.array([cash for _, cash in measures], np.int64),
        cash=np.array([page.cash for page in pages], np.int64),
        history=np.array([page.history for page in pages], np.int64),
        live=np.array([page.live for page in pages], np.bool_),
        now=now,
        anchors=anchors if anchored else None,
        all_at_once=all_at_once,
    )


# The twin: a page at a time, as the formulas are written.


def whole_life(page: One, now: int, unit: int) -> float:
    return (page.history + page.cash) / max(now + unit, 1)


def since(page: One, count: int, now: int, unit: int) -> float:
    last = page.measures[-count:] if count else []
    if len(last) < 2 or now == last[0][0]:
        return whole_life(page, now, unit)
    return (sum(cash for _, cash in last[1:]) + page.cash) / (now - last[0][0])


def fixed(page: One, window: float, now: int, unit: int) -> float:
    if not page.measures:
        return whole_life(page, now, unit)
    inside = [cash for clock, cash in page.measures if now - clock < window]
    if len(inside) == len(page.measures) and page.forgotten:
        return since(page, len(inside), now, unit)
    return sum(inside) / (min(window, now) or 1)


def variable(page: One, k: int, now: int, unit: int) -> float:
    return since(page, k if len(page.measures) >= k else 0, now, unit)


def interpolation(page: One, window: float, now: int, unit: int, anchored: bool, all_at_once: bool) -> float:
    cold = now < (WARM_ROUNDS * unit if all_at_once else WARM_WINDOWS * window)
    if (cold and not anchored) or not page.measures:
        return whole_life(page, now, unit)

    def ramp(clock: int) -> float:
        return min(window, max((clock + unit) / (RAMP if anchored or all_at_once else 1), 1))

    (g, first), *rest = page.measures
    width = ramp(g)
    h = (page.forgotten + first) * width / max(g + unit, 1)
    if anchored:
        clock, spent = min((g, page.forgotten + first), page.anchor or (g, 0), key=lambda point: point[0])
        if page.measures[-1][0] - clock >= unit:
            h = (page.history - spent) / max(page.measures[-1][0] - clock, 1) * width
    for clock, cash in rest:
        wide = ramp(clock)
        gap = clock - g
        h = h * (wide - gap) / width + cash if gap < wide else cash * wide / gap
        g, width = clock, wide
    return h / width if now - g < min(window, max(now + unit, 1)) else page.cash / (now - g)


def twin(
    policy: str, pages: list[One], now: int, window: float, k: int, anchored: bool, all_at_once: bool
) -> list[float]:
    unit = sum(page.cash for page in pages if page.live)

    def rate(page: One) -> float:
        if not page.live:
            return 0.0
        if policy == "fixed":
            return fixed(page, window, now, unit)
        if policy == "variable":
            return variable(page, k, now, unit)
        if policy == "improved":
            inside = sum(now - clock < window for clock, _ in page.measures)
            many = inside >= 3
            return fixed(page, window, now, unit) if many else variable(page, 3, now, unit)
        if policy == "interpolation":
            return interpolation(page, window, now, unit, anchored, all_at_once)
        return whole_life(page, now, unit)

    rates = [rate(page) for page in pages]
    if anchored and policy != "static":
        read = [r for r, page in zip(rates, pages, strict=True) if page.live and page.measures]
        lately = read[-max(1, len(read) // 10) :]
        for i, page in enumerate(pages):
            if page.live and not page.measures and lately:
                rates[i] += sum(lately) / len(lately)
    live = sum(page.live for page in pages)
    return [r / sum(rates) if sum(rates) else page.live / max(live, 1) for r, page in zip(rates, pages, strict=True)]


@st.composite
def pasts(draw: st.DrawFn) -> tuple[list[One], int]:
    """A few pages and a clock; small numbers, so that edges meet, or huge ones."""
    scale = draw(st.sampled_from([1, 1, 1 << 21, 1 << 50]))
    now = draw(st.integers(0, 400)) * scale
    pages = []
    for _ in range(draw(st.integers(0, 8))):
        clocks = sorted(draw(st.lists(st.integers(1, now // scale), max_size=5))) if now else []
        measures = [(clock * scale, draw(st.integers(0, 30)) * scale) for clock in clocks]
        forgotten = draw(st.sampled_from([0, 0, 7, 100])) * scale if measures else 0
        spent = forgotten + sum(cash for _, cash in measures)
        anchors = st.tuples(st.integers(1, max(now, 1)), st.integers(0, spent))
        anchor = draw(st.none() | anchors) if measures else None
        # A page that is gone may owe.
        live = draw(st.sampled_from([True, True, True, False]))
        pages.append(One(measures, draw(st.integers(0 if live else -9, 40)) * scale, forgotten, live, anchor))
    return pages, now


PAYOUTS = st.sampled_from([(False, False), (True, False), (False, True)])  # Grants; continuous with anchors; without.


@given(pasts(), st.floats(0.5, 500.0), st.integers(2, 5), PAYOUTS, st.sampled_from(POLICIES))
def test_vectors_equal_the_plain_twin_and_are_shares(
    drawn: tuple[list[One], int], window: float, k: int, payout: tuple[bool, bool], policy: str
) -> None:
    pages, now = drawn
    window *= max(now / 400, 1)
    found = estimate(policy, past_of(pages, now, *payout), window, k)
    assert found.tolist() == pytest.approx(twin(policy, pages, now, window, k, *payout), rel=1e-9, abs=1e-15)
    assert (found >= 0).all()
    assert all(share == 0 for share, page in zip(found, pages, strict=True) if not page.live)
    if any(page.live for page in pages):
        assert found.sum() == pytest.approx(1.0, abs=1e-12)


@given(pasts(), st.floats(1.0, 1e300), st.integers(2, 5), st.booleans(), st.sampled_from(POLICIES))
def test_window_longer_than_the_history_covers_the_whole_history(
    drawn: tuple[list[One], int], times: float, k: int, anchored: bool, policy: str
) -> None:
    pages, now = drawn
    past = past_of(pages, now, anchored)
    # The ramp of a young window ends at the clock and all cash; only the anchored average is wider than the clock.
    whole = 2.0 * now + sum(page.cash for page in pages if page.live) + 1e6
    longer = whole * min(times, 1e270)
    found = [estimate(policy, past, window, k) for window in (whole, longer)]
    assert found[1].tolist() == pytest.approx(found[0].tolist(), rel=1e-9, abs=1e-15)
    if policy == "interpolation" and not anchored:
        assert found[1].tolist() == estimate("static", past, 1.0, k).tolist()


@given(pasts(), st.floats(0.5, 500.0), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_order_of_pages_and_size_of_a_grain_do_not_matter(
    drawn: tuple[list[One], int], window: float, policy: str, random: "object"
) -> None:
    pages, now = drawn
    plain = estimate(policy, past_of(pages, now), window, 3)
    order = list(range(len(pages)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = estimate(policy, past_of([pages[i] for i in order], now), window, 3)
    assert shuffled.tolist() == pytest.approx(plain[order].tolist(), rel=1e-9)
    if now and any(page.cash or page.history for page in pages if page.live) and now < 1 << 50:
        larger = [
            One([(1024 * g, 1024 * c) for g, c in p.measures], 1024 * p.cash, 1024 * p.forgotten, p.live) for p in pages
        ]
        scaled = estimate(policy, past_of(larger, 1024 * now), 1024 * window, 3)
        assert scaled.tolist() == pytest.approx(plain.tolist(), rel=1e-6)


# By hand. Each page beside one that is never read and holds all the rest, so that rates can be told from shares.


def rate(policy: str, page: One, now: int, window: float, k: int = 4) -> float:
    """The page's rate, from its share beside a page whose rate is known: whole life, cash over clock and cash."""
    other = One(cash=1_000 - page.cash)
    share, rest = estimate(policy, past_of([page, other], now), window, k).tolist()
    return share / rest * other.cash / (now + 1_000)


def test_fixed_policy_counts_reads_within_the_window() -> None:
    page = One([(100, 50), (700, 30), (900, 20)], cash=10)
    assert rate("fixed", page, 1_000, 400) == pytest.approx(50 / 400)
    assert rate("fixed", page, 1_000, 300) == pytest.approx(20 / 300)  # At 700 it was now - T: outside.
    assert rate("fixed", page, 1_000, 50) == 0
    assert rate("fixed", page, 1_000, 5_000) == pytest.approx(100 / 1_000)  # Over min(T, now).


def test_fixed_window_is_cut_to_the_measures_that_are_kept() -> None:
    page = One([(700, 30), (900, 20)], cash=10, forgotten=200)
    assert rate("fixed", page, 1_000, 500) == pytest.approx((20 + 10) / 300)
    assert rate("fixed", page, 1_000, 300) == pytest.approx(20 / 300)  # They reach back to this one's start.


def test_variable_policy_leaves_out_cash_from_before_its_first_measure() -> None:
    page = One([(100, 50), (700, 30), (900, 20)], cash=10)
    assert rate("variable", page, 1_000, 1, k=3) == pytest.approx((30 + 20 + 10) / 900)
    assert rate("variable", page, 1_000, 1, k=2) == pytest.approx((20 + 10) / 300)
    assert rate("variable", page, 1_000, 1, k=4) == pytest.approx(110 / 2_000)  # Too few: its whole life.


def test_improved_policy_is_fixed_with_three_measures_in_the_window_else_variable() -> None:
    page = One([(100, 50), (700, 30), (800, 5), (900, 20)], cash=10)
    assert rate("improved", page, 1_000, 400) == pytest.approx(55 / 400)
    assert rate("improved", page, 1_000, 250) == pytest.approx((5 + 20 + 10) / 300)


def test_interpolation_follows_the_two_cases_of_the_paper() -> None:
    # Whole life until 4,000: 500 over 5,000, so 20 in the window of 200. The next read is 100 later.
    page = One([(4_000, 100), (4_100, 30)], cash=5, forgotten=400)
    h = 20 * (200 - 100) / 200 + 30
    assert rate("interpolation", page, 4_150, 200) == pytest.approx(h / 200)
    assert rate("interpolation", page, 4_500, 200) == pytest.approx(5 / 400)
    late = One([(4_000, 100), (4_500, 30)], cash=5, forgotten=400)
    assert rate("interpolation", late, 4_600, 200) == pytest.approx((30 * 200 / 500) / 200)


def test_interpolation_counts_all_until_two_and_a_half_windows_have_passed() -> None:
    past = past_of([One([(500, 100), (900, 30)], cash=5), One(cash=40)], 1_000)
    assert not warm("interpolation", past, 401)
    assert warm("interpolation", past, 400)
    assert warm("fixed", past, 401)
    static = estimate("static", past, 401, 4).tolist()
    assert estimate("interpolation", past, 401, 4).tolist() == static
    assert estimate("interpolation", past, 400, 4).tolist() != static


def test_interpolation_counts_all_until_eight_rounds_under_the_continuous_payout() -> None:
    pages = [One([(500, 100), (900, 30)], cash=5), One(cash=120)]
    assert warm("interpolation", past_of(pages, 1_000, all_at_once=True), 10_000)
    assert not warm("interpolation", past_of(pages, 999, all_at_once=True), 10)
    found, static = (estimate(policy, past_of(pages, 1_000, all_at_once=True), 10_000, 4) for policy in WARMING)
    # Half of the past: at 500 the window is 625/2 wide and holds half of the 100, at 900 it is 1,025/2.
    rates = (50 * (512.5 - 400) / 312.5 + 30) / 512.5, 120 / 1_125
    assert found.tolist() == pytest.approx([rate / sum(rates) for rate in rates])
    assert static.tolist() != found.tolist()


def test_unread_page_counts_with_its_cash_and_under_continuous_payout_with_that_of_new_pages() -> None:
    pages = [One([(100, 300)], cash=100), *[One([(100, 0)]) for _ in range(18)], One([(200, 20)]), One(cash=100)]
    past = past_of(pages, 300)
    assert estimate("variable", past, 1, 4)[[0, -2, -1]].tolist() == pytest.approx([40 / 52, 2 / 52, 10 / 52])
    paid_at_once = past_of(pages, 300, anchored=True)  # Two of twenty were introduced lately: they have 0 and 20.
    assert estimate("variable", paid_at_once, 1, 4)[[0, -2, -1]].tolist() == pytest.approx([40 / 53, 2 / 53, 11 / 53])
    assert estimate("static", paid_at_once, 1, 4).tolist() == estimate("static", past, 1, 4).tolist()


@pytest.mark.parametrize(
    ("anchor", "start"),
    [
        ((3_000, 200), 350 / 1_100),
        ((3_100, 200), 350 / 1_000),
        ((3_101, 200), 0.1),  # Less than a round, which is all cash, 1,000: so its whole life.
        ((4_050, 520), 0.1),  # The oldest measure that is kept is older, but no round.
    ],
)
def test_interpolation_starts_from_the_rate_since_the_anchor(anchor: tuple[int, int], start: float) -> None:
    page = One([(4_000, 100), (4_100, 50)], cash=5, forgotten=400, anchor=anchor)
    beside = One([(4_100, 510)], cash=995)  # By its whole life it has a rate of a tenth.
    share, rest = estimate("interpolation", past_of([page, beside], 4_150, anchored=True), 2_000, 4).tolist()
    assert share / rest * 0.1 == pytest.approx((start * 1_900 + 50) / 2_000)
    assert warm("interpolation", past_of([page], 4_150, anchored=True), 10_000)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_flow_all_pages_get_equal_shares(policy: str) -> None:
    pages = [One(), One(live=False), One()]
    assert estimate(policy, past_of(pages, 0), 8, 2).tolist() == [0.5, 0.0, 0.5]
    assert estimate(policy, past_of([], 0), 8, 2).tolist() == []


def test_even_flow_is_found_by_every_policy() -> None:
    """Four pages that receive 4, 3, 2 and 1 of each ten grains, each read once in 100, for 20 windows."""
    for kept in (1, 2, 3, 4, 64):
        pages = []
        for i, of_ten in enumerate((4, 3, 2, 1)):
            clocks = list(range(1_010 + 25 * i, 80_000, 1_000))
            cash = [clocks[0] * of_ten // 10] + [100 * of_ten] * (len(clocks) - 1)
            whole = list(zip(clocks, cash, strict=True))
            page = One(whole[-kept:], (80_000 - clocks[-1]) * of_ten // 10, sum(cash[:-kept]))
            pages.append(page)
        for policy in POLICIES:
            try:
                check_measures(policy, kept)
            except BadInput:
                continue
            found = estimate(policy, past_of(pages, 80_000), 4_000.0, max(kept, 2))
            assert found.tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.01), (policy, kept)


@pytest.mark.parametrize(("policy", "least"), [("fixed", 2), ("variable", 2), ("improved", 3), ("interpolation", 1)])
def test_policy_that_wants_more_measures_than_are_kept_names_the_setting(policy: str, least: int) -> None:
    check_measures(policy, least)
    if least > 1:
        with pytest.raises(
            BadInput, match=f"policy={policy} needs {least} measures.*OPIC_HISTORY_MEASURES={least - 1}"
        ):
            check_measures(policy, least - 1)
