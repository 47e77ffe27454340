"""Focused samples of recorded topics beside the truth: figures 1 to 3 of Bar-Yossef, Kanungo and Krauthgamer (2005).

For each topic and focus, some walks from the page of the topic that has most edges within it. Each estimates the share
of a part of the topic. The out-degrees of sampled pages are compared with those of the whole topic by a χ² test.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from experiments.algorithms.chi_square import chi_square
from experiments.algorithms.matrix_pages import MatrixPages
from experiments.recorded_topics import TOPICS_OF, Bools, RecordedTopic
from experiments.skeleton import SAMPLING_PAPER, Axes, Experiment, Run, keys
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import degrees
from opic.graph.focused_walk import Focus, FocusedWalk, Visit, WalkOptions
from opic.graph.walk_samples import ShareEstimate, estimate_share, take_samples

STEPS: Final = 10_000  # The paper's.
WALKS: Final = 20
QUICK_STEPS, QUICK_WALKS = 500, 2
POINTS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)  # Of a curve: shares of the steps.
DEGREE_BINS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128)
REAL_STEPS: Final = "hard, real steps"  # What is wrong: pages counted as often as they are visited.


@dataclass(frozen=True, slots=True)
class TopicWalk:
    """What one walk found: estimates after each of POINTS, out-degrees of spaced samples, and what it cost."""

    estimates: Sequence[ShareEstimate]
    spaced: Int64s
    precision: float
    fetched: int


def rows_of(run: Run) -> Iterator[list[object]]:
    """Run all walks on all topics that are here."""
    loaded = run.load({name: partial(load, run.data) for name, load in TOPICS_OF.items()})
    topics = [topic for of_graph in loaded.values() for topic in of_graph]
    steps = run.either(STEPS, QUICK_STEPS)
    for topic in run.steps(topics, lambda topic: f"{topic.graph}: {topic.name}"):
        for name in run.steps([*(str(focus) for focus in Focus), REAL_STEPS]):
            walks = [walk_topic(topic, name, steps, seed) for seed in walk_seeds(run)]
            yield row_of(topic, name, walks)
            errors = np.array([[found.share - topic.truth for found in walk.estimates] for walk in walks])
            rmse = np.sqrt((errors**2).mean(axis=0)).tolist()
            places = [share * steps for share in POINTS]
            run.draw(f"{topic.graph}: {topic.name}", name, zip(places, rmse, strict=True))


def walk_seeds(run: Run) -> range:
    """Return the seeds of a run's walks."""
    walks = run.either(WALKS, QUICK_WALKS)
    return range(run.number * walks, (run.number + 1) * walks)


def walk_topic(topic: RecordedTopic, name: str, steps: int, seed: int) -> TopicWalk:
    """Walk on a topic from its central page, and estimate the share of its part."""
    focus = Focus.HARD if name == REAL_STEPS else Focus(name)
    pages = MatrixPages(topic.links, topic.on_topic)
    walk = FocusedWalk(pages, central_page(topic), random.Random(seed), WalkOptions(focus, window=0))  # noqa: S311
    visits = list(islice(walk.visits(), steps))
    if name == REAL_STEPS:
        visits = [visit._replace(hold=1) for visit in visits]
    by_degree = focus is Focus.TRIAL
    estimates = [estimate_part(visits[: round(share * steps)], topic.part, by_degree) for share in POINTS]
    spaced = take_samples(visits, by_degree=by_degree).spaced()
    precision = float(np.mean([visit.on_topic for visit in visits]))
    return TopicWalk(estimates, np.array([visits[at].page for at in spaced], np.int64), precision, len(pages.looked))


def central_page(topic: RecordedTopic) -> int:
    """Return the page that has most links from and to pages of the topic: the paper starts from a search's top hit."""
    mask = topic.on_topic.astype(np.float64)
    return int(np.argmax((topic.links @ mask + topic.links.T @ mask) * mask))


