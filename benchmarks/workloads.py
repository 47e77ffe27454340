"""Real graphs and made-up crawls for the benchmarks: never from the network, and alike on every machine.

`Crawl` makes events without end, for questions of speed and memory. Graphs are for questions of quality. Their files
are looked for in the directory given by `--data DIR` or OPIC_BENCH_DATA (as `DIR/<set>/<file>` or `DIR/<file>`), then
among the copies that the repository ships. A set that is nowhere is skipped, and said so.
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.recorded_graphs import lines_of
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.urls.canonical import canonical_url

IntArray = npt.NDArray[np.int64]

DATA_ENV = "OPIC_BENCH_DATA"
REPOSITORY = Path(__file__).resolve().parents[1]
NAMELESS = "http://graph.example/"  # As in `opic replay`: where the pages of a graph without URLs live.
WIKIPEDIA = "https://en.wikipedia.org/wiki/"


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
        NoGraph: a file of it is in none of the places searched.
    """
    return LOADERS[name](data_dir)


def _lines(set_name: str, file_name: str, data_dir: Path | None) -> Iterator[str]:
    given = data_dir or (Path(os.environ[DATA_ENV]) if os.environ.get(DATA_ENV) else None)
    return lines_of(set_name, file_name, given)


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


# Crawls that are made up, for speed and memory: as large as wanted, with the shape that costs depend on.

SEED = 20030524
LINKS = 40
WITHIN_HOST = 0.7  # 28 of 40 links stay within the host.
PAGES_A_HOST = 200
NEW_HOST = 0.1  # Of the new pages on other hosts, so many are the first of theirs.
TRIES = 400  # Draws for an event's distinct links; a host with few pages has no more of them.
FETCHED_AT = 1_750_000_000.0
WORDS = [
    "garden", "history", "market", "winter", "music", "science", "travel", "kitchen", "river", "stone",
    "paper", "letter", "office", "school", "summer", "bridge", "camera", "coffee", "doctor", "engine",
    "forest", "guitar", "harbor", "island", "jacket", "ladder", "mirror", "museum", "number", "orange",
    "pencil", "planet",
]  # fmt: skip
SECTIONS = ("news", "articles", "wiki", "blog", "shop", "products", "archive", "2024/05")
DOMAINS = ("com", "org", "co.uk", "de", "net", "fr", "com.br", "info")


def page_url(host: int, page: int) -> str:
    """Return a canonical URL of about 50 bytes."""
    words = f"{WORDS[page * 7 % 32]}-{WORDS[(page + host) % 32]}"
    return (
        f"https://{'www.' if host % 2 else ''}{WORDS[host % 32]}{host}.{DOMAINS[host % 8]}"
        f"/{SECTIONS[(host + page) % 8]}/{words}-{page}.html"
    )


class Known:
    """Known pages as pairs of host and page, in the order in which they were found; the first ones take no memory."""

    def __init__(self, pages: int, hosts: int) -> None:
        """Start with so many pages, spread evenly: the first hosts have one more where they don't divide."""
        self._first, (self._size, self._larger) = pages, divmod(pages, hosts)
        self._found: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Count the pages."""
        return self._first + len(self._found)

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Return host and page by number."""
        if number >= self._first:
            return self._found[number - self._first]
        in_larger = self._larger * (self._size + 1)
        if number < in_larger:
            return divmod(number, self._size + 1)
        host, page = divmod(number - in_larger, self._size)
        return self._larger + host, page

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield host and page of each."""
        return (self[number] for number in range(len(self)))

    def append(self, page: tuple[int, int]) -> None:
        """Add a page that was found."""
        self._found.append(page)


class Crawl:
    """Hosts with pages, known from the start or found on the way, and the events of who reads them.

    Targets are drawn as powers of a uniform number, which has the long tail of Zipf's law: of 1,000 hosts the first
    gets a tenth of the links from outside, and so does the first page in 1,000 of a host from its own pages.
    """

    def __init__(self, pages: int, pages_a_host: int = PAGES_A_HOST) -> None:
        """Start with so many known pages on hosts of equal size."""
        self.random = random.Random(f"{SEED}/{pages}/{pages_a_host}").random
        hosts = max(1, pages // pages_a_host)
        self.sizes = [pages // hosts + (host < pages % hosts) for host in range(hosts)]
        self.known = Known(pages, hosts)
        self.pages_at_first = pages

    def urls(self) -> list[str]:
        """Return the known pages in the order in which they were found."""
        return list(self.each_url())

    def each_url(self) -> Iterator[str]:
        """Yield them, for crawls whose list would be large."""
        return (page_url(host, page) for host, page in self.known)

    def events(self, count: int, new_share: float, links: int = LINKS) -> list[bytes]:
        """Return encoded events that read pages picked from all known ones, with equal chances."""
        return [self.event(int(len(self.known) * self.random()), new_share, links) for _ in range(count)]

    def event(self, reads: int, new_share: float, links: int = LINKS) -> bytes:
        """Return the encoded event that reads a known page.

        Args:
            reads: the number of the page, in the order in which pages were found.
            new_share: of the links, so many lead to pages never seen before.
            links: distinct, in all.
        """
        draw, home = self.random, self.known[reads]
        chosen: dict[tuple[int, int], None] = {}
        for tries in range(TRIES):
            within = draw() < WITHIN_HOST and tries < TRIES // 2
            host = home[0] if within else int(len(self.sizes) * draw() ** 3)
            if draw() < new_share:
                if not within and draw() < NEW_HOST:
                    host = len(self.sizes)
                    self.sizes.append(0)
                found = (host, self.sizes[host])
                self.sizes[host] += 1
                self.known.append(found)
                chosen[found] = None
            else:
                found = (host, int(self.sizes[host] * draw() ** 3))
                if found != home:
                    chosen[found] = None
            if len(chosen) == links:
                break
        return encode_crawl_event(
            CrawlEvent(page_url(*home), [page_url(*page) for page in chosen], fetched_at=FETCHED_AT)
        )
