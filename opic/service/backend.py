"""An open store as one object: its log, its queries and its frontier, for the endpoint and for commands."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, Protocol, TypeVar

import msgspec

from opic.admission import Admission
from opic.background import repeated
from opic.errors import BadInput, BadUrl, BeingRestored, DiskFull, StoreError, StoreUnavailable
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.ingest.dead_letters import Letters, StoredLetters
from opic.ingest.event_log import KEY_MEMORY_BYTES, AppendTerms, EventLog, KeyedCall, Log, Positions
from opic.ingest.heartbeats import workers_missing, workers_seen
from opic.ingest.step_counts import events_a_record
from opic.ingest.worker import LogSource, work
from opic.memory import memory_bytes
from opic.model.cash import MILLION
from opic.model.event_checks import check_seeds
from opic.model.events import EventLimits, SeedList, encode_seeds, good_urls
from opic.query.convergence import NOTE_SECONDS, Convergence
from opic.query.coverage import CoverageQuery
from opic.query.exact import Exact
from opic.query.explain import explain
from opic.query.fetch_order import FetchOrder
from opic.query.inlinks import givers
from opic.query.kept_links import KeptLinks
from opic.query.loaded import LOADED
from opic.query.loaded_order import LoadedOrder
from opic.query.page_entries import EXACT
from opic.query.page_flows import PageFlows
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.embedded import disk_full
from opic.service.expiry import Expiry, ExpiryRule
from opic.service.forgetting import PageSelection, forget
from opic.service.known_crawls import KnownCrawls
from opic.service.moves import after_moves
from opic.service.positions import shown_position
from opic.settings import Settings
from opic.store import connect
from opic.store.back_offs import waits_max
from opic.store.durability import Durability
from opic.store.refusals import note_refusals
from opic.store.shard import check_known
from opic.urls.scope import Scope

log = logging.getLogger("opic.service")

ANSWER_SECONDS = 10.0  # A server that stands still for longer is away, for whoever waits for it at the endpoint.
EFFECT_SECONDS = 10.0  # How long a call waits for its own records to take effect.
POLL_SECONDS = 0.005
END_SECONDS = 2.0  # How long the end waits for the thread of the curve, where the store hangs.
ROUGH_SECONDS = 0.5  # Maximum age of the lag that is compared with OPIC_MAX_LAG, with Kafka or far below it.


class Judged(Protocol):
    """The elements of a call after checking; `values` has the valid ones, encoded."""

    values: list[bytes]


J = TypeVar("J", bound=Judged)


class Backend:
    """An open store with its log, its queries and its frontier. It starts nothing by itself."""

    def __init__(self, settings: Settings, url: str, *, create: bool = True) -> None:
        """Open the store at `url`.

        Raises:
            StoreError: it can't be used; see `Shard.open`.
        """
        asking, appending = (connect(url, retries=n, timeout_seconds=ANSWER_SECONDS) for n in (3, 0))
        settings = after_moves(asking, settings)
        self.settings, self.store = settings, url
        self._data = settings.data_dir() if settings.embedded else None
        known = KnownCrawls(settings)
        known.check(asking)
        shards = settings.shards
        durability = Durability(settings.durability, settings.wait_replicas, settings.wait_seconds)
        self.crawl = Crawl.open(
            asking, settings.crawl, settings.rules_given(), create=create, shards=shards, durability=durability,
            yields=settings.yields, keep_links=settings.keep_links,
        )  # fmt: skip
        known.keep(self.crawl.shards[0].secret)
        self.shard = self.crawl.shards[0]  # Beside which the log is.
        keys_max = settings.max_keys_bytes // KEY_MEMORY_BYTES
        self._stored_log = EventLog(appending, self.shard.keys, keys_max, packs_events=len(self.crawl) == 1)
        self.clock = self._stored_log.clock  # By which records are dated and events are judged.
        self._rough_lag = (float("-inf"), 0)
        self.works_here = False  # No worker runs: this process applies the records that it appends.
        self.waits_for = "the store"  # Whose answer `not_ready` waits for, so that silence has a name.
        self.snapshots, self._beside = Snapshots(self.crawl), ExitStack()
        self.links = KeptLinks(self.crawl, settings.max_links_bytes or memory_bytes() // 2 // settings.processes)
        self.flows = PageFlows(self.links, settings.kept_dir())
        self.exact = Exact(self.flows, settings.bound)
        terms = settings.max_url_bytes, settings.policy, settings.window_rounds
        self.query = Query(self.crawl, self.snapshots, *terms, exact=self.exact)
        self.coverage = CoverageQuery(self.flows)
        self.admission = Admission(self.crawl, Scope.of(settings.scope or "", self.crawl.rules.normalization))
        politeness = PolitenessSettings(
            settings.host_delay_seconds, settings.retry_seconds, settings.lease_seconds, settings.host_in_flight,
            settings.revisit_seconds, waits_max(settings.retry_bytes, len(self.crawl)), settings.max_failures,
            settings.politeness_by,
        )  # fmt: skip
        self.worth = FetchOrder(self.flows, settings.seed_share, settings.bound)
        self.by_loaded = LoadedOrder(self.snapshots) if settings.policy == LOADED else None
        self.frontier = Frontier(
            self.crawl, politeness, settings.discovery_weight, strategy=settings.order_by, admission=self.admission,
            share=settings.discovery_share, pending=self._is_pending, coverage=self.coverage, links=self.links,
            worth=(self.by_loaded or self.worth) if settings.by_importance else None,
            domain_bytes=settings.domain_cache_bytes, shares=self.query.shares,
        )  # fmt: skip
        rule = ExpiryRule(settings.expire_below, settings.expire_after_seconds)
        self.expiry = Expiry(self, self.query, rule, politeness.patience)
        self.curve = Convergence(self.crawl, self.query, self.frontier.to_fetch, self.disk_full)

    @property
    def limits(self) -> EventLimits:
        """The limits of events, with the crawl's normalization rules."""
        return self.settings.limits().under(self.crawl.rules)

    @cached_property
    def log(self) -> Log:
        """The log that accepts events. Kafka is connected on first use; queries about pages do not need it."""
        if self.settings.kafka_bootstrap is None:
            return self._stored_log
        from opic.ingest.kafka import KafkaCluster, KafkaLog

        return KafkaLog(KafkaCluster(self.settings), self.crawl, self._stored_log)

    @cached_property
    def letters(self) -> Letters:
        """The dead letters: on their topic with Kafka, else in the store."""
        if self.settings.kafka_bootstrap is None:
            return StoredLetters(self.crawl, self._stored_log)
        from opic.ingest.kafka import KafkaCluster
        from opic.ingest.kafka.dead_letter_topic import TopicLetters

        return TopicLetters(KafkaCluster(self.settings), self.crawl)

    def accept(self, values: Sequence[bytes], kind: str = "event", time_us: int | None = None) -> Positions:
        """Append validated records to the log durably.

        Args:
            values: encoded records.
            kind: one of opic.ingest.event_log.RECORD_KINDS.
            time_us: the records' time; now if None.

        Returns:
            For each partition that got some, the offset after the last one.

        Raises:
            DiskFull: nothing was taken.
            StoreUnavailable: the store is away, or OPIC_MAX_LAG records wait already.
        """
        self.check_room()
        self._check_lag(len(values))
        with self._appending(len(values)):
            return self.log.append(values, self.clock.now_us() if time_us is None else time_us, kind)

    def accept_together(self, calls: Sequence[Sequence[bytes]]) -> list[Exception | Positions]:
        """Append the validated events of several calls to the log durably, with one append, in their order.

        Returns:
            For each call where the append ended; or why nothing of the call was taken: OPIC_MAX_LAG.

        Raises:
            DiskFull: nothing was taken.
            StoreUnavailable: as `accept`.
        """
        self.check_room()
        room = self.settings.max_lag - self._waiting(sum(map(len, calls)))
        values, refused = list[bytes](), list[Exception | None]()
        for call in calls:
            fits = len(call) <= room
            refused.append(None if fits else self._lags(self.settings.max_lag - room))
            if fits:
                values += call
                room -= len(call)
        positions: Positions = {}
        if values:
            with self._appending(len(values)):
                positions = self.log.append(values, self.clock.now_us())
        return [error or positions for error in refused]

    @contextmanager
    def _appending(self, count: int) -> Iterator[None]:
        """Count records that the block appends, and wait at its end until they are durable; Kafka needs no wait."""
        measured_at, waiting = self._rough_lag
        self._rough_lag = measured_at, waiting + count
        waits = self.log is self._stored_log and self.shard.durability.wanted
        run_id = self.shard.run_now() if waits else b""
        yield
        if waits:
            self.shard.barrier(run_id)

    def accept_once(self, call: KeyedCall, judge: Callable[[int, EventLimits], J]) -> tuple[J, Positions]:
        """Append the events of a call to the log once, even if the call is repeated at any endpoint within a day.

        A repeat is checked with the time and limits of the first call, so that it gives the same events and the same
        answer. If the first call was interrupted, only the remaining events are appended.

        Args:
            call: the call.
            judge: checks the call's elements, given a time and limits.

        Raises:
            KeyReused: the key was used with another body.
            StoreUnavailable: as `accept`, or too many keys are remembered.
        """
        while True:
            begun = self.log.begun(call)
            terms = begun.terms if begun else AppendTerms(self.clock.now_us(), self.limits)
            judged = judge(terms.time_us, terms.limits.under(self.crawl.rules))
            left = self.log.left(begun, judged.values) if begun else len(judged.values)
            if left or begun is None:
                self.check_room()
            if left:
                self._check_lag(left)
            with self._appending(left):
                positions = self.log.append_once(call, judged.values, begun, terms)
            if positions is not None:
                return judged, positions

    def note_refusals(self, refused: Mapping[str, str]) -> None:
        """Keep why events of leased pages were refused, by the pages' URLs; only log it if the store is away."""
        if not refused or self.disk_full() is not None:
            return
        try:
            pairs = zip(self.crawl.ids_of(list(refused)), refused.values(), strict=True)
            pages = [
                (self.crawl.shards[shard_page[0]].keys, shard_page[1], why)
                for shard_page, why in pairs
                if shard_page is not None
            ]
            note_refusals(self.crawl.ask, pages)
        except StoreError as error:
            log.info("%d refused events are not explained: %s", len(refused), error)

    def disk_full(self) -> str | None:
        """Return why nothing may be written to an embedded store now, or None."""
        return None if self._data is None else disk_full(self._data)

    def check_room(self) -> None:
        """Raise DiskFull if the disk has no room for a write.

        Raises:
            DiskFull: the message says what to do.
        """
        if (reason := self.disk_full()) is not None:
            raise DiskFull(f"{reason}; writing then resumes automatically")

    def _check_lag(self, more: int) -> None:
        if (waiting := self._waiting(more)) + more > self.settings.max_lag:
            raise self._lags(waiting)

    def _waiting(self, more: int) -> int:
        """Return the lag before `more` records; as it was a moment ago with Kafka, or far below OPIC_MAX_LAG."""
        measured_at, waiting = self._rough_lag
        rough = not isinstance(self.log, EventLog) or 2 * (waiting + more) <= self.settings.max_lag
        return waiting if rough and time.monotonic() - measured_at <= ROUGH_SECONDS else self.lag()

    @staticmethod
    def _lags(waiting: int) -> StoreUnavailable:
        return StoreUnavailable(f"{waiting:,} accepted events wait for the worker, OPIC_MAX_LAG allows no more")

    def seed(self, urls: Sequence[str], depth: int | None = 0, **said: Any) -> dict[str, Any]:
        """Make pages known, through the log like everything that moves cash; wait until this has taken effect.

        Args:
            urls: the pages.
            depth: of each of them, the least seen is kept; None for none.
            said: other fields of `SeedList`, of each of them, in place of what it had; None leaves that as it is.

        Returns:
            "known": how many of the distinct URLs were known already; "new": how many were not; "position": where the
            write ended; "rejected": those that are no URLs of pages, by their index, only if there are any.

        Raises:
            BadUrl: the only URL is invalid.
            BadInput: a field is invalid; nothing was taken.
        """
        good, rejected = good_urls(urls, self.limits)
        if rejected and len(urls) == 1:
            raise BadUrl(str(rejected[0]["error"]))
        distinct = check_seeds(SeedList(good, depth, **said), self.clock.now_us(), self.limits).seeds
        listed = {"rejected": rejected} if rejected else {}
        if not distinct:
            return {"known": 0, "new": 0, **listed}
        known = sum(shard_page is not None for shard_page in self.crawl.ids_of(distinct))
        end = self.accept([encode_seeds(distinct, depth, **said)], "seeds")
        self.settle(end)
        return {"known": known, "new": len(distinct) - known, **listed, "position": shown_position(end)}

    def forget(self, *, expired: bool = False, dry_run: bool = False, **chosen: str | None) -> dict[str, object]:
        """Forget the pages of a selection, or those that the rule would forget; or only count them, in a dry run.

        Raises:
            BadInput: the selection is invalid, or there is no rule.
            StoreUnavailable: see `opic.service.forgetting.forget_pages`.
        """
        if not expired:
            return forget(self, PageSelection.of(chosen, self.limits.normalization), dry_run=dry_run)
        if any(value is not None for value in chosen.values()):
            raise BadInput("expired: the rule says which pages; give no url, prefix, host or domain with it")
        return self.expiry.forget(dry_run=dry_run)

    def settle(self, positions: Positions) -> None:
        """Let all records below the positions take effect: in this process, or by waiting for the worker."""
        if self.works_here:
            self.settle_here(positions)
        else:
            self.await_effect(positions, EFFECT_SECONDS)

    def settle_here(self, positions: Positions) -> None:
        """Apply the records of the store's log below a position in this process, if no service runs."""
        assert isinstance(self.log, EventLog)
        writer = Writer.of(self.crawl, self.settings)
        work(writer, LogSource(self.log, writer.resume, until_offset=positions[self.log.partition]))
        writer.drain()

    def await_effect(self, positions: Positions, seconds: float = EFFECT_SECONDS) -> None:
        """Wait until all records below the positions have taken effect."""
        if not self.takes_effect(positions, seconds):
            raise StoreUnavailable(f"accepted, but it did not take effect within {seconds:.0f} s: the worker lags")

    def show(self, positions: Positions) -> None:
        """Wait until all records below the positions have taken effect in every shard; later answers show that.

        Raises:
            BadInput: they are of another crawl, of a log that a restored backup replaced, or beyond the log's end.
            StoreUnavailable: the worker lags.
        """
        try:
            self._stored_log.check_era(positions)
        except BeingRestored:
            raise BadInput("after: it is of another crawl, or a backup was restored since") from None
        if self._waiting_below(positions):
            ends = self.log.ends(positions)
            if any(ends.get(partition, 0) < end for partition, end in positions.items()):
                raise BadInput("after: beyond the end of this crawl's log; was it answered by another crawl?")
            self.settle(positions)
        _, sent = self.crawl.outboxes()  # What the records moved to pages of other shards is among that.
        if sent and not self.in_time(lambda: sent <= self.crawl.outboxes()[0], EFFECT_SECONDS):
            raise StoreUnavailable(f"transfers between shards wait for {EFFECT_SECONDS:.0f} s: the worker lags")
        self.crawl.show()

    def in_time(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for something; return False if it is not done in time."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _waiting_below(self, positions: Positions) -> dict[str, int]:
        """Return how many offsets below the positions have not taken effect, for each partition that has some."""
        resumes = self.crawl.resumes(positions)
        return {name: end - resumes[name] for name, end in positions.items() if end > resumes[name]}

    def takes_effect(self, positions: Positions, seconds: float) -> bool:
        """Wait until all records below the positions have taken effect; return False if they did not in time."""
        in_time = self.in_time(lambda: not self._waiting_below(positions), seconds)
        self._stored_log.check_era(positions)
        self.crawl.follow()  # Questions may show what was seen a moment ago.
        return in_time

    def explain(self, url: str, policy: str | None, window: float | str | None) -> dict[str, object] | None:
        """Explain a page's score and, under "frontier", whether it is next and why; None for an unknown page.

        Raises:
            BadInput: the URL, the policy or the window is invalid.
        """
        explanation = explain(self.query, url, policy, window)
        standing = None if explanation is None else self.frontier.explain(url, self.settings.max_url_bytes)
        if explanation is None or standing is None:
            return None
        by = givers(self.query, self.links, url, self.flows.damping) if explanation["policy"] == EXACT else None
        given = {} if by is None else {"given_by": by}
        if self.expiry.on:
            given |= {"expiry": self.expiry.of_page(explanation)}
        return {**explanation, **given, "state": standing.state, "frontier": msgspec.to_builtins(standing)}

    def lag(self) -> int:
        """Return how many accepted events have not taken effect yet; see `waiting_events`."""
        lag = self.waiting_events(self.log.ends())
        self._rough_lag = (time.monotonic(), lag)
        return lag

    @property
    def lag_is_exact(self) -> bool:
        """Whether the number of waiting events is exact, not an estimate."""
        return isinstance(self.log, EventLog)

    def waiting_events(self, ends: Positions) -> int:
        """Return how many events below some ends of partitions have not taken effect yet.

        Of the log in the store it is exact. On Kafka, where an offset is of a record, only 0 is: else it is the number
        of records times their mean number of events of late.
        """
        offsets = sum(self._waiting_below(ends).values())
        if not offsets or self.lag_is_exact:
            return offsets
        return round(offsets * (events_a_record(self.shard) or self.log.mean_events))

    def _is_pending(self) -> bool:
        """Return whether accepted records have yet to take effect; also while the log can't be asked."""
        try:
            return self.lag() > 0
        except StoreUnavailable as error:
            log.warning("can't tell whether all accepted events have taken effect: %s", error)
            return True

    def stats(self) -> dict[str, object]:
        check_known(self.crawl.shards)  # What is gone is not 0 pages.
        # The older numbers: where they are 0, the counts hold all that had been accepted, in every shard.
        lag, undelivered = self.lag(), self.crawl.undelivered()
        given_up = sum(len(ids) for _, ids in self.frontier.given_up())
        more: dict[str, object] = {"given_up_pages": given_up, "kept_links": self.links.standing}
        if self.admission.scope:
            more |= {"scope": str(self.admission.scope), "outside_pages": self.frontier.outside()}
        if (loaded := self.snapshots.loaded.about()) is not None:
            more |= {**loaded.told(), "loaded_pages": loaded.given}
        more |= self.expiry.told()
        return {**self.query.stats(), **more, "warnings": self.warnings(), "lag": lag, "undelivered": undelivered}

    def worker_problem(self) -> str | None:
        """Return that no worker is there, and what to do, or None: see `workers_missing`.

        Raises:
            StoreUnavailable: the store or the log can't be asked.
        """
        seen = workers_seen(self.shard.client, self.shard.keys)
        if seen.alive:
            return None
        waiting, applied_us = self.lag(), self.crawl.totals().time_us
        applied_seconds = time.time() - applied_us / MILLION if applied_us else None
        return workers_missing(seen, waiting, applied_seconds, exact=self.lag_is_exact)

    def warnings(self) -> list[str]:
        """Return what an operator should see to, while questions are answered all the same."""
        try:
            return [problem] if (problem := self.worker_problem()) is not None else []
        except StoreError as error:
            return [str(error)]

    def not_ready(self) -> str | None:
        """Return why no request should come here now, or None."""
        if (reason := self.disk_full()) is not None:
            return reason
        try:
            self.waits_for = "the store" if self.settings.kafka_bootstrap is None else "Kafka"
            self.log.ends()
            self.waits_for = "the store"
            check_known(self.crawl.shards)
        except StoreError as error:
            return str(error)
        return None

    def start(self) -> None:
        """Start what runs in the background until `close`: the curve, following the journals, exact importance."""
        curve = repeated(self.curve.step, NOTE_SECONDS, "opic-curve", END_SECONDS)
        self._beside.enter_context(curve)
        # Where another policy is the default, links are read when the first question needs them.
        self.exact.start(self.worth, always=self.settings.policy in (None, "exact"))
        self.crawl.keep_following()
        if self.by_loaded is not None:
            self._beside.enter_context(repeated(self.by_loaded.step, 0.0, "opic-loaded"))
        if self.expiry.on:
            self._beside.enter_context(repeated(self.expiry.step, self.expiry.rule.pass_seconds, "opic-expiry"))

    def rest(self) -> None:
        """Stop what runs in the background; questions are answered all the same."""
        background = self.expiry.stop, self._beside.close, self.exact.close, self.crawl.close
        for close in background:
            close()

    def close(self) -> None:
        self.rest()
        for close in (self.shard.client.close, self._stored_log.close):
            close()
        if "log" in vars(self):  # Was asked for.
            self.log.close()
