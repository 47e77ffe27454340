"""Topics of recorded graphs, and a part of each whose share is to be estimated: what focused sampling is judged on."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from experiments.recorded_graphs import distinct_links, lines_of
from opic.graph.crawled import LinkMatrix

CAMP_PAGES: Final = (600, 400)  # Of the topic in two camps that is made up.
NEAR_PAGES, OTHER_PAGES = 1_500, 4_000  # Off the topic: those that it links to, and all.
LINKS_INSIDE: Final = 8  # Of each page: within its camp, and to pages off the topic, which link back as often.
LINKS_OUTSIDE: Final = 6
LINKS_OFF: Final = 4  # Of each page off the topic, to others of them.
LINKS_ACROSS: Final = 5  # Of all pages: from one camp to the other.
CAMPS_SEED: Final = 2005

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RecordedTopic:
    """A topic of a recorded graph.

    links     (N, N) [i, j] is 1 where page i links to page j; no self-links
    on_topic  (N,) pages of the topic, S
    part      (N,) pages with a property, whose share in S is wanted
    """

    graph: str
    name: str
    part_name: str
    links: LinkMatrix
    on_topic: Bools
    part: Bools

    @property
    def truth(self) -> float:
        """The share of the topic's pages that are in the part."""
        return float(self.part[self.on_topic].mean())


@dataclass(frozen=True, slots=True)
class Articles:
    """The articles of wikispeedia: their names, links, and categories, like `subject.Science.Biology.Birds`."""

    names: list[str]
    links: LinkMatrix
    categories: list[list[str]]

    def within(self, category: str) -> Bools:
        """Return a mask of the articles of a category or one below it."""
        inside = f"subject.{category}"
        return np.array(
            [any(f"{name}.".startswith(f"{inside}.") for name in names) for names in self.categories], np.bool_
        )


def load_articles(data: Path | None) -> Articles:
    """Load wikispeedia.

    Raises:
        NoGraph: one of its files is missing.
    """

    def rows(file_name: str) -> Iterator[list[str]]:
        for line in lines_of("wikispeedia", file_name, data):
            if line.strip() and not line.startswith("#"):
                yield line.rstrip("\n").split("\t")

    number = {row[0]: at for at, row in enumerate(rows("articles.tsv.gz"))}
    links = distinct_links([(number[a], number[b]) for a, b in rows("links.tsv.gz")], len(number))
    categories: list[list[str]] = [[] for _ in number]
    for title, name in rows("categories.tsv.gz"):
        categories[number[title]].append(name)
    return Articles(list(number), links, categories)


def article_texts(articles: Articles, data: Path | None) -> list[str]:
    """Return the text of each article; "" where there is none.

    Raises:
        NoGraph: the file is missing.
    """
    rows = map(json.loads, lines_of("wikispeedia", "articles_text.jsonl.gz", data))
    text = {row["article"]: row["text"] for row in rows}
    return [text.get(name, "") for name in articles.names]


def _wikispeedia(data: Path | None) -> list[RecordedTopic]:
    articles = load_articles(data)
    science, geography = articles.within("Science"), articles.within("Geography")
    birds, railways = (
        articles.within("Science.Biology.Birds"),
        articles.within("Design_and_Technology.Railway_transport"),
    )
    return [
        RecordedTopic("wikispeedia", "science", "biology", articles.links, science, articles.within("Science.Biology")),
        RecordedTopic("wikispeedia", "geography", "countries", articles.links, geography, articles.within("Countries")),
        RecordedTopic("wikispeedia", "birds and railways", "railways", articles.links, birds | railways, railways),
    ]


