"""The service: starts and supervises the bundled store and the worker, around an open store."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType

from opic.background import repeated
from opic.errors import StoreError, StoreUnavailable
from opic.ingest import Writer
from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer, disk_full
from opic.service.moves import after_moves
from opic.service.open_crawls import OpenCrawls, settings_of, with_topic_read
from opic.service.service_file import Address, address_of
from opic.service.worker_processes import WorkerProcesses
from opic.settings import Settings

log = logging.getLogger("opic.service")

SUPERVISE_SECONDS = 0.5
RESTART_FIRST_SECONDS = 0.2
RESTART_MAX_SECONDS = 10.0
HEALTHY_SECONDS = 10.0  # After this long without a failure, the next restart waits RESTART_FIRST_SECONDS again.


class EmbeddedService:
    """The bundled store and a worker process, started, supervised and stopped together.

    Use as a context manager; inside, `backend` is open, and `crawls` has it and the other crawls that calls name.
    """

    backend: Backend
    crawls: OpenCrawls

    def __init__(self, settings: Settings, *, worker: bool = True, create: bool = True, answers: bool = True) -> None:
        """Create the service; entering the context starts it.

        Args:
            settings: the settings of the service.
            worker: whether to start the worker process; without it, the caller applies the records.
            create: whether to create a missing crawl; if False, a missing crawl is an error.
            answers: whether this process answers questions; False where others do, and this one keeps no pages.
        """
        self.settings, self._create, self._answers = settings, create, answers
        self.server = EmbeddedServer(settings.data_dir())
        self._with_worker, self._workers = worker, WorkerProcesses(self.server.data)
        self._stack = ExitStack()

    def __enter__(self) -> "EmbeddedService":
        """Start the store, open it, start the worker."""
        with self._stack as stack:
            stack.callback(self.server.stop)  # First: an interrupt may come at any moment from here on.
            self.server.start()
            if (full := disk_full(self.server.data)) is not None:
                log.warning("%s; until then nothing is accepted", full)
            stack.enter_context(self.server.explaining())
            self.backend = Backend(self.settings, self.server.url, create=self._create)
            stack.callback(self._close_backend)
            self._present = self.backend.settings
            if self._with_worker:
                self._workers.start(self.settings, self.server.url)
            if self._with_worker and self._answers:
                self.backend.start()
            stack.callback(self._workers.stop)
            run_workers = self.run_workers if self._with_worker else None
            self.crawls = OpenCrawls(self.settings, lambda: self.backend, run_workers)
            stack.callback(self.crawls.close)
            stack.enter_context(supervised(self._restart_ended))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def not_ready(self) -> str | None:
        """Return why no request should come here now, or None."""
        reason = self.backend.disk_full()
        if reason is None and self._with_worker and not self._workers.runs(self.settings.crawl):
            return "the worker is not running; it is being started"
        return reason or self.backend.not_ready()

    @contextmanager
    def announced(self, url: str, instance: str) -> Iterator[None]:
        """Tell commands on this data directory to ask the HTTP API at `url`, for the duration of the block."""
        self.server.announce(Address(url, instance, self.settings.crawl))
        try:
            yield
        finally:
            self.server.announce(None)

    def run_workers(self, crawls: Collection[str], ended: Collection[str] = ()) -> None:
        """Let a worker run for each of these crawls beside that of OPIC_CRAWL, and for no other."""
        others = [settings_of(self.settings, name) for name in crawls if name not in ended]
        wanted = [with_topic_read(self.backend.crawl.client, settings) for settings in others]
        self._workers.run([self.settings, *wanted], self.server.url)

    def _close_backend(self) -> None:
        self.backend.close()  # Not the one of the start, which may have had successors.

    def succeed(self) -> None:
        """Go on with the crawl that took the place of this one: `backend` is another one from now on."""
        backend = Backend(self.backend.settings, self.server.url, create=False)  # OPIC_CRAWL may lead nowhere any more.
        backend.start()
        self.backend = backend
        self._workers.follow(self.settings.crawl, backend.settings)

    def _follow_moves(self) -> None:
        """Let the worker be started again with the crawl that takes the place of this one."""
        try:
            present = after_moves(self.backend.crawl.client, self._present)
        except StoreUnavailable:  # The next look comes soon. If the crawl is in another store, the worker says so.
            return
        if present is not self._present:
            self._present = present
            self._workers.follow(self.settings.crawl, present)

    def _restart_ended(self) -> bool:
        server = self.server.process
        if server is None or server.poll() is None:
            if self._with_worker and not self._answers:  # One that answers hears of moves in `succeed`.
                self._follow_moves()
            return self._workers.restart(self.server.url)
        full = disk_full(self.server.data)
        why = f": {full}" if full else f", see the end of {self.server.data / 'store.log'}"
        log.error("the store ended (exit %s); starting it again%s", server.returncode, why)
        self.server.start_server()
        return True


def supervised(restart_ended: Callable[[], bool]) -> AbstractContextManager[None]:
    """Call a function now and then that starts processes again that ended by themselves, and says whether any had."""
    pause, ended = RESTART_FIRST_SECONDS, time.monotonic()

    def check_ended() -> float:
        nonlocal pause, ended
        try:
            if not restart_ended():
                if time.monotonic() - ended > HEALTHY_SECONDS:
                    pause = RESTART_FIRST_SECONDS
                return SUPERVISE_SECONDS
        except (OSError, StoreError) as error:
            log.error("that failed: %s", error)
        now, ended = pause, time.monotonic() + pause
        pause = min(2 * pause, RESTART_MAX_SECONDS)
        return now + SUPERVISE_SECONDS

    return repeated(check_ended, SUPERVISE_SECONDS, "opic-watch")


def open_backend(settings: Settings, stack: ExitStack, *, create: bool = False) -> Backend:
    """Open the store that the settings name, for a command; with `create` a crawl that is not there is made.

    An embedded store is asked where its service runs it; where none runs, it is started for as long as `stack` lives.
    """
    url = settings.store
    if settings.embedded:
        running = EmbeddedServer.running(settings.data_dir())
        if running is None:
            if not create and not (settings.data_dir() / "store").is_dir():
                raise StoreError(f"no embedded store in {settings.data_dir()}: make one with `opic serve --embedded`")
            return stack.enter_context(EmbeddedService(settings, worker=False, create=create)).backend
        url = running
    backend = Backend(settings, url, create=create)
    stack.callback(backend.close)
    return backend


def has_worker(settings: Settings) -> bool:
    """Return whether a worker is known to work on the crawl: that of the running service, or with Kafka any."""
    if settings.kafka_bootstrap is not None:
        return True
    address = address_of(settings.data_dir()) if settings.embedded else None
    return address is not None and address.crawl == settings.crawl


@contextmanager
def feeding(settings: Settings) -> Iterator[Backend]:
    """Lend the store to a command that feeds it, made if it is not there, with a worker that applies what it appends.

    Where none is known to work on the crawl, that is one of our own, for as long as the block takes. Two workers on one
    crawl are slower, but correct.
    """
    with ExitStack() as stack:
        starts_store = settings.embedded and EmbeddedServer.running(settings.data_dir()) is None
        backend = open_backend(settings, stack, create=True)
        if not has_worker(settings):
            workers = WorkerProcesses(settings.data_dir() if settings.embedded else None, logging.WARNING)
            stack.callback(workers.stop)
            # Another worker of this machine may have the port.
            workers.start(settings.model_copy(update={"worker_port": 0}), backend.store)
            stack.enter_context(supervised(lambda: workers.restart(backend.store)))
        yield backend
        if starts_store:
            _checkpoint(backend)


def _checkpoint(backend: Backend) -> None:
    """Write a checkpoint of all shards, so that the next start need not read the journal."""
    if backend.disk_full() is not None:
        return
    try:
        for store in Writer.of(backend.crawl, backend.settings).stores:
            store.checkpoint()
    except StoreUnavailable as error:  # Nothing is lost: the journal has all records.
        log.info("all events took effect, but the last checkpoint failed: %s", error)
