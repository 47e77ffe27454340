"""Recorded link graphs, and the parts of them that stand for local domains.

The files are looked for in the directory given by `--data`, as DIR/<graph>/<file> or DIR/<file>, then among the copies
that the repository ships.
"""

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s
from opic.errors import BadInput
from opic.graph.crawled import LinkMatrix, degrees, link_matrix

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SHIPPED: Final = (REPOSITORY / "examples" / "data", REPOSITORY / "tests" / "data")
BLOCK_SPAN: Final = 2_000  # Links longer than this, in page numbers, don't count as links within a site.
BLOCK_PAGES_MIN: Final = 300
BLOCK_PAGES_MAX: Final = 1_500

LoadedT = TypeVar("LoadedT")


class NoGraph(BadInput):
    """A recorded graph whose files are in none of the places searched."""


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A graph with a partition of its pages.

    links       (N, N) [i, j] is 1 where page i links to page j; no self-links
    group       (N,) the part that each page is in, a number; -1 for none
    names       name of each part
    urls        (N,) of the pages; empty where they were not published
    """

    name: str
    links: LinkMatrix
    group: NDArray[np.int64]
    names: Sequence[str]
    urls: Sequence[str] = ()

    def __len__(self) -> int:
        """Count the pages."""
        return int(self.links.shape[0])

    def links_of(self, page: int) -> Int64s:
        """Return the pages that a page links to; much faster than a row of the matrix."""
        first, end = self.links.indptr[page : page + 2]
        targets: Int64s = self.links.indices[first:end]
        return targets

    def domains(self, pages_min: int, count: int | None = None) -> list["LocalDomain"]:
        """Return the largest parts, largest first, that have at least `pages_min` pages and a link to another part."""
        sizes = np.bincount(self.group[self.group >= 0], minlength=len(self.names))
        found = []
        for number in np.argsort(-sizes, kind="stable").tolist():
            pages = np.flatnonzero(self.group == number)
            if sizes[number] >= pages_min and (self.group[self.links[pages].indices] != number).any():
                found.append(LocalDomain(self.names[number], pages))
        return found[:count]


@dataclass(frozen=True, slots=True)
class LocalDomain:
    """A part of a graph: the pages that are crawled first."""

    name: str
    pages: Int64s


def load_graph(name: str, data: Path | None = None) -> RecordedGraph:
    """Load a recorded graph.

    Raises:
        NoGraph: one of its files is missing.
    """
    return GRAPHS[name](data)


def available(loaders: Mapping[str, Callable[[], LoadedT]], missing: list[str]) -> dict[str, LoadedT]:
    """Load what is here, by name; add a sentence to `missing` for each graph that is not.

    Raises:
        NoGraph: none of them is here.
    """
    loaded: dict[str, LoadedT] = {}
    for name, load in loaders.items():
        try:
            loaded[name] = load()
        except NoGraph as error:
            missing.append(str(error))
    if not loaded:
        raise NoGraph("; ".join(missing))
    return loaded


def lines_of(graph: str, file_name: str, data: Path | None) -> Iterator[str]:
    """Yield the lines of a gzip file of a recorded graph.

    Raises:
        NoGraph: the file is missing.
    """
    roots = [*([data] if data else []), *SHIPPED]
    for path in (path for root in roots for path in (root / graph / file_name, root / file_name)):
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
                yield from file
            return
    raise NoGraph(f"{graph}: {file_name} is missing; name the directory that has it with --data DIR")


def distinct_links(ends: Sequence[Sequence[int]] | Int64s, pages: int) -> LinkMatrix:
    """Return links given as pairs, without repeats and self-links."""
    distinct = np.unique(np.asarray(ends, np.int64).reshape(-1, 2), axis=0)
    distinct = distinct[distinct[:, 0] != distinct[:, 1]]
    return link_matrix(distinct[:, 0], distinct[:, 1], (pages, pages))


def _grouped(keys: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Number distinct keys; "" is no group."""
    number: dict[str, int] = {}
    group = [number.setdefault(key, len(number)) if key else -1 for key in keys]
    return np.array(group, np.int64), list(number)


