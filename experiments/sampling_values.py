"""How the pages of a topic divide by value, beside the truth: figures 2 and 5 of the paper on focused sampling.

By domain, and by the share of a page's links that lead to pages of the topic. Three walks of each focus, as in the
paper; shares are estimated as by `opic sample --shares`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np
from scipy.sparse.csgraph import connected_components

from experiments.algorithms.chi_square import chi_square
from experiments.focused_sampling import QUICK_STEPS, STEPS
from experiments.recorded_graphs import load_graph
from experiments.recorded_topics import TOPICS_OF, RecordedTopic
from experiments.sampling_precision import walked
from experiments.skeleton import SAMPLING_PAPER, Axes, Experiment, Row, Run, claim, keys
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import degrees
from opic.graph.focused_walk import Focus, WalkOptions
from opic.graph.walk_samples import estimate_mean, estimate_share, take_samples

WALKS: Final = 3  # The paper's.
FOCI: Final = (Focus.HARD, Focus.NEIGHBOURHOOD, Focus.TRIAL)
COMMON_MIN: Final = 0.03  # Domains of a smaller share of the topic's pages are "other" together.
TENTHS: Final = tuple(f"{tenth / 10:.1f}-{(tenth + 1) / 10:.1f}" for tenth in range(10))
DOMAIN, ON_TOPIC = "domain", "links on the topic"
NO_LINKS, OTHER = "no links", "other"
EXPECTED_MIN: Final = 5  # Independent samples of a value, for a χ² test.


@dataclass(frozen=True, slots=True)
class TopicValues:
    """A property of a topic's pages: (N,) the number of each page's value among `names`, and the value as a number."""

    topic: RecordedTopic
    written: str
    names: Sequence[str]
    value: Int64s
    number: Float64s | None = None

    @property
    def truth(self) -> Float64s:
        """The share of each value among the topic's pages."""
        of_topic = self.value[self.topic.on_topic]
        return np.bincount(of_topic, minlength=len(self.names)) / len(of_topic)


def links_on_topic(topic: RecordedTopic) -> TopicValues:
    """Return the share of each page's links that lead to pages of the topic, in tenths."""
    out, to_topic = degrees(topic.links), topic.links @ topic.on_topic.astype(np.float64)
    share = np.divide(to_topic, out, out=np.full(len(out), np.nan), where=out > 0)
    tenth = np.minimum((np.nan_to_num(share) * 10).astype(np.int64), 9)
    return TopicValues(topic, ON_TOPIC, [*TENTHS, NO_LINKS], np.where(out > 0, tenth, len(TENTHS)), share)


def outside_com(data: Path | None) -> TopicValues:
    """Return a topic of many domains: the largest connected part of california's pages outside .com, by suffix."""
    graph = load_graph("gr0-california", data)
    suffix = np.array([(urlsplit(url).hostname or "").rpartition(".")[2] for url in graph.urls])
    rest = np.flatnonzero(suffix != "com")
    _, part = connected_components(graph.links[rest][:, rest], directed=False)
    on_topic = np.zeros(len(graph), np.bool_)
    on_topic[rest[part == np.bincount(part).argmax()]] = True
    counts = Counter(suffix[on_topic].tolist())
    names = [name for name, count in counts.most_common() if count >= COMMON_MIN * on_topic.sum()]
    number = {name: at for at, name in enumerate(names)}
    value = np.array([number.get(name, len(names)) for name in suffix.tolist()], np.int64)
    topic = RecordedTopic(graph.name, "outside .com", f".{names[0]}", graph.links, on_topic, suffix == names[0])
    return TopicValues(topic, DOMAIN, [*names, OTHER], value)


