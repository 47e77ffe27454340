"""Forgets by a rule the pages that nobody reads: OPIC_EXPIRE_BELOW and OPIC_EXPIRE_AFTER_SECONDS, off by default.

It takes pages that are `unread`, are known for that long, and whose importance, a share of all, is below that share,
the least important first (`opic.model.expiry`). Not seeds (pages of depth 0) and trusted pages, nor pages that are
leased, excluded or given up. They are forgotten through the log, as by a call (`opic.service.forgetting`), but by
records of their own kind: whoever applies one leaves out the pages that were read, seeded or trusted since.

An endpoint does it in a thread, one endpoint at a time: a key of the store names it until the next pass may begin. If
it dies in a pass, the key expires and another goes on; the pages that it had chosen are chosen again, or not any more.
"""

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Int64s
from opic.errors import BadInput, StoreError
from opic.frontier.held_pages import leased_pages
from opic.ingest.step_counts import EXPIRED_AT, EXPIRY_COUNTS, PARTS_OF_IMPORTANCE
from opic.model.cash import MILLION
from opic.model.expiry import distance_max, expired
from opic.model.host_failures import Patience
from opic.query.exact_view import ExactView
from opic.query.page_flows import SAYS_SOMETHING
from opic.query.queries import Query
from opic.replica import Crawl
from opic.service.forgetting import CALL_SECONDS_MAX, Feed, count_pages, forget_pages, still_known
from opic.store.connection import store_errors

log = logging.getLogger("opic.service")

