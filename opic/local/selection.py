"""Which outside pages the estimator fetches next."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from opic.arrays import Float64s
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph
from opic.graph.page_selection import highest, outlink_counts, pf_scores, sc_scores
from opic.local.crawl_pages import PageNumbers
from opic.local.service_view import ServiceView
from opic.urls.canonical import host_of

SELECTIONS: Final = ("sc", "pf", "outlinks", "random", "combined")
ASKED_PAGES_MAX: Final = 5_000  # The candidates with the highest scores; the service suggests pages of their hosts.
SUGGESTED: Final = 2.0  # Factor of the score of a page that the service suggests.


def check_selection(name: str) -> str:
    """Return the name of a selection.

    Raises:
        BadInput: there is none of that name.
    """
    if name not in SELECTIONS:
        raise BadInput(f"--select {name}: there are {', '.join(SELECTIONS)}")
    return name


def scores(name: str, graph: CrawledGraph, ranks: Float64s, seed: Sequence[int]) -> Float64s:
    """Score all candidates of a graph; `combined` begins with the scores of `sc`. `seed` is for `random`."""
    if name == "pf":
        return pf_scores(graph, ranks)
    if name == "outlinks":
        return outlink_counts(graph)
    if name == "random":
        return np.random.default_rng(seed).random(len(graph.candidates))
    return sc_scores(graph, ranks)


def with_suggestions(
    scored: Float64s, graph: CrawledGraph, numbers: PageNumbers, service: ServiceView, count: int
) -> tuple[Float64s, Callable[[Sequence[str]], None]]:
    """Multiply the scores of pages that the service would read next.

    Its importance of candidates does not count, nor whether it has read them: as factors they made the estimate worse
    on recorded graphs, see docs/decisions/0021-local-estimator.md.

    Returns:
        The scores, and a function to call with the pages that are fetched: it releases the leases of the others.
    """
    best = highest(scored, ASKED_PAGES_MAX)
    best = best[scored[best] > -np.inf]
    urls = {numbers.urls[graph.candidates[column]]: int(column) for column in best.tolist()}
    hosts = list(dict.fromkeys(host_of(url) for url in urls))
    leased = service.suggestions(hosts, count)
    weighed = scored.copy()
    for page in leased:
        if page.url in urls:
            weighed[urls[page.url]] *= SUGGESTED

    def release(fetched: Sequence[str]) -> None:
        chosen = set(fetched)
        service.release([page for page in leased if page.url not in chosen])

    return weighed, release


def choose(
    scored: Float64s, graph: CrawledGraph, numbers: PageNumbers, count: int, host_pages_max: int | None
) -> list[int]:
    """Return the columns of the highest scores, at most `host_pages_max` of one host; scores of -inf are left out."""
    chosen: list[int] = []
    of_host: Counter[str] = Counter()
    for column in highest(scored, len(scored)).tolist():
        if len(chosen) == count or scored[column] == -np.inf:
            break
        host = host_of(numbers.urls[graph.candidates[column]])
        if host_pages_max is None or of_host[host] < host_pages_max:
            of_host[host] += 1
            chosen.append(column)
    return chosen
