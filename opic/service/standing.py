"""The endpoint of a service whose store, workers and, if used, Kafka run elsewhere, or in a process beside it."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opic.errors import StoreLoading, StoreUnavailable
from opic.ingest.outage import Outage
from opic.ingest.worker import Backoff
from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer
from opic.service.open_crawls import OpenCrawls, RunWorkers
from opic.settings import Settings

log = logging.getLogger("opic.service")


class StandingService:
    """The endpoint of a service whose store, workers and, if used, Kafka run elsewhere, or in a process beside it.

    Use as a context manager; inside, `backend` is open, and `crawls` has it and the other crawls that calls name.
    """

    backend: Backend
    crawls: OpenCrawls

    def __init__(self, settings: Settings, run_workers: RunWorkers | None = None, *, create: bool = True) -> None:
        """Open nothing yet.

        Args:
            settings: the settings of the service.
            run_workers: runs the workers of other crawls; None if an operator does.
            create: whether to create a missing crawl; if False, a missing crawl is an error.
        """
        self.settings, self._run_workers, self._create = settings, run_workers, create

    def __enter__(self) -> "StandingService":
        self.backend = self._once_loaded(self._first)
        self.backend.start()
        self.crawls = OpenCrawls(self.settings, lambda: self.backend, self._run_workers)
        return self

    def _first(self) -> Backend:
        if self.settings.kafka_bootstrap is not None:
            from opic.ingest.kafka.known_offsets import check_topic

            check_topic(self.settings)  # First: without its topic it makes no crawl in the store.
        backend = Backend(self.settings, self._store_url(), create=self._create)
        try:
            backend.log.ends()
        except BaseException:
            backend.close()
            raise
        return backend

    def _once_loaded(self, open_backend: Callable[[], Backend]) -> Backend:
        """Open the store; wait while it loads its data, which takes a large one minutes."""
        backoff, outage = Backoff(), Outage(log)
        while True:
            try:
                backend = open_backend()
            except StoreLoading as error:
                outage.began(error)
                time.sleep(backoff.seconds())
            else:
                outage.ended()
                return backend

    def _store_url(self) -> str:
        if not self.settings.embedded:
            return self.settings.store
        url = EmbeddedServer.running(self.settings.data_dir())
        if url is None:
            raise StoreUnavailable(f"the service that ran the store in {self.settings.data_dir()} has ended")
        return url

    def __exit__(self, *raised: object) -> None:
        self.crawls.close()
        self.backend.close()

    def succeed(self) -> None:
        """Go on with the crawl that took the place of this one: `backend` is another one from now on."""
        present = self.backend.settings  # By its name: OPIC_CRAWL may lead nowhere any more.
        backend = self._once_loaded(lambda: Backend(present, self._store_url(), create=False))
        backend.start()
        self.backend = backend

    def not_ready(self) -> str | None:
        """Return why no request should come here now, or None."""
        return self.backend.not_ready()

    @contextmanager
    def announced(self, url: str, instance: str) -> Iterator[None]:
        """Do nothing: commands elsewhere are told the address by OPIC_SERVICE."""
        yield
