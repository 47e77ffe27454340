"""In-flow from kept links: what comes to any set of pages from the pages outside it, by any policy.

A page that was read sends d times its importance along its links, in equal shares; the in-flow of a page is what comes
to it so from pages outside the set. One pass over all links.
"""

import numpy as np

from opic.arrays import Bools, Float64s
from opic.errors import NotKept
from opic.query.exact import ExactView
from opic.query.kept_links import NOT_KEPT
from opic.query.page_entries import EXACT
from opic.query.page_flows import PageFlows
from opic.query.queries import Query
from opic.query.snapshots import Snapshot
from opic.replica.crawl import Outdated


def shares_and_inflow(
    query: Query, snapshot: Snapshot, inside: Bools, policy: str, window: float | str | None
) -> tuple[Float64s, float | None, Float64s]:
    """Return by position the importance of pages, with its error bound, and what comes to them from outside.

    Settles first, if need be: links and importance are of the same moment, no earlier than the snapshot.

    Args:
        snapshot: the pages.
        inside: (n,) which of them are inside.
        policy: of the importance.
        window: of the policy, or None.

    Raises:
        Outdated: a replica was loaded anew since the snapshot.
        NotKept: no links are kept.
    """
    exact = query.exact
    if exact is None:
        raise NotKept(NOT_KEPT)
    with exact.flows.kept.lock:
        view = exact.settled()
        if view.loads != snapshot.loads:
            raise Outdated
        shares, bound = _shares(query, snapshot, view, policy, window)
        return shares, bound, _received(exact.flows, snapshot, inside, shares)


def _shares(
    query: Query, snapshot: Snapshot, exact: ExactView, policy: str, window: float | str | None
) -> tuple[Float64s, float | None]:
    """Return importance, 0 for pages that are gone, and its error bound."""
    policy, span = query.policy_of(policy, window)
    if policy == EXACT:
        return exact.beside(snapshot).estimates, exact.bound
    if span is not None:
        return snapshot.view(policy, span).estimates, None
    return np.maximum(snapshot.scores, 0) / snapshot.total, query.error_bound([part.books for part in snapshot.parts])


def _received(flows: PageFlows, snapshot: Snapshot, inside: Bools, shares: Float64s) -> Float64s:
    graph, numbers = flows.graph, flows.kept.numbers
    at = np.concatenate([numbers.of_first(shard, len(part.state)) for shard, part in enumerate(snapshot.parts)])
    there = at < len(graph)
    weights = np.zeros(len(graph))
    weights[at[there]] = np.where(inside, 0.0, shares)[there]
    weights[~graph.moves] = 0.0
    came = graph.matrix.spread(flows.damping * weights / np.maximum(graph.live, 1))
    came[graph.gone_at] = 0.0
    found: Float64s = np.append(came, 0.0)[np.minimum(at, len(graph))]
    return found
