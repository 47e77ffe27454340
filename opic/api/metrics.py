"""Prometheus metrics of the endpoint (`GET /metrics`).

Nearly all metrics come from the store, so that all endpoints report the same values and a restart loses nothing. The
exceptions, which each process counts itself, are the times of HTTP requests, the pages handed out, the coverage last
asked for, the lag of its replicas, and its resource use. No label contains a URL or a host: label values are few and
known in advance. docs/operations.md lists all metrics.

The store, Kafka and the columns are read in background threads: a backend that hangs delays a scrape by some seconds,
and all other metrics are still reported.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from opic import __version__
from opic.api.own_metrics import of_crawls, of_tokens, own
from opic.api.scrape_cache import Beside
from opic.api.server_metrics import of_servers, server_infos
from opic.api.shared_metrics import ProcessPlace, SharedMetrics, count_in_files
from opic.errors import StoreError, StoreLost, StoreUnavailable
from opic.frontier.requests import EXPANSIONS, MODES, RECRAWLS
from opic.ingest.event_log import KEY_MEMORY_BYTES, Positions
from opic.ingest.step_counts import PARTS_OF_IMPORTANCE, Tallied
from opic.ingest.throttle import ABOUT
from opic.messages.frontier import NextPages
from opic.model.books import Books
from opic.model.cash import MILLION, ROUND_BITS
from opic.model.events import Outcome
from opic.query.convergence import NOTHING_SAID
from opic.query.page_queries import BOUNDED
from opic.replica.stored_links import LIST_FIELDS, LinkList
from opic.service.backend import Backend
from opic.service.open_crawls import OpenCrawls
from opic.service.tokens import Tokens
from opic.settings import Settings
from opic.store.shard import check_known

TEXT: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"
STORE_SECONDS: Final = 5.0  # Timeout after which the store counts as down; Prometheus itself waits for 10 s.
KAFKA_SECONDS: Final = 2.0
FIRST_SECONDS: Final = 1.0  # How long the first scrape waits for the first audit, and for the first census.
AUDIT_SECONDS: Final = 60.0  # Minimum time between two audits: an audit reads whole columns, 16 bytes per page.
CENSUS_SECONDS: Final = 10.0  # Minimum time between two censuses.
SHARE_MAX: Final = 0.05  # Maximum share of the time for audits, and the same for censuses.
REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
POLICIES_OF: Final = {"refresh": RECRAWLS, "discover": EXPANSIONS}  # By mode.
ASKED: Final = [(mode, policy) for mode in MODES for policy in ("", *POLICIES_OF.get(mode, ()))]
ORDERS: Final = ("exact", "loaded", "cash")
ITEM_STATUSES: Final = ("ok", "skipped", "fail")
METHODS: Final = ("GET", "POST", "PUT")  # HEAD counts as GET. A route matches before its methods are checked.
OUTCOMES: Final = {
    Outcome.READ: "reads",
    Outcome.FAILED: "failures",
    Outcome.GONE: "departures",
    Outcome.EXCLUDED: "exclusions",
    Outcome.DEAD: "dead_letters",
}

# By class and kind; groups of hosts, pages that they hold back; the age of what was counted, in seconds.
Census = tuple[Mapping[tuple[str, str], int], tuple[int, int], float]


class Metrics:
    """The metrics of one endpoint process."""

    _crawls: OpenCrawls | None = None

    def __init__(
        self, backend: Backend, tokens: Tokens | None = None, process_place: ProcessPlace | None = None
    ) -> None:
        """Register the metrics. This does not query the store.

        Args:
            backend: the open store.
            tokens: of the endpoint, which have metrics too.
            process_place: of this process among those that share a port; None if it is alone.
        """
        self._registry, self._place = CollectorRegistry(), process_place
        # None: they are read from files, with those of the other processes.
        counts = None if process_place else self._registry
        if process_place is not None:
            count_in_files(process_place)
        self._requests = Histogram(
            "opic_http_request_duration_seconds",
            "Duration of HTTP requests, by method, route and status class.",
            ("method", "route", "status"),
            buckets=REQUEST_SECONDS,
            registry=counts,
        )
        self._counted: dict[tuple[str, str, int], Histogram] = {}  # By method, route and first digit of the status.
        about = "Pages handed out to crawlers by this endpoint, by the mode and the policy asked for."
        pages = Counter("opic_suggestions", about, ("mode", "policy"), registry=counts)
        about = "Calls of POST /v1/next, by mode and policy, and by whether they returned any pages."
        calls = Counter("opic_suggestion_calls", about, ("answer", "mode", "policy"), registry=counts)
        self._suggestions = {asked: pages.labels(*asked) for asked in ASKED}
        self._calls = {
            (some, *asked): calls.labels("pages" if some else "none", *asked)
            for some in (True, False)
            for asked in ASKED
        }
        about = (
            "Calls of POST /v1/next where links are kept, by what pages came by: exact or loaded importance, or cash."
        )
        orders = Counter("opic_suggestion_orders", about, ("order",), registry=counts)
        self._orders = {order: orders.labels(order) for order in ORDERS}
        about = "Items that URLFrontier's clients put, by what they were answered."
        self._items = Counter("opic_urlfrontier_items", about, ("status",), registry=counts)
        for status in ITEM_STATUSES:
            self._items.labels(status)
        self._process, self._tokens = ProcessCollector(registry=counts), tokens
        self._collector = _Collector(backend, alone=process_place is None)
        self._registry.register(self._collector)
        self._shared = None if process_place is None else SharedMetrics(process_place, self._own)
        self._registry.register(Told(lambda: of_tokens(tokens)) if self._shared is None else self._shared)

    def _own(self) -> Iterator[Metric]:
        parts = self._process.collect(), of_tokens(self._tokens), own(self._collector.backend), self._of_crawls()
        return chain(*parts)

    def _of_crawls(self) -> Iterator[Metric]:
        return iter(()) if self._crawls is None else of_crawls(self._crawls)

    def show_crawls(self, crawls: OpenCrawls) -> None:
        """Show the crawls of the endpoint too, from now on."""
        self._crawls = crawls
        if self._place is None:
            self._registry.register(Told(self._of_crawls))

    def told(self) -> AbstractContextManager[None]:
        """Tell the other processes of the port during the block what this one has of its own."""
        return nullcontext() if self._shared is None else self._shared.told()

    def show(self, backend: Backend) -> None:
        """Show the metrics of another store or crawl from now on; the counts of this process go on."""
        self._registry.unregister(self._collector)
        self._collector = _Collector(backend, alone=self._place is None)
        self._registry.register(self._collector)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request. Unknown paths and methods get no label of their own."""
        asked = method if method in METHODS else "other", path, status // 100
        if (counted := self._counted.get(asked)) is None:
            counted = self._counted[asked] = self._requests.labels(*asked[:2], f"{asked[2]}xx" if status else "aborted")
        counted.observe(seconds)

    def handed(self, answer: NextPages, mode: str, policy: str | None) -> None:
        """Count the pages handed out to a crawler that asked for a mode and a policy, both valid."""
        asked, pages = (mode, policy or ""), len(answer.pages)
        self._suggestions[asked].inc(pages)
        self._calls[pages > 0, *asked].inc()
        if answer.order is not None:
            self._orders[answer.order].inc()

    def item_answered(self, status: str) -> None:
        """Count an item of one of URLFrontier's clients, by one of ITEM_STATUSES."""
        self._items.labels(status).inc()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that the header `Accept` requests, and their content type."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind


