"""In-flow from kept links: what comes to any set of pages from the pages outside it, by any policy.

A page that was read sends d times its importance along its links, in equal shares; the in-flow of a page is what comes
to it so from pages outside the set. One pass over all links.
"""

from typing import Final

import numpy as np

from opic.query.host_index import Bools, Floats
from opic.query.queries import EXACT, Query
from opic.query.snapshots import Snapshot, View
from opic.replica.crawl import Outdated

STATIC: Final = "static"


def shares_of(query: Query, snapshot: Snapshot, policy: str, window: float | str | None) -> tuple[Floats, float | None]:
    """Return the importance of the pages of a snapshot by position, 0 for those that are gone, and its error bound."""
    policy, span = query.policy_of(policy, window)
    bound: float | None = None
    view: View | None = None
    if policy == EXACT:
        exact = query.exact_view()
        view, bound = exact.beside(snapshot), exact.bound
    elif span is not None:
        view = snapshot.view(policy, span)
    if view is not None:
        return view.estimates, bound
    return np.maximum(snapshot.scores, 0) / snapshot.total, query.error_bound([part.books for part in snapshot.parts])


def received(query: Query, snapshot: Snapshot, inside: Bools, shares: Floats) -> Floats:
    """Return by position what comes to pages from those that are not `inside`.

    Raises:
        Outdated: a replica was loaded anew since the snapshot.
        NotKept: no links are kept.
    """
    query.exact_view()  # So that the graph is that of now.
    assert query.exact is not None
    flows = query.exact.flows
    with flows.kept.lock:
        if flows.kept.loads != snapshot.loads:
            raise Outdated
        graph, numbers = flows.graph, flows.kept.numbers
        of_parts = [numbers.of_first(shard, len(part.state)) for shard, part in enumerate(snapshot.parts)]
        at = np.concatenate(of_parts)
        there = at < len(graph)
        weights = np.zeros(len(graph))
        weights[at[there]] = np.where(inside, 0.0, shares)[there]
        weights[~graph.moves] = 0.0
        came = graph.matrix.spread(flows.damping * weights / np.maximum(graph.live, 1))
        came[graph.gone_at] = 0.0
        found: Floats = np.where(there, came[np.minimum(at, len(graph) - 1)], 0.0)
    return found
