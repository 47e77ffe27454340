"""Window policies by how a graph changes: readings of the paper's change model, and other ways to change as much.

The paper lets a share of the pages have their in-degree divided or multiplied by two while N pages are crawled. It does
not say which pages lose those links or get them, how many are divided, or when. These choices decide which window
policy is best.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from experiments.opic_convergence import QUICK_PAGES
from experiments.opic_engine import PAPER_RULES, EngineRules, PageLinks, fixed_point
from experiments.result import Progress, Result
from experiments.synthetic_graphs import (
    change_in_degrees,
    exchange_in_degrees,
    move_links,
    power_law_both_ways,
    power_law_links,
    redirect_links,
    rewire_pages,
)
from experiments.window_crawls import (
    FIXED,
    IMPROVED,
    INTERPOLATION,
    STATIC,
    VARIABLE,
    ChangeModel,
    crawl_greedily,
)
from opic.cli.pictures import Panel

PAGES, PAGES_MORE, SEEDS = 10_000, 100_000, 5
MONTHS: Final = 22  # As figure 6: when every window is full.
RATES: Final = (0.01, 0.05, 0.1)
POLICIES: Final = (
    *(INTERPOLATION[2], INTERPOLATION[4], INTERPOLATION[8], VARIABLE[8], VARIABLE[4]),
    *(IMPROVED[4], FIXED[8], FIXED[4], STATIC),
)
RANKED: Final = (INTERPOLATION[4], VARIABLE[8], IMPROVED[4], FIXED[8], FIXED[4])  # Best first, as in the paper.
# Mean relative errors in percent of the same at 1 % a month, by independent simulations.
SIMULATED: Final = (2.4, 2.8, 5.9, 7.3, 9.4)
LABELS: Final = ("what changes", "graph", "pages", "virtual page", "change", "importance changed")
COLUMNS: Final = (*LABELS, *(policy.name for policy in POLICIES))
DAMPED: Final = EngineRules(continuous=True)
DRAWN: Final = ("in-degrees, links drawn anew", "in-degrees, links moved", "in-degrees exchanged", "links exchanged")


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


def run_changes(progress: Progress, quick: bool) -> Result:
    """Run the experiment."""
    started, rows = time.perf_counter(), list[list[object]]()
    plan = [(setting, rate) for setting in SETTINGS for rate in setting.rates]
    plan = [(setting, rate) for setting, rate in plan if not quick or setting.pages == PAGES]
    for number, (setting, rate) in enumerate(plan):
        progress(number, len(plan), f"{setting.name}, {rate:.0%}")
        pages = QUICK_PAGES if quick else setting.pages
        figures = [
            _figures(setting, rate, pages, seed, compiled=not quick) for seed in range(1, 2 if quick else SEEDS + 1)
        ]
        rows.append([*setting.labels(pages), f"{rate:.0%}", *(round(float(x), 2) for x in np.median(figures, axis=0))])
    progress(len(plan), len(plan), "")
    seconds = time.perf_counter() - started
    return Result("opic-changes", _claims(rows), COLUMNS, rows, seconds, _panels(rows), notes=_notes())


def _figures(setting: Setting, rate: float, pages: int, seed: int, *, compiled: bool) -> list[float]:
    """Return how much the importance of a page changes in a month, and the error of each policy: percent, means."""
    rng = np.random.default_rng(seed)
    links, model, rules = setting.graph(pages, rng), setting.model, setting.rules
    later, apart = links, np.random.default_rng(seed)
    for _ in range(model.a_month if rate else 0):
        later = model.change(later, round(rate * pages / model.a_month), apart)
    before, after = fixed_point(links, rules), fixed_point(later, rules)
    changed = 100 * float((np.abs(after - before) / before).mean())
    (moment,) = crawl_greedily(links, rate, (MONTHS,), rng, model=model, rules=rules, compiled=compiled)
    return [changed, *(moment.errors(policy)[0] for policy in POLICIES)]


def _row(rows: Sequence[Sequence[object]], name: str, rate: str) -> dict[str, float]:
    """Return the errors of the first row of a name and rate."""
    of = next(row for row in rows if row[0] == name and row[4] == rate)
    return {column: float(str(value)) for column, value in zip(COLUMNS[len(LABELS) :], of[len(LABELS) :], strict=True)}


def _claims(rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    claims: list[dict[str, object]] = []
    for name in DRAWN:
        errors = [_row(rows, name, "1%")[policy.name] for policy in RANKED]
        ratios = [f"{x / known:.2f}" for x, known in zip(errors, SIMULATED, strict=True)]
        claims += [
            {
                "claim": f"{name}, 1 %: Interpolation 4, Variable 8, Improved Fixed 4, Fixed 8, Fixed 4, best first",
                "paper": "yes",
                "ours": ("yes" if errors == sorted(errors) else "no") + ": " + ", ".join(f"{x:g}" for x in errors),
            },
            {
                "claim": f"{name}, 1 %: the same, against independent simulations",
                "paper": ", ".join(f"{x:g}" for x in SIMULATED),
                "ours": ", ".join(ratios) + " of it",
            },
        ]
        for rate in ("5%", "10%"):
            of = _row(rows, name, rate)
            best = min(of, key=lambda policy: of[policy])
            claims.append({"claim": f"{name}, {rate[:-1]} %: best", "paper": "Interpolation", "ours": best})
    return claims


def _notes() -> list[str]:
    return [
        f"all pages known, crawled by Greedy for {MONTHS} months of N reads; mean relative error of all pages in "
        f"percent, median of {SEEDS} graphs; the graph changes five times a month, if nothing else is said",
        "importance changed: in the first month, mean relative change in percent",
        "links drawn anew: two of three changing pages lose every second in-link, the others get as many from random "
        "pages again (figures 4 to 6); so out-degrees change as well, and with them the importance of other pages",
        "links moved: the links that halved pages lose go to doubled pages, so that no out-degree changes; where one "
        "side has fewer, the other falls short",
        "in-degrees exchanged: pairs of pages with k and k/2 in-links exchange them, by moving k/2",
        "links exchanged: that share of the links exchange their targets; pages link elsewhere: that share of the "
        "pages draw new targets for all their links",
    ]


def _panels(rows: Sequence[Sequence[object]]) -> list[Panel]:
    panels = []
    for name in DRAWN:
        points = [
            (0.0, _row(rows, "nothing", "0%")),
            *((100 * rate, _row(rows, name, f"{rate:.0%}")) for rate in RATES),
        ]
        lines = {policy.name: [(x, errors[policy.name]) for x, errors in points] for policy in POLICIES}
        panels.append(Panel(name, lines, "change a month, %", "mean relative error, %", y_scale="linear"))
    return panels