def rows_of(run: Run) -> Iterator[list[object]]:
    """Walk on all topics that are here."""
    loaded = run.load({name: partial(load, run.data) for name, load in TOPICS_OF.items()})
    asked = [links_on_topic(topic) for topics in loaded.values() for topic in topics]
    try_domains = run.load({"gr0-california": partial(outside_com, run.data)}) if not run.quick else {}
    for of in try_domains.values():
        asked += [of, links_on_topic(of.topic)]
    for of in run.steps(asked, lambda of: f"{of.topic.graph}: {of.topic.name}, {of.written}"):
        title = f"{of.topic.graph}: {of.topic.name}, {of.written}"
        run.draw(title, "truth", enumerate(of.truth.tolist()))
        for focus in FOCI:
            yield row_of(run, of, focus, title)


def row_of(run: Run, of: TopicValues, focus: Focus, title: str) -> list[object]:
    """Return a row of the table."""
    shares, means, spaced = list[Float64s](), list[float](), list[Int64s]()
    walks, steps = run.either(WALKS, 1), run.either(STEPS, QUICK_STEPS)
    for seed in range(run.number * walks, (run.number + 1) * walks):
        visits, _ = walked(of.topic, steps, seed, WalkOptions(focus, window=0))
        pages = np.array([visit.page for visit in visits], np.int64)
        samples = take_samples(visits, by_degree=focus is Focus.TRIAL)
        at = pages[samples.visit]
        hits = [estimate_share(samples, of.value[at] == one, at).share for one in range(len(of.names))]
        shares.append(np.array(hits))
        if of.number is not None:
            means.append(estimate_mean(samples, of.number[at], at).mean)
        spaced.append(of.value[pages[samples.spaced()]])
    estimate, truth, largest = np.mean(shares, axis=0), of.truth, int(of.truth.argmax())
    counts = np.bincount(np.concatenate(spaced), minlength=len(of.names))
    p_value = None
    enough = np.count_nonzero(truth * counts.sum() >= EXPECTED_MIN) > 1
    if enough and focus is not Focus.TRIAL:  # Its samples have unequal weights.
        p_value = chi_square(counts[truth > 0], truth[truth > 0])
    run.draw(title, str(focus), enumerate(estimate.tolist()))
    return [
        of.topic.graph, of.topic.name, of.written, str(focus), of.names[largest], float(truth[largest]),
        float(estimate[largest]), max(abs(float(one[largest]) / float(truth[largest]) - 1) for one in shares),
        float(np.mean([np.abs(one - truth).sum() / 2 for one in shares])), p_value,
        None if of.number is None else float(np.nanmean(of.number[of.topic.on_topic])),
        float(np.mean(means)) if means else None,
    ]  # fmt: skip


def _claims(rows: Sequence[Row]) -> list[Row]:
    found = []
    for written in (DOMAIN, ON_TOPIC):
        for focus in FOCI:
            of = [row["deviation"] for row in rows if (row["property"], row["focus"]) == (written, focus)]
            if of:
                paper = "< 0.14 (.uk), < 0.16 (cycling)" if written == DOMAIN else "no figures"
                ours = f"{max(of):.2f}, median {np.median(of):.2f}"
                found.append(claim(f"largest deviation of the largest value, {written}, {focus}", paper, ours))
    return found


SAMPLING_VALUES: Final = Experiment(
    "sampling-values",
    "how the pages of a topic divide by domain and by links on the topic",
    SAMPLING_PAPER,
    {
        **keys("graph", "topic", "property", "focus", "largest value"),
        **dict.fromkeys(("truth", "estimate", "deviation", "distance"), 4),
        **dict.fromkeys(("p", "mean", "mean estimated"), 4),
    },
    rows_of,
    paper=_claims,
    notes=(
        f"truth, estimate: share of the topic's pages that have the largest value, mean of {WALKS} walks; deviation: "
        "the greatest of a walk, relative to the truth; distance: half of the L1 distance of all shares, mean of "
        "the walks",
        "p: of a χ² test that nearly independent samples of all walks have the true shares",
        "mean: of the share of a page's links that lead to the topic, over pages with links",
        "outside .com: the largest connected part of the pages of california that are not in .com",
    ),
    axes=Axes("value, in order", "share of the pages", y_scale="linear"),
)
