"""Focused walks: on each page of a topic equally often, out of traps; estimates that say how far to trust them."""

import random
from collections import Counter
from collections.abc import Iterable
from itertools import islice, pairwise

import numpy as np
import pytest
from plain_walk import SmallWeb, edge_counts, plain_walk, relaxation_time, transition

from experiments.algorithms.chi_square import chi_square
from experiments.algorithms.matrix_pages import MatrixPages
from opic.errors import BadInput
from opic.graph.crawled import link_matrix
from opic.graph.focused_walk import Focus, FocusedWalk, Visit, WalkOptions
from opic.graph.walk_samples import (
    WalkSamples,
    autocorrelation_time,
    estimate_mean,
    estimate_share,
    take_samples,
    weigh_visits,
)

REJECTED = 1e-6  # A p-value that no chance explains.
ACCEPTED = 1e-3  # Seeds are fixed: a test that passes always passes.


def uneven_web(pages: int = 60, seed: int = 3) -> tuple[list[list[int]], list[bool]]:
    """Links to popular pages mostly, some of them both ways; two thirds of the pages, connected, are the topic."""
    rng = random.Random(seed)
    links = [{(page + 1) % pages} for page in range(pages)]
    for page in range(pages):
        for _ in range(4):
            target = int(pages * rng.random() ** 2.5)
            links[page].add(target)
            if rng.random() < 0.4:
                links[target].add(page)
    topic = [page < pages * 2 // 3 for page in range(pages)]
    return [sorted(targets - {page}) for page, targets in enumerate(links)], topic


def walked(web: SmallWeb, start: int, steps: int, seed: int, **options: object) -> list[Visit[int]]:
    walk = FocusedWalk(web, start, random.Random(seed), WalkOptions(**options))  # type: ignore[arg-type]
    return list(islice(walk.visits(), steps))


def at_virtual_times(visits: Iterable[Visit[int]], apart: int) -> list[int]:
    """The pages at every `apart`-th virtual step."""
    pages, time = list[int](), 0
    for visit in visits:
        first = -(-time // apart) * apart
        pages += [visit.page] * len(range(first, time + visit.hold, apart))
        time += visit.hold
    return pages


def uniformity(pages: Iterable[int], allowed: Iterable[int]) -> float:
    """The p-value of the χ² test that pages are uniform on the allowed ones."""
    counts, allowed = Counter(pages), list(allowed)
    assert counts.keys() <= {*allowed}
    return chi_square([counts[page] for page in allowed], [1] * len(allowed))


@pytest.mark.parametrize("focus", [Focus.NONE, Focus.HARD, Focus.NEIGHBOURHOOD])
def test_pages_at_fixed_virtual_times_are_uniform(focus: Focus) -> None:
    links, topic = uneven_web()
    allowed = topic if focus is Focus.HARD else [True] * len(topic)  # Each page has a neighbour on the topic.
    chain = transition(edge_counts(links, allowed), 100)
    apart = round(6 * relaxation_time(chain[np.ix_(allowed, allowed)]))
    visits = walked(SmallWeb(links, topic), 0, 60_000, 7, focus=focus, virtual_degree=100, probes=100)
    sample = at_virtual_times(visits, apart)
    assert len(sample) > 1_000
    assert uniformity(sample, np.flatnonzero(allowed).tolist()) > ACCEPTED


def test_pages_at_real_steps_are_biased_by_degree_and_a_chi_square_test_says_so() -> None:
    links, topic = uneven_web()
    counts = edge_counts(links, topic)
    visits = walked(SmallWeb(links, topic), 0, 30_000, 7)
    sample = [visit.page for visit in visits[::10]]
    allowed = np.flatnonzero(topic).tolist()
    assert uniformity(sample, allowed) < REJECTED
    seen = Counter(sample)
    degrees = counts.sum(axis=1)[allowed]
    assert chi_square([seen[page] for page in allowed], degrees) > ACCEPTED


def test_degree_counted_without_reciprocal_pairs_twice_is_off() -> None:
    # The paper read literally: degree in + out, then a uniform step over the union, in which a pair stands once.
    links, topic = uneven_web()
    counts = edge_counts(links, [True] * len(topic))
    chain = (counts > 0) * (counts.sum(axis=1) / (counts > 0).sum(axis=1))[:, None] / 100
    np.fill_diagonal(chain, 1 - chain.sum(axis=1))
    stationary = np.abs(np.linalg.svd(chain.T - np.eye(len(chain)))[2][-1])
    assert stationary.max() / stationary.min() > 1.3
    exact = transition(counts, 100)
    assert np.ones(len(exact)) @ exact == pytest.approx(1)


def test_walk_equals_its_plain_twin() -> None:
    links, topic = uneven_web(20, 5)
    allowed = np.flatnonzero(topic).tolist()
    counts = edge_counts(links, topic)
    plain = list(islice(plain_walk(counts, 0, 60, random.Random(1)), 120_000))
    visits = walked(SmallWeb(links, topic), 0, 20_000, 2, virtual_degree=60)
    pairs = Counter((a.page, b.page) for a, b in pairwise(visits))
    of_twin = Counter((a, b) for a, b in pairwise(plain) if a != b)
    assert sum(of_twin.values()) > 5_000
    joined = [(a, b) for a in allowed for b in allowed if counts[a, b]]
    assert {*pairs} <= {*joined}
    # Moves of a reversible walk that is uniform in virtual time: each edge equally often, either way.
    assert chi_square([of_twin[pair] for pair in joined], [counts[pair] for pair in joined]) > ACCEPTED
    assert chi_square([pairs[pair] for pair in joined], [counts[pair] for pair in joined]) > ACCEPTED
    mean_hold = {page: np.mean([v.hold for v in visits if v.page == page]) for page in allowed}
    assert [mean_hold[page] for page in allowed] == pytest.approx(60 / counts.sum(axis=1)[allowed], rel=0.25)


def test_hard_focus_fetches_few_pages_off_the_topic_and_visits_none() -> None:
    links, topic = uneven_web()
    web = SmallWeb(links, topic)
    visits = walked(web, 0, 2_000, 1)
    assert all(visit.on_topic and topic[visit.page] for visit in visits)
    off = sum(1 for page, targets in enumerate(links) if topic[page] for other in targets if not topic[other])
    off += sum(1 for page, targets in enumerate(links) if not topic[page] for other in targets if topic[other])
    assert web.looks <= off + len({visit.page for visit in visits}) + 1  # Each dead edge at most once.


def test_neighbourhood_visits_no_page_farther_than_a_link_from_the_topic() -> None:
    links = [[1], [2], [3], [0], [5], [4]]  # A ring whose page 2 has no neighbour on the topic.
    web = SmallWeb(links, [True, False, False, False, False, False])
    assert {visit.page for visit in walked(web, 0, 500, 1, focus=Focus.NEIGHBOURHOOD)} == {0, 1, 3}
    assert {visit.page for visit in walked(web, 0, 500, 1, focus=Focus.NEIGHBOURHOOD, radius=2)} == {0, 1, 2, 3}


def test_trial_and_error_goes_back_after_a_limit_of_pages_off_the_topic() -> None:
    links = [[1], [2], [3], [4], [5], []]
    web = SmallWeb(links, [True, *[False] * 5])
    for tries in (0, 1, 3):
        pages = {visit.page for visit in walked(web, 0, 2_000, 1, focus=Focus.TRIAL, tries=tries)}
        assert pages == set(range(tries + 1))


def test_trial_and_error_must_be_weighted_by_degree() -> None:
    links, topic = uneven_web(400, 11)
    web = MatrixPages(link_matrix(*ends_of(links), (400, 400)), np.array(topic))
    walk = FocusedWalk(web, 0, random.Random(4), WalkOptions(Focus.TRIAL))
    visits = list(islice(walk.visits(), 20_000))
    popular = np.arange(400) < 60
    truth = popular[np.array(topic)].mean()
    samples = take_samples(visits, by_degree=True)
    pages = np.array([visit.page for visit in visits])[samples.visit]
    found = estimate_share(samples, popular[pages], pages)
    unweighted = popular[pages][samples.on_topic].mean()
    assert abs(found.share - truth) < 0.05
    assert unweighted > 1.5 * truth


def ends_of(links: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    sources = [page for page, targets in enumerate(links) for _ in targets]
    return np.array(sources), np.array([target for targets in links for target in targets])


# What is not there, and what moved.


def test_vanished_pages_count_as_not_linked() -> None:
    links, topic = uneven_web()
    gone = {2, 5, 11}
    left = [True] * len(topic)
    for page in gone:
        left[page] = False
    chain = transition(edge_counts(links, left), 100)
    apart = round(6 * relaxation_time(chain[np.ix_(left, left)]))
    visits = walked(SmallWeb(links, topic, gone=gone), 0, 60_000, 3, focus=Focus.NONE, virtual_degree=100)
    assert uniformity(at_virtual_times(visits, apart), np.flatnonzero(left).tolist()) > ACCEPTED


def test_redirected_page_is_visited_at_its_target() -> None:
    web = SmallWeb([[1], [], [0, 3], [0]], [True] * 4, moved={1: 2}, known=[[]] * 4)
    visits = walked(web, 0, 300, 1)
    assert {visit.page for visit in visits} == {0, 2, 3}


@pytest.mark.parametrize("focus", [Focus.HARD, Focus.TRIAL])
def test_start_without_a_neighbour_says_what_to_do(focus: Focus) -> None:
    web = SmallWeb([[1], []], [True, False], gone={1})
    with pytest.raises(BadInput, match=r"0 has no neighbour .*begin on another page"):
        walked(web, 0, 10, 1, focus=focus)


@pytest.mark.parametrize(
    ("start", "options", "complaint"),
    [
        (1, {}, "the first page, 1, is not on the topic: name another, or change the topic"),
        (2, {}, "the first page, 2, can't be fetched: name another"),
        (0, {"virtual_degree": 0}, "must be 1 or more"),
        (0, {"tries": -1}, "tries 0 or more"),
        (0, {"window": 1}, "a host window of 1 pages: give 2 or more, or 0 for none"),
        (0, {"virtual_degree": 1}, "0 has 4 edges, over the virtual degree 1: raise the virtual degree"),
    ],
)
def test_invalid_walk_options_are_refused(start: int, options: dict[str, int], complaint: str) -> None:
    web = SmallWeb([[1, 3], [0], [], [0, 1]], [True, False, True, True], gone={2})
    with pytest.raises(BadInput, match=complaint):
        walked(web, start, 10, 1, **options)


# Traps.


def most_on_one_host(visits: list[Visit[int]], hosts: list[str], window: int) -> int:
    """The most pages of one host in any window, from the first page of a second host on."""
    seen = [hosts[visit.page] for visit in visits]
    known = next(at for at, host in enumerate(seen) if host != seen[0])
    ends = range(max(known + 1, window), len(seen) + 1)
    # A window counts if its host was visited in it after another host was known.
    return max(Counter(seen[end - window : end])[seen[end - 1]] for end in ends if end - 1 > known)


@pytest.mark.parametrize("focus", list(Focus))
def test_trap_gets_at_most_half_of_any_window_and_the_walk_goes_on(focus: Focus) -> None:
    # A trap of 300 pages, one link out of it, and 40 other hosts; the walk begins in the trap.
    trap, others = 300, 40
    links = [[(page + 1) % trap, (page * 7 + 3) % trap] for page in range(trap)]
    links[150].append(trap)
    links += [[trap + (n + 1) % others, trap + (n * 3 + 1) % others, n] for n in range(others)]
    hosts = ["trap"] * trap + [f"h{n}" for n in range(others)]
    web = SmallWeb(links, [True] * len(links), hosts)
    walk = FocusedWalk(web, 0, random.Random(5), WalkOptions(focus))
    visits = list(islice(walk.visits(), 20_000))
    assert most_on_one_host(visits, hosts, 100) <= 50
    assert {hosts[visit.page] for visit in visits[-2_000:]} == {*hosts}
    assert any(visit.jumped for visit in visits)


def test_two_hosts_share_the_window_and_one_alone_has_it() -> None:
    links = [[(page + 1) % 40, (page + 5) % 40] for page in range(40)]
    both = ["a"] * 39 + ["b"]
    visits = walked(SmallWeb(links, [True] * 40, both), 0, 5_000, 1)
    assert most_on_one_host(visits, both, 100) == 50
    alone = walked(SmallWeb(links, [True] * 40, ["a"] * 40), 0, 1_000, 1)
    assert not any(visit.jumped for visit in alone)
    assert {visit.page for visit in alone} == set(range(40))
    free = walked(SmallWeb(links, [True] * 40, both), 0, 5_000, 1, window=0)
    assert not any(visit.jumped for visit in free)


# Samples and estimates.


def visits_of(on_topic: Iterable[bool], holds: Iterable[int]) -> list[Visit[int]]:
    pairs = zip(on_topic, holds, strict=True)
    return [Visit(page, topic, hold, 1, False) for page, (topic, hold) in enumerate(pairs)]


def test_samples_are_the_pages_at_fixed_virtual_times() -> None:
    samples = take_samples(visits_of([True, False, True, True], [1, 1, 1, 9]))
    assert samples.apart == 3
    assert samples.visit.tolist() == [3, 3]  # Times 7.5 and 10.5: half is the most that is left out.
    assert (samples.burn_in, samples.counted) == (3, 2)


@pytest.mark.parametrize("focus", [Focus.NONE, Focus.HARD, Focus.NEIGHBOURHOOD])
def test_visits_weighted_by_expected_holds_are_uniform(focus: Focus) -> None:
    links, topic = uneven_web()
    allowed = np.array(topic) if focus is Focus.HARD else np.ones(len(topic), np.bool_)
    visits = walked(SmallWeb(links, topic), 0, 60_000, 7, focus=focus, virtual_degree=100, probes=100)
    samples = weigh_visits(visits, 100)
    weights = np.bincount([visits[at].page for at in samples.visit], samples.weight, len(topic))
    assert weights[~allowed].sum() == 0
    assert weights[allowed] / weights.sum() == pytest.approx(np.full(allowed.sum(), 1 / allowed.sum()), rel=0.2)
    assert sum(visit.expected for visit in visits) == pytest.approx(sum(visit.hold for visit in visits), rel=0.02)


def test_visits_weighted_by_expected_holds_err_less_than_pages_at_fixed_times() -> None:
    links, topic = uneven_web(300, 2)
    web = MatrixPages(link_matrix(*ends_of(links), (300, 300)), np.array(topic))
    part = np.arange(300) % 3 == 0
    truth, errors = part[np.array(topic)].mean(), list[tuple[float, float]]()
    for seed in range(100):
        visits = list(islice(FocusedWalk(web, 0, random.Random(seed), WalkOptions()).visits(), 600))
        timed = take_samples(visits)
        found = []
        for samples in (timed, weigh_visits(visits, timed.burn_in)):
            pages = np.array([visit.page for visit in visits])[samples.visit]
            found.append(estimate_share(samples, part[pages], pages).share - truth)
        errors.append((found[0], found[1]))
    timed_rmse, weighed_rmse = np.sqrt((np.array(errors) ** 2).mean(axis=0))
    assert weighed_rmse < 0.9 * timed_rmse


def test_autocorrelation_time_of_a_known_series_is_right() -> None:
    rng = np.random.default_rng(1)
    series = np.zeros(200_000)
    for at in range(1, len(series)):
        series[at] = 0.8 * series[at - 1] + rng.normal()
    assert autocorrelation_time(series) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.05)
    assert autocorrelation_time(rng.normal(size=50_000)) == pytest.approx(1, abs=0.1)
    assert autocorrelation_time(np.ones(10)) == 1


@pytest.mark.parametrize("weighed", [False, True])
def test_intervals_contain_the_truth_as_often_as_they_say(weighed: bool) -> None:
    links, topic = uneven_web(300, 2)
    web = MatrixPages(link_matrix(*ends_of(links), (300, 300)), np.array(topic))
    popular = np.arange(300) % 3 == 0
    popular[:30] = True
    truth, inside, widths = popular[np.array(topic)].mean(), 0, []
    for seed in range(100):
        walk = FocusedWalk(web, 0, random.Random(seed), WalkOptions())
        visits = list(islice(walk.visits(), 600))
        samples = take_samples(visits)
        samples = weigh_visits(visits, samples.burn_in) if weighed else samples
        pages = np.array([visit.page for visit in visits])[samples.visit]
        found = estimate_share(samples, popular[pages], pages)
        inside += found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert inside >= 88
    assert np.median(widths) < 0.25


def test_share_that_all_samples_agree_on_has_an_interval_still() -> None:
    ones = np.ones(100, np.bool_)
    samples = WalkSamples(np.arange(100), ones, np.ones(100), 0, 1.0, 1.0)
    found = estimate_share(samples, ones, np.arange(100))
    assert (found.share, found.high, found.effective) == (1.0, 1.0, 100)
    assert 0.95 < found.low < 0.97
    few = estimate_share(samples, ones, np.arange(100) % 4)  # Only four pages were seen.
    assert few.low < 0.6


def test_mean_counts_only_pages_that_have_the_number() -> None:
    links, topic = uneven_web(300, 2)
    web = MatrixPages(link_matrix(*ends_of(links), (300, 300)), np.array(topic))
    numbers = np.where(np.arange(300) % 4, np.arange(300) ** 0.5, np.nan)
    truth, inside = np.nanmean(numbers[np.array(topic)]), 0
    for seed in range(60):
        visits = list(islice(FocusedWalk(web, 0, random.Random(seed), WalkOptions()).visits(), 600))
        samples = take_samples(visits)
        pages = np.array([visit.page for visit in visits])[samples.visit]
        found = estimate_mean(samples, numbers[pages], pages)
        assert found.low < found.mean < found.high
        assert found.effective <= samples.counted
        inside += found.low <= truth <= found.high
    assert inside >= 52
    few = samples.first(6)
    same = estimate_mean(few, np.full(6, 3.0), pages[:6])
    assert (same.mean, same.low, same.high) == (3.0, 3.0, 3.0)
    with pytest.raises(BadInput, match="no sample on the topic has the number"):
        estimate_mean(samples, np.full(len(pages), np.nan), pages)


def test_walk_without_samples_is_refused() -> None:
    with pytest.raises(BadInput, match="a walk of 1 visits has no samples: take more steps"):
        take_samples(visits_of([True], [1]))
    samples = take_samples(visits_of([False] * 10, [1] * 10))
    with pytest.raises(BadInput, match="no sample is on the topic: take more steps"):
        estimate_share(samples, np.ones(len(samples.visit), np.bool_), samples.visit)


def test_chi_square_puts_rare_cells_together_and_refuses_too_few() -> None:
    assert chi_square([1, 1, 1, 1, 1, 1, 50, 44], [1, 1, 1, 1, 1, 1, 47, 47]) > 0.5
    with pytest.raises(BadInput, match="4 counts in 2 cells are too few"):
        chi_square([2, 2], [1, 1])