def estimate_part(visits: Sequence[Visit[int]], part: Bools, by_degree: bool) -> ShareEstimate:
    """Estimate the share of a part of a topic from a walk."""
    samples = take_samples(visits, by_degree=by_degree)
    numbers = np.array([visit.page for visit in visits], np.int64)[samples.visit]
    if not samples.counted:
        return ShareEstimate(0.0, 0.0, 1.0, 1.0)  # Nothing was learned.
    return estimate_share(samples, part[numbers], numbers)


def degree_bins(out: Float64s) -> Int64s:
    """Return the bin of each out-degree; the bins double in width."""
    return np.searchsorted(DEGREE_BINS, out, side="right")


def row_of(topic: RecordedTopic, name: str, walks: Sequence[TopicWalk]) -> list[object]:
    """Return a row of the table, over all walks."""
    bins = degree_bins(degrees(topic.links))
    pages = np.concatenate([walk.spaced for walk in walks])
    counts, whole = Counter(bins[pages].tolist()), Counter(bins[topic.on_topic].tolist())
    p_value: float | None = None
    if len(whole) > 1 and len(pages) >= len(whole) * 5 and name != Focus.TRIAL:  # Its samples have unequal weights.
        p_value = chi_square([counts[one] for one in whole], [*whole.values()])
    last = [walk.estimates[-1] for walk in walks]
    shares = np.array([found.share for found in last])
    return [
        topic.graph, topic.name, int(topic.on_topic.sum()), topic.part_name, name, round(topic.truth, 4),
        float(shares.mean()), abs(float(shares.mean()) / topic.truth - 1),
        float(np.sqrt(((shares - topic.truth) ** 2).mean())),
        float(np.mean([found.low <= topic.truth <= found.high for found in last])), p_value,
        float(np.mean([walk.precision for walk in walks])),
        round(float(np.mean([walk.fetched for walk in walks]))),
    ]  # fmt: skip


SAMPLING: Final = Experiment(
    "sampling",
    "focused samples of topics beside the truth",
    SAMPLING_PAPER,
    {
        **keys("graph", "topic", "pages", "part", "focus", "truth"),
        **dict.fromkeys(("estimate", "deviation", "rmse"), 4),
        "covered": None,
        "degrees_p": 4,
        "precision": 3,
        "fetched": None,
    },
    rows_of,
    paper=(
        {"topic": "mean of four", "focus": "hard", "precision": 1.0, "deviation": None, "degrees_p": None},
        {"topic": "mean of four", "focus": "neighbourhood", "precision": 0.70, "deviation": None, "degrees_p": None},
        {"topic": "mean of four", "focus": "trial", "precision": 0.26, "deviation": None, "degrees_p": None},
        {"topic": ".uk", "focus": "worst of three", "precision": None, "deviation": "< 0.14", "degrees_p": "> 0.05"},
        {
            "topic": "cycling",
            "focus": "worst of three",
            "precision": None,
            "deviation": "< 0.16",
            "degrees_p": "> 0.05",
        },
    ),
    notes=(
        "The paper's topics are of the web of 2003; ours are of recorded crawls, each of one site: no host window.",
        "deviation: |mean estimate - truth| / truth; the paper's is the largest domain's, ours the part's. "
        "rmse: of single walks. covered: share of the 95 % intervals that contain the truth.",
        "degrees_p: of a χ² test that the out-degrees of sampled pages are the topic's; one sample in two "
        "autocorrelation times of all walks counts. The paper tests the distribution of domains. Beside walks that "
        "cannot reach the whole topic, it finds what they miss.",
        "precision: share of visited pages that are on the topic. fetched: distinct pages looked at by a walk; in the "
        "neighbourhood that is most of a small graph.",
        "'hard, real steps' counts pages as often as they were visited. That is biased by degree.",
    ),
    axes=Axes("real steps", "rmse of a share", "log"),
)
