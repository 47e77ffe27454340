"""The precision of trial and error by its number of tries.

The paper gives the precision and not k, the number of pages off the topic after which the walk turns back, on which it
depends. Walks are as in `sampling`.
"""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from experiments.algorithms.matrix_pages import MatrixPages
from experiments.focused_sampling import QUICK_STEPS, STEPS, central_page, estimate_part, walk_seeds
from experiments.recorded_topics import TOPICS_OF, RecordedTopic
from experiments.skeleton import SAMPLING_PAPER, Axes, Experiment, Row, Run, claim, keys
from opic.graph.focused_walk import Focus, FocusedWalk, Visit, WalkOptions
from opic.graph.walk_samples import ShareEstimate

TRIES: Final = (1, 3, 10, 30)
PRECISION_WALKS: Final = 3  # The paper's; a precision differs little from walk to walk.
PRECISION_OF_THE_PAPER: Final = 0.26  # Section 5.3, for a k that it does not name.
MEAN: Final = "mean of the topics"


def topics_of(run: Run) -> list[RecordedTopic]:
    """Return the topics that are here."""
    loaded = run.load({name: partial(load, run.data) for name, load in TOPICS_OF.items()})
    return [topic for of_graph in loaded.values() for topic in of_graph]


def walked(topic: RecordedTopic, steps: int, seed: int, options: WalkOptions) -> tuple[list[Visit[int]], int]:
    """Walk on a topic from its central page; return the visits, and the number of pages looked at."""
    pages = MatrixPages(topic.links, topic.on_topic)
    visits = FocusedWalk(pages, central_page(topic), random.Random(seed), options).visits()  # noqa: S311
    return list(islice(visits, steps)), len(pages.looked)


def precisions(run: Run) -> Iterator[list[object]]:
    """Yield the precision of trial and error by topic and number of tries."""
    steps = run.either(STEPS, QUICK_STEPS)
    for topic in run.steps(topics_of(run), lambda topic: f"{topic.graph}: {topic.name}"):
        for tries in TRIES:
            options, seeds = WalkOptions(Focus.TRIAL, tries=tries, window=0), list(walk_seeds(run))[:PRECISION_WALKS]
            walks = [walked(topic, steps, seed, options) for seed in seeds]
            shares = [float(np.mean([visit.on_topic for visit in visits])) for visits, _ in walks]
            rmse = rmse_of(topic, [estimate_part(visits, topic.part, by_degree=True) for visits, _ in walks])
            fetched = float(np.mean([looked for _, looked in walks]))
            yield [topic.graph, topic.name, tries, float(np.mean(shares)), rmse, fetched]
            run.draw("precision", f"{topic.graph}: {topic.name}", [(tries, float(np.mean(shares)))])


def rmse_of(topic: RecordedTopic, found: Sequence[ShareEstimate]) -> float:
    """Return the root mean square error of estimates of a topic's part."""
    return float(np.sqrt(np.mean([(one.share - topic.truth) ** 2 for one in found])))


def with_means(_: Run, rows: list[Row]) -> list[Row]:
    """Add the mean precision over the topics for each number of tries."""
    for tries in TRIES:
        precision = float(np.mean([row["precision"] for row in rows if row["k"] == tries and row["graph"] != MEAN]))
        rows.append({"graph": MEAN, "topic": "", "k": tries, "precision": precision})
    return rows


def _claims_on_precision(rows: Sequence[Row]) -> list[Row]:
    ours = {row["k"]: row["precision"] for row in rows if row["graph"] == MEAN}
    shown = ", ".join(f"{precision:.2f} for k = {tries}" for tries, precision in ours.items())
    return [claim("precision of trial and error, mean over topics", f"{PRECISION_OF_THE_PAPER}, k not given", shown)]


SAMPLING_PRECISION: Final = Experiment(
    "sampling-precision",
    "precision of trial and error by the number of tries",
    SAMPLING_PAPER,
    {**keys("graph", "topic", "k"), "precision": 3, "rmse": 4, "fetched": 0},
    precisions,
    paper=_claims_on_precision,
    notes=(
        "k: pages off the topic after which the walk turns back to the last page on it; precision: share of visited "
        f"pages that are on the topic, mean of {PRECISION_WALKS} walks",
    ),
    axes=Axes("k", "precision", "log", "linear"),
    finish=with_means,
)