def _hollins(data: Path | None) -> RecordedGraph:
    """First line `PAGES LINKS 1`, then lines `ID URL`, then lines `FROM TO`; ids from 1. Parts are path prefixes."""
    lines = lines_of("hollins", "hollins.dat.gz", data)
    pages = int(next(lines).split()[0])
    urls = [next(lines).split()[1] for _ in range(pages)]
    links = distinct_links(np.array([line.split() for line in lines], np.int64) - 1, pages)
    return RecordedGraph("hollins", links, *_grouped([_prefix(url) for url in urls]), urls)


def _prefix(url: str) -> str:
    """Return host and first directory of a URL, without regard to capitals; "" where there is no directory."""
    parts = urlsplit(url)
    directories = parts.path.split("/")[1:-1]
    return f"{parts.netloc}/{directories[0]}".lower() if directories else ""


def _california(data: Path | None) -> RecordedGraph:
    """Lines `n ID URL`, then `e FROM TO`; ids from 0. Parts are hosts."""
    rows = [line.split() for line in lines_of("gr0-california", "gr0.California.gz", data)]
    urls = [row[2] for row in rows if row[0] == "n"]
    links = distinct_links([(int(row[1]), int(row[2])) for row in rows if row[0] == "e"], len(urls))
    return RecordedGraph("gr0-california", links, *_grouped([urlsplit(url).netloc.lower() for url in urls]), urls)


def _wikispeedia(data: Path | None) -> RecordedGraph:
    """Tables with `#` comments. Parts are top categories; an article of several is in the first that the file has."""

    def rows(file_name: str) -> Iterator[list[str]]:
        for line in lines_of("wikispeedia", file_name, data):
            if line.strip() and not line.startswith("#"):
                yield line.rstrip("\n").split("\t")

    page = {row[0]: i for i, row in enumerate(rows("articles.tsv.gz"))}
    links = distinct_links([(page[a], page[b]) for a, b in rows("links.tsv.gz")], len(page))
    category: dict[str, str] = {}
    for title, name in rows("categories.tsv.gz"):
        category.setdefault(title, name.split(".")[1])
    return RecordedGraph("wikispeedia", links, *_grouped([category.get(title, "") for title in page]))


def _uk_2007(data: Path | None) -> RecordedGraph:
    """The line number, from 0, is the page; the line lists its successors.

    The URLs were not published, but the pages are in their order, so a site is a range of pages. Ranges are cut where
    the fewest short links cross.
    """
    rows = [line.split() for line in lines_of("uk-2007-05-100000", "uk-2007-05@100000.adj.gz", data)]
    sources = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    targets = np.array([target for row in rows for target in row], np.int64)
    links = distinct_links(np.stack((sources, targets), axis=1), len(rows))
    cuts = _cuts(links)
    group = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    ends = [0, *cuts.tolist(), len(rows)]
    return RecordedGraph("uk-2007-05-100000", links, group, [f"{a}-{b - 1}" for a, b in pairwise(ends)])


def _cuts(links: LinkMatrix) -> Int64s:
    """Return the first pages of all ranges but the first, each of BLOCK_PAGES_MIN to BLOCK_PAGES_MAX pages."""
    pages = links.shape[0]
    sources = np.repeat(np.arange(pages), degrees(links).astype(np.int64))
    low, high = np.minimum(sources, links.indices), np.maximum(sources, links.indices)
    short = high - low <= BLOCK_SPAN
    crossing = np.cumsum(
        np.bincount(low[short] + 1, minlength=pages + 1) - np.bincount(high[short] + 1, minlength=pages + 1)
    )
    cuts, start = [], 0
    while pages - start > BLOCK_PAGES_MAX:
        window = crossing[start + BLOCK_PAGES_MIN : start + BLOCK_PAGES_MAX]
        start += BLOCK_PAGES_MIN + int(np.argmin(window))
        cuts.append(start)
    return np.array(cuts, np.int64)


GRAPHS: Final[dict[str, Callable[[Path | None], RecordedGraph]]] = {
    "hollins": _hollins,
    "gr0-california": _california,
    "uk-2007-05-100000": _uk_2007,
    "wikispeedia": _wikispeedia,
}
