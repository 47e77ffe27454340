"""Discovery and recrawl choose as the paper's definitions say, which the plain twins here spell out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.algorithms.discovery import (
    EXPANSIONS,
    POLICIES,
    DiscoveryCrawl,
    RecrawlCandidates,
    SampledOrder,
    rank_performance,
    yield_score,
)
from experiments.algorithms.time_graph import TimeGraph, greatest
from experiments.algorithms.weighted_picks import ByCount, ByWeight, GreatestCount, GreatestWeight, Uniform
from opic.errors import BadInput

DAY_S = 86_400.0
DRAWS = 4_000
CHANCE = 1e-6  # Of a right distribution that the chi-square test rejects; the seeds are fixed.
PAGES = st.integers(0, 6)
COUNT_CHANGES = st.lists(st.tuples(st.sampled_from(["increment", "discard", "pick"]), PAGES), max_size=80)
WEIGHT_CHANGES = st.lists(st.tuples(PAGES, st.sampled_from([0.0, 0.1, 0.3, 1.0, 1e9])), max_size=40)
LINKS = st.lists(
    st.tuples(PAGES, PAGES, st.integers(0, 20), st.integers(0, 8)).filter(lambda link: link[0] != link[1]),
    min_size=1,
    max_size=40,
)


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_in_proportion(pick: Callable[[np.random.Generator], int | None], weights: Mapping[int, float]) -> None:
    rng, total = random(), sum(weights.values())
    drawn = Counter(pick(rng) for _ in range(DRAWS))
    assert drawn.keys() <= {page for page, weight in weights.items() if weight > 0}
    expected = {page: DRAWS * weight / total for page, weight in weights.items() if weight > 0}
    assert stats.chisquare([drawn[page] for page in expected], list(expected.values())).pvalue > CHANCE


@given(changes=COUNT_CHANGES)
def test_greatest_count_agrees_with_a_plain_table(changes: list[tuple[str, int]]) -> None:
    fast, plain, rng = GreatestCount(), dict[int, int](), random()
    for change, page in changes:
        if change == "increment":
            fast.increment(page)
            plain[page] = plain.get(page, 0) + 1
        elif change == "discard":
            fast.discard(page)
            plain.pop(page, None)
        assert len(fast) == len(plain)
        assert [fast.count(page) for page in range(7)] == [plain.get(page, 0) for page in range(7)]
        picked = fast.pick(rng)
        assert plain[picked] == max(plain.values()) if plain else picked is None


def test_ties_between_counts_are_broken_uniformly() -> None:
    fast = GreatestCount()
    for page in (5, 3, 8, 3, 5, 8, 1):
        fast.increment(page)
    assert_in_proportion(fast.pick, {3: 1, 5: 1, 8: 1})


@given(changes=COUNT_CHANGES)
def test_counts_agree_with_a_plain_table(changes: list[tuple[str, int]]) -> None:
    fast, plain, rng, gone = ByCount(), dict[int, int](), random(), set[int]()
    for change, page in changes:
        if change == "increment" and page not in gone:
            fast.increment(page, 2)
            plain[page] = plain.get(page, 0) + 2
        elif change == "discard":
            fast.discard(page)
            plain.pop(page, None)
            gone.add(page)
        assert [fast.count(page) for page in range(7)] == [plain.get(page, 0) for page in range(7)]
        picked = fast.pick(rng)
        assert picked in plain if plain else picked is None


def test_draws_stay_in_proportion_to_counts_after_pages_are_discarded() -> None:
    fast = ByCount()
    for page, count in ((1, 5), (2, 1), (3, 20), (4, 3)):
        fast.increment(page, count)
    fast.discard(3)
    fast.increment(2, 1)
    fast.increment(4, 0)
    assert_in_proportion(fast.pick, {1: 5, 2: 2, 4: 3})


@given(changes=WEIGHT_CHANGES)
def test_weights_agree_with_a_plain_table(changes: list[tuple[int, float]]) -> None:
    tree, heap, plain, rng = ByWeight(), GreatestWeight(), dict[int, float](), random()
    for page, weight in changes:
        tree.set(page, weight)
        heap.set(page, weight)
        plain[page] = weight
        assert [tree.weight(page) for page in range(7)] == [plain.get(page, 0.0) for page in range(7)]
        assert [heap.weight(page) for page in range(7)] == [plain.get(page, 0.0) for page in range(7)]
        likely = [page for page, weight in plain.items() if weight > 0]
        if likely:
            assert tree.pick(rng) in likely
            assert heap.pick(rng) == min(likely, key=lambda page: (-plain[page], page))
        else:
            assert tree.pick(rng) is heap.pick(rng) is None


def test_weights_are_drawn_in_proportion() -> None:
    tree = ByWeight()
    for page, weight in enumerate([0.5, 0.0, 2.0, 1.0, 0.25, 9.0]):
        tree.set(page, weight)
    tree.set(5, 0.0)
    assert_in_proportion(tree.pick, {0: 0.5, 2: 2.0, 3: 1.0, 4: 0.25})


def test_sampled_order_draws_without_replacement() -> None:
    weights = np.array([1, 0, 3, 6])
    firsts, seconds = Counter[int](), Counter[int]()
    rng = random()
    for _ in range(DRAWS):
        order = SampledOrder(weights, rng)
        pages = []
        while (page := order.pick(rng)) is not None:
            pages.append(page)
            order.discard(page)
        assert sorted(pages) == [0, 2, 3]
        firsts[pages[0]] += 1
        seconds[pages[1]] += pages[0] == 3
    assert stats.chisquare([firsts[0], firsts[2], firsts[3]], [DRAWS * w / 10 for w in (1, 3, 6)]).pvalue > CHANCE
    after_3 = firsts[3]
    assert stats.chisquare([seconds[0], seconds[2]], [after_3 / 4, after_3 * 3 / 4]).pvalue > CHANCE


@given(links=LINKS, now=st.integers(-2, 30), k=st.integers(1, 4))
def test_time_graph_shows_the_links_present_at_a_time(links: list[tuple[int, int, int, int]], now: int, k: int) -> None:
    source, target, start, length = np.array(links).T
    graph = TimeGraph(source, target, start.astype(float), (start + length).astype(float), pages=7)
    there = [(a, b) for a, b, since, lasts in links if since <= now <= since + lasts]
    for page in range(7):
        numbers, targets = graph.links_of(page, now)
        assert graph.target[numbers].tolist() == targets
        assert Counter(targets) == Counter(b for a, b in there if a == page)
    counts = Counter(b for _, b in there)
    assert graph.targets(now, k).tolist() == sorted(counts, key=lambda page: (-counts[page], page))[:k]


def test_window_includes_both_ends() -> None:
    graph = TimeGraph.windowed(np.array([0, 0]), np.array([1, 2]), np.array([0.0, 100.0]), window_s=50.0)
    assert [graph.links_of(0, now)[1] for now in (0, 50, 51, 100, 150, 151)] == [[1], [1], [], [2], [2], []]
    assert graph.links_of(2, 100) == ([], [])


@pytest.mark.parametrize(
    ("start", "end", "pages"), [([0.0], [-1.0], 2), ([np.nan], [1.0], 2), ([np.inf], [np.inf], 2), ([0.0], [1.0], 1)]
)
def test_time_graph_refuses_an_invalid_time_or_page(start: list[float], end: list[float], pages: int) -> None:
    with pytest.raises(BadInput, match="time graph"):
        TimeGraph(np.array([0]), np.array([1]), np.array(start), np.array(end), pages)


class PlainCrawl:
    """The paper's definitions, computed from the list of all crawls. Its clock never goes back, as the crawl's."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, float, dict[int, int]]] = []

    def fetched(self, page: int, now: float, links: Iterable[int], targets: Iterable[int]) -> None:
        now = max(now, self.visits[-1][1]) if self.visits else now
        self.visits.append((page, now, dict(zip(links, targets, strict=True))))

    def new_links(self, at: int) -> list[int]:
        """The targets of links that were not present during the prior crawl of the page."""
        page, _, links = self.visits[at]
        prior = self.prior(at)
        before = self.visits[prior][2] if prior is not None else {}
        assert page == self.visits[at][0]
        return [to for link, to in links.items() if link not in before]

    def prior(self, at: int) -> int | None:
        return max((i for i in range(at) if self.visits[i][0] == self.visits[at][0]), default=None)

    def inlinks(self, until: int | None = None) -> Counter[int]:
        end = len(self.visits) if until is None else until
        return Counter(to for at in range(end) for to in self.new_links(at))

    def scores(self) -> tuple[dict[int, int], dict[int, float], dict[int, int]]:
        """Outlinks seen to date, yield and link score of each page."""
        outlinks, yields, link_scores = defaultdict[int, int](int), dict[int, float](), dict[int, int]()
        for at, (page, now, _) in enumerate(self.visits):
            new, prior = self.new_links(at), self.prior(at)
            outlinks[page] += len(new)
            if prior is not None:
                yields[page] = len(new) / max(now - self.visits[prior][1], 1.0)
                seen = self.inlinks(at + 1)
                link_scores[page] = sum(seen[to] for to in new)
        return outlinks, yields, link_scores