PASS_SECONDS_MAX: Final = 60.0  # From one pass to the next; of a short OPIC_EXPIRE_AFTER_SECONDS a hundredth,
PASS_SECONDS_MIN: Final = 1.0  # but no less than this.
PASS_SHARE: Final = 0.1  # Of all pages, that one pass takes at most: after it, importance is another one.
PASS_PAGES_MIN: Final = 4_000  # It may take this many of a small crawl.
CLAIM_SECONDS: Final = CALL_SECONDS_MAX + 20.0  # A pass has ended by then; another endpoint may begin one.
OFF: Final = "no rule forgets pages here: set OPIC_EXPIRE_BELOW, the share of all importance below which it does"


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """When pages never read are forgotten."""

    below: float  # Their share of all importance; 0: never.
    after_seconds: float  # Since they became known.

    @property
    def pass_seconds(self) -> float:
        return min(max(self.after_seconds / 100, PASS_SECONDS_MIN), PASS_SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class DuePages:
    """The pages that a pass takes."""

    ids: list[Int64s]  # By shard, the least important first.
    importance: float  # Of all of them.
    distance: float | None  # A bound on how far this moves PageRank, in L1; None where importance is none.


class Expiry:
    """The rule on one crawl, and the thread's part in it."""

    def __init__(self, store: Feed, query: Query, rule: ExpiryRule, patience: Patience) -> None:
        """Do nothing yet.

        Args:
            store: the open store.
            query: tells importance, by the default policy.
            rule: which pages are forgotten.
            patience: when pages and hosts are given up.
        """
        self.rule = rule
        self._store, self._query, self._patience = store, query, patience
        self._name, self._stopped = secrets.token_hex(8), False

    @property
    def on(self) -> bool:
        """Whether the rule forgets pages at all."""
        return self.rule.below > 0

    # What is due.

    def due(self) -> DuePages:
        """Return the pages that a pass would take now.

        Raises:
            BadInput: the rule is off.
            StoreUnavailable: the store is unavailable, or importance is not known yet.
        """
        if not self.on:
            raise BadInput(OFF)
        return self._store.crawl.steadily(self._due)

    def _due(self) -> DuePages:
        crawl = self._store.crawl
        pages, importance = self._query.estimates()
        exact = pages if isinstance(pages, ExactView) else None
        if exact is not None and exact.bound >= SAYS_SOMETHING:  # As after a start, until links are followed.
            return DuePages([np.zeros(0, np.int64) for _ in crawl.shards], 0.0, None)
        cut = time.time() - self.rule.after_seconds
        terms = zip(crawl.known_since(), leased_pages(crawl), strict=True)
        may_expire = np.zeros(len(pages), np.bool_)
        for shard, (since, leased) in enumerate(terms):
            first, count = int(pages.starts[shard]), int(pages.starts[shard + 1] - pages.starts[shard])
            with crawl.replicas[shard].reading():  # Of one moment: a page that comes back in between is young.
                ids = since.before(cut, count)
                ids = ids[~np.isin(ids, leased)]
                may_expire[first + ids[self._may_expire(crawl, shard, ids)]] = True
        most = max(round(PASS_SHARE * len(pages)), PASS_PAGES_MIN)
        taken = expired(importance, may_expire, self.rule.below, most)
        total, distance = float(importance[taken].sum()), None
        if exact is not None:
            weighted = any(any(replica.books.extra) for replica in crawl.replicas)
            jump = 0.0 if weighted else min(exact.jump * len(taken), total)
            distance = distance_max(total, jump, 1 - crawl.rules.q / MILLION)
        shards = np.searchsorted(pages.starts, taken, side="right") - 1
        return DuePages(
            [taken[shards == shard] - int(pages.starts[shard]) for shard in range(len(crawl))], total, distance
        )

    def _may_expire(self, crawl: Crawl, shard: int, ids: Int64s) -> Bools:
        """Return a mask of the pages that are unread and neither seeds nor trusted."""
        with crawl.replicas[shard].reading() as replica:
            may_expire = replica.may_expire(ids)
            given_up = replica.given_up(ids, self._patience)
        return may_expire if given_up is None else may_expire & ~given_up

    def _still_due(self, crawl: Crawl, shard: int, ids: Int64s) -> Int64s:
        """Return those pages of a portion that nobody has leased, read or forgotten since they were chosen."""
        ids = ids[:0] if self._stopped else still_known(crawl, shard, ids)
        ids = ids[~np.isin(ids, leased_pages(crawl)[shard])]
        return ids[self._may_expire(crawl, shard, ids)]

    def told(self) -> dict[str, object]:
        """Return what `opic stats` tells of the rule, and of all passes in this store; nothing where it is off."""
        if not self.on:
            return {}
        pages, parts, passes, last_pass_at = self._counts()
        return {"expiry": {
            "below": self.rule.below, "after_seconds": self.rule.after_seconds, "expired_pages": pages,
            "expired_importance": parts / PARTS_OF_IMPORTANCE, "passes": passes, "last_pass_at": last_pass_at or None,
        }}  # fmt: skip

    def _counts(self) -> list[int]:
        with store_errors():
            counts = self._store.crawl.client.hmget(self._store.shard.keys.metrics, *EXPIRY_COUNTS, EXPIRED_AT)
        return [int(count or 0) for count in counts]

    def of_page(self, explanation: Mapping[str, Any]) -> dict[str, object]:
        """Return what `explain` tells of the rule, given the rest of what it tells of a page."""
        return {"below": self.rule.below, "at": self.expires_at(explanation["url"], explanation["importance"])}

    def expires_at(self, url: str, importance: float) -> float | None:
        """Return from when on the rule may forget a page, in Unix seconds; None while it does not take it.

        A lease does not count, for it ends.
        """
        crawl = self._store.crawl

        def ask() -> float | None:
            (page,) = crawl.find([url])
            if page is None or not self._may_expire(crawl, page[0], np.array([page[1]]))[0]:
                return None
            return float(crawl.known_since()[page[0]].seconds_of([page[1]])[0]) + self.rule.after_seconds

        return crawl.steadily(ask) if self.on and importance < self.rule.below else None

    # Forgetting.

    def forget(self, *, dry_run: bool = False) -> dict[str, object]:
        """Forget what is due now, or count it in a dry run; see `opic.service.forgetting.forget_pages`.

        Raises:
            BadInput: the rule is off.
        """
        answer, due = self._forget(dry_run=dry_run)
        return {**answer, "importance": due.importance}

    def _forget(self, *, dry_run: bool = False) -> tuple[dict[str, object], DuePages]:
        due = DuePages([], 0.0, None)

        def find(_: Crawl) -> list[Int64s]:
            nonlocal due
            due = self.due()
            return due.ids

        if dry_run:
            return count_pages(self._store, find), due
        return forget_pages(self._store, find, kind="expire", fit=self._still_due), due

    def stop(self) -> None:
        """Begin no further portion."""
        self._stopped = True

    def step(self) -> float:
        """Forget what is due, if no other endpoint has begun a pass lately; return the seconds until the next look."""
        wait = self.rule.pass_seconds
        try:
            if self._claim():
                self._pass()
                self._keep_claim(wait)
        except StoreError as error:
            log.info("forgetting by the rule waits: %s", error)
        return wait

    def _claim(self) -> bool:
        with store_errors():
            keys, client = self._store.shard.keys, self._store.crawl.client
            return bool(client.set(keys.expiring, self._name, nx=True, px=round(CLAIM_SECONDS * 1000)))

    def _keep_claim(self, seconds: float) -> None:
        """Keep other endpoints from a pass for so long, unless the claim has expired and is another's."""
        with store_errors():
            keys, client = self._store.shard.keys, self._store.crawl.client
            if client.get(keys.expiring) == self._name.encode():
                client.set(keys.expiring, self._name, xx=True, px=round(seconds * 1000))

    def _pass(self) -> None:
        began = time.monotonic()
        answer, due = self._forget()
        count, chosen = int(str(answer["forgotten"])), sum(map(len, due.ids))
        importance = due.importance * count / chosen if chosen else 0.0
        self._note(count, importance)
        if count:
            moved = "" if due.distance is None else f", which moves PageRank by {due.distance:.2g} at most"
            log.info(
                "forgot %s pages by the rule in %.1f s: never read, %.3g of all importance together%s",
                f"{count:,}", time.monotonic() - began, importance, moved,
            )  # fmt: skip

    def _note(self, count: int, importance: float) -> None:
        with store_errors():
            key = self._store.shard.keys.metrics
            counts = zip(EXPIRY_COUNTS, (count, round(importance * PARTS_OF_IMPORTANCE), 1), strict=True)
            self._store.crawl.ask(
                [*(["HINCRBY", key, *counted] for counted in counts), ["HSET", key, EXPIRED_AT, round(time.time())]]
            )
