"""The crawls that an endpoint answers for: OPIC_CRAWL, and the others that calls name.

Another crawl is opened when a call first names it, and closed after IDLE_SECONDS without a call: while it is open, this
process keeps the columns of all its pages. One thread opens, makes, closes and removes crawls, one after the other. So
a crawl is opened once, however many calls name it at the same time, and no call finds one that is half removed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from opic.background import repeated
from opic.errors import BadInput, CrawlMoved, NoSuchCrawl, Refused, StoreError, StoreLost, TooManyCrawls
from opic.ingest.heartbeats import ALIVE_SECONDS, workers_seen
from opic.memory import memory_bytes
from opic.service.backend import Backend
from opic.service.known_crawls import KnownCrawls
from opic.service.moves import Closing, hold_while, present_crawl
from opic.service.stored_crawls import CrawlSize, check_removable, crawls_of, delete_crawl, make_crawl
from opic.settings import Settings, topic_of
from opic.store.connection import Client, store_errors
from opic.store.keys import CRAWL_NAME, Keys
from opic.store.recognition import move_of
from opic.store.shard import check_known
from opic.urls.canonical import shown

IDLE_SECONDS: Final = 3_600.0
LOOK_SECONDS: Final = 0.25  # How often moved crawls are looked for.
CHECK_SECONDS: Final = 1.0  # How often an open crawl is compared with the store, which may have it no more.
LAG_SECONDS: Final = 5.0
WORKER_END_SECONDS: Final = ALIVE_SECONDS + 5.0
POLL_SECONDS: Final = 0.05

log = logging.getLogger("opic.service")

P = ParamSpec("P")
Done = TypeVar("Done")
# Runs the workers of an endpoint, besides that of OPIC_CRAWL: one for each of the first crawls, and for no other; none
# for the second, which have ended, whoever else wants one.
RunWorkers = Callable[[Collection[str], Collection[str]], None]


@dataclass(slots=True, eq=False)
class OpenCrawl:
    """A crawl that is open here.

    Attributes:
        name: by which calls name it.
        present: returns the store, open for the crawl or for the one that it was moved to.
        asked_at: when a call last named it, monotonic.
        handlers: what answers calls on it, by interface; each knows the `Backend` that it was made for.
        calls: how many have named it.
        suggestions: pages handed out.
        lag: accepted events that had not taken effect when that was last looked at.
    """

    name: str
    present: Callable[[], Backend]
    asked_at: float = field(default_factory=time.monotonic)
    handlers: dict[str, Any] = field(default_factory=dict)
    calls: int = 0
    suggestions: int = 0
    lag: int = 0
    _checked_at: float = 0.0
    _lag_at: float = 0.0

    @property
    def backend(self) -> Backend:
        return self.present()

    @property
    def names(self) -> tuple[str, str]:
        """The name by which calls name it, and that of the crawl which answers."""
        return self.name, self.backend.settings.crawl

    def go_on(self, backend: Backend) -> None:
        """Answer from another store from now on."""
        self.present = lambda: backend

    def is_due(self, now: float) -> bool:
        """Return whether the crawl is to be compared with the store, which then counts as done."""
        if now - self._checked_at < CHECK_SECONDS:
            return False
        self._checked_at = now
        return True

    def measure_lag(self, now: float) -> None:
        """Look at the lag, if the last look was a while ago."""
        if now - self._lag_at >= LAG_SECONDS:
            self.lag, self._lag_at = self.backend.lag(), now


class OpenCrawls:
    """The open crawls of an endpoint. Safe for threads and event loops."""

    def __init__(
        self, settings: Settings, present: Callable[[], Backend], run_workers: RunWorkers | None = None
    ) -> None:
        """Begin with OPIC_CRAWL alone.

        Args:
            settings: of the endpoint.
            present: returns the store, open for OPIC_CRAWL or the crawl that is in its place now.
            run_workers: runs the workers of the others; None if an operator does.
        """
        self._settings, self._run_workers = settings, run_workers
        self.first, self._open = OpenCrawl(settings.crawl, present), dict[str, OpenCrawl]()
        self._thread = ThreadPoolExecutor(1, "opic-crawls")
        self._looking, self._looks = ExitStack(), False
        self._closing = Closing()

    @property
    def opened(self) -> list[OpenCrawl]:
        """The crawls that are open, without OPIC_CRAWL."""
        return list(self._open.values())

    @property
    def limit(self) -> int:
        """How many crawls may be open, OPIC_CRAWL among them."""
        return self._settings.max_crawls

    @property
    def starts_workers(self) -> bool:
        """Whether a crawl gets a worker when it is opened."""
        return self._run_workers is not None

    def is_first(self, name: str) -> bool:
        """Return whether a name is that of OPIC_CRAWL, or of the crawl in its place."""
        return name in self.first.names

    def names_of(self, name: str) -> Collection[str]:
        """Return the names, one of which a token for a crawl has: OPIC_CRAWL has two once it was moved."""
        return self.first.names if self.is_first(name) else [name]

    async def crawl(self, name: str) -> OpenCrawl:
        """Return a crawl, opened if it is not; wait while it is moved to another one.

        Raises:
            BadInput: it is no name of a crawl.
            NoSuchCrawl: the store has no such crawl.
            TooManyCrawls: no more may be open.
            StoreError: it can't be opened.
        """
        opened = self.first if self.is_first(name) else self._named(name)
        if opened is None:
            opened = await self._in_turn(OpenCrawls._opened, name)
        opened.asked_at = time.monotonic()
        opened.calls += 1
        if opened.backend.crawl.stopped:
            await hold_while(lambda: opened.backend.crawl.stopped)
        return opened

    async def make(self, name: str, rules: Mapping[str, int | bool | str] | None = None) -> bool:
        """Make a crawl and open it; return whether it was made. One that is there is compared with the rules.

        Args:
            name: its name.
            rules: as in `Settings.rules_given`; of a new crawl, those left out are the endpoint's own.

        Raises:
            Refused: it is there, with other rules.
            OpicError: as of `crawl`.
        """
        return await self._in_turn(OpenCrawls._made, name, rules or {})

    async def remove(self, name: str) -> int:
        """Remove a crawl from the store, with its worker if this service runs it; return how many keys it had.

        Calls on it that are being answered end with `NoSuchCrawl`, at other endpoints too, within a second.

        Raises:
            Refused: a worker runs it, or it is OPIC_CRAWL.
            OpicError: as of `crawl`; NotPermitted: the store's user may not remove keys.
        """
        return await self._in_turn(OpenCrawls._removed, name)

    async def check_there(self, name: str) -> None:
        """Check that the store has a crawl whose call failed; one that is gone is closed.

        Raises:
            NoSuchCrawl: it is gone.
            StoreError: the store can't be asked.
        """
        await self._in_turn(OpenCrawls._checked, name)

    def _named(self, name: str) -> OpenCrawl | None:
        """Return an open crawl by its name, or by that of the crawl which it was moved to: that is not opened again."""
        return self._open.get(name) or next((opened for opened in self.opened if name in opened.names), None)

    def stored(self) -> list[CrawlSize]:
        """Return the crawls of the store, with their sizes. Blocks."""
        return crawls_of(self.first.backend.crawl.client)

    def close(self) -> None:
        """Close the other crawls."""
        self._looking.close()
        self._thread.shutdown()
        self._closing.close()
        for backend in {opened.backend for opened in self._open.values()}:
            backend.close()
        self._open.clear()

    async def _in_turn(
        self, step: Callable[Concatenate["OpenCrawls", P], Done], *args: P.args, **kwargs: P.kwargs
    ) -> Done:
        # Shielded: a client that leaves does not stop what others wait for, or what is half done.
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(step, self, *args, **kwargs)))

    # In the thread.

    def _opened(self, name: str) -> OpenCrawl:
        if (opened := self._named(name)) is None:
            self._check_stored(name)
            present = present_crawl(self.first.backend.crawl.client, name)  # It may be open by another name.
            opened = self.first if self.is_first(present) else self._named(present) or self._open_now(name)
        return opened

    def _open_now(self, name: str) -> OpenCrawl:
        self._check_room(name)
        backend = self._backend(name)
        opened = OpenCrawl(name, lambda: backend)
        if not self._looks:
            self._looks = True
            self._looking.enter_context(repeated(self._look, LOOK_SECONDS, "opic-crawls-look"))
        self._open[name] = opened
        self._tell_workers()
        return opened

    def _backend(self, name: str) -> Backend:
        settings = with_topic_read(self.first.backend.crawl.client, settings_of(self._settings, name))
        check_topic(settings)
        backend = Backend(settings, self.first.backend.store, create=False)
        try:
            backend.start()
        except BaseException:
            backend.close()
            raise
        return backend

    def _made(self, name: str, rules: Mapping[str, int | bool | str]) -> bool:
        check_name(name)
        client, settings = self.first.backend.crawl.client, settings_of(self._settings, name)
        if self.is_first(name):
            self._check_leads(name)
        elif (opened := self._open.get(name)) is not None and not self._leads(opened):
            self._forget(name)
        if self.is_first(name) or self._is_stored(name):
            made = make_crawl(client, present_crawl(client, name), rules, settings.shards)
        else:
            self._check_room(name)
            check_topic(settings)
            KnownCrawls(settings).check(client)
            made = make_crawl(client, name, {**self._settings.rules_given(), **rules}, settings.shards)
        if not self.is_first(name):
            self._opened(name)
        return made

    def _removed(self, name: str) -> int:
        if self.is_first(name):
            raise Refused(f"crawl {name!r} is OPIC_CRAWL of this endpoint: stop it, then `opic crawls --delete {name}`")
        self._check_stored(name)
        client = self.first.backend.crawl.client
        check_removable(client, name)  # Before its worker ends, for whose end all others wait.
        if (opened := self._open.pop(name, None)) is not None:
            opened.backend.rest()  # It writes to the store now and then.
        self._tell_workers(ended=[name])
        try:
            if self.starts_workers:
                first, until = Keys(name, 0), time.monotonic() + WORKER_END_SECONDS
                while workers_seen(client, first).alive and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
            keys = delete_crawl(client, name)
            KnownCrawls(self._settings).forget(name)
            log.info("crawl %s was removed, with %d keys", name, keys)
        finally:
            self._tell_workers()
            if opened is not None:
                self._closing.add(opened.backend.close)
        return keys

    def _checked(self, name: str) -> None:
        if not self._is_stored(name):
            self._forget(name)
            raise NoSuchCrawl(shown(name))

    def _check_stored(self, name: str) -> None:
        check_name(name)
        if not self._is_stored(name):
            raise NoSuchCrawl(shown(name))

    def _is_stored(self, name: str) -> bool:
        with store_errors():
            return bool(self.first.backend.crawl.client.exists(Keys(name, 0).meta))

    def _leads(self, opened: OpenCrawl) -> bool:
        """Return whether the name of a crawl leads to the one that answers: not if what is left of it was removed."""
        if opened.backend.settings.crawl == opened.name:
            return True
        return move_of(self.first.backend.crawl.client, Keys(opened.name, 0)) is not None

    def _check_leads(self, name: str) -> None:
        present = self.first.backend.settings.crawl
        if name != present and not self._leads(self.first):
            raise Refused(
                f"crawl {name!r}, which is OPIC_CRAWL of this endpoint, was moved to {present!r} and then removed: "
                f"start the endpoint with OPIC_CRAWL={present}, then make {name!r} again"
            )

    def _check_room(self, name: str) -> None:
        if name not in self._open and len(self._open) + 1 >= self._settings.max_crawls:
            raise TooManyCrawls(  # Without the names of the others, which the caller's token may not be for.
                f"crawl {name!r} can't be opened: as many are open as OPIC_MAX_CRAWLS allows, "
                f"{self._settings.max_crawls}; one that is asked for nothing is closed after "
                f"{IDLE_SECONDS / 60:.0f} minutes"
            )

    def _tell_workers(self, ended: Collection[str] = ()) -> None:
        if self._run_workers is not None:
            self._run_workers(list(self._open), ended)

    def _drop(self, name: str, why: str) -> None:
        """Close a crawl: no call finds it from now on, and those that run have CLOSE_SECONDS."""
        if (opened := self._open.pop(name, None)) is None:
            return
        log.info("crawl %s is closed: %s", name, why)
        opened.backend.rest()
        self._tell_workers()
        self._closing.add(opened.backend.close)

    def _forget(self, name: str) -> None:
        self._drop(name, "another process removed it")
        KnownCrawls(self._settings).forget(name)  # Last: a crawl that is closed saves the state of its importance.

    def _look(self) -> float:
        self._thread.submit(self._look_at_all).result()
        return LOOK_SECONDS

    def _look_at_all(self) -> None:
        for opened in self.opened:
            try:
                self._look_at(opened)
            except StoreLost:
                self._forget(opened.name)
            except StoreError as error:
                log.info("can't tell how crawl %s stands: %s", opened.name, error)

    def _look_at(self, opened: OpenCrawl) -> None:
        now, backend = time.monotonic(), opened.backend
        if backend.crawl.stopped:
            backend.crawl.follow()  # The stop may be over.
        elif not opened.is_due(now):
            return
        try:
            check_known(backend.crawl.shards)
        except CrawlMoved as moved:
            opened.go_on(self._backend(opened.name))
            log.info("answering calls on crawl %s from crawl %s", opened.name, moved.to)
            backend.rest()
            self._closing.add(backend.close)
            return
        if not self._leads(opened):
            self._forget(opened.name)
            return
        opened.measure_lag(now)
        if now - opened.asked_at > IDLE_SECONDS and not opened.lag:
            self._drop(opened.name, "no call has named it for a while")


def check_name(name: str) -> None:
    """Check the name of a crawl.

    Raises:
        BadInput: it is none.
    """
    if not CRAWL_NAME.fullmatch(name):
        raise BadInput(f"crawl {shown(name)}: a crawl's name is 1 to 64 letters, digits, '_', '.' or '-'")


def check_topic(settings: Settings) -> None:
    """Check that the topic of a crawl exists, if its events come from Kafka.

    Raises:
        KafkaRefused: there is no such topic, or Kafka refused access.
        KafkaUnavailable: Kafka does not answer.
    """
    if settings.kafka_bootstrap is not None:
        from opic.ingest.kafka import KafkaCluster

        cluster = KafkaCluster(settings)
        cluster.check_topics(cluster.topic)


def with_topic_read(client: Client, settings: Settings) -> Settings:
    """Return the settings of a crawl with the topic that its workers have read, such as that of its name before a move.

    Raises:
        StoreError: the store can't be asked.
    """
    if settings.kafka_bootstrap is None:
        return settings
    from opic.ingest.kafka.known_offsets import topic_read

    topic = topic_read(client, Keys(settings.crawl, 0))
    return settings if topic is None else settings.model_copy(update={"kafka_topic": topic})


def settings_of(settings: Settings, name: str) -> Settings:
    """Return the settings of an endpoint for another crawl: with its own rules and its own topic.

    Its kept links may use as much memory as those of OPIC_CRAWL, divided by OPIC_MAX_CRAWLS.
    """
    links = (settings.max_links_bytes or memory_bytes() // 2 // settings.processes) // settings.max_crawls
    own = {"kafka_topic": topic_of(name), "max_links_bytes": max(links, 1_024), "worker_port": 0}
    return settings.with_crawl(name).model_copy(update=own)
