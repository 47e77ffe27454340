"""Beyond the paper of Kumar, Lang, Marlow and Tomkins: recrawls by the new links that are expected on a page.

Policy OR recrawls pages by the links seen on them, however long ago they were crawled. The expected number of new links
is a page's rate of them times the time since its last crawl, as far as links that came are still there. Each form is
beside OR, with Crawl-GAI for new pages, on the time graphs of figure 2.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from experiments.algorithms.discovery import DiscoveryCrawl
from experiments.algorithms.time_graph import TimeGraph
from experiments.algorithms.waiting_links import DRAWN, MOST, WaitingLinksCrawl
from experiments.algorithms.weighted_picks import GreatestCount
from experiments.kumar import PLANS, performance_curve
from experiments.skeleton import ERROR, KUMAR, NOT_IN_THE_PAPER, Axes, Experiment, Row, Run, claim, keys

RUNS: Final = 20
FEWER: Final = 5  # Runs of what is not compared with OR in a claim, and of the largest graph.
LARGEST: Final = "uk-2007-05-100000"
GRAPHS: Final = ("sx-mathoverflow", "wikispeedia", "hollins", "pep-history", LARGEST)
OR: Final = "OR"
EXPECTED: Final = {f"expected links, {choice}": choice for choice in (MOST, DRAWN)}
BEST: Final = f"expected links, {MOST}"


def rows_of(run: Run) -> Iterator[list[object]]:
    """Crawl each time graph by each policy."""
    names = [name for name in GRAPHS if name != LARGEST or run.number < FEWER]
    loaded = run.load({name: partial(PLANS[name].load, run.data, run.number) for name in names})
    for name, graph in run.steps(loaded.items(), lambda item: item[0]):
        plan = PLANS[name]
        crawls = min(plan.crawls(graph), run.either(plan.crawls(graph), 2_000))
        policies = (OR, BEST) if run.number >= FEWER else (OR, *EXPECTED)
        with_or = 0.0
        for policy in run.steps(policies):
            crawl = crawl_by(policy, graph, run.number)
            curve = performance_curve(graph, plan, crawls, crawl)
            performance = float(curve[:, 1].mean())
            with_or = performance if policy == OR else with_or
            lasts = 1 / crawl.loss / 86_400 if isinstance(crawl, WaitingLinksCrawl) and crawl.loss else ""
            yield [name, crawls, policy, None, performance, performance - with_or, None, lasts]
            run.draw(name, policy, zip(curve[:, 0].tolist(), curve[:, 1].tolist(), strict=True))


def crawl_by(policy: str, graph: TimeGraph, seed: int) -> DiscoveryCrawl:
    """Return a crawl of a time graph by Crawl-GAI and a policy."""
    rng = np.random.default_rng(seed)
    if policy == OR:
        return DiscoveryCrawl(GreatestCount(), OR, rng)
    return WaitingLinksCrawl(GreatestCount(), rng, graph.pages, EXPECTED[policy])


def with_errors(_: Run, rows: list[Row]) -> list[Row]:
    """Give the standard error of the differences, which are between crawls of the same run."""
    for row in rows:
        row["standard error"] = row.get("over OR" + ERROR, "") if row["policy"] != OR else ""
    return rows


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return the differences from OR on each graph."""
    found = []
    for policy in EXPECTED:
        shown = [
            f"{row['graph']} {row['over OR']:+.3f}"
            + (f" ± {row['standard error']:.3f}" if row["standard error"] else "")
            for row in rows
            if row["policy"] == policy
        ]
        found.append(claim(f"{policy}: crawl performance, over OR's", NOT_IN_THE_PAPER, "; ".join(shown)))
    return found


KUMAR_EXPECTED: Final = Experiment(
    "kumar-expected",
    "recrawls by the new links that are expected on a page, beside OR",
    KUMAR,
    {
        **keys("graph", "crawls", "policy"),
        "runs": None,
        **dict.fromkeys(("crawl", "over OR", "standard error"), 4),
        "a link lasts, days": 1,
    },
    rows_of,
    paper=claims,
    notes=(
        "Crawl-GAI for new pages, half of all crawls; crawl: share of the target pages that was crawled, mean over the "
        "crawl; graphs as in kumar-fig2, those with random times drawn anew in each run; over OR: of the same run",
        "expected links: a page's rate of new links times the time since its last crawl for which such links are still "
        "there; both rates are learned in the crawl; `most` recrawls the page with most, `drawn` in proportion",
        "a link lasts: what the crawl learned of it, from links that it saw gone",
    ),
    axes=Axes("days", "share of the target pages", "linear", "linear"),
    runs=RUNS,
    finish=with_errors,
)
