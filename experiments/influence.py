"""Does the influence of a page predict what fetching it does to the estimate? Figure 1 of Davis and Dhillon (2006).

Each candidate of a domain is added alone, with its real links, and the objective taken: the L1 distance of the local
pages' part of PageRank from the truth. Beside the score of SC-Select: out-links from the domain, as in the paper, and
what only who knows the whole graph can rank by: the exact influence with the real links, the paper's impact(j), and the
objective itself, which is the best choice of single pages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import sparse, stats

from experiments.algorithms.comparison import distance
from experiments.davis_dhillon import TOPICS, TRUTH_THRESHOLD
from experiments.recorded_graphs import LocalDomain, RecordedGraph
from experiments.skeleton import DAVIS_DHILLON, NOT_IN_THE_PAPER, Axes, Experiment, Row, Run, claim, keys
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import CrawledGraph, CrawledLinks, degrees
from opic.graph.page_selection import highest, outlink_counts, sc_scores
from opic.graph.pagerank import pagerank

DOMAINS, QUICK_DOMAINS = 15, 2
CANDIDATES_MAX, QUICK_CANDIDATES = 400, 40  # Of more, so many at random are added, to save time.
FETCHED_SHARE: Final = 0.1  # Of the local pages' number: fetched at once, to compare choices.
THRESHOLD: Final = 1e-10  # Of PageRank: objectives of candidates differ in the fourth digit.
SCORE, OUT_LINKS, EXACT, IMPACT, OBJECTIVE = "SC score", "out-links", "exact influence", "impact", "objective"
RANKED: Final = (SCORE, OUT_LINKS, EXACT, IMPACT)
CHOICES: Final = (SCORE, OUT_LINKS, IMPACT, OBJECTIVE, "random")


@dataclass(frozen=True, slots=True)
class Tried:
    """The candidates of a domain that were added.

    graph     the domain's pages with their links
    column    (c,) the candidates, columns of graph.outward
    error     the objective before
    scores    (c,) each by what candidates may be ranked by
    """

    graph: CrawledGraph
    column: Int64s
    error: float
    scores: Mapping[str, Float64s]


def try_candidates(
    graph: RecordedGraph, truth: Float64s, domain: LocalDomain, most: int, rng: np.random.Generator
) -> Tried:
    """Add each candidate of a domain alone, or `most` of them."""
    crawl = CrawledLinks(domain.pages.tolist(), [graph.links_of(page) for page in domain.pages.tolist()]).graph()
    ranks, goal = pagerank(crawl.inside, threshold=THRESHOLD), truth[domain.pages]
    column = np.sort(rng.permutation(len(crawl.candidates))[:most])
    objective, influence = np.zeros(len(column)), np.zeros(len(column))
    for at, one in enumerate(column.tolist()):
        found = ranks_with(graph, crawl, np.array([one]))
        objective[at] = distance(found, goal).l1
        influence[at] = np.abs(found - ranks).sum()
    pages = crawl.candidates[column]
    to_domain = np.array([np.isin(graph.links_of(page), domain.pages).sum() for page in pages.tolist()], np.float64)
    impact = truth[pages] * to_domain / np.maximum(degrees(graph.links)[pages], 1)
    scores = {
        SCORE: sc_scores(crawl, ranks)[column],
        OUT_LINKS: outlink_counts(crawl)[column],
        EXACT: influence,
        IMPACT: impact,
        OBJECTIVE: -objective,
        "random": rng.random(len(column)),
    }
    return Tried(crawl, column, distance(ranks, goal).l1, scores)


def ranks_with(graph: RecordedGraph, crawl: CrawledGraph, columns: Int64s) -> Float64s:
    """Return the PageRank of the local pages, divided by its sum, once some candidates are fetched too."""
    pages = crawl.candidates[columns]
    links = graph.links[pages]
    rows = sparse.hstack([links[:, crawl.fetched], links[:, pages]])
    whole = sparse.vstack([sparse.hstack([crawl.inside, crawl.outward[:, columns]]), rows]).tocsr()
    found = pagerank(whole, threshold=THRESHOLD)[: crawl.local]
    shares: Float64s = found / found.sum()
    return shares


def rows_of(run: Run) -> Iterator[list[object]]:
    """Yield the rank correlations of each domain, and the error after fetching those that each choice ranks highest."""
    domains_max = run.either(DOMAINS, QUICK_DOMAINS)
    for graph in run.steps(run.graphs(TOPICS.graphs), lambda graph: graph.name):
        truth = pagerank(graph.links, threshold=TRUTH_THRESHOLD)
        domains = graph.domains(TOPICS.pages_min, domains_max)
        for domain in run.steps(domains, lambda domain: domain.name):
            tried = try_candidates(graph, truth, domain, run.either(CANDIDATES_MAX, QUICK_CANDIDATES), run.rng())
            objective, goal = -tried.scores[OBJECTIVE], truth[domain.pages]
            predicts = [float(stats.spearmanr(tried.scores[name], objective).statistic) for name in RANKED]
            count = max(1, round(FETCHED_SHARE * len(domain.pages)))
            errors = []
            for name in CHOICES:
                chosen = tried.column[highest(tried.scores[name], count)]
                errors.append(distance(ranks_with(graph, tried.graph, chosen), goal).l1 / tried.error)
            about = [graph.name, domain.name, len(domain.pages), len(tried.column), tried.error]
            yield [*about, float((objective > tried.error).mean()), *predicts, *errors]
            run.draw(domain.name, "candidates", zip(tried.scores[SCORE].tolist(), objective.tolist(), strict=True))


def _claims(rows: list[Row]) -> list[Row]:
    found = []
    for name, paper in ((SCORE, "strong"), (OUT_LINKS, "weaker"), (EXACT, "strong"), (IMPACT, NOT_IN_THE_PAPER)):
        values = sorted(row[f"rho {name}"] for row in rows)
        ours = f"median {float(np.median(values)):.2f}, {values[0]:.2f} to {values[-1]:.2f}"
        found.append(claim(f"rank correlation of {name} with the objective", paper, ours))
    shares = sorted(row["raise the error"] for row in rows)
    found.append(claim("candidates that raise the error", "none is shown", f"{shares[0]:.0%} to {shares[-1]:.0%}"))
    return found


DAVIS_FIG1: Final = Experiment(
    "davis-fig1",
    "does influence predict the objective? beside impact and the best single pages",
    DAVIS_DHILLON,
    {
        **keys("graph", "domain", "pages"),
        "candidates": None,
        "error": 4,
        "raise the error": 2,
        **{f"rho {name}": 2 for name in RANKED},
        **{f"error by {name}": 3 for name in CHOICES},
    },
    rows_of,
    paper=lambda rows: _claims(list(rows)),
    notes=(
        "each candidate is added alone, with its real links; objective: L1 distance of the domain's part of PageRank "
        "from the truth; raise the error: share of the candidates after which it is greater than before",
        "rho: Spearman's rank correlation with the objective; -1 would be a perfect prediction",
        "impact: PageRank times the share of the page's links that lead to the domain, section 6.2; error by ...: "
        f"after fetching those ranked highest by it, as many as {FETCHED_SHARE:.0%} of the domain's pages, of the "
        "error before; by objective: the best single pages, which no crawl can know",
        f"of more than {CANDIDATES_MAX} candidates so many are drawn at random",
    ),
    axes=Axes("SC score", "objective", "log", "linear"),
    runs=3,
)
