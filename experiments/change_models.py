"""Window policies by how a graph changes: readings of the paper's change model, and other ways to change as much.

The paper lets a share of the pages have their in-degree divided or multiplied by two while N pages are crawled. It does
not say which pages lose those links or get them, how many are divided, or when. These choices decide which window
policy is best.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from experiments.opic_engine import PAPER_RULES, EngineRules, PageLinks, fixed_point
from experiments.skeleton import NOT_IN_THE_PAPER, OPIC_PAPER, Axes, Experiment, Row, Run, claim, keys
from experiments.synthetic_graphs import (
    QUICK_PAGES,
    change_in_degrees,
    exchange_in_degrees,
    move_links,
    power_law_both_ways,
    power_law_links,
    redirect_links,
    rewire_pages,
)
from experiments.window_crawls import (
    BY_OUT_DEGREE,
    FIXED,
    IMPROVED,
    INTERPOLATION,
    STATIC,
    VARIABLE,
    ChangeModel,
    crawl_greedily,
)

PAGES, PAGES_MORE, SEEDS = 10_000, 100_000, 5
MONTHS: Final = 22  # As figure 6: when every window is full.
RATES: Final = (0.01, 0.05, 0.1)
POLICIES: Final = (
    *(INTERPOLATION[2], INTERPOLATION[4], INTERPOLATION[8], VARIABLE[8], VARIABLE[4]),
    *(IMPROVED[4], FIXED[8], FIXED[4], STATIC),
)
RANKED: Final = (INTERPOLATION[4], VARIABLE[8], IMPROVED[4], FIXED[8], FIXED[4])  # Best first, as in the paper.
# Mean relative errors in percent of the same at 1 % a month: not the paper's, which prints curves only, but those of
# independent simulations, in which a changed link is drawn in proportion to out-degrees.
SIMULATED: Final = (2.4, 2.8, 5.9, 7.3, 9.4)
LABELS: Final = keys("what changes", "graph", "pages", "virtual page", "change")
DAMPED: Final = EngineRules(continuous=True)
DRAWN: Final = (
    *("in-degrees, links drawn anew", "in-degrees, links by out-degree", "in-degrees, links moved"),
    *("in-degrees exchanged", "links exchanged"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A graph, how it changes and how cash moves on it; `rates`: shares of the pages that change in a month."""

    name: str
    model: ChangeModel = field(default_factory=ChangeModel)
    rates: Sequence[float] = (0.01,)
    rules: EngineRules = PAPER_RULES
    graph: Callable[[int, np.random.Generator], PageLinks] = power_law_both_ways
    pages: int = PAGES

    def labels(self, pages: int) -> list[object]:
        """Return the first columns of its rows."""
        degrees = "in and out" if self.graph is power_law_both_ways else "in"
        return [self.name, degrees, pages, "one more link" if self.rules.q < 0 else "0.15 of the cash"]


MOVED: Final = ChangeModel(move_links)
SETTINGS: Final = (
    Setting("nothing", rates=(0.0,)),
    Setting("in-degrees, links drawn anew", rates=RATES),
    Setting("in-degrees, links by out-degree", BY_OUT_DEGREE, RATES),
    Setting("in-degrees, links moved", MOVED, RATES),
    Setting("in-degrees exchanged", ChangeModel(exchange_in_degrees), RATES),
    Setting("links exchanged", ChangeModel(redirect_links), RATES),
    Setting("pages link elsewhere", ChangeModel(rewire_pages)),
    Setting("links drawn anew, once a month", ChangeModel(a_month=1)),
    Setting("links drawn anew, 50 times a month", ChangeModel(a_month=50)),
    Setting("links drawn anew, as many doubled as halved", ChangeModel(partial(change_in_degrees, halved_share=0.5))),
    Setting("links moved, once a month", ChangeModel(move_links, 1)),
    Setting("links moved, 50 times a month", ChangeModel(move_links, 50)),
    Setting("links moved, as many doubled as halved", ChangeModel(partial(move_links, halved_share=0.5))),
    Setting("in-degrees, links moved", MOVED, graph=power_law_links),
    Setting("nothing", rates=(0.0,), rules=DAMPED),
    Setting("in-degrees, links drawn anew", rules=DAMPED),
    Setting("in-degrees, links moved", MOVED, rules=DAMPED),
    Setting("in-degrees exchanged", ChangeModel(exchange_in_degrees), rules=DAMPED),
    Setting("in-degrees, links moved", MOVED, pages=PAGES_MORE),
    Setting("in-degrees exchanged", ChangeModel(exchange_in_degrees), pages=PAGES_MORE),
)


