"""The worker process, which applies crawl events: `opic worker`, or `python -m consumers.crawl_events`.

It reads the Kafka topic if OPIC_KAFKA_BOOTSTRAP is set, else the log in the store. Settings come from the environment
and the file named by OPIC_CONFIG. On SIGTERM and SIGINT it finishes the current batch and exits; it also exits when the
service that started it is gone. At its start it waits OPIC_START_SECONDS for a store and Kafka that do not answer;
later it waits for as long as they are away.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TypeVar

from opic.errors import CrawlMoved, OpicError, StoreError, StoreLoading, StoreUnavailable
from opic.ingest import Writer
from opic.ingest.event_log import EventLog
from opic.ingest.outage import Outage
from opic.ingest.step_counts import StepCounts
from opic.ingest.traces import export_spans
from opic.ingest.worker import Backoff, LogSource, RecordSource, work
from opic.ingest.worker_health import Health, HealthPort
from opic.logs import log_to_stderr
from opic.memory import give_back_large_arrays, search_garbage_rarely
from opic.replica import Crawl
from opic.service.child_processes import is_child, parent_is_gone
from opic.service.embedded import EmbeddedServer, disk_full
from opic.service.known_crawls import KnownCrawls
from opic.service.moves import after_moves
from opic.settings import Settings
from opic.store import connect
from opic.store.connection import Client
from opic.store.durability import Durability, durability_problem

log = logging.getLogger("opic.ingest")

Opened = TypeVar("Opened")


class Stopped(Exception):
    """The worker was stopped while it waited for a server."""


class Worker:
    """One worker, which runs until a signal arrives or its parent process is gone."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.health, self._outage = settings, Health(), Outage(log)
        # Who started this process has opened the crawl, and its rules need not be those of the environment.
        self._ours = not is_child()
        self._done = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._done.set())

    def stopped(self) -> bool:
        return self._done.is_set() or parent_is_gone()

    def run(self) -> None:
        """Work until stopped, on the crawl that takes the place of this one too."""
        while True:
            try:
                return self._run()
            except CrawlMoved as moved:
                if moved.store:
                    raise
                self.settings, self._ours = self.settings.with_crawl(moved.to), False

    def _run(self) -> None:
        settings = self.settings
        with ExitStack() as stack:
            if settings.worker_port:
                stack.enter_context(HealthPort(self.health, settings.host, settings.worker_port))
            if settings.kafka_bootstrap is not None:
                self._patiently(self._check_topics)  # First: without its topics it makes no crawl in the store.
            settings = self.settings = self._patiently(self._after_moves)
            known = KnownCrawls(settings)
            durability = Durability(settings.durability, settings.wait_replicas, settings.wait_seconds)
            crawl = self._patiently(lambda: Crawl.open(
                self._recognised(known), settings.crawl, settings.rules_given() if self._ours else {},
                create=self._ours, shards=settings.shards, durability=durability, yields=settings.yields,
                keep_links=settings.keep_links,
            ))  # fmt: skip
            known.keep(crawl.shards[0].secret)
            if (problem := self._patiently(lambda: durability_problem(crawl.client, durability))) is not None:
                log.warning("durability: %s", problem.text)
            writer = Writer.of(crawl, settings)
            tally = self._patiently(lambda: StepCounts(crawl.shards[0]))
            on_our_disk = self._store_url() == EmbeddedServer.running(settings.data_dir())

            def full() -> str | None:
                return disk_full(settings.data_dir()) if on_our_disk else None

            source, between = self._source(crawl, writer, stack)
            moved = None
            try:
                work(writer, source, tally=tally, stopped=self.stopped, full=full, watch=self.health, between=between)
            except CrawlMoved as error:
                moved = error  # The former crawl must not seem to have a worker.
            try:
                if full() is None:
                    tally.end()
            except StoreUnavailable as error:
                log.info("the metrics of the last steps are lost: %s", error)
            if moved is not None:
                raise moved

    def _after_moves(self) -> Settings:
        with closing(connect(self._store_url())) as client:
            return after_moves(client, self.settings)

    def _check_topics(self) -> None:
        from opic.ingest.kafka import KafkaCluster

        cluster = KafkaCluster(self.settings)
        cluster.check_topics(cluster.topic, cluster.dlq)

    def _recognised(self, known: KnownCrawls) -> Client:
        """Connect to the store; refuse it if others know that it has lost the crawl."""
        client = connect(self._store_url())
        try:
            known.check(client)
            if self.settings.kafka_bootstrap is not None:
                from opic.ingest.kafka import KafkaCluster
                from opic.ingest.kafka.known_offsets import check_used

                check_used(KafkaCluster(self.settings), client)
        except BaseException:
            client.close()
            raise
        return client

    def _store_url(self) -> str:
        if not self.settings.embedded:
            return self.settings.store
        running = EmbeddedServer.running(self.settings.data_dir())
        if running is None:
            raise StoreError(
                f"no embedded service runs on {self.settings.data_dir()}: `opic serve --embedded` starts one, with a "
                "worker of its own; for a store that runs elsewhere set OPIC_STORE=redis://…"
            )
        return running

    def _source(self, crawl: Crawl, writer: Writer, stack: ExitStack) -> tuple[RecordSource, Callable[[], object]]:
        """Open the source of records; return it with a function to call between batches."""
        settings = self.settings
        if settings.kafka_bootstrap is None:
            source = EventLog(connect(self._store_url()), crawl.shards[0].keys)
            log.info(
                "ready, from offset %d of %s", self._patiently(lambda: crawl.resume(source.partition)), source.partition
            )
            return LogSource(source, writer.resume, pause=self._done.wait), lambda: None
        from opic.ingest.kafka import KafkaCluster, KafkaSource
        from opic.ingest.kafka.dead_letter_topic import Forwarder
        from opic.ingest.kafka.known_offsets import FirstOffsets
        from opic.ingest.kafka.signatures import Signatures

        cluster = KafkaCluster(settings)
        self.health.throttle = cluster.throttle
        first = FirstOffsets(crawl, cluster.topic)
        signatures = Signatures(settings, lambda: crawl.shards[0].secret)
        topic = self._patiently(
            lambda: KafkaSource(cluster, writer.resume, first, self.stopped, len(crawl), signatures=signatures)
        )
        stack.callback(topic.close)
        forwarder = self._patiently(lambda: Forwarder(cluster, crawl))
        stack.callback(forwarder.close)

        def forward() -> None:
            ours, partitions = topic.partitions
            forwarder.forward({shard for partition in ours for shard in writer.responsible(partition, partitions)})

        return topic, forward

    def _patiently(self, open_it: Callable[[], Opened]) -> Opened:
        backoff, began, patience = Backoff(), time.monotonic(), self.settings.start_seconds
        while not self.stopped():
            try:
                opened = open_it()
            except CrawlMoved:
                raise
            except StoreUnavailable as error:
                if patience and not isinstance(error, StoreLoading) and time.monotonic() - began > patience:
                    waited = f"waited OPIC_START_SECONDS={patience:g} for it"
                    raise StoreUnavailable(f"{error}: {waited}; --wait waits for as long as it takes") from error
                self._outage.began(error)
                self.health.away(str(error))
                self._done.wait(backoff.seconds())
            else:
                self._outage.ended()
                return opened
        raise Stopped


def main(settings: Settings | None = None) -> int:
    """Run until told to stop; return the exit status. If None, the settings are those of the environment."""
    try:
        settings = settings or Settings.load()
        log_to_stderr(int(os.environ.get("OPIC_CHILD_LOG_LEVEL") or logging.INFO), settings.log_format)
        give_back_large_arrays()
        search_garbage_rarely()
        export_spans("opic-worker")
        Worker(settings).run()
    except Stopped:
        return 0
    except OpicError as error:
        said = str(error) if settings is None else settings.with_file(str(error))
        print(f"opic worker: {said}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