class Told(Collector):
    """A Prometheus collector of what a function tells at each scrape."""

    def __init__(self, tell: Callable[[], Iterator[Metric]]) -> None:
        self._tell = tell

    def collect(self) -> Iterator[Metric]:
        return self._tell()


class _Collector(Collector):
    """A Prometheus collector for the metrics of the store, Kafka, the snapshots and the books."""

    def __init__(self, backend: Backend, *, alone: bool) -> None:
        self.backend, self._alone = backend, alone
        self._kafka = Beside("opic-kafka-look", self._ends)
        self._missing = Beside("opic-kafka-missing", self._missing_events, CENSUS_SECONDS, SHARE_MAX)
        self._store = Beside("opic-store-look", self._look)
        self._lost = Beside("opic-store-lost", self._is_lost, KAFKA_SECONDS)
        self._census = Beside("opic-census", self._take_census, CENSUS_SECONDS, SHARE_MAX)
        self._audit = Beside("opic-audit", self._is_conserved, AUDIT_SECONDS, SHARE_MAX)
        self._shown = 0, 0  # Clock and rounds of the last answer.

    def _rounds(self, books: Books) -> int:
        """Return the rounds, but no fewer than were shown of an earlier clock: a counter must not fall.

        Rounds since the last count are a little fewer once more pages are known (`opic.model.rounds`).
        """
        clock, rounds = self._shown
        self._shown = books.clock, max(books.rounds, rounds) if books.clock >= clock else books.rounds
        return self._shown[1]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics available; for a backend that is down, only that it is down."""
        build = Gauge("opic_build_info", "Always 1; the label has the running version.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        if self._alone:
            yield from own(self.backend)
        if (lost := self._lost.lately(FIRST_SECONDS)) is not None:
            yield Gauge("opic_store_lost", "1 if the store has lost the crawl or a part of it, else 0.", int(lost[0]))
        seen = self._store.now(STORE_SECONDS)
        yield Gauge("opic_store_up", "1 if the store answers.", int(seen is not None))
        if self.backend.settings.kafka_bootstrap is not None:
            ends = seen.ends if seen is not None else self._kafka.now(KAFKA_SECONDS)
            throttle = self.backend.log.throttle
            yield Gauge("opic_kafka_up", "1 if Kafka answers.", int(ends is not None or throttle.left > 0))
            yield Count("opic_kafka_throttled_seconds", ABOUT, throttle.total)
            if (missing := self._missing.lately(FIRST_SECONDS)) is not None:
                about = "Records of accepted events that Kafka's retention deleted before they took effect."
                yield Gauge("opic_kafka_missing_events", about, sum(missing[0].values()))
        if seen is None:
            return
        yield from _of_books(seen.books)
        yield Count("opic_rounds", "The clock in rounds.", self._rounds(seen.books) / (1 << ROUND_BITS))
        yield from _of_links(seen.links)
        yield from _of_loaded(seen.loaded_at)
        yield from _of_cash(self.backend, seen)
        yield from _of_work(self.backend.settings, seen)
        yield from _of_frontier(seen, self._census.lately(FIRST_SECONDS))
        yield from of_servers(seen.servers)
        about = "Time of the last backup, in Unix seconds; 0 if there is none."
        yield Gauge("opic_backup_timestamp_seconds", about, seen.backup_at)
        if (audited := self._audit.lately(FIRST_SECONDS)) is not None:
            conserved, age = audited
            yield Gauge("opic_cash_conserved", "1 if the last audit accounted for every grain, else 0.", int(conserved))
            yield Gauge("opic_audit_age_seconds", "Time since the last audit began.", age)

    def _take_census(self) -> Census:
        frontier, age = self.backend.frontier, max(time.time() - self.backend.snapshots.fresh().as_of, 0.0)
        return frontier.census(), frontier.group_counts(), age

    def _ends(self) -> Positions:
        return self.backend.log.ends()

    def _missing_events(self) -> Mapping[str, int]:
        return self.backend.log.missing()

    def _is_lost(self) -> bool:
        try:
            check_known(self.backend.crawl.shards)
        except StoreLost:
            return True
        return False

    def _look(self) -> "_Seen":
        check_known(self.backend.crawl.shards)  # What is gone is no 0 in a graph.
        # Read the ends first: a lag of 0 then means that all events accepted before have taken effect.
        kafka = self.backend.settings.kafka_bootstrap is not None
        return _Seen.of(self.backend, self._kafka.now(KAFKA_SECONDS) if kafka else self._ends())

    def _is_conserved(self) -> bool:
        try:
            return bool(self.backend.query.audit()["conserved"])
        except StoreUnavailable:
            raise
        except StoreError:
            return False  # A block is missing, and so are its grains.


@dataclass(frozen=True, slots=True)
class _Seen:
    """The values read from the store for one scrape."""

    books: Books  # Of the whole crawl.
    ends: Positions | None  # End offsets of the log; None if Kafka is down.
    lag: int  # 0 if Kafka is down.
    outbox: int
    tallied: Tallied
    leases: int
    page_waits: int
    host_waits: int
    group_waits: int
    addresses: int  # Hosts that have one.
    keys: int  # Idempotency-Keys remembered.
    backup_at: float  # Unix seconds; 0 if there is none.
    policy: str  # The default one,
    error_bound: float | None  # and the bound of its estimates; None if it has none, as under the continuous payout.
    links: list[LinkList]  # Which segments of kept links each shard has.
    loaded_at: float  # When importance was loaded; 0 if none was.
    servers: list[Mapping[str, Any]]  # INFO of each server, in order of their names.

    @classmethod
    def of(cls, backend: Backend, ends: Positions | None) -> "_Seen":
        """Read the values. All shards are queried together, in a few round trips."""
        crawl, now = backend.crawl, time.time()
        lag = backend.waiting_events(ends or {})
        keys = [shard.keys for shard in crawl.shards]
        questions = (
            [["HGETALL", shard_keys.books] for shard_keys in keys],
            Tallied.commands(crawl),
            [["ZCOUNT", shard_keys.leases, f"({now * MILLION:.6f}", "+inf"] for shard_keys in keys],
            [["ZCOUNT", shard_keys.waits, f"({now:.6f}", "+inf"] for shard_keys in keys],
            [["ZCOUNT", shard_keys.hosts, f"({now:.6f}", "+inf"] for shard_keys in keys],
            [["ZCOUNT", shard_keys.group_times, f"({now:.6f}", "+inf"] for shard_keys in keys],
            [["HLEN", shard_keys.addresses] for shard_keys in keys],
            [["HMGET", shard_keys.link_segments, *LIST_FIELDS] for shard_keys in keys],
        )
        last = [["ZCOUNT", keys[0].call_ends, f"({now * MILLION:.0f}", "+inf"], ["HGET", keys[0].meta, "backup_at"]]
        *answers, remembered, backup_at = crawl.ask([*chain(*questions), *last])
        shards = len(keys)
        stored, tallied, *counted, links = (answers[n * shards :][:shards] for n in range(len(questions)))
        page_leases, page_waits, host_waits, group_waits, addresses = (sum(map(int, counts)) for counts in counted)
        parts = list(map(Books.unflat, stored))
        books = Books.merged(parts, crawl.rules)
        policy, bound = backend.query.default_bound(parts, books)
        bounded = policy in BOUNDED and not crawl.rules.continuous
        return cls(
            books,
            ends,
            lag,
            crawl.waiting(),
            Tallied.of(tallied),
            page_leases,
            page_waits,
            host_waits,
            group_waits,
            addresses,
            int(remembered),
            float(backup_at or 0),
            policy,
            (NOTHING_SAID if bound is None else bound) if bounded else None,
            list(map(LinkList.of, links)),
            loaded.loaded_at if (loaded := backend.snapshots.loaded.about()) is not None else 0.0,
            server_infos(crawl.client),
        )


def _of_books(books: Books) -> Iterator[Metric]:
    events = Count("opic_events", "Crawl events that took effect.", labels=["outcome"])
    for outcome, name in OUTCOMES.items():
        events.add_metric([outcome.value], getattr(books, name))
    yield events
    for name, about, value in (
        ("opic_links", "Distinct links from pages read to other pages.", books.links),
        ("opic_bad_links", "Dropped links that were not absolute http(s) URLs.", books.bad_links),
        ("opic_dead_letters", "Events refused as dead letters.", books.dead_letters),
        ("opic_seeds", "Seed URLs accepted, including those already known.", books.seeds),
        ("opic_forgotten", "Pages forgotten on request.", books.forgotten),
        ("opic_clock_grains", "The clock: total grains spent by reads.", books.clock),
    ):
        yield Count(name, about, value)
    yield Gauge("opic_known_pages", "Known pages that are not gone.", books.live)
    yield Gauge("opic_read_pages", "Known pages that were read since they became known or came back.", books.open)
    yield Gauge("opic_gone_pages", "Pages that are gone (404 or 410).", books.gone)


def _of_links(links: Sequence[LinkList]) -> Iterator[Metric]:
    about = "Bytes of the segments of kept links in the store; the newest links are in the journal."
    yield Gauge("opic_kept_link_bytes", about, sum(link_list.size for link_list in links))
    yield Gauge("opic_kept_link_segments", "Segments of kept links.", sum(len(link_list.live) for link_list in links))
    about = "Merges of segments of kept links: each took over from several what still counted."
    yield Count("opic_kept_link_merges", about, sum(link_list.merges for link_list in links))


def _of_loaded(loaded_at: float) -> Iterator[Metric]:
    if loaded_at:
        about = "Time since importance that was computed elsewhere was loaded."
        yield Gauge("opic_loaded_importance_age_seconds", about, max(time.time() - loaded_at, 0.0))


def _of_cash(backend: Backend, seen: _Seen) -> Iterator[Metric]:
    books, rules = seen.books, backend.crawl.rules
    pages = rules.minted - books.pool - books.net
    yield Gauge("opic_shards", "Shards of the crawl.", len(backend.crawl))
    yield Gauge("opic_virtual_pool_grains", "Cash of the virtual page.", books.pool)
    if not rules.continuous:
        about = "Cash that the virtual page can still grant, as a share of all cash minted."
        yield Gauge("opic_virtual_pool_ratio", about, books.pool / rules.minted)
    if (left := books.sweeps_left(rules)) is not None:
        about = (
            "How many more times all read pages can be read before the pool is empty or the clock reaches its limit."
        )
        yield Gauge("opic_sweeps_left", about, left)
    yield Gauge("opic_in_flight_grains", "Cash in transit between shards.", books.net)
    cash = Gauge("opic_page_cash_grains", "Cash that pages hold and have not spent.", labels=["pages"])
    # Gone pages have no cash under the continuous payout; under grants their cash may be negative.
    for name, grains in (
        ("read", books.open_cash),
        ("unread", pages - books.open_cash - books.v_gone),
        ("gone", books.v_gone),
    ):
        cash.add_metric([name], grains)
    yield cash
    about = "Cash on pages divided by the clock: the paper's measure of convergence. It is not a bound on the error."
    yield Gauge("opic_error_factor", about, max(pages - books.v_gone, 0) / max(books.clock, 1))
    if seen.error_bound is not None:
        about = "Upper bound on the L1 distance of importance by the default policy from exact PageRank; 2 if unknown."
        bound = Gauge("opic_error_bound", about, labels=["policy"])
        bound.add_metric([seen.policy], seen.error_bound)
        yield bound
    yield Gauge("opic_outbox_entries", "Transfers sent by shards and not yet applied by their targets.", seen.outbox)


def _of_work(settings: Settings, seen: _Seen) -> Iterator[Metric]:
    if seen.ends is not None:
        yield Gauge("opic_lag_events", "Accepted events that have not taken effect yet.", seen.lag)
        age = max(time.time() - seen.books.time_us / MILLION, 0.0) if seen.lag else 0.0
        yield Gauge("opic_lag_seconds", "Age of the event that took effect last; 0 if no events are waiting.", age)
    tallied = seen.tallied
    about = "When a worker last said that it is there, in Unix seconds; 0 if none ran, or all ended in order."
    yield Gauge("opic_worker_seen_timestamp_seconds", about, tallied.worker_at)
    about = "Duration of a step, a batch of up to 8,000 links, from the previous step's answer to its own."
    yield HistogramMetricFamily("opic_step_seconds", about, buckets=tallied.seconds, sum_value=tallied.seconds_sum)
    about = "Number of events in a step."
    yield HistogramMetricFamily("opic_step_events", about, buckets=tallied.events, sum_value=tallied.events_sum)
    yield Count("opic_step_round_trips", "Round trips to the store made by steps.", tallied.round_trips)
    about = "Links looked up, by whether they were in the worker's cache."
    lookups = Count("opic_link_lookups", about, labels=["cache"])
    lookups.add_metric(["hit"], tallied.cached)
    lookups.add_metric(["miss"], tallied.links - tallied.cached)
    yield lookups
    yield from _of_limits(settings, seen)
    if settings.expire_below:
        yield from _of_expiry(tallied)
    yield Count("opic_links_left_out", "Links of events over OPIC_MAX_LINKS, left out.", tallied.links_left_out)
    about = "Links to further pages of hosts with OPIC_MAX_PAGES_PER_HOST known pages; they pay the virtual page."
    yield Count("opic_links_refused", about, tallied.links_refused)
    about = "Fields of events that are unknown and were ignored, by the known name that is nearest."
    unknown = Count("opic_unknown_fields", about, labels=["nearest"])
    for name, fields in tallied.unknown.items():
        unknown.add_metric([name], fields)
    yield unknown
    about = "Crawl events that took effect, by the name of the crawler that reports them."
    crawlers = Count("opic_crawler_events", about, labels=["crawler"])
    for name, events in tallied.crawlers.items():
        crawlers.add_metric([name], events)
    yield crawlers


def _of_expiry(tallied: Tallied) -> Iterator[Metric]:
    yield Count("opic_expired_pages", "Pages forgotten by the rule of OPIC_EXPIRE_BELOW.", tallied.expired)
    about = "The importance that these pages had when they were forgotten, summed up."
    yield Count("opic_expired_importance", about, tallied.expired_parts / PARTS_OF_IMPORTANCE)
    yield Count("opic_expiry_passes", "How often the rule was applied.", tallied.expiry_passes)
    about = "When the rule was applied last, in Unix seconds; 0 if never."
    yield Gauge("opic_expiry_timestamp_seconds", about, tallied.expired_at)


def _of_limits(settings: Settings, seen: _Seen) -> Iterator[Metric]:
    tallied = seen.tallied
    yield Gauge("opic_idempotency_keys", "Idempotency-Keys of the last 24 hours that are remembered.", seen.keys)
    limit = settings.max_keys_bytes // KEY_MEMORY_BYTES
    yield Gauge("opic_idempotency_keys_limit", "How many Idempotency-Keys OPIC_MAX_KEYS_BYTES allows.", limit)
    about = "Dead letters dropped unread, because the store keeps no more than OPIC_MAX_DEAD_LETTER_BYTES."
    yield Count("opic_dead_letters_dropped", about, tallied.letters_dropped)
    yield Gauge("opic_page_meta_bytes", "Memory reckoned for the metadata of pages.", tallied.meta_bytes)
    yield Gauge("opic_page_meta_limit_bytes", "OPIC_MAX_META_BYTES.", settings.max_meta_bytes)
    about = "Metadata of events that was dropped, because OPIC_MAX_META_BYTES is reached."
    yield Count("opic_page_meta_dropped", about, tallied.metas_dropped)


def _of_frontier(seen: _Seen, census: tuple[Census, float] | None) -> Iterator[Metric]:
    yield Gauge("opic_leases", "Pages leased to crawlers.", seen.leases)
    yield Gauge("opic_page_waits", "Pages in back-off after a failed fetch or an expired lease.", seen.page_waits)
    yield Gauge("opic_host_waits", "Hosts whose delay between two pages has not passed.", seen.host_waits)
    about = "Politeness groups of hosts whose delay between two pages has not passed."
    yield Gauge("opic_group_waits", about, seen.group_waits)
    yield Gauge("opic_host_addresses", "Hosts whose address an event has reported.", seen.addresses)
    if census is None:
        return
    (counted, (groups, grouped), state_age), age = census
    yield Gauge("opic_host_groups", "Politeness groups: what shares the delay of its hosts.", groups)
    about = "Pages that nothing holds back but the delay of their hosts' group."
    yield Gauge("opic_group_delay_pages", about, grouped)
    pages = Gauge("opic_frontier_pages", "All pages, by class and kind.", labels=["class", "kind"])
    for labels, number in counted.items():
        pages.add_metric(list(labels), number)
    yield pages
    yield Gauge("opic_frontier_age_seconds", "Time since opic_frontier_pages was counted.", age)
    about = "Age, at the time of that count, of the state behind answers over all pages."
    yield Gauge("opic_estimate_age_seconds", about, state_age)