@given(
    links=LINKS,
    times=st.lists(st.integers(-5, 25), min_size=1, max_size=15),
    expansion=st.sampled_from(list(EXPANSIONS)),
    policy=st.sampled_from(list(POLICIES)),
    seed=st.integers(0, 1000),
)
def test_crawl_follows_the_definitions_of_the_paper(
    links: list[tuple[int, int, int, int]], times: list[int], expansion: str, policy: str, seed: int
) -> None:
    source, target, start, length = np.array(links).T
    graph = TimeGraph(source, target, start.astype(float), (start + length).astype(float), pages=7)
    degrees = [np.bincount(ends, minlength=7) for ends in (graph.target, graph.source)]
    rng, plain = random(seed), PlainCrawl()
    frontier = EXPANSIONS[expansion](degrees[0], degrees[1], rng)
    crawl = DiscoveryCrawl(frontier, policy, rng)
    page: int | None = int(source[0])
    for now in times:
        if page is None:
            assert policy == "none"
            break
        seen = graph.links_of(page, now)
        crawl.fetched(page, now, *seen)
        plain.fetched(page, now, *seen)
        inlinks = plain.inlinks()
        outlinks, yields, link_scores = plain.scores()
        assert crawl.inlinks == inlinks
        assert crawl.crawled.keys() == outlinks.keys()
        for known in range(7):
            assert crawl.recrawl.by_outlinks.count(known) == outlinks.get(known, 0)
            assert crawl.recrawl.by_yield.weight(known) == yields.get(known, 0)
            assert crawl.recrawl.by_score.weight(known) == link_scores.get(known, 0)
            if isinstance(frontier, GreatestCount | ByCount):
                assert frontier.count(known) == (0 if known in outlinks else inlinks[known])
        goal = greatest(degrees[0], 3)
        found = crawl.performance(goal)
        assert found.crawled == len(set(goal.tolist()) & outlinks.keys())
        assert found.seen == len(set(goal.tolist()) & (outlinks.keys() | inlinks.keys()))
        best = sorted(outlinks, key=lambda page: -inlinks[page])[:2]
        assert [inlinks[page] for page in crawl.best(2).tolist()] == [inlinks[p] for p in best if inlinks[p]]
        page = crawl.choose()


