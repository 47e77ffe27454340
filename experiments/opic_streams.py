"""What a service would say that has read a part of a recorded graph, in process.

Without kept links it is real OPIC, on the ledger: a page of the part named P lives at http://P.example/, so that each
part is one registered domain and in-flow is counted between parts. Events are read as a service reads them; the ledger
ends in the same state as a store. With kept links the service's answers are exact but for .01, and here they are: they
are PageRank of the known graph, and what flows along its links between parts.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from experiments.recorded_graphs import LocalDomain, RecordedGraph
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import degrees
from opic.graph.pagerank import DAMPING, pagerank
from opic.local.combination import ServiceKnowledge
from opic.model.cash import Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.model.ledger import Ledger

SEEDS: Final = 5  # Pages that a breadth-first crawl starts from.
READS: Final = 3  # Reads of a page, on average.
BATCH_SHARE: Final = 100  # After the first read, the service reads 1/BATCH_SHARE of its pages at a time.
THRESHOLD: Final = 1e-12
PARTITION: Final = "experiment/0"
Bools = NDArray[np.bool_]


def _random(graph: RecordedGraph, rng: np.random.Generator) -> Int64s:
    return rng.permutation(len(graph))


def _popular_first(graph: RecordedGraph, rng: np.random.Generator) -> Int64s:
    """Pages by in-links, most first; of equal ones at random."""
    return np.lexsort((rng.random(len(graph)), -graph.links.sum(axis=0)))


def _breadth_first(graph: RecordedGraph, rng: np.random.Generator) -> Int64s:
    """From a few random pages; when nothing is left to follow, from another random page."""
    starts = deque(rng.permutation(len(graph)).tolist())
    queue, seen, order = deque[int](), np.zeros(len(graph), np.bool_), list[int]()
    for _ in range(min(SEEDS, len(graph))):
        queue.append(starts.popleft())
    seen[list(queue)] = True
    while queue or starts:
        if not queue:
            start = starts.popleft()
            if seen[start]:
                continue
            seen[start] = True
            queue.append(start)
        order.append(queue.popleft())
        for page in graph.links_of(order[-1]).tolist():
            if not seen[page]:
                seen[page] = True
                queue.append(page)
    return np.array(order, np.int64)


ORDERS: Final[dict[str, Callable[[RecordedGraph, np.random.Generator], Int64s]]] = {
    "random": _random,
    "popular-first": _popular_first,
    "breadth-first": _breadth_first,
}


@dataclass(frozen=True, slots=True)
class RecordedService:
    """The service's state, a row per page of the graph. Amounts are shares of all cash and history.

    importance  (N,) history and cash; NaN for a page that the service does not know
    inflow      (N,) what came by links from other parts of the graph
    read        (N,) whether the service has read the page
    dangling    (N,) whether it has read the page and found no link
    """

    importance: Float64s
    inflow: Float64s
    read: Bools
    dangling: Bools

    def alone(self, domain: LocalDomain) -> Float64s:
        """Return the service's importance of a domain's pages, sum 1; uniform where it knows none of them."""
        known = np.nan_to_num(self.importance[domain.pages])
        return known / known.sum() if known.any() else np.full(len(known), 1 / len(known))

    def knowledge(self, domain: LocalDomain, fetched: Int64s) -> ServiceKnowledge:
        """Return what the service says about a domain and about fetched pages, the domain's first."""
        known = ~np.isnan(self.importance)
        outside = known.copy()
        outside[domain.pages] = False
        unread, dangling = outside & ~self.read, outside & self.dangling
        return ServiceKnowledge(
            inflow=self.inflow[domain.pages],
            importance=self.importance[fetched],
            read=self.read[fetched],
            outside_mass=float(self.importance[outside].sum()),
            unread_mass=float(self.importance[unread].sum()),
            dangling_mass=float(self.importance[dangling].sum()),
            known_pages=int(known.sum()),
        )


def read_by_service(graph: RecordedGraph, pages: Int64s, reads: float = READS) -> RecordedService:
    """Feed the crawl events of some pages to a new ledger: once in that order, then greedily.

    Args:
        graph: the whole graph.
        pages: those that the service reads.
        reads: number of reads for each of them, on average.
    """
    urls = [f"http://part{part}.example/{page}" for page, part in enumerate(graph.group.tolist())]
    page_of = {url: page for page, url in enumerate(urls)}
    events = {
        page: encode_crawl_event(CrawlEvent(urls[page], links=[urls[to] for to in graph.links_of(page).tolist()]))
        for page in pages.tolist()
    }
    ledger, batch = Ledger(), list(events)
    left = round(reads * len(events))
    while left > 0 and batch:
        start = ledger.next_offset(PARTITION)
        ledger.apply(PARTITION, [Record(start + i, 0, events[page]) for i, page in enumerate(batch[:left])])
        left -= len(batch)
        count = max(1, len(events) // BATCH_SHARE)
        batch = nlargest(count, events, key=lambda page: ledger.cash(ledger.pages[urls[page]]))
    return _columns(graph, ledger, page_of)


def known_by_links(graph: RecordedGraph, pages: Int64s) -> RecordedService:
    """Return what a service says that has read some pages and keeps links.

    Args:
        graph: the whole graph.
        pages: those that the service has read.
    """
    read = np.zeros(len(graph), np.bool_)
    read[pages] = True
    shown = (sparse.diags_array(read.astype(np.float64)) @ graph.links).tocsr()
    shown.eliminate_zeros()
    known = np.flatnonzero(read | (np.asarray(shown.sum(axis=0)).ravel() > 0))
    links, part = shown[known][:, known], graph.group[known]
    ranks, out = pagerank(links, threshold=THRESHOLD), degrees(links)
    carried = np.repeat(np.divide(DAMPING * ranks, out, out=np.zeros(len(out)), where=out > 0), np.diff(links.indptr))
    source, target = np.repeat(part, np.diff(links.indptr)), part[links.indices]
    between = (source != target) | (source < 0)
    view = _nothing_known(graph)
    view.importance[known] = ranks
    view.inflow[known] = np.bincount(links.indices[between], carried[between], len(known))
    view.read[:] = read
    view.dangling[known] = read[known] & (out == 0)
    return view


def _nothing_known(graph: RecordedGraph) -> RecordedService:
    no, nowhere = np.zeros(len(graph), np.bool_), np.zeros(len(graph))
    return RecordedService(np.full(len(graph), np.nan), nowhere, no, no.copy())


def _columns(graph: RecordedGraph, ledger: Ledger, page_of: Mapping[str, int]) -> RecordedService:
    view = _nothing_known(graph)
    total = ledger.books.static_total(ledger.rules.minted)
    for url, state in ledger.pages.items():
        page = page_of[url]
        view.importance[page] = (state.spent + ledger.cash(state)) / total
        view.inflow[page] = state.inflow / total
        view.read[page] = state.has(Flag.OPEN)
        view.dangling[page] = state.has(Flag.OPEN) and not state.digest
    return view
