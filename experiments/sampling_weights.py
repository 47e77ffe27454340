"""Beyond the paper on focused sampling: visits weighted by their holds, and a walk that does not go back.

The paper takes the pages at fixed virtual times. The same walk says more if every visit counts: by the hold that was
drawn, or by the hold that was to be expected, D divided by the degree, which has the same mean and no luck in it.

A walk that never goes back by the edge it came by, unless there is no other, is on each directed edge equally often too
(Alon, Benjamini, Lubetzky, Sodin 2007, "Non-backtracking random walks mix faster"), so its visits are in proportion to
the degrees and the same holds make it uniform. It spends fewer steps on pages that it has just left.
"""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from experiments.algorithms.matrix_pages import MatrixPages
from experiments.focused_sampling import QUICK_STEPS, STEPS, central_page, estimate_part, walk_seeds
from experiments.recorded_topics import TOPICS_OF, RecordedTopic
from experiments.skeleton import NOT_IN_THE_PAPER, SAMPLING_PAPER, Axes, Experiment, Row, Run, claim, keys
from opic.arrays import Float64s
from opic.graph.focused_walk import Focus, FocusedWalk, SeenPage, Visit, WalkOptions
from opic.graph.walk_samples import take_samples

FOCUSES: Final = (Focus.NONE, Focus.HARD, Focus.NEIGHBOURHOOD)
AT_TIMES, BY_HOLD, BY_EXPECTED = "pages at fixed times", "visits by hold", "visits by expected hold"
ESTIMATES: Final = (AT_TIMES, BY_HOLD, BY_EXPECTED)
MEAN: Final = "geometric mean"


class ForwardWalk(FocusedWalk[int]):
    """A focused walk that need not go back."""

    def __init__(self, topic: RecordedTopic, seed: int, focus: Focus, *, goes_back: bool = True) -> None:
        """Begin on the central page of a topic."""
        self._goes_back, self._came_from = goes_back, -1
        pages = MatrixPages(topic.links, topic.on_topic)
        super().__init__(pages, central_page(topic), random.Random(seed), WalkOptions(focus, window=0))  # noqa: S311

    def walked(self, steps: int) -> list[Visit[int]]:
        """Return so many visits."""
        visits = list[Visit[int]]()
        for _ in range(steps):
            visits.append(self._leave())
            self._came_from = visits[-1].page
        return visits

    def _arrive(self, page: int, seen: SeenPage[int] | None) -> None:
        if page == self._came_from and not self._goes_back:
            page, seen = self._forward(page, seen)
        super()._arrive(page, seen)

    def _forward(self, back: int, seen: SeenPage[int] | None) -> tuple[int, SeenPage[int] | None]:
        """Return a neighbour drawn from all edges but the one that the walk came by; that one if there is no other."""
        at, edges = self._at, self._edges[self._at]
        while len(edges) > 1:
            by = edges.index(back)
            number = int(self._random() * (len(edges) - 1))
            number += number >= by
            target = edges[number]
            if target in self._edges:
                return target, None
            found = self._found(at, number)
            if found is not None:
                if self._may_visit(found):
                    return target, found
                self._drop(at, number)
        return back, seen


def share_of(topic: RecordedTopic, visits: Sequence[Visit[int]], weights: Float64s) -> float:
    """Return the weighted share of the topic's part, after the same burn-in as of pages at fixed times."""
    first = take_samples(visits).burn_in
    pages = np.array([visit.page for visit in visits])[first:]
    weight = weights[first:] * topic.on_topic[pages]
    return float((weight * topic.part[pages]).sum() / weight.sum()) if weight.sum() else 0.0


