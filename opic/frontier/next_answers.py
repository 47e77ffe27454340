"""Answers to requests for pages: the leased pages, or what holds pages back and when to ask again."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from opic.frontier.choices import Choices
from opic.frontier.crawl_orders import CrawlOrders
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.page_counts import FOR_GOOD, WORDS
from opic.frontier.request_parts import Leased
from opic.frontier.requests import PagesRequest
from opic.model.cash import MILLION
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Head

RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 60.0
RETRY_SECONDS_RATIONED: Final = 0.5  # Minimum if there are free pages but their hosts or sites are over their share.
RETRY_SECONDS_PENDING: Final = 0.25  # If seeds or events were accepted that may bring pages in a moment.
RETRY_SECONDS_DEFAULT: Final = 5.0  # If no time is known, and the maximum while leases run: each may bring new cash.
NOTHING_WAITS: Final[dict[str, object]] = {"exhausted": False, "waiting": dict.fromkeys(WORDS, 0)}


# Returns the default policy, and the importance of pages by it; None where history and cash tell it.
Shares = Callable[[Sequence[Place]], tuple[str, Sequence[float | None]]]


def static_shares(places: Sequence[Place]) -> tuple[str, Sequence[float | None]]:
    """Leave the importance of pages to their history and cash."""
    return "static", [None] * len(places)


class NextAnswers:
    """Makes the answers of a scheduler. Not thread-safe."""

    def __init__(
        self,
        crawl: Crawl,
        hot: HotCrawl,
        choices: Choices,
        orders: CrawlOrders,
        pending: Callable[[], bool],
        *,
        shares: Shares,
    ) -> None:
        """See `opic.frontier.Frontier`."""
        self._crawl, self._hot, self._choices, self._orders, self._pending = crawl, hot, choices, orders, pending
        self._shares = shares

    def held(self, request: PagesRequest, *, empty: bool) -> dict[str, object]:
        """Return `waiting` and `exhausted`, as an answer to the request would have them."""
        return self._waiting(request.mode, request.domains, request.nearness, empty)[1]

    def empty(self) -> dict[str, object]:
        """Return the answer to a crawler that has disconnected."""
        return {**self._pages([], []), **NOTHING_WAITS, "policy": self._shares([])[0]}

    def of(
        self, requests: Sequence[PagesRequest], granted: Sequence[Sequence[Leased]], *, rationed: bool
    ) -> list[dict[str, object]]:
        """Return the answers to requests.

        Args:
            requests: the requests.
            granted: the pages leased for each.
            rationed: whether pages were skipped because of the quota of their host or site.
        """
        policy, shares = self._shares([page.place for leased in granted for page in leased])
        left = iter(shares)
        found: dict[tuple[str, tuple[str, ...], int, bool], dict[str, object]] = {}
        at_rest, answers = dict[tuple[str, tuple[str, ...], int, bool], bool](), []
        for request, leased in zip(requests, granted, strict=True):
            scope = request.mode, request.domains, request.nearness, not leased
            if scope not in found:
                at_rest[scope], found[scope] = self._waiting(*scope)
            pages = self._pages(leased, [next(left) for _ in leased])
            answers.append({**pages, **found[scope], "policy": policy})
            if self._orders.has_importance and request.mode != "coverage" and request.policy is None:
                answers[-1]["order"] = "cash" if self._choices.ranking(request.mode, None) is None else "exact"
            if not leased:
                seconds = self._retry_after(request, rationed=rationed)
                # What a crawler has just reported may bring pages.
                answers[-1]["retry_after"] = seconds if at_rest[scope] else min(seconds, RETRY_SECONDS_PENDING)
        return answers

    def _pages(self, leased: Sequence[Leased], shares: Sequence[float | None]) -> dict[str, object]:
        return {
            "pages": [
                {
                    "url": page.name or page.url,
                    "cash": page.cash,
                    "importance": page.importance if share is None else share,
                    "fetched_before": page.read_before,
                    "lease": page.lease.token(self._crawl),
                    "lease_until": page.until_us / MILLION,
                    **page.notes(),
                }
                for page, share in sorted(
                    zip(leased, shares, strict=True), key=lambda told: (-told[0].key, told[0].place)
                )
            ],
            "retry_after": 0,
        }

    def _waiting(
        self, mode: str, domains: tuple[str, ...], nearness: int, empty: bool
    ) -> tuple[bool, dict[str, object]]:
        """Return `waiting` and `exhausted` of answers to requests of one scope that got no page, or some.

        Before them: whether nothing new is under way; for those that got a page, False.
        """
        heads = self._crawl.heads()
        waiting = self._choices.waiting(mode, domains, nearness, empty=empty)
        if waiting is None:
            return False, NOTHING_WAITS
        over = empty and not any(count for kind, count in waiting.items() if kind not in FOR_GOOD)
        over = over and not self._hot.turning
        over = over and (
            mode != "coverage" or self._choices.trust.heads == heads
        )  # Newer records may have brought pages.
        at_rest = empty and self._is_at_rest(heads)
        return at_rest, {"exhausted": over and at_rest, "waiting": waiting}

    def _is_at_rest(self, heads: Sequence[Head]) -> bool:
        """Return whether nothing that was accepted has yet to take effect, and the replicas show all of it."""
        if self._pending() or self._crawl.undelivered():
            return False
        self._crawl.follow()
        return self._crawl.heads() == list(heads)

    def _retry_after(self, request: PagesRequest, *, rationed: bool) -> float:
        """Return the number of seconds until the first of the requested pages may be free."""
        first = self._choices.first_free(request.choice(request.mode), RETRY_SECONDS_MAX)
        if first is None:
            return RETRY_SECONDS_DEFAULT
        if rationed:
            first = max(first, RETRY_SECONDS_RATIONED)
        # A recrawl policy offers also pages without cash, of which `first` says nothing.
        most = RETRY_SECONDS_DEFAULT if request.policy or self._hot.running() else RETRY_SECONDS_MAX
        return math.ceil(min(max(first, RETRY_SECONDS_MIN), most) * 1000) / 1000
