"""Text classifiers: training, the file that holds one, and files that hold none."""

import json
import random
from pathlib import Path

import pytest

from opic.errors import BadInput
from opic.sampling.text_model import FILE_BYTES_MAX, TextModel, train, validate
from opic.sampling.topics import PageContent, parse_topic

BIRDS = ["wings", "feathers", "nest", "song", "migration", "beak", "egg"]
TRAINS = ["railway", "steam", "engine", "track", "station", "signal", "line"]


def labelled(count: int = 80) -> tuple[list[str], list[bool]]:
    rng = random.Random(1)
    on = [n % 2 == 0 for n in range(count)]
    return [" ".join(rng.choices((BIRDS if bird else TRAINS) + ["the", "of", "and"], k=12)) for bird in on], on


def test_trained_model_classifies_unseen_texts(tmp_path: Path) -> None:
    texts, on = labelled()
    found = validate(texts, on)
    assert (found.pages, found.on_topic) == (80, 40)
    assert min(found.accuracy, found.precision, found.recall) > 0.95
    train(texts, on).save(tmp_path / "birds.json")
    topic = parse_topic(f"text:{tmp_path / 'birds.json'}")
    assert topic.needs_text
    assert topic.contains(PageContent("http://a.example/", text="A Nest, and an egg"))
    assert not topic.contains(PageContent("http://a.example/", text="The station"))


def test_model_scores_equal_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, on = labelled()
    model = train(texts, on)
    words = TfidfVectorizer(token_pattern=r"\b\w\w+\b", sublinear_tf=True, min_df=2)
    library = make_pipeline(words, LogisticRegression(C=10.0, class_weight="balanced", max_iter=1_000)).fit(texts, on)
    asked = [*texts[:5], "Wings of the STEAM engine steam", "nothing known"]
    assert [model.score(text) for text in asked] == pytest.approx(library.decision_function(asked).tolist())


@pytest.mark.parametrize("on", [[True] * 10, [False] * 10, [True] + [False] * 9])
def test_classifier_of_one_class_is_refused(on: list[bool]) -> None:
    texts, _ = labelled(10)
    for work in (train, validate):
        with pytest.raises(BadInput, match=r"are on the topic and .* are not: a classifier needs 2 or more of each"):
            work(texts, on)


def test_texts_without_a_word_in_common_are_refused() -> None:
    with pytest.raises(BadInput, match="too little text to train with"):
        train(["aa", "bb", "cc", "dd"], [True, True, False, False])


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x95.",  # A pickle.
        b"{}",
        b'{"format": "opic text model 1", "bias": 0, "words": {"a": [1]}}',
        b'{"format": "opic text model 1", "bias": 0, "words": {"a": [1, 1e300]}}',
        b'{"format": "opic text model 1", "bias": NaN, "words": {}}',
        b'{"format": "opic text model 1", "bias": 0, "words": {}, "run": "rm"}',
        b'{"format": "opic text model 2", "bias": 0, "words": {}}',
        b"[" * 100_000,
        b" " * (FILE_BYTES_MAX + 1),
    ],
)
def test_file_that_is_not_a_model_is_refused_and_never_executed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(BadInput, match=r"is not a text model|too large for a text model"):
        TextModel.load(tmp_path / "model")


def test_model_file_is_plain_json(tmp_path: Path) -> None:
    TextModel(0.5, {"a": (1.0, 2.0)}).save(tmp_path / "model.json")
    assert json.loads((tmp_path / "model.json").read_text()) == {
        "format": "opic text model 1",
        "bias": 0.5,
        "words": {"a": [1.0, 2.0]},
    }
