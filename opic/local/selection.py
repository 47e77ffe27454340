"""Which outside pages the estimator fetches next."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph, Float64s
from opic.graph.page_selection import highest, outlink_counts, pf_scores, sc_scores
from opic.local.combination import READ_WEIGHT
from opic.local.crawl_pages import PageNumbers
from opic.local.service_view import ServiceView
from opic.urls.canonical import host_of

SELECTIONS: Final = ("sc", "pf", "outlinks", "random", "combined")
PRIOR_PAGES_MAX: Final = 5_000  # The candidates with the highest scores of which the service is asked.
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


def with_prior(
    scored: Float64s, graph: CrawledGraph, numbers: PageNumbers, service: ServiceView, count: int
) -> tuple[Float64s, Callable[[Sequence[str]], None]]:
    """Multiply the highest scores by what the service says of their pages: whether it read them, or would do so next.

    Its importance of candidates does not count: as a factor it made the estimate worse on recorded graphs, see
    docs/decisions/0021-local-estimator.md.

    Returns:
        The scores, and a function to call with the pages that are fetched: it releases the leases of the others.
    """
    best = highest(scored, PRIOR_PAGES_MAX)
    best = best[scored[best] > -np.inf]
    urls = {numbers.urls[graph.candidates[column]]: int(column) for column in best.tolist()}
    factors = {url: READ_WEIGHT for url, page in service.importances(list(urls)).items() if page.read}
    hosts = list(dict.fromkeys(host_of(url) for url in urls))
    leased = service.suggestions(hosts, count)
    for page in leased:
        factors[page.url] = SUGGESTED * factors.get(page.url, 1.0)
    weighed = scored.copy()
    for url, factor in factors.items():
        if url in urls:
            weighed[urls[url]] *= factor

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
