"""The engine of the experiments moves cash as the ledger does, grain by grain, and as the paper's algorithm says."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.opic_engine import (
    CLOCK,
    CREDIT,
    OPEN_CASH,
    PAPER_RULES,
    POOL,
    Engine,
    EngineRules,
    PageLinks,
    fixed_point,
    off_line_step,
    payment_shares,
)
from experiments.recorded_graphs import load_graph
from experiments.strategies import STRATEGIES, expected_change
from experiments.synthetic_graphs import (
    Change,
    change_in_degrees,
    exchange_in_degrees,
    move_links,
    poisson_links,
    power_law_both_ways,
    power_law_links,
    redirect_links,
    rewire_pages,
)
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import pagerank
from opic.model.cash import CONTINUOUS, CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger

NOW_US = 1_790_000_000_000_000
GRANTS = EngineRules(measures=3)
PAID_AT_ONCE = EngineRules(continuous=True, measures=3)


def links_of(rows: list[list[int]]) -> PageLinks:
    return PageLinks(np.cumsum([0, *map(len, rows)]), np.array([to for row in rows for to in row], np.int64))


def random_links(pages: int, rng: np.random.Generator) -> PageLinks:
    web = rng.random((pages, pages)) < 0.15
    np.fill_diagonal(web, False)
    return PageLinks.of(link_matrix(*np.nonzero(web), web.shape))


class LedgerCrawl:
    """The same crawl on the ledger: a host for each page."""

    def __init__(self, links: PageLinks, rules: EngineRules, seeds: list[int]) -> None:
        of = CONTINUOUS if rules.continuous else CrawlRules()
        self.ledger = Ledger(CrawlRules(minted=of.minted, virtual=of.virtual, measures_max=rules.measures))
        self.links, self.urls = links, [f"http://h{page}.example/" for page in range(len(links.starts) - 1)]
        self._apply(encode_seeds([self.urls[page] for page in seeds]), "seeds")

    def read(self, page: int) -> None:
        targets = self.links.targets[self.links.starts[page] : self.links.starts[page + 1]].tolist()
        self._apply(encode_crawl_event(CrawlEvent(self.urls[page], [self.urls[to] for to in targets])), "event")

    def _apply(self, value: bytes, kind: str) -> None:
        self.ledger.apply("p", [Record(self.ledger.next_offset("p"), NOW_US, value, kind=kind)])

    def greediest(self) -> int:
        """The page with the most cash, of equal ones the first of the graph."""
        pages = {self.urls.index(url): page for url, page in self.ledger.pages.items()}
        return min(pages, key=lambda number: (-self.ledger.cash(pages[number]), number))


def assert_same(engine: Engine, crawl: LedgerCrawl) -> None:
    ledger, columns = crawl.ledger, engine.columns
    assert [crawl.urls[page] for page in engine.known] == list(ledger.pages)
    books = {CLOCK: "clock", POOL: "pool", CREDIT: "credit", OPEN_CASH: "open_cash"}
    assert {name: int(engine.books[at]) for at, name in books.items()} == {
        name: getattr(ledger.books, name) for name in books.values()
    }
    past = engine.past()
    for page, url in enumerate(crawl.urls):
        if (state := ledger.pages.get(url)) is None:
            assert columns.state[page] == engine.cash[page] == 0
            continue
        assert (engine.cash[page], columns.history[page]) == (ledger.cash(state), state.spent)
        at = slice(past.starts[page], past.starts[page + 1])
        kept = list(zip(past.clock[at].tolist(), past.spent[at].tolist(), strict=True))
        assert kept == [(m.clock, m.cash) for m in state.measures]


@given(
    seed=st.integers(0, 1_000),
    rules=st.sampled_from([GRANTS, PAID_AT_ONCE]),
    picks=st.lists(st.integers(0, 99), min_size=1, max_size=60),
)
@settings(max_examples=25, deadline=None)
def test_same_reads_end_in_the_same_amounts_as_on_the_ledger(seed: int, rules: EngineRules, picks: list[int]) -> None:
    rng = np.random.default_rng(seed)
    links = random_links(12, rng)
    seeds = rng.permutation(12)[:3]
    engine, crawl = Engine(links, rules, compiled=False), LedgerCrawl(links, rules, seeds.tolist())
    engine.know(seeds)
    for pick in picks:
        page = int(engine.known[pick % len(engine.known)])
        engine.read(np.array([page]))
        crawl.read(page)
    assert_same(engine, crawl)


@pytest.mark.parametrize("rules", [GRANTS, PAID_AT_ONCE])
def test_greedy_reads_the_page_with_the_most_cash_on_the_ledger(rules: EngineRules) -> None:
    links = random_links(15, np.random.default_rng(3))
    engine, crawl = Engine(links, rules, compiled=False), LedgerCrawl(links, rules, [4, 9])
    engine.know(np.array([4, 9]))
    engine.read_greedily(70)
    engine.read_greedily(50)
    for _ in range(120):
        crawl.read(crawl.greediest())
    assert_same(engine, crawl)


def test_estimates_equal_those_of_the_algorithm_in_the_paper() -> None:
    """Section 2 as it is printed, in floats; the virtual page is one more link, and pays after each read."""
    links = random_links(10, np.random.default_rng(5))
    cash, history, clock = [0.1] * 10, [0.0] * 10, 0.0
    engine = Engine(links, PAPER_RULES, compiled=False)
    engine.know(np.arange(10))
    for page in np.random.default_rng(6).integers(10, size=200).tolist():
        engine.read(np.array([page]))
        children = links.targets[links.starts[page] : links.starts[page + 1]].tolist()
        spent, cash[page] = cash[page], 0.0
        history[page] += spent
        clock += spent
        for child in children:
            cash[child] += spent / (len(children) + 1)
        cash = [one + spent / (len(children) + 1) / 10 for one in cash]
    assert sum(cash) == pytest.approx(1)
    assert engine.estimate() == pytest.approx((np.array(history) + cash) / (clock + 1), rel=1e-9)
    assert engine.history_estimate() == pytest.approx(np.array(history) / clock, rel=1e-9)


@given(
    seed=st.integers(0, 1_000),
    rules=st.sampled_from([GRANTS, PAID_AT_ONCE, PAPER_RULES]),
    picks=st.lists(st.integers(0, 11), min_size=1, max_size=60),
)
@settings(max_examples=25, deadline=None)
def test_lemma_and_theorem_of_the_paper_hold_after_every_read(seed: int, rules: EngineRules, picks: list[int]) -> None:
    """Lemma 2.3, H[j] + C[j] = C0[j] + sum of L[i,j]/out[i] H[i], and theorem 2.1, |(L'X - X)[j]| < 1/|H|.

    C0 is here all that the virtual page paid; under the paper's payout it is that and the cash at the start.
    """
    links = random_links(12, np.random.default_rng(seed))
    shares, virtual = payment_shares(links, rules)
    source = np.repeat(np.arange(12), links.degrees)
    engine, step = Engine(links, rules, compiled=False), off_line_step(links, rules)
    engine.know(np.arange(12))
    for reads, page in enumerate(picks, 1):
        engine.read(np.array([page]))
        history = engine.columns.history
        sent = np.bincount(links.targets, (shares * history)[source], 12)
        assert np.abs(history + engine.cash - engine.credit - sent).max() <= reads
        if rules.continuous:
            minted = engine.books[POOL] + engine.cash.sum()
            # The virtual page has paid the twelve pages the start, and its share of every read since.
            assert engine.credit * 12 == pytest.approx(minted + (virtual * history).sum(), abs=12 * (reads + 1))
            estimate = engine.history_estimate()
            assert np.abs(step(estimate) - estimate).max() * engine.clock < minted + 2 * reads


def test_compiled_loop_gives_the_same_result() -> None:
    links = random_links(20, np.random.default_rng(8))
    plain, compiled = (Engine(links, GRANTS, compiled=compiled) for compiled in (False, True))
    for engine in (plain, compiled):
        engine.know(np.array([0, 1, 2]))
        engine.read(np.array([0, 2, 1, 0]))
        engine.read_greedily(60)
    assert plain.books.tolist() == compiled.books.tolist()
    for one, other in zip(plain.columns, compiled.columns, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("rules", [GRANTS, PAPER_RULES])
def test_every_strategy_approaches_the_fixed_point(name: str, rules: EngineRules) -> None:
    links = random_links(30, np.random.default_rng(2))
    truth, engine = fixed_point(links, rules), Engine(links, rules, compiled=False)
    engine.know(np.arange(30))
    read = STRATEGIES[name](engine, np.random.default_rng(1))
    read(30)
    early = np.abs(engine.estimate() - truth).sum()
    read(30 * 30)
    assert np.abs(engine.estimate() - truth).sum() < min(0.03, early)
    assert engine.columns.reads.sum() == 31 * 30
    assert engine.columns.reads.min() > 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_finds_all_that_the_seeds_lead_to(name: str) -> None:
    links = links_of([[1], [2, 3], [], [4, 0], [1], [0]])
    engine = Engine(links, GRANTS, compiled=False)
    engine.know(np.array([0]))
    STRATEGIES[name](engine, np.random.default_rng(1))(200)
    assert sorted(engine.known.tolist()) == [0, 1, 2, 3, 4]
    assert engine.columns.reads[5] == engine.estimate()[5] == 0


def test_fixed_point_is_pagerank() -> None:
    links = random_links(40, np.random.default_rng(4))
    matrix = link_matrix(np.repeat(np.arange(40), links.degrees), links.targets, (40, 40))
    assert fixed_point(links, GRANTS) == pytest.approx(pagerank(matrix, threshold=1e-13), rel=1e-9)


def test_fixed_point_of_a_recorded_graph_equals_networkx() -> None:
    matrix = load_graph("hollins").links
    pages = matrix.shape[0]
    graph = nx.from_scipy_sparse_array(matrix, create_using=nx.DiGraph)
    ranks = nx.pagerank(graph, alpha=0.85, tol=1e-12 / pages, max_iter=500)
    assert fixed_point(PageLinks.of(matrix), GRANTS) == pytest.approx([ranks[page] for page in range(pages)], rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([[]], "one page"),
        ([[], [], []], "no links"),
        ([[1], [0], [3], [2]], "two components"),
        ([[1], [], [], []], "all but one dangling"),
        ([[*range(1, 2_000)], *([[]] * 1_999)], "one page that links to all others"),
    ],
)
@pytest.mark.parametrize("rules", [GRANTS, PAPER_RULES])
def test_importance_of_degenerate_graphs_is_exact(rows: list[list[int]], what: str, rules: EngineRules) -> None:
    links = links_of(rows)
    engine = Engine(links, rules, compiled=False)
    engine.know(np.arange(len(rows)))
    engine.read_greedily(60 * len(rows) if len(rows) < 100 else 3 * len(rows))
    truth = fixed_point(links, rules)
    assert truth.sum() == pytest.approx(1)
    assert np.abs(engine.estimate() - truth).sum() < 0.25, what


def test_expected_change_equals_the_change_after_a_read() -> None:
    links = random_links(25, np.random.default_rng(7))
    engine = Engine(links, PAPER_RULES, compiled=False)
    engine.know(np.arange(25))
    engine.read_greedily(100)
    before, weights, cash = engine.estimate(), expected_change(engine), engine.cash
    for page in (3, 11, 20):
        twin = Engine(links, PAPER_RULES, compiled=False)
        twin.know(np.arange(25))
        twin.read_greedily(100)
        twin.read(np.array([page]))
        total = twin.columns.history.sum() + twin.cash.sum()
        moved = np.abs(twin.estimate() - before).sum()
        assert moved == pytest.approx(2 * weights[page] * cash[page] / total, rel=1e-6)


def test_iteration_pays_all_cash() -> None:
    links = random_links(20, np.random.default_rng(1))
    shares, virtual = payment_shares(links, PAPER_RULES)
    assert shares * links.degrees + virtual == pytest.approx(1)
    assert off_line_step(links, PAPER_RULES)(np.full(20, 0.05)).sum() == pytest.approx(1)


def test_generated_graphs_have_the_degrees_of_the_paper() -> None:
    rng = np.random.default_rng(1)
    pages = 20_000
    for links, both in ((power_law_links(pages, rng), False), (power_law_both_ways(pages, rng), True)):
        in_degrees, out_degrees = np.bincount(links.targets, minlength=pages), links.degrees
        assert (links.targets != np.repeat(np.arange(pages), out_degrees)).all()
        for degrees in (in_degrees, out_degrees) if both else (in_degrees,):
            of_one, of_two = (float((degrees == k).mean()) for k in (1, 2))
            assert of_one / of_two == pytest.approx(2**2.1, rel=0.15)
        assert (out_degrees.max() > 500) == both


def test_poisson_graph_has_as_many_links_as_the_power_law_graph_and_no_hubs() -> None:
    pages = 20_000
    links, others = (draw(pages, np.random.default_rng(1)) for draw in (poisson_links, power_law_links))
    in_degrees = np.bincount(links.targets, minlength=pages)
    mean = float(in_degrees.mean())
    assert mean == pytest.approx(len(others.targets) / pages, rel=0.25)
    assert float(in_degrees.var()) == pytest.approx(mean, rel=0.05)
    assert float((in_degrees == 0).mean()) == pytest.approx(np.exp(-mean), rel=0.3)
    assert max(in_degrees.max(), links.degrees.max()) < 30
    for few in (1, 2):
        assert len(poisson_links(few, np.random.default_rng(1)).starts) == few + 1


def test_change_halves_or_doubles_in_degrees() -> None:
    rng = np.random.default_rng(1)
    links = power_law_links(5_000, rng)
    changed = change_in_degrees(links, 500, rng)
    before, after = (np.bincount(one.targets, minlength=5_000) for one in (links, changed))
    different = before != after
    assert 100 < different.sum() <= 500
    ratios = after[different & (before >= 10)] / before[different & (before >= 10)]
    assert {round(float(ratio), 1) for ratio in ratios} <= {0.5, 0.6, 1.9, 2.0}
    assert len(changed.targets) == pytest.approx(len(links.targets), rel=0.1)
    assert change_in_degrees(links, 0, rng).targets.tolist() == links.targets.tolist()


def test_links_drawn_by_out_degree_come_from_pages_in_proportion_to_it() -> None:
    links = power_law_both_ways(5_000, np.random.default_rng(1))
    most = links.degrees >= 10
    share_of_links = float(links.degrees[most].sum() / links.degrees.sum())
    shares = {}
    for by_out_degree in (False, True):
        changed = change_in_degrees(
            links, 2_000, np.random.default_rng(2), halved_share=0.0, by_out_degree=by_out_degree
        )
        more = changed.degrees - links.degrees
        assert (more >= 0).all()
        shares[by_out_degree] = float(more[most].sum() / more.sum())
    assert share_of_links > 0.3
    assert shares[True] == pytest.approx(share_of_links, abs=0.1)  # Some of the links were there.
    assert shares[False] < 0.1
    for rows in ([[]], [[], []], [[1], [0]], [[1], []]):
        few = change_in_degrees(links_of(rows), len(rows), np.random.default_rng(3), by_out_degree=True)
        assert len(few.starts) == len(rows) + 1


def degrees_of(links: PageLinks) -> tuple[np.ndarray, np.ndarray]:
    return links.degrees, np.bincount(links.targets, minlength=len(links.starts) - 1)


def test_moved_links_leave_out_degrees_and_go_from_halved_to_doubled_pages() -> None:
    rng = np.random.default_rng(2)
    links = power_law_both_ways(5_000, rng)
    (out, before), (out_after, after) = degrees_of(links), degrees_of(move_links(links, 500, rng))
    dropped = len(links.targets) - int(out_after.sum())  # The second link between two pages, or one to itself.
    assert np.abs(out_after - out).sum() == dropped < 0.005 * len(links.targets)
    assert 100 < (before != after).sum() <= 500 + dropped
    fewer, more = (before > after) & (before >= 20), (before < after) & (before >= 20)
    assert fewer.any()
    assert more.any()
    assert (after[fewer] >= 0.45 * before[fewer]).all()
    assert (after[more] <= 2 * before[more]).all()


def test_exchanging_in_degrees_keeps_their_distribution() -> None:
    rng = np.random.default_rng(3)
    links = power_law_both_ways(5_000, rng)
    (out, before), (out_after, after) = degrees_of(links), degrees_of(exchange_in_degrees(links, 500, rng))
    dropped = len(links.targets) - int(out_after.sum())
    assert np.abs(out_after - out).sum() == dropped < 0.005 * len(links.targets)
    assert (
        np.abs(np.sort(before) - np.sort(after)).sum() <= 2 * 250 + dropped
    )  # Of odd in-degrees half is rounded down.
    ratios = (after / np.maximum(before, 1))[(before != after) & (before >= 10)]
    assert len(ratios)
    assert {round(float(ratio), 1) for ratio in ratios} <= {0.5, 0.6, 1.8, 1.9, 2.0}  # Some of the links were there.
    assert 300 < (before != after).sum() <= 500 + dropped


def test_redirected_links_keep_all_degrees_and_pages_that_link_elsewhere_their_own() -> None:
    rng = np.random.default_rng(4)
    links = power_law_both_ways(5_000, rng)
    (out, before), (out_after, after) = degrees_of(links), degrees_of(redirect_links(links, 500, rng))
    dropped = len(links.targets) - int(out_after.sum())
    assert 0 <= dropped < 0.02 * len(links.targets)
    assert np.abs(before - after).sum() == np.abs(out - out_after).sum() == dropped
    rewired = rewire_pages(links, 500, rng)
    rows = [
        {tuple(one.targets[one.starts[page] : one.starts[page + 1]].tolist()) for one in (links, rewired)}
        for page in range(5_000)
    ]
    assert 100 < sum(len(row) == 2 for row in rows) <= 500
    assert (rewired.degrees <= links.degrees).all()


@pytest.mark.parametrize("change", [move_links, exchange_in_degrees, redirect_links, rewire_pages])
@pytest.mark.parametrize("rows", [[[]], [[], []], [[1], [0]], [[1], []]])
def test_graphs_of_one_or_two_pages_can_change(change: Change, rows: list[list[int]]) -> None:
    for count in range(len(rows) + 1):
        links = change(links_of(rows), count, np.random.default_rng(5))
        assert len(links.starts) == len(rows) + 1
        assert len(links.targets) <= sum(map(len, rows))


ODD_GRAPHS = {
    "one page": [[]],
    "without links": [[], [], [], [], []],
    "disconnected": [[1], [0], [3], [2], []],
    "all but one dangling": [[1, 2, 3, 4], [], [], [], []],
}


@pytest.mark.parametrize("strategy", ["Greedy", "Cycle", "Random", "batches of 10 %"])
@pytest.mark.parametrize("rules", [GRANTS, PAPER_RULES])
@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_every_strategy_finds_the_importance_on_degenerate_graphs(name: str, rules: EngineRules, strategy: str) -> None:
    links = links_of(ODD_GRAPHS[name])
    pages = len(links.starts) - 1
    engine = Engine(links, rules, compiled=False)
    engine.know(np.arange(pages))
    crawl = STRATEGIES[strategy](engine, np.random.default_rng(1))
    for _ in range(20):
        crawl(20 * pages)
    assert engine.estimate() == pytest.approx(fixed_point(links, rules), abs=0.02)


@pytest.mark.parametrize("rules", [GRANTS, PAPER_RULES])
def test_page_with_100_000_links_is_read_at_once_by_the_engine(rules: EngineRules) -> None:
    pages = 100_001
    links = PageLinks(np.concatenate(([0], np.full(pages, pages - 1))), np.arange(1, pages))
    engine = Engine(links, rules, compiled=False)
    engine.know(np.arange(1))
    engine.read(np.arange(1))
    assert len(engine.known) == pages
    assert len(set(engine.estimate()[1:].tolist())) == 1
