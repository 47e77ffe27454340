"""Text classifier of a topic: a linear model on TF-IDF, in a JSON file of plain numbers.

A model file may come from anyone: reading it runs nothing. scikit-learn trains it and is not needed to use it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from opic.arrays import Bools
from opic.errors import BadInput, MissingExtra
from opic.whole_files import whole_files

FORMAT: Final = "opic text model 1"
WORD: Final = r"\b\w\w+\b"
WORDS_MAX: Final = 20_000
PAGES_WITH_WORD_MIN: Final = 2
FOLDS: Final = 5
PAGES_OF_CLASS_MIN: Final = 2
FILE_BYTES_MAX: Final = 64 << 20

_words_of = re.compile(WORD).findall
_Weight = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]  # NaN fails both.


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file: for each word its inverse document frequency and its weight."""

    format: str
    bias: _Weight
    words: dict[str, tuple[_Weight, _Weight]]


@dataclass(frozen=True, slots=True)
class Training:
    """How well a classifier of this kind tells pages that it was not trained with, by cross-validation.

    pages, on_topic    labelled pages, and those of the topic
    accuracy           share of pages that it labels rightly
    precision, recall  share of the pages it finds that are on the topic; share of the topic's pages that it finds
    """

    pages: int
    on_topic: int
    accuracy: float
    precision: float
    recall: float


class TextModel:
    """Tells whether a text is on a topic."""

    def __init__(self, bias: float, words: Mapping[str, tuple[float, float]]) -> None:
        """Take the model's numbers: words with inverse document frequency and weight."""
        self._bias, self._words = bias, words

    def score(self, text: str) -> float:
        """Return the log-odds that a text is on the topic; without a known word, those of any page.

        >>> TextModel(-1.0, {"cycling": (1.0, 3.0), "the": (1.0, 0.0)}).score("The cycling club")
        1.1213203435596424
        """
        square = total = 0.0
        for word, count in Counter(_words_of(text.lower())).items():
            known = self._words.get(word)
            if known is not None:
                value = (1 + math.log(count)) * known[0]
                square += value * value
                total += value * known[1]
        return self._bias + (total / math.sqrt(square) if square else 0.0)

    def on_topic(self, text: str) -> bool:
        """Tell whether a text is on the topic more likely than not."""
        return self.score(text) > 0

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            BadInput: it can't be written.
        """
        content = {"format": FORMAT, "bias": self._bias, "words": self._words}
        with whole_files([path]) as (file,):
            file.write(json.dumps(content).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> "TextModel":
        """Read a file.

        Raises:
            BadInput: it can't be read, or is no model.
        """
        try:
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) > FILE_BYTES_MAX:
                raise BadInput(f"{path} is over {FILE_BYTES_MAX >> 20} MiB, too large for a text model")
            model = msgspec.json.decode(content, type=_ModelFile)
        except OSError as error:
            raise BadInput(
                f"{path} can't be read: {error.strerror or error}; `opic topic-model` trains a text model"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} is not a text model: {error}; `opic topic-model` trains one") from None
        if model.format != FORMAT:
            raise BadInput(f"{path} is not a text model that this version reads: its format is not {FORMAT!r}")
        return cls(model.bias, model.words)


def train(texts: Sequence[str], on_topic: Sequence[bool]) -> TextModel:
    """Train a classifier: logistic regression on TF-IDF, classes balanced.

    Raises:
        BadInput: one of the two classes has under PAGES_OF_CLASS_MIN pages, or the texts have no words in common.
        MissingExtra: scikit-learn is not installed.
    """
    labels = np.array(on_topic, np.bool_)
    check_classes(labels)
    pipeline = _pipeline()
    _fit(lambda: pipeline.fit(texts, labels))
    (_, words), (_, line) = pipeline.steps
    numbers = zip(words.get_feature_names_out(), words.idf_.tolist(), line.coef_[0].tolist(), strict=True)
    return TextModel(float(line.intercept_[0]), {str(word): (idf, weight) for word, idf, weight in numbers})


def validate(texts: Sequence[str], on_topic: Sequence[bool]) -> Training:
    """Return how well a classifier of this kind does on pages that it was not trained with.

    Raises:
        BadInput, MissingExtra: as `train`.
    """
    labels = np.array(on_topic, np.bool_)
    fewest = check_classes(labels)
    pipeline = _pipeline()
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=0)
    return training_of(labels, _fit(lambda: cross_val_predict(pipeline, texts, labels, cv=folds)))


def _pipeline() -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    except ModuleNotFoundError:
        raise MissingExtra("training text models", "sample") from None
    return make_pipeline(
        TfidfVectorizer(token_pattern=WORD, sublinear_tf=True, min_df=PAGES_WITH_WORD_MIN, max_features=WORDS_MAX),
        LogisticRegression(C=10.0, class_weight="balanced", max_iter=1_000),
    )


def _fit(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except ValueError as error:  # An empty vocabulary, or no word is left that two pages have.
        raise BadInput(f"the pages have too little text to train with: {error}") from None


def check_classes(labels: Bools) -> int:
    """Return the size of the smaller class.

    Raises:
        BadInput: it is too small.
    """
    on, off = int(labels.sum()), int((~labels).sum())
    if min(on, off) < PAGES_OF_CLASS_MIN:
        raise BadInput(
            f"{on:,} pages with text are on the topic and {off:,} are not: a classifier needs {PAGES_OF_CLASS_MIN} or "
            "more of each; add pages, or choose another --on"
        )
    return min(on, off)


def training_of(labels: Bools, told: Bools) -> Training:
    """Compare what a classifier said with the labels."""
    right = int((labels & told).sum())
    return Training(
        len(labels),
        int(labels.sum()),
        float((labels == told).mean()),
        right / max(int(told.sum()), 1),
        right / max(int(labels.sum()), 1),
    )
