"""Orders of suggestions under the conditions of a service: batches, leases, host delays, revisit times.

Several crawlers ask for pages in turn. The service's hot order chooses them, in virtual time; see
`experiments.polite_crawl`. Orders are compared after the same number of reads, and by the time that these took.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from experiments.opic_engine import READ, PageLinks, fixed_point
from experiments.opic_reads import SEEDS, found_from_seeds, part_of, tau_told_apart
from experiments.polite_crawl import GRANTS, ORDERS, CrawlTerms, PoliteCrawl
from experiments.recorded_graphs import RecordedGraph
from experiments.skeleton import KEY, OPIC_PAPER, Axes, Experiment, Run, keys
from opic.arrays import Float64s, Int64s

GRAPHS: Final = ("hollins", "wikispeedia", "gr0-california", "uk-2007-05-100000")
ALL_KNOWN: Final = ("gr0-california",)  # Few of its pages can be reached from five.
PAGES_MAX: Final = 10_000  # Of a larger graph the first pages, which are whole sites.
HOST_DELAY_SECONDS: Final = 1.0
REVISIT_SHARE: Final = 0.25
CRAWLERS: Final = 8
WITHOUT_DELAYS: Final = (10, 100)  # Pages a call.
WITH_DELAYS: Final = {  # On few hosts no answer has more than a few pages.
    "hollins": (10,),
    "wikispeedia": (1, 10, 100),
    "gr0-california": (10, 100),
    "uk-2007-05-100000": (10,),
}
QUICK: Final = ((10, False),)
CRAWL_SEED: Final = 3
AT: Final = (0.5, 1.0, 2.0, 5.0)  # Reads for each page.


@dataclass(frozen=True, slots=True)
class CrawledPart:
    """A graph to crawl: its links, the host number of each page, the seeds, and the PageRank of all its pages."""

    name: str
    links: PageLinks
    host: Int64s
    seeds: Int64s
    truth: Float64s

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return int(self.host.max()) + 1

    @classmethod
    def of(cls, graph: RecordedGraph, rng: np.random.Generator) -> "CrawledPart":
        """Take the pages that are crawled."""
        links, host = PageLinks.of(graph.links), _hosts(graph)
        if len(graph) > PAGES_MAX:
            first = np.flatnonzero(host < host[PAGES_MAX])
            links, host = part_of(links, first), host[first]
        if graph.name in ALL_KNOWN:
            found = seeds = np.arange(len(host))
        else:
            found, seeds = found_from_seeds(links, rng), np.arange(SEEDS)
            links = part_of(links, found)
        host = np.unique(host[found], return_inverse=True)[1]
        return cls(graph.name, links, host, seeds, fixed_point(links, GRANTS))


def _hosts(graph: RecordedGraph) -> Int64s:
    """Return the host number of each page; where the URLs were not published, its part of the graph."""
    if not graph.urls:
        return graph.group - min(int(graph.group.min()), 0)
    return np.unique([urlsplit(url).netloc.lower() for url in graph.urls], return_inverse=True)[1]


def rows_of(run: Run) -> Iterator[list[object]]:
    """Crawl each graph in each order under all conditions."""
    crawls: list[tuple[str, Future[list[list[object]]]]] = []
    with ProcessPoolExecutor() as processes:
        for graph in run.graphs(run.either(GRAPHS, GRAPHS[:1])):
            part, delayed = CrawledPart.of(graph, run.rng(1)), WITH_DELAYS[graph.name]
            terms = [*((n, True) for n in delayed), *((n, False) for n in WITHOUT_DELAYS)]
            for n, delays in run.either(terms, list(QUICK)):
                at, compiled, seed = run.either(AT, AT[:2]), not run.quick, CRAWL_SEED + run.number
                for order in ORDERS:
                    future = processes.submit(_crawl, part, order, n, delays, at, compiled, seed)
                    crawls.append((f"{graph.name}: {order}", future))
        for _, crawl in run.steps(crawls, lambda job: job[0]):
            for row in crawl.result():
                name, _, waits, asked, by, reads, l1, *_ = row
                title = f"{name}: {asked} pages a call" + (", delays" if waits else "")
                run.draw(title, str(by), [(float(str(reads)), float(str(l1)))])
                yield row


def _crawl(  # noqa: PLR0917 - what one crawl is made of
    part: CrawledPart, order: str, n: int, delays: bool, at: Sequence[float], compiled: bool, seed: int
) -> list[list[object]]:
    """Return a row for each number of reads."""
    pages = len(part.truth)
    terms = CrawlTerms(n, CRAWLERS)
    if delays:
        crawlers = min(CRAWLERS, part.hosts // 2)
        revisit = REVISIT_SHARE * pages * terms.fetch_seconds / crawlers
        terms = CrawlTerms(n, crawlers, host_delay_seconds=HOST_DELAY_SECONDS, revisit_seconds=revisit)
    crawl = PoliteCrawl(part.links, part.host, ORDERS[order], terms, compiled=compiled, seed=seed)
    crawl.know(part.seeds)
    rows: list[list[object]] = []
    for reads in at:
        crawl.run(round(reads * pages))
        estimate, read = crawl.engine.estimate(), crawl.engine.columns.state == READ
        figures = (
            float(np.abs(estimate - part.truth).sum()),
            tau_told_apart(estimate, part.truth),
            float(read.mean()),
            float(part.truth[read].sum()),
            crawl.now / 3600,
            crawl.short / crawl.answers,
            crawl.empty / crawl.answers,
        )
        rows.append([part.name, pages, delays, n, order, reads, *figures])
    return rows


SERVICE_ORDER: Final = Experiment(
    "service-order",
    "orders of suggestions with batches, leases and host delays",
    OPIC_PAPER,
    {
        "graph": KEY,
        "pages": None,
        **keys("delays", "n", "order", "reads"),
        **dict.fromkeys(("l1", "tau", "read", "importance_read", "hours", "short", "empty"), 4),
    },
    rows_of,
    notes=(
        f"{CRAWLERS} crawlers (with delays at most one for two hosts) ask for n pages each, fetch them one after the "
        "other in 1 s on average, and report each; leases of 300 s. The service's hot order chooses, in virtual time; "
        "cash moves as in the service, by grants.",
        f"delays: {HOST_DELAY_SECONDS:g} s between two suggestions of a host, and no page again within the time in "
        f"which the crawlers can read {REVISIT_SHARE:.0%} of all pages. Without delays there is neither.",
        f"california with all pages known; the others from {SEEDS} seeds, N being the pages that can be reached. Hosts "
        "are those of the URLs; of wikispeedia the topics; of uk-2007 ranges of pages that few links cross, of which "
        f"the first ones are crawled, with {PAGES_MAX:,} pages before N is counted.",
        "cash: greedy, as the service's default: a batch ends at half of its best page's cash while the pages asked "
        "for and leased are over a tenth of the known ones; not cut: it never does. cycle: pages never read in order "
        "of discovery, then those read longest ago. cash per link: cash divided by one more than the links at the "
        "last read.",
        "reads in N. l1 and tau (over the pages whose PageRank differs): against the PageRank of all N pages. read: "
        "share of the pages that were read; importance_read: their PageRank. hours: time of the crawl. short, empty: "
        "share of the answers for which fewer than n pages, or none, were free.",
        "The paper gives no figures.",
    ),
    axes=Axes("reads, in N", "L1 error"),
)