def errors_of(topic: RecordedTopic, focus: Focus, steps: int, seed: int, *, goes_back: bool) -> list[float]:
    """Return the error of each of ESTIMATES from one walk."""
    visits = ForwardWalk(topic, seed, focus, goes_back=goes_back).walked(steps)
    shares = (
        estimate_part(visits, topic.part, by_degree=False).share,
        share_of(topic, visits, np.array([visit.hold for visit in visits], np.float64)),
        share_of(topic, visits, np.array([visit.expected for visit in visits])),
    )
    return [share - topic.truth for share in shares]


def rows_of(run: Run) -> Iterator[list[object]]:
    """Run all walks on all topics that are here."""
    loaded = run.load({name: partial(load, run.data) for name, load in TOPICS_OF.items()})
    topics = [topic for of_graph in loaded.values() for topic in of_graph]
    steps = run.either(STEPS, QUICK_STEPS)
    for number, topic in enumerate(run.steps(topics, lambda topic: f"{topic.graph}: {topic.name}"), 1):
        for focus in run.steps(FOCUSES):
            rmse_as_now = 0.0
            for goes_back in (True, False):
                errors = np.array(
                    [errors_of(topic, focus, steps, seed, goes_back=goes_back) for seed in walk_seeds(run)]
                )
                for estimate, rmse in zip(ESTIMATES, np.sqrt((errors**2).mean(axis=0)).tolist(), strict=True):
                    rmse_as_now = rmse_as_now or rmse
                    walk = "as in the paper" if goes_back else "does not go back"
                    run.draw(str(focus), f"{walk}, {estimate}", [(number, rmse / rmse_as_now)])
                    yield [topic.graph, topic.name, str(focus), walk, estimate, rmse, rmse / rmse_as_now]


def with_means(_: Run, rows: list[Row]) -> list[Row]:
    """Add the geometric means of the ratios over the topics."""
    found = list(rows)
    kinds = dict.fromkeys((row["focus"], row["walk"], row["estimate"]) for row in rows)
    for kind in kinds:
        ratios = np.array([row["ratio"] for row in rows if (row["focus"], row["walk"], row["estimate"]) == kind])
        row = dict(zip(("focus", "walk", "estimate"), kind, strict=True))
        found.append({"graph": MEAN, "topic": "", **row, "rmse": "", "ratio": float(np.exp(np.log(ratios).mean()))})
    return found


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return the ratios of the rmse to that of the paper's walk and estimate."""
    found = []
    for walk, estimate in dict.fromkeys((row["walk"], row["estimate"]) for row in rows):
        of = {
            row["focus"]: row["ratio"]
            for row in rows
            if (row["graph"], row["walk"], row["estimate"]) == (MEAN, walk, estimate)
        }
        better = {
            focus: [
                row["ratio"] < 1
                for row in rows
                if (row["focus"], row["walk"], row["estimate"]) == (focus, walk, estimate) and row["graph"] != MEAN
            ]
            for focus in of
        }
        shown = "; ".join(
            f"{focus} {ratio:.2f}, less on {sum(better[focus])} of {len(better[focus])} topics"
            for focus, ratio in of.items()
        )
        found.append(claim(f"{walk}, {estimate}: rmse, of that of {AT_TIMES}", NOT_IN_THE_PAPER, shown))
    return found[1:]


SAMPLING_WEIGHTS: Final = Experiment(
    "sampling-weights",
    "visits weighted by their holds, and a walk that does not go back",
    SAMPLING_PAPER,
    {**keys("graph", "topic", "focus", "walk", "estimate"), "rmse": 4, "ratio": 3},
    rows_of,
    paper=claims,
    notes=(
        "rmse of the share of a topic's part over twenty walks of 10,000 steps from its central page; ratio: to that "
        "of the paper's walk with pages at fixed virtual times. The first three estimates are of the same walks, so "
        "are the last three",
        "expected hold: D divided by the number of edges, added up over the draws until one may be visited",
        "does not go back: not by the edge that it came by, unless there is no other; a reciprocal pair is two edges",
    ),
    axes=Axes("topic, in the order of the table", "rmse, of that of the paper's", "linear", "log"),
    finish=with_means,
)
