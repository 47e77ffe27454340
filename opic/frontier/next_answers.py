"""Answers to requests for pages: the leased pages, or what holds pages back and when to ask again."""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from opic.frontier.choices import Choices
from opic.frontier.crawl_orders import CrawlOrders
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.page_counts import FOR_GOOD, WORDS
from opic.frontier.request_parts import Leased
from opic.frontier.requests import PagesRequest
from opic.messages.frontier import HeldBack, NextPages
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Head

RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 60.0
RETRY_SECONDS_RATIONED: Final = 0.5  # Minimum if there are free pages but their hosts or sites are over their share.
RETRY_SECONDS_PENDING: Final = 0.25  # If seeds or events were accepted that may bring pages in a moment.
RETRY_SECONDS_DEFAULT: Final = 5.0  # If no time is known, and the maximum while leases run: each may bring new cash.
NOTHING_WAITS: Final = HeldBack(**dict.fromkeys(WORDS, 0))
Scope = tuple[str, tuple[str, ...], int, bool]  # Mode, domains and nearness of a request; whether it got no page.


class Shortage(NamedTuple):
    """What holds back the pages of requests of one scope."""

    waiting: HeldBack
    exhausted: bool
    at_rest: bool  # Whether no page is under way; unknown for requests that got one.


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
        self._crawl, self._hot, self._choices, self._orders, self._pending = crawl, hot, choices, orders, pending
        self._shares = shares

    def empty(self, as_of: float) -> NextPages:
        """Return the answer to a crawler that has disconnected."""
        policy, _ = self._shares([])
        return NextPages(pages=[], retry_after=0, exhausted=False, waiting=NOTHING_WAITS, policy=policy, as_of=as_of)

    def answers_to(
        self, requests: Sequence[PagesRequest], granted: Sequence[Sequence[Leased]], as_of: float, *, rationed: bool
    ) -> list[NextPages]:
        """Return the answers to requests.

        Args:
            requests: the requests.
            granted: the pages leased for each.
            as_of: of the state that they were chosen from, Unix seconds.
            rationed: whether pages were skipped because of the quota of their host or site.
        """
        policy, shares = self._shares([page.lease.shard_page for leased in granted for page in leased])
        left, shortages, answers = iter(shares), dict[Scope, Shortage](), list[NextPages]()
        for request, leased in zip(requests, granted, strict=True):
            scope = request.mode, request.domains, request.nearness, not leased
            if scope not in shortages:
                shortages[scope] = self.shortage(*scope)
            waiting, exhausted, at_rest = shortages[scope]
            ranks = [(-page.key, page.lease.shard_page) for page in leased]
            pages = (granted_page.page for granted_page in leased)
            told = sorted(zip(ranks, pages, left, strict=False))  # No two have the same rank.
            answers.append(
                NextPages(
                    pages=[page if share is None else replace(page, importance=share) for _, page, share in told],
                    retry_after=0 if leased else self._retry_after(request, rationed=rationed, at_rest=at_rest),
                    exhausted=exhausted,
                    waiting=waiting,
                    policy=policy,
                    order=self._order_of(request),
                    as_of=as_of,
                )
            )
        return answers

    def _order_of(self, request: PagesRequest) -> str | None:
        """Return what the pages of a request come by, where that may be importance."""
        if not self._orders.has_importance or request.mode == "coverage" or request.policy is not None:
            return None
        return "cash" if self._choices.ranking(request.mode) is None else "exact"

    def shortage(self, mode: str, domains: tuple[str, ...], nearness: int, empty: bool) -> Shortage:
        """Return what holds pages back, as answers to requests of a scope have it."""
        heads = self._crawl.heads() if empty else []
        waiting = self._choices.waiting(mode, domains, nearness, empty=empty)
        if not empty:
            return Shortage(HeldBack(**waiting), exhausted=False, at_rest=False)
        over = not any(count for kind, count in waiting.items() if kind not in FOR_GOOD) and not self._hot.turning
        over = over and (mode != "coverage" or self._choices.trust.heads == heads)  # Newer ones may have brought pages.
        at_rest = self._is_at_rest(heads)
        return Shortage(HeldBack(**waiting), over and at_rest, at_rest)

    def _is_at_rest(self, heads: Sequence[Head]) -> bool:
        """Return whether nothing that was accepted has yet to take effect, and the replicas show all of it."""
        if self._pending() or self._crawl.undelivered():
            return False
        self._crawl.follow()
        return self._crawl.heads() == list(heads)

    def _retry_after(self, request: PagesRequest, *, rationed: bool, at_rest: bool) -> float:
        """Return the number of seconds until the first of the requested pages may be free."""
        # What a crawler has just reported may bring pages.
        most = RETRY_SECONDS_MAX if at_rest else RETRY_SECONDS_PENDING
        first = self._choices.first_free(request.choice(request.mode), RETRY_SECONDS_MAX)
        if first is None:
            return min(RETRY_SECONDS_DEFAULT, most)
        if rationed:
            first = max(first, RETRY_SECONDS_RATIONED)
        # A policy offers also pages without cash: see `first`.
        if request.policy or self._hot.leases():
            most = min(RETRY_SECONDS_DEFAULT, most)
        return math.ceil(min(max(first, RETRY_SECONDS_MIN), most) * 1000) / 1000
