"""What a page received until any moment, from its reads: exact at each of them, also when measures are grouped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.importance_derivative import adaptive, derivative, extrapolated
from experiments.measure_compression import COMPRESSIONS, doubling_groups, ends_of_groups, fixed_groups, grouped
from experiments.read_records import ReadRecord, recorded_crawl
from experiments.synthetic_graphs import power_law_both_ways
from experiments.window_crawls import FIXED, INTERPOLATION, STATIC, VARIABLE, crawl_greedily

PAGES, MONTHS = 200, 12


def crawl(change: float, at: tuple[int, ...] = (MONTHS,)) -> list[ReadRecord]:
    links = power_law_both_ways(PAGES, np.random.default_rng(3))
    return list(recorded_crawl(links, change, at, np.random.default_rng(4), compiled=False))


def test_record_has_the_reads_of_the_engine_and_its_window_policies_say_the_same() -> None:
    links = power_law_both_ways(PAGES, np.random.default_rng(3))
    (record,) = crawl(0.05)
    (moment,) = crawl_greedily(links, 0.05, (MONTHS,), np.random.default_rng(4), compiled=False)
    assert record.now == moment.past.now
    assert record.month == moment.month
    assert record.past.history.tolist() == moment.past.history.tolist()
    assert record.past.cash.tolist() == moment.past.cash.tolist()
    assert record.truth == pytest.approx(moment.truth)
    few = np.flatnonzero(np.diff(record.starts) <= 32)  # The other keeps 32 measures.
    assert len(few) > PAGES // 2
    for policy in (STATIC, VARIABLE[8], FIXED[8]):
        assert record.estimate(policy)[few] / record.estimate(policy)[few].sum() == pytest.approx(
            moment.estimate(policy)[few] / moment.estimate(policy)[few].sum()
        )


def test_received_is_the_history_at_each_read_and_all_that_is_held_now() -> None:
    (record,) = crawl(0.0)
    assert (record.received(0) == record.begun).all()
    # The page read last was paid by the virtual page at the same clock.
    assert np.count_nonzero(record.received(record.now) != record.held) <= 1
    for page in (0, 7, 150):
        reads = slice(int(record.starts[page]), int(record.starts[page + 1]))
        for clock, total in zip(record.clock[reads].tolist(), record.total[reads].tolist(), strict=True):
            assert record.received(clock)[page] == pytest.approx(total, rel=1e-12)
    middle = record.received(record.now / 2)
    assert (middle <= record.held).all()
    # The cash of all pages at the start, and all that reads have paid since; evenly, so not to the grain.
    assert middle.sum() == pytest.approx(record.begun * PAGES + record.now / 2, rel=0.02)


def test_a_window_has_the_reads_after_its_start() -> None:
    (record,) = crawl(0.0)
    assert record.reads_since(1e9).tolist() == np.diff(record.starts).tolist()
    assert record.reads_since(2).sum() == pytest.approx(2 * PAGES, rel=0.1)


@given(reads=st.integers(0, 300), most=st.integers(1, 5))
def test_doubling_groups_are_few_and_have_all_reads(reads: int, most: int) -> None:
    sizes = doubling_groups(reads, most)
    assert sum(sizes) == reads
    assert sizes == sorted(sizes, reverse=True)
    assert all(sizes.count(size) <= most and size & (size - 1) == 0 for size in sizes)
    assert len(sizes) <= most * (1 + reads.bit_length())


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=20), name=st.sampled_from(sorted(COMPRESSIONS)))
def test_last_read_of_each_page_ends_a_group(counts: list[int], name: str) -> None:
    kept = ends_of_groups(np.array(counts), COMPRESSIONS[name])
    assert len(kept) == sum(counts)
    ends = np.cumsum(counts)[np.array(counts) > 0] - 1
    assert kept[ends].all()
    assert kept.sum() == sum(len(COMPRESSIONS[name](count)) for count in counts)
    assert sum(fixed_groups(sum(counts), 4)) == sum(counts)


def test_grouped_measures_keep_what_pages_received_and_spent() -> None:
    (record,) = crawl(0.01)
    for name in COMPRESSIONS:
        fewer = grouped(record, name)
        assert fewer.past.history.tolist() == record.past.history.tolist()
        assert fewer.past.cash.tolist() == record.past.cash.tolist()
        at_ends = np.isin(record.clock, fewer.clock)
        assert fewer.total.tolist() == record.total[at_ends].tolist()
        assert len(fewer.clock) < len(record.clock) or name == "all"


def test_estimates_are_shares_and_near_the_truth() -> None:
    (record,) = crawl(0.0)
    for estimate in (record.window(4), extrapolated(record, 4), adaptive(record, record)):
        assert estimate.sum() == pytest.approx(1)
        assert (estimate >= 0).all()
    assert record.errors(record.window(4))[0] < record.errors(record.estimate(FIXED[4]))[0]
    assert record.errors(record.estimate(INTERPOLATION[4]))[0] < 10
    assert record.errors(record.truth) == (0, 0)


def test_derivative_has_the_sign_of_a_change_that_came_between_its_windows() -> None:
    (record,) = crawl(0.1)
    grown = np.log(record.truths[-1] / record.truths[-9])
    most = np.argsort(-np.abs(grown))[: PAGES // 10]
    assert (np.sign(derivative(record, 4))[most] == np.sign(grown)[most]).mean() > 0.7
