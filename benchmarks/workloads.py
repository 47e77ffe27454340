"""Real graphs for the benchmarks: loaded from files, never from the network, and alike on every machine.

Files are looked for in the directory given by `--data DIR` or OPIC_BENCH_DATA (as `DIR/<set>/<file>` or
`DIR/<file>`), then among the copies that the repository ships. A set that is nowhere is skipped, and said so.
"""

import gzip
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opic.urls import canonical_url

IntArray = npt.NDArray[np.int64]

DATA_ENV = "OPIC_BENCH_DATA"
REPOSITORY = Path(__file__).resolve().parents[1]
SHIPPED = (REPOSITORY / "examples" / "data", REPOSITORY / "tests" / "data")
NAMELESS = "http://graph.example/"  # As in `opic replay`: where the pages of a graph without URLs live.
WIKIPEDIA = "https://en.wikipedia.org/wiki/"


class NotHere(Exception):
    """A workload whose files are in none of the places looked at; its text says which."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A crawlable graph: page `i` has the canonical URL `urls[i]` and links to `targets[starts[i]:starts[i + 1]]`.

    Links are distinct and none leads to its own page, so that they are the children that a read pays.
    """

    name: str
    urls: list[str]
    starts: IntArray  # (pages + 1,)
    targets: IntArray  # (links,)

    def __len__(self) -> int:
        """Count the pages."""
        return len(self.urls)

    def links_of(self, page: int) -> IntArray:
        """Return the pages that a page links to."""
        return self.targets[self.starts[page] : self.starts[page + 1]]

    def seed_pages(self, count: int, choice: int) -> list[int]:
        """Pick distinct pages at random; the same graph and choice give the same pages on every machine."""
        return random.Random(f"{self.name}/{choice}").sample(range(len(self)), count)


def build_graph(name: str, urls: Iterable[str], edges: Iterable[tuple[int, int]]) -> Graph:
    """Make a graph of named pages; pages with one canonical URL are one page."""
    page_of: dict[str, int] = {}
    renumbered = [page_of.setdefault(canonical_url(url), len(page_of)) for url in urls]
    ends = np.array([(renumbered[a], renumbered[b]) for a, b in edges], np.int64).reshape(-1, 2)
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    starts = np.searchsorted(ends[:, 0], np.arange(len(page_of) + 1))
    return Graph(name, list(page_of), starts.astype(np.int64), ends[:, 1].copy())


def load(name: str, data_dir: Path | None = None) -> Graph:
    """Load a set by name.

    Raises:
        NotHere: a file of it is in none of the places looked at.
    """
    return LOADERS[name](data_dir)


def _lines(set_name: str, file_name: str, data_dir: Path | None) -> Iterator[str]:
    given = data_dir or (Path(os.environ[DATA_ENV]) if os.environ.get(DATA_ENV) else None)
    roots = [*([given] if given else []), *SHIPPED]
    for path in (path for root in roots for path in (root / set_name / file_name, root / file_name)):
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
                yield from file
            return
    raise NotHere(f"{set_name}: {file_name} is not here; say where with --data DIR or {DATA_ENV}")


def _hollins(data_dir: Path | None) -> Graph:
    """First line `PAGES LINKS 1`, then lines `ID URL`, then lines `FROM TO`; ids from 1."""
    lines = _lines("hollins", "hollins.dat.gz", data_dir)
    pages = int(next(lines).split()[0])
    urls = [next(lines).split()[1] for _ in range(pages)]
    edges = ((int(a) - 1, int(b) - 1) for a, b in map(str.split, lines))
    return build_graph("hollins", urls, edges)


def _wikispeedia(data_dir: Path | None) -> Graph:
    """Two tables with `#` comments: article titles, percent-encoded, and links as pairs of them."""

    def rows(file_name: str) -> Iterator[list[str]]:
        for line in _lines("wikispeedia", file_name, data_dir):
            if line.strip() and not line.startswith("#"):
                yield line.rstrip("\n").split("\t")

    titles = [row[0] for row in rows("articles.tsv.gz")]
    page = {title: i for i, title in enumerate(titles)}
    edges = ((page[a], page[b]) for a, b in rows("links.tsv.gz"))
    return build_graph("wikispeedia", (WIKIPEDIA + title for title in titles), edges)


def _uk_2007(data_dir: Path | None) -> Graph:
    """The line number, from 0, is the page; the line lists its successors. The URLs were not published with it."""
    rows = [line.split() for line in _lines("uk-2007-05-100000", "uk-2007-05@100000.adj.gz", data_dir)]
    edges = ((page, int(target)) for page, row in enumerate(rows) for target in row)
    return build_graph("uk-2007-05-100000", (f"{NAMELESS}{page}" for page in range(len(rows))), edges)


def _california(data_dir: Path | None) -> Graph:
    """Lines `n ID URL`, then `e FROM TO`; ids from 0.

    56 of its 9,664 URLs are pages that another URL names too: a slash, a capital or a fragment is the difference.
    """
    rows = [line.split() for line in _lines("gr0-california", "gr0.California.gz", data_dir)]
    urls = [row[2] for row in rows if row[0] == "n"]
    edges = ((int(row[1]), int(row[2])) for row in rows if row[0] == "e")
    return build_graph("gr0-california", urls, edges)


LOADERS: dict[str, Callable[[Path | None], Graph]] = {
    "hollins": _hollins,
    "wikispeedia": _wikispeedia,
    "uk-2007-05-100000": _uk_2007,
    "gr0-california": _california,
}
