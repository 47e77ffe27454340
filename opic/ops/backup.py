"""Online backup: a consistent copy of all shards of a crawl, made while events continue to take effect.

The journal of each shard is copied from its first record on and then followed, while its blocks are copied one after
the other. So each block, together with the records after it, gives the state at the end of the copy. The end is
consistent over all shards: deliveries between shards are held (see `hold` in journal.lua) while the head of each shard
is read, with its offsets, its counters and the entries waiting in its outboxes. This takes milliseconds. Only
deliveries wait, and if the backup process dies, the hold expires.

The copy is loaded and recounted from the files alone before the manifest is written. Without a manifest, a directory is
not a backup.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from opic.errors import StoreUnavailable
from opic.ops.backup_check import check_backup, summary_of
from opic.ops.backup_files import BACKUP_FORMAT, filled, write_manifest
from opic.ops.shard_copy import HOLD, TRIES_MAX, ShardCopy
from opic.replica.crawl import Crawl
from opic.store.connection import store_errors
from opic.store.keys import FORMAT
from opic.store.library import primaries

HOLD_SECONDS: Final = 10.0  # If the backup process dies, deliveries between shards resume after this time.
RENEW_SECONDS: Final = 2.0
THREADS_A_SERVER: Final = 2  # One reads while the other compresses; more threads would make other clients wait.
log = logging.getLogger("opic.ops")

Progress = Callable[[int, int], object]


def backup(crawl: Crawl, directory: Path, on_progress: Progress = lambda _done, _all: None) -> dict[str, Any]:
    """Copy a crawl into a new directory. Workers and endpoints may run, and events continue to take effect.

    Args:
        crawl: the open crawl, on a server or a cluster.
        directory: created if missing; must be empty.
        on_progress: called with the number of blocks copied and their total, which may grow.

    Returns:
        The manifest.

    Raises:
        SettingsError: the directory is not empty, or can't be written. After this and any other error, nothing is left
            in it.
        StoreError: the books don't balance, so the copy is useless.
        StoreUnavailable: the store was unavailable, or changed faster than it could be copied.
    """
    with filled(directory):
        manifest = _copied(crawl, directory, on_progress)
    try:
        with store_errors():
            crawl.client.hset(crawl.shards[0].keys.meta, "backup_at", manifest["made_at"])  # For /metrics.
    except StoreUnavailable as error:
        log.warning("the backup is complete, but its time is missing in /metrics: %s", error)
    return manifest


def _copied(crawl: Crawl, directory: Path, on_progress: Progress) -> dict[str, Any]:
    """Copy a crawl into an empty directory; return the manifest, which is written last."""
    client, backup_id = crawl.client, secrets.token_hex(8)
    threads = min(len(crawl), THREADS_A_SERVER * len(primaries(client)))
    with ExitStack() as stack, ThreadPoolExecutor(threads, "opic-backup") as pool:
        copies = [ShardCopy(crawl, shard, directory, backup_id) for shard in crawl.shards]
        for copy in copies:
            stack.callback(copy.close)
        _copy(crawl, copies, pool, on_progress)
        domains = set[str]().union(*pool.map(ShardCopy.take_forgotten_out, copies))
        files = [line for copy in copies for line in copy.finish(domains)]
    on_progress(sum(copy.done for copy in copies), sum(copy.done for copy in copies))
    manifest = _manifest(crawl, backup_id) | {"counts": [copy.counts for copy in copies]}
    checked = check_backup(directory, manifest)
    manifest |= summary_of(checked) | {"files": files}
    write_manifest(directory, manifest)
    return manifest


def _copy(crawl: Crawl, copies: Sequence[ShardCopy], pool: ThreadPoolExecutor, on_progress: Progress) -> None:
    """Copy all shards up to one consistent end."""

    def follow() -> None:
        while not all(list(pool.map(ShardCopy.turn, copies))):
            on_progress(sum(copy.done for copy in copies), sum(copy.blocks for copy in copies))

    for _ in range(TRIES_MAX):
        follow()
        list(pool.map(ShardCopy.read_settings, copies))
        follow()  # Copy what was appended in the meantime, so that little remains to be read while deliveries are held.
        if _end(crawl, copies, pool):
            return
    raise StoreUnavailable(
        f"the shards changed during each of {TRIES_MAX} attempts to end the copy: are servers failing over?"
    )


def _manifest(crawl: Crawl, backup_id: str) -> dict[str, Any]:
    """Return the fields of the manifest that describe the crawl."""
    server = primaries(crawl.client)[0].info("server")
    return {
        "format": BACKUP_FORMAT,
        "id": backup_id,
        "store_format": FORMAT,
        "crawl": crawl.shards[0].keys.crawl,
        "shards": len(crawl),
        "made_at": time.time(),
        "server": f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}",
        "rules": crawl.shards[0].given(),
    }


def _end(crawl: Crawl, copies: Sequence[ShardCopy], pool: ThreadPoolExecutor) -> bool:
    """Read the heads and everything that belongs to them; return whether nothing is missing in the copies."""
    with Hold(crawl, copies) as hold:
        list(pool.map(ShardCopy.read_resume, copies))
        ends = list(pool.map(ShardCopy.read_end, copies))
        fit = list(
            pool.map(lambda copy: copy.read_outboxes(ends, hold.renew) and copy.read_log(ends, hold.renew), copies)
        )
    return all(list(pool.map(ShardCopy.read_rest, copies))) and all(fit)


class Hold:
    """Holds deliveries and trims of the log, but not events. The hold expires after HOLD_SECONDS unless renewed."""

    def __init__(self, crawl: Crawl, copies: Sequence[ShardCopy] = ()) -> None:
        """Create the hold; entering the context starts it. It also lets the journals of these copies be kept."""
        self._crawl, self._until_us, self._renewed = crawl, 0, float("-inf")
        self._copies = copies
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(self, _: type[BaseException] | None, __: object, ___: TracebackType | None) -> None:
        """End the hold, unless another backup has taken it over."""
        keys = [shard.keys.offsets for shard in self._crawl.shards]
        holds = self._crawl.ask([["HGET", key, HOLD] for key in keys])
        ours = [key for key, until in zip(keys, holds, strict=True) if until == b"%d" % self._until_us]
        if ours:
            self._crawl.ask([["HDEL", key, HOLD] for key in ours])

    def renew(self) -> None:
        """Renew the hold if it is time. Thread-safe."""
        with self._lock:
            if time.monotonic() - self._renewed > RENEW_SECONDS:
                self._write()

    def _write(self) -> None:
        """Set the end of the hold to HOLD_SECONDS after the latest clock of all servers."""
        self._renewed = time.monotonic()
        with store_errors():
            times = [server.time() for server in primaries(self._crawl.client)]
        latest = max(int(seconds) * 1_000_000 + int(micros) for seconds, micros in times)
        self._until_us = latest + round(HOLD_SECONDS * 1e6)
        keep = [copy.keep_journal() for copy in self._copies]
        self._crawl.ask([*keep, *(["HSET", shard.keys.offsets, HOLD, self._until_us] for shard in self._crawl.shards)])
