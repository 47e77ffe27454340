"""The crawl that is moved: bringing its shards to rest at one point of all partitions, and its end.

A migration first lets the workers drain a crawl of many shards: no more records take effect, those that some shards
have take effect in the others, and what shards sent to each other is delivered. Then it stops the shards: every write
is refused. The stop expires by itself, so that a crawl goes on when its migration dies; each renewal says whether
anything was written in between.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opic.background import repeated
from opic.errors import BadInput, StoreError, StoreUnavailable
from opic.ingest.class_sweeps import unclassified
from opic.ingest.heartbeats import workers_seen
from opic.replica.crawl import Crawl
from opic.store.connection import Client, ask, store_errors
from opic.store.keys import Keys, of_call
from opic.store.recognition import MOVING, move_of, noted_move

DRAIN_SECONDS: Final = 10.0  # How long a drain or a stop lasts after the migration died.
RENEW_SECONDS: Final = 2.0
FINAL_SECONDS: Final = 60.0  # Of the last stop, before the end of the crawl.
FOREVER_SECONDS: Final = 10**9
LOOK_SECONDS: Final = 0.05
OTHERS: Final = ":"  # In the names of the partitions that the store itself writes.
log = logging.getLogger("opic.migration")


class Source:
    """A living crawl that is being moved."""

    def __init__(self, crawl: Crawl) -> None:
        self.crawl, self.client = crawl, crawl.client
        self._first = crawl.shards[0].keys
        self._meta, self._drain = self._first.meta, self._first.drain

    # The note of a migration, in the crawl's meta.

    def check_alone(self) -> None:
        """Check that no migration is noted.

        Raises:
            BadInput: one is.
        """
        if (under_way := noted_move(self.client, self._first)) is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(under_way["began"]))
            raise BadInput(
                f"crawl {self._first.crawl!r} is being moved to {under_way['to']!r} since {since}, or that broke off: "
                "wait for it, or run `opic migrate --resume` or `opic migrate --abort`"
            )

    def note(self, migration: Mapping[str, Any]) -> None:
        """Note a migration, the only one.

        Raises:
            BadInput: another one is noted.
        """
        with store_errors():
            first = self.client.hsetnx(self._meta, MOVING, json.dumps(migration))
        if not first:
            self.check_alone()

    # Coming to rest.

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Let no more records take effect during the block, beyond what some shard has."""

        def renew() -> float:
            try:
                ask(self.client, [["SET", self._drain, 1, "PX", round(1000 * DRAIN_SECONDS)]])
            except StoreError as error:
                log.warning("records may take effect during the drain: %s", error)
            return RENEW_SECONDS

        renew()
        try:
            with repeated(renew, RENEW_SECONDS, "opic-drain"):
                yield
        finally:
            ask(self.client, [["DEL", self._drain]])

    def points(self) -> dict[str, int] | None:
        """Return from where each partition is to be read, if all shards are equally far and nothing is on its way."""
        crawl = self.crawl
        on_its_way = crawl.waiting() or len({books.credit for books in crawl.books()}) > 1  # A grant only due is not.
        if len(crawl) > 1 and (on_its_way or unclassified(crawl)):
            return None
        stored = ask(self.client, [["HGETALL", shard.keys.offsets] for shard in crawl.shards])
        most: dict[str, int] = {}
        for offsets in stored:
            for name, offset in offsets.items():
                if OTHERS not in (text := name.decode()) and "@" not in text and text != "hold":
                    most[text] = max(most.get(text, 0), int(offset))
        points = crawl.resumes(most)
        return points if all(points[name] >= offset for name, offset in most.items()) else None

    def await_rest(self, seconds: float) -> None:
        """Wait until `points` says something.

        Raises:
            StoreUnavailable: that took too long.
        """
        end = time.monotonic() + seconds
        while self.points() is None:
            if time.monotonic() > end:
                alive = workers_seen(self.client, self._first).alive
                start = "start a worker, or with an embedded store `opic serve`: none runs"
                advice = "look at its workers' logs" if alive else start
                raise StoreUnavailable(
                    f"the shards were not equally far within {seconds:.0f} s: {advice}, then try again"
                )
            time.sleep(LOOK_SECONDS)

    # Stopping.

    def stop(self, token: str, seconds: float, seen: Sequence[bytes] | None = None) -> list[bytes]:
        """Refuse all writes to the crawl for a while, as `stop` does; return the states of its shards.

        Raises:
            StoreUnavailable: something was written since, or another migration stops the crawl.
        """
        answers = stop(self.client, [shard.keys for shard in self.crawl.shards], token, seconds, seen)
        if any(status != b"OK" for status, _ in answers):
            raise StoreUnavailable(
                "the crawl was written to while it was copied, because this process stood still for too long"
            )
        return [state for _, state in answers]

    @contextmanager
    def stopped(self, token: str) -> Iterator[list[bytes]]:
        """Refuse all writes during the block, unless this process dies; yields what is there, for `stop`."""
        seen = self.stop(token, DRAIN_SECONDS)

        def renew() -> float:
            try:
                self.stop(token, DRAIN_SECONDS, seen)
            except StoreError as error:  # The last stop finds out.
                log.warning("the crawl may have gone on: %s", error)
            return RENEW_SECONDS

        try:
            with repeated(renew, RENEW_SECONDS, "opic-stop"):
                yield seen
        except BaseException:
            if move_of(self.client, self._first) is None:
                self.stop(token, 0)
            raise

    def end(self, token: str, seen: Sequence[bytes], to: str) -> None:
        """End the crawl for good: another one takes its place from now on.

        Raises:
            StoreUnavailable: it was written to since `seen`; nothing has ended.
        """
        self.stop(token, FINAL_SECONDS, seen)
        with store_errors():
            if not self.client.execute_command(*of_call("move", (self._first.head, self._first.meta), token, to)):
                raise StoreUnavailable("the crawl was not stopped any more when it was to end")


def stop(
    client: Client, shards: Sequence[Keys], token: str, seconds: float, seen: Sequence[bytes] | None = None
) -> list[Sequence[bytes]]:
    """Refuse all writes to shards for a while; 0 ends that of this migration. Return the status of each, and its state.

    Args:
        client: of their store.
        shards: their keys.
        token: of the migration.
        seconds: how long.
        seen: the state of each before. Where another one is found, nothing is stopped.
    """
    names = [(shard_keys.head, shard_keys.changes, shard_keys.end) for shard_keys in shards]
    wanted = seen or [b""] * len(names)
    calls = [
        of_call("stop", shard_names, token, repr(seconds), what)
        for shard_names, what in zip(names, wanted, strict=True)
    ]
    return ask(client, calls) if calls else []


def shards_of(client: Client, first: Keys) -> int:
    """Return the number of shards of a crawl; `first` has the keys of its shard 0, here and below."""
    with store_errors():
        return int(client.hget(first.meta, "shards") or 1)


def forget_note(client: Client, first: Keys) -> None:
    """Remove the note of a migration that has ended, and its drain."""
    ask(client, [["HDEL", first.meta, MOVING], ["DEL", first.drain]])