def crawl_of(
    policy: str, share: float = 0.5, expansion: type[GreatestCount | ByCount] = GreatestCount
) -> DiscoveryCrawl:
    return DiscoveryCrawl(expansion(), policy, random(), share)


def test_greedy_crawl_takes_the_page_with_most_links_to_it() -> None:
    crawl = crawl_of("U", share=0)
    crawl.fetched(0, 0, [1, 2, 3, 4], [1, 2, 2, 3])
    assert crawl.choose() == 2
    crawl.fetched(2, 0, [5, 6, 7], [3, 3, 0])
    assert crawl.choose() == 3


def test_apparent_indegree_decides_the_chances_of_crawl_ai() -> None:
    crawl = crawl_of("U", share=0, expansion=ByCount)
    crawl.fetched(0, 0, range(7), [1, 2, 2, 3, 3, 3, 3])
    crawl.fetched(3, 0, [8], [2])
    assert_in_proportion(lambda _: crawl.choose(), {1: 1, 2: 3})


@pytest.mark.parametrize(
    ("policy", "weights"),
    [
        # Page 0 shows 2 links, then 4 new ones in 2 s; page 1 shows 6, then 1 new one in 4 s to a page with 10 links.
        ("U", {0: 1, 1: 1}),
        ("OR", {0: 2 + 4, 1: 6 + 1}),
        ("YR", {0: 4 / 2, 1: 1 / 4}),
        ("YRU", {0: 2 / 2.25 / 2 + 1 / 4, 1: 0.25 / 2.25 / 2 + 1 / 4}),
        ("LDU", {0: 1 / 4, 1: 1 / 2 + 1 / 4}),
    ],
)
def test_policy_chooses_in_proportion_to_its_weights(policy: str, weights: dict[int, float]) -> None:
    crawl = crawl_of(policy, share=1)
    crawl.fetched(0, 10, [1, 2], [11, 12])
    crawl.fetched(1, 10, range(20, 26), [13] * 6)
    crawl.fetched(0, 12, [3, 4, 5, 6], [21, 22, 23, 24])
    crawl.fetched(1, 14, [*range(20, 26), 30], [13] * 7)
    assert crawl.recrawl.by_score.weight(0) == 4
    assert crawl.recrawl.by_score.weight(1) == 7
    assert_in_proportion(lambda _: crawl.choose(), weights)