def _hollins(data: Path | None) -> list[RecordedTopic]:
    lines = lines_of("hollins", "hollins.dat.gz", data)
    pages = int(next(lines).split()[0])
    paths = [urlsplit(next(lines).split()[1]).path.lower() for _ in range(pages)]
    links = distinct_links(np.array([line.split() for line in lines], np.int64) - 1, pages)

    def below(path: str) -> Bools:
        return np.array([one.startswith(path) for one in paths], np.bool_)

    return [
        RecordedTopic("hollins", "/docs/", "/docs/gvcalendar/", links, below("/docs/"), below("/docs/gvcalendar/")),
        RecordedTopic(
            "hollins", "/faculty/", "/faculty/saloweyca/", links, below("/faculty/"), below("/faculty/saloweyca/")
        ),
    ]


def _sqlite(data: Path | None) -> list[RecordedTopic]:
    rows = [json.loads(line) for line in lines_of("sqlite-docs", "pages.jsonl.gz", data)]
    number = {row["url"]: at for at, row in enumerate(rows)}
    ends = [(at, number[link]) for at, row in enumerate(rows) for link in row["links"] if link in number]
    links = distinct_links(ends, len(rows))

    def saying(word: str) -> Bools:
        return np.array([word in row["text"].lower() for row in rows], np.bool_)

    calls = np.array(["/c3ref/" in row["url"] for row in rows], np.bool_)
    return [
        RecordedTopic("sqlite-docs", "text with 'function'", "/c3ref/", links, saying("function"), calls),
        RecordedTopic(
            "sqlite-docs", "text with 'index'", "text with 'pragma'", links, saying("index"), saying("pragma")
        ),
    ]


def _cornell(data: Path | None) -> list[RecordedTopic]:
    csv.field_size_limit(1 << 24)
    rows = list(csv.DictReader(lines_of("webkb-cornell", "Cornell.csv.gz", data)))
    number = {row["node_id"]: at for at, row in enumerate(rows)}
    ends = [(at, number[str(to)]) for at, row in enumerate(rows) for to in json.loads(row["neighbor_ids"])]
    kind = np.array([row["category"] for row in rows])
    people = np.isin(kind, ("student", "faculty", "staff"))
    return [
        RecordedTopic("webkb-cornell", "people", "faculty", distinct_links(ends, len(rows)), people, kind == "faculty")
    ]


def two_camps() -> list[RecordedTopic]:
    """Make up a topic in two camps that hardly link to each other, but to the same pages off the topic."""
    rng = np.random.default_rng(CAMPS_SEED)
    sizes, pages = CAMP_PAGES, sum(CAMP_PAGES) + OTHER_PAGES
    camp = np.repeat([0, 1, 2], [*sizes, OTHER_PAGES])
    ends = []
    for number, first in enumerate((0, sizes[0])):
        sources = np.repeat(np.flatnonzero(camp == number), LINKS_INSIDE)
        ends.append(np.stack((sources, first + rng.integers(0, sizes[number], len(sources))), axis=1))
    ends.append(
        np.stack((rng.integers(0, sizes[0], LINKS_ACROSS), sizes[0] + rng.integers(0, sizes[1], LINKS_ACROSS)), 1)
    )
    outward = np.repeat(np.arange(sum(sizes)), LINKS_OUTSIDE)
    outside = sum(sizes) + rng.integers(0, NEAR_PAGES, len(outward))
    off = np.repeat(np.arange(sum(sizes), pages), LINKS_OFF)
    ends.append(np.stack((off, rng.integers(sum(sizes), pages, len(off))), axis=1))
    ends += [
        np.stack((outward, outside), axis=1),
        np.stack((rng.permutation(outside), rng.permutation(outward)), axis=1),
    ]
    links = distinct_links(np.concatenate(ends), pages)
    return [RecordedTopic("made up", "two camps", "the smaller camp", links, camp < 2, camp == 1)]


TOPICS_OF: Final[dict[str, Callable[[Path | None], list[RecordedTopic]]]] = {
    "made up": lambda _: two_camps(),
    "wikispeedia": _wikispeedia,
    "hollins": _hollins,
    "sqlite-docs": _sqlite,
    "webkb-cornell": _cornell,
}
