"""How far errors of the classifier spoil a focused sample: figure 4 of Bar-Yossef, Kanungo and Krauthgamer (2005).

Articles of wikispeedia; the truth is their categories. Each classifier says which articles are on the topic, and hard
focus walks on those. Texts of articles that a classifier was trained with are never asked of it: two halves are trained
with, and asked of, each other.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from experiments.focused_sampling import QUICK_STEPS, STEPS, walk_seeds, walk_topic
from experiments.recorded_topics import Bools, RecordedTopic, article_texts, load_articles
from experiments.skeleton import SAMPLING_PAPER, Axes, Experiment, Run, keys
from opic.graph.crawled import degrees
from opic.graph.focused_walk import Focus
from opic.sampling.text_model import train, training_of

TOPICS: Final = (  # A category, and the keyword of the naive classifier.
    ("Science.Biology", "species"),
    ("Music", "music"),
    ("Design_and_Technology.Railway_transport", "railway"),
    ("Religion", "religion"),
)
HEADING: Final = "Related subjects:"  # Before the categories, which a classifier must not see.


def rows_of(run: Run) -> Iterator[list[object]]:
    """Walk on each topic with each classifier."""
    articles = load_articles(run.data)
    texts = without_categories(article_texts(articles, run.data), articles.categories)
    many = degrees(articles.links) > np.median(degrees(articles.links))
    topics = run.either(TOPICS, TOPICS[:1])
    for at, (category, keyword) in enumerate(run.steps(topics, lambda topic: topic[0]), 1):
        truth = articles.within(category)
        whole = float(many[truth].mean())
        for name, found in classified(texts, truth, keyword).items():
            topic, steps = RecordedTopic("", category, "", articles.links, found, many), run.either(STEPS, QUICK_STEPS)
            walks = [walk_topic(topic, Focus.HARD, steps, seed) for seed in walk_seeds(run)]
            shares = np.array([walk.estimates[-1].share for walk in walks])
            told, rmse = training_of(truth, found), float(np.sqrt(((shares - whole) ** 2).mean()))
            quality = told.accuracy, told.precision, told.recall
            yield [category, int(truth.sum()), name, *quality, whole, float(shares.mean()), rmse]
            run.draw("wikispeedia", name, [(at, rmse)])


def without_categories(texts: Sequence[str], categories: Sequence[Sequence[str]]) -> list[str]:
    """Cut off what stands before an article's text: its title and its categories."""
    names = {part.replace("_", " ") for row in categories for name in row for part in name.split(".")}
    plain = {re.sub(r"\W+", " ", name).strip() for name in names}
    longest = sorted(plain, key=len, reverse=True)
    any_name = "|".join(name.replace(" ", r"\W+") for name in longest)
    label = re.compile(rf"\W*(?:{any_name})\b\W*")
    found = []
    for text in texts:
        rest = text.partition(HEADING)[2] or text
        while match := label.match(rest):
            rest = rest[match.end() :]
        found.append(rest)
    return found


def classified(texts: Sequence[str], truth: Bools, keyword: str) -> dict[str, Bools]:
    """Return which articles each classifier finds."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.tree import DecisionTreeClassifier

    half = np.random.default_rng(0).permutation(len(texts)) % 2 == 0
    tree, line = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)
    for trained in (half, ~half):
        known, asked = np.flatnonzero(trained).tolist(), np.flatnonzero(~trained).tolist()
        of_known, of_asked = [texts[at] for at in known], [texts[at] for at in asked]
        grown = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, min_df=2),
            DecisionTreeClassifier(min_samples_leaf=2, random_state=0),
        )
        tree[asked] = grown.fit(of_known, truth[known]).predict(of_asked)
        model = train(of_known, truth[known].tolist())
        line[asked] = [model.on_topic(text) for text in of_asked]
    says = np.array([keyword in text.lower() for text in texts], np.bool_)
    return {"category": truth, f"keyword {keyword!r}": says, "decision tree": tree, "linear": line}


SAMPLING_CLASSIFIER: Final = Experiment(
    "sampling-classifier",
    "the same with imperfect classifiers",
    SAMPLING_PAPER,
    {
        **keys("topic", "pages", "classifier"),
        "accuracy": 4,
        **dict.fromkeys(("precision", "recall"), 3),
        **dict.fromkeys(("truth", "estimate", "rmse"), 4),
    },
    rows_of,
    paper=(
        {"topic": "abortion, cycling", "classifier": "keyword", "effect on the estimates": "mild"},
        {"topic": "abortion, cycling", "classifier": "decision tree (C4.5)", "effect on the estimates": "mild"},
    ),
    notes=(
        "truth, estimate: share of the topic's pages with more out-links than the median article. The paper shows the "
        "frequency of subtopics and the share of on-topic out-links, as bars without numbers.",
        "'category' is the truth as classifier: what is left is the error of the walk.",
        "The decision tree is scikit-learn's (CART, not C4.5), the linear model that of `opic topic-model`.",
        "precision and recall are the classifier's on all articles.",
    ),
    axes=Axes("topic, in the order of the table", "rmse of a share"),
)