def rows_of(run: Run) -> Iterator[list[object]]:
    """Yield how much the importance of a page changes in a month, and the error of each policy: percent, means."""
    plan = [(setting, rate) for setting in SETTINGS for rate in setting.rates]
    plan = [(setting, rate) for setting, rate in plan if not run.quick or setting.pages == PAGES]
    for setting, rate in run.steps(plan, lambda job: f"{job[0].name}, {job[1]:.0%}"):
        pages, rng, apart = run.either(setting.pages, QUICK_PAGES), run.rng(1), run.rng(1)
        links, model, rules = setting.graph(pages, rng), setting.model, setting.rules
        later = links
        for _ in range(model.a_month if rate else 0):
            later = model.change(later, round(rate * pages / model.a_month), apart)
        before, after = fixed_point(links, rules), fixed_point(later, rules)
        changed = 100 * float((np.abs(after - before) / before).mean())
        (moment,) = crawl_greedily(links, rate, (MONTHS,), rng, model=model, rules=rules, compiled=not run.quick)
        errors = [moment.errors(policy)[0] for policy in POLICIES]
        yield [*setting.labels(pages), f"{rate:.0%}", changed, *errors]


def draw(run: Run, rows: list[Row]) -> list[Row]:
    """Draw the error of each policy by how much changes, for some ways to change."""
    for name in DRAWN:
        for rate in (0.0, *RATES):
            row = _row(rows, name if rate else "nothing", f"{rate:.0%}")
            for policy in POLICIES:
                run.draw(name, policy.name, [(100 * rate, row[policy.name])])
    return rows


def _row(rows: Sequence[Row], name: str, rate: str) -> Row:
    """Return the first row of a name and rate."""
    return next(row for row in rows if (row["what changes"], row["change"]) == (name, rate))


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return the paper's order of the policies, and ours."""
    found = []
    for name in DRAWN:
        errors = [round(_row(rows, name, "1%")[policy.name], 2) for policy in RANKED]
        ratios = [f"{x / known:.2f}" for x, known in zip(errors, SIMULATED, strict=True)]
        found += [
            claim(
                f"{name}, 1 %: Interpolation 4, Variable 8, Improved Fixed 4, Fixed 8, Fixed 4, best first",
                "yes",
                ("yes" if errors == sorted(errors) else "no") + ": " + ", ".join(f"{x:g}" for x in errors),
            ),
            claim(
                f"{name}, 1 %: the same, against {', '.join(f'{x:g}' for x in SIMULATED)} of independent simulations",
                NOT_IN_THE_PAPER,
                ", ".join(ratios) + " of it",
            ),
        ]
        for rate in ("5%", "10%"):
            of = {policy.name: round(_row(rows, name, rate)[policy.name], 2) for policy in POLICIES}
            found.append(claim(f"{name}, {rate[:-1]} %: best", "Interpolation", min(of, key=lambda one: of[one])))
    return found


OPIC_CHANGES: Final = Experiment(
    "opic-changes",
    "window policies by how the links change",
    OPIC_PAPER,
    {**LABELS, "importance changed": 2, **{policy.name: 2 for policy in POLICIES}},
    rows_of,
    paper=claims,
    notes=(
        f"all pages known, crawled by Greedy for {MONTHS} months of N reads; mean relative error of all pages in "
        f"percent, median of {SEEDS} graphs; the graph changes five times a month, if nothing else is said",
        "importance changed: in the first month, mean relative change in percent",
        "links drawn anew: two of three changing pages lose every second in-link, the others get as many from random "
        "pages again; so out-degrees change as well, and with them the importance of other pages",
        "links by out-degree (figures 4 to 6): the same, but doubled pages get their links from pages drawn in "
        "proportion to their out-degrees, which keeps the distribution of out-degrees",
        "links moved: the links that halved pages lose go to doubled pages, so that no out-degree changes; where one "
        "side has fewer, the other falls short",
        "in-degrees exchanged: pairs of pages with k and k/2 in-links exchange them, by moving k/2",
        "links exchanged: that share of the links exchange their targets; pages link elsewhere: that share of the "
        "pages draw new targets for all their links",
    ),
    axes=Axes("change a month, %", "mean relative error, %", y_scale="linear"),
    runs=SEEDS,
    combine=median,
    finish=draw,
)
