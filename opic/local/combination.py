"""The combined estimate: the links of the pages that we fetched, and what the service has seen of the rest of the web.

The global PageRank of the fetched pages F solves the open system of `opic.graph.open_system`, given the rank that
enters F from all other pages. The service has measured that rank for the part of the web that it has read.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Float64s
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph
from opic.graph.open_system import Outside, open_system_ranks
from opic.graph.pagerank import DAMPING

PAPER: Final = "paper"
COMBINED: Final = "combined"
# How these constants were chosen: docs/decisions/0021-local-estimator.md.
# The share of the local pages that the service does not know says as much about its coverage as this many pages that
# are known to link to the domain.
KNOWN_SHARE_PAGES: Final = 3
# Part of the in-flow from unread pages that is distributed by the links within the crawl, not by the observed in-flow.
# Who gets links from unread pages is then not decided by the few observed links alone.
SMOOTHED_SHARE: Final = 0.2
# Limit of the scale for pages that the service knows but has not read. Beyond it, most of them are pages that nobody
# will read, such as those of sites that can't be reached, and they link to nothing.
UNREAD_SCALE_MAX: Final = 2.5
# Once the crawl has this share of all known pages, its own PageRank is nearer than what the service says of the rest.
CRAWLED_SHARE_MAX: Final = 0.95
# If the service has read this share of the fetched pages, the pages that it has not read are assumed not to link to
# them: no in-flow is added for unread pages, and their rank is spread evenly over all pages, as the service does.
AROUND_READ_MIN: Final = 0.97


@dataclass(frozen=True, slots=True)
class ServiceKnowledge:
    """What the service says about the fetched pages and about the rest of the web; all but `read` are shares of all
    cash and history. Fetched pages are in the order of `CrawledGraph.fetched`: first the local ones.

    inflow          (n,) per local page, from pages outside the domain; 0 for a page that the service does not know
    importance      (l,) of each fetched page; NaN for a page that the service does not know
    read            (l,) whether the service has read the page, so that its links are in the in-flow
    outside_mass    of all pages outside the domain
    unread_mass     of those among them that the service has not read
    dangling_mass   of those among them that it has read and that have no links
    known_pages     number of pages that the service knows, the domain's included
    """

    inflow: Float64s
    importance: Float64s
    read: NDArray[np.bool_]
    outside_mass: float
    unread_mass: float
    dangling_mass: float
    known_pages: int


@dataclass(frozen=True, slots=True)
class LocalEstimate:
    """The estimated global PageRank of the local pages. Attributes:

    importance  (n,) sum 1
    method      "combined", or "paper" where the service is away or the crawl has nearly all known pages
    coverage    share of the mass outside the domain that is on pages that the service has read; 0 without the service
    """

    importance: Float64s
    method: str
    coverage: float


def combined_estimate(
    graph: CrawledGraph, ranks: Float64s, service: ServiceKnowledge | None, damping: float = DAMPING
) -> LocalEstimate:
    """Estimate the global PageRank of the local pages.

    Args:
        graph: the local and fetched pages with all their links.
        ranks: (l,) PageRank of the crawled graph, the paper's estimate.
        service: what the service says; None where it is away.
        damping: the share of a page's rank that follows its links.

    Raises:
        BadInput: the service's numbers are not about the pages of the graph.
        NotConverged: the open system did not settle.
    """
    local = ranks[: graph.local]
    if service is None or not service.known_pages:
        return LocalEstimate(local / local.sum(), PAPER, 0.0)
    numbers = (len(service.inflow), len(service.importance), len(service.read))
    if numbers != (graph.local, len(ranks), len(ranks)):
        raise BadInput(f"the service's arrays have {numbers} entries, not {(graph.local, len(ranks), len(ranks))}")
    seen = service.outside_mass - service.unread_mass
    coverage = seen / service.outside_mass if service.outside_mass else 1.0
    outside = outside_of(graph, service, damping)
    if len(ranks) >= CRAWLED_SHARE_MAX * outside.pages:
        return LocalEstimate(local / local.sum(), PAPER, coverage)
    estimate = open_system_ranks(graph, outside, damping)[: graph.local]
    return LocalEstimate(estimate / estimate.sum(), COMBINED, coverage)


def outside_of(graph: CrawledGraph, service: ServiceKnowledge, damping: float = DAMPING) -> Outside:
    """Return what flows into the fetched pages from pages that are neither fetched nor local.

    The service counts in its in-flow what pages pay that we have fetched as well; as we know their links, that part is
    taken out. The rest is scaled up for pages that nobody has read, which are assumed to link like those that were
    read, unless the service has read nearly all fetched pages (AROUND_READ_MIN); and for pages that the service does
    not know: see `_unknown_scale`.
    """
    local, out = graph.local, graph.out_degrees
    importance, unread_here = np.nan_to_num(service.importance), ~service.read
    idle_here = service.read & (out == 0)
    paid = np.divide(damping * importance, out, out=np.zeros(len(out)), where=service.read & (out > 0))
    ours = np.concatenate((np.zeros(local), paid[local:]))
    # What the service gave to every page: of the random jump, and of pages whose links it does not know.
    lost = (
        service.unread_mass + service.dangling_mass + float(importance[:local][(unread_here | idle_here)[:local]].sum())
    )
    jump = ((1 - damping) + damping * lost) / service.known_pages
    mass = max(service.outside_mass - float(importance[local:].sum()), 0.0)
    unread = min(max(service.unread_mass - float(importance[local:][unread_here[local:]].sum()), 0.0), mass)
    idle = max(service.dangling_mass - float(importance[local:][idle_here[local:]].sum()), 0.0)
    elsewhere = unread if service.read.mean() >= AROUND_READ_MIN else 0.0
    around = unread - elsewhere
    scale = min(mass / (mass - around), UNREAD_SCALE_MAX) if around < mass else 1.0
    scale *= _unknown_scale(graph, service)
    inflow = np.zeros(len(out))
    inflow[:local] = service.inflow - (graph.inside.T @ ours)[:local]
    known = ~np.isnan(service.importance[local:])
    inflow[local:][known] = (importance - graph.inside.T @ paid)[local:][known] - jump
    pages = max(service.known_pages + int(np.isnan(service.importance).sum()), len(out))
    scaled = scale * np.maximum(inflow, 0.0)
    scaled[:local] = _smoothed(scaled[:local], scale, graph)
    return Outside(scaled, min(scale * idle + elsewhere, mass), pages)


def _unknown_scale(graph: CrawledGraph, service: ServiceKnowledge) -> float:
    """Return by how much the in-flow grows for pages that the service does not know.

    The domain was crawled without the service, so the share of its pages that the service knows estimates the share of
    the web that it knows. The more fetched pages link to the domain, the less this counts: the pages that link to such
    a domain are easy to find, and the service has most of them.
    """
    local = graph.local
    known = int((~np.isnan(service.importance[:local])).sum())
    linking = np.count_nonzero(graph.inside[local:, :local].sum(axis=1))
    return float(((local + 1) / (known + 1)) ** (KNOWN_SHARE_PAGES / (KNOWN_SHARE_PAGES + linking)))


def _smoothed(scaled: Float64s, scale: float, graph: CrawledGraph) -> Float64s:
    """Distribute SMOOTHED_SHARE of the in-flow that comes by scaling in proportion to links within the crawl."""
    links = graph.inside[:, : graph.local].sum(axis=0)
    if not links.any():
        return scaled
    added = (1 - 1 / scale) * SMOOTHED_SHARE
    smoothed: Float64s = (1 - added) * scaled + added * scaled.sum() * links / links.sum()
    return smoothed