@pytest.mark.parametrize("policy", ["OR", "YR", "YRU", "LDU"])
def test_policy_without_any_weight_chooses_uniformly(policy: str) -> None:
    crawl = crawl_of(policy)
    for page in range(4):
        crawl.fetched(page, 0, [], [])
        crawl.fetched(page, 5, [], [])
    assert_in_proportion(lambda _: crawl.choose(), dict.fromkeys(range(4), 1))


def test_half_the_steps_recrawl() -> None:
    crawl = crawl_of("U")
    crawl.fetched(0, 0, [1], [1])
    assert_in_proportion(lambda _: crawl.choose(), {0: 1, 1: 1})


def test_empty_frontier_means_recrawl_unless_the_policy_never_does() -> None:
    for policy in POLICIES:
        crawl = crawl_of(policy, share=0)
        crawl.fetched(0, 0, [1], [0])
        assert crawl.choose() == (None if policy == "none" else 0)


def test_crawl_without_pages_chooses_none() -> None:
    assert {crawl_of(policy).choose() for policy in POLICIES} == {None}


def test_page_that_vanished_yields_nothing_and_counts_again_when_it_is_back() -> None:
    crawl = crawl_of("YR")
    crawl.fetched(0, 0, [1, 2], [1, 2])
    crawl.fetched(0, 10, [], [])
    assert crawl.recrawl.by_yield.weight(0) == 0
    crawl.fetched(0, 20, [1, 2], [1, 2])
    assert crawl.recrawl.by_yield.weight(0) == 0.2


@pytest.mark.parametrize("now", [100.0, 99.0, -1e9])
def test_clock_that_stands_still_or_goes_back_gives_a_yield_over_one_second(now: float) -> None:
    crawl = crawl_of("YR")
    crawl.fetched(0, 100.0, [1], [1])
    crawl.fetched(0, now, [1, 2, 3], [1, 2, 3])
    assert crawl.recrawl.by_yield.weight(0) == 2.0
    crawl.fetched(0, 104.0, [1, 4], [1, 4])
    assert crawl.recrawl.by_yield.weight(0) == 0.25


def test_yield_is_links_per_second() -> None:
    assert yield_score(14, 7 * DAY_S) == 2 / DAY_S


def test_performance_counts_crawled_and_seen_targets() -> None:
    crawl = crawl_of("U")
    crawl.fetched(0, 0, [1, 2], [1, 2])
    crawl.fetched(1, 0, [], [])
    found = crawl.performance(np.array([1, 2, 3, 4]))
    assert (found.crawl, found.discovery) == (0.25, 0.5)
    nothing = crawl.performance(np.array([], np.int64))
    assert (nothing.crawl, nothing.discovery) == (1.0, 1.0)
    assert rank_performance(np.array([4, 9, 1]), np.array([1, 2, 3, 4])) == 0.5
    assert rank_performance(np.array([4]), np.array([], np.int64)) == 1.0


def test_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(BadInput, match="no recrawl policy 'YDU': there are U, OR, YR, YRU, LDU, none"):
        RecrawlCandidates("YDU")


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_invalid_share_of_recrawls_is_refused(share: float) -> None:
    with pytest.raises(BadInput, match="share of recrawls"):
        crawl_of("U", share)


def test_uniform_choice_of_no_pages_is_none() -> None:
    pages = Uniform()
    assert len(pages) == 0
    assert pages.pick(random()) is None
