"""The orders of a crawl's pages beside that by cash, as requests need them: by trust, by importance, by links."""

from collections.abc import Sequence
from dataclasses import dataclass

from opic.arrays import Float64s, Int64s
from opic.errors import NotKept, NoTrust
from opic.frontier.expansion import InLinkColumns
from opic.frontier.ranked_order import RankedOrder
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS, PagesRequest
from opic.query.coverage import CoverageQuery
from opic.query.fetch_order import FetchOrder, FetchView
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import LinkScores
from opic.replica import Crawl
from opic.replica.effect import Head


@dataclass(frozen=True, slots=True)
class Orders:
    """What some requests are answered by."""

    importance: RankedOrder | None  # None: pages come by cash.
    trust: RankedOrder | None = None  # These are None where no request needs them.
    scores: LinkScores | None = None
    inlinks: InLinkColumns | None = None


class CrawlOrders:
    """The orders of a moment ago; the same ones until what they come from changes. For any thread."""

    def __init__(
        self, crawl: Crawl, coverage: CoverageQuery | None, worth: FetchOrder | None, links: KeptLinks | None
    ) -> None:
        """Compute nothing before the first call; the parameters are those of `opic.frontier.Frontier`."""
        self._crawl, self._coverage, self._worth, self._links = crawl, coverage, worth, links
        self._inlinks = None if links is None else InLinkColumns(links)
        self._trust: tuple[list[Head], list[int], RankedOrder] | None = None
        self._importance: tuple[FetchView, list[int], RankedOrder] | None = None
        if worth is not None:
            worth.listeners.append(self._heard)

    def of(self, requests: Sequence[PagesRequest]) -> Orders:
        """Return what requests are answered by, computed before others have to wait.

        Raises:
            NoTrust: no page is trusted, and all requests have mode coverage.
            NotKept: a policy needs links, and none are kept.
            StoreUnavailable: the store is unavailable.
        """
        policies = {request.policy for request in requests}
        return Orders(
            self.by_importance(),
            self._by_trust(requests) if any(request.mode == "coverage" for request in requests) else None,
            self._link_scores() if BY_LINK_SCORE in policies else None,
            self._in_links() if not policies.isdisjoint(EXPANSIONS) else None,
        )

    def _link_scores(self) -> LinkScores:
        if self._links is None:
            raise NotKept("this frontier has no link scores")
        return self._links.scores()

    def _in_links(self) -> InLinkColumns:
        if self._inlinks is None:
            raise NotKept("this frontier has no in-links")
        self._inlinks.renew()
        return self._inlinks

    def _by_trust(self, requests: Sequence[PagesRequest]) -> RankedOrder:
        if self._coverage is None:
            raise NoTrust("this frontier has no coverage")
        try:
            view = self._coverage.recent()
        except (NoTrust, NotKept):
            if all(request.mode == "coverage" for request in requests):
                raise
            return RankedOrder.empty(len(self._crawl))
        last, changes = self._trust, self._changes()
        if last is None or last[0] is not view.heads or last[1] != changes:  # Made anew with each computation.
            last = self._trust = view.heads, changes, RankedOrder.by_trust(view, self._priority)
        return last[2]

    @property
    def has_importance(self) -> bool:
        """Whether pages come by importance, as soon as that is known."""
        return self._worth is not None and self._worth.kept

    def by_importance(self) -> RankedOrder | None:
        """Return the order by importance; None if it is not known, and pages come by cash."""
        view = None if self._worth is None else self._worth.recent()
        if view is None:
            return None
        last = self._importance
        if last is None or last[0] is not view or last[1] != self._changes():
            last = self._heard(view)
        return last[2]

    def _heard(self, view: FetchView) -> tuple[FetchView, list[int], RankedOrder]:
        """Make a new order before it is used, so that no call waits for that."""
        made = self._importance = view, self._changes(), RankedOrder.by_importance(view, self._priority)
        return made

    def _priority(self, shard: int, ids: Int64s) -> Float64s | None:
        replica = self._crawl.replicas[shard]
        with replica.lock:
            return replica.offers.priority(ids)

    def _changes(self) -> list[int]:
        """Return how often priorities have changed, by shard; on a large crawl the next view has the new ones."""
        if self._crawl.is_large:
            return []
        return [replica.offers.priorities for replica in self._crawl.replicas]
