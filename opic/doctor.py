"""What `opic doctor` looks at: the settings, the data directory, and the store; and what to do about each.

Nothing is changed but that the store gets the function library, as by every question. No store is started: where the
embedded service does not run, its store is not looked into.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opic.embedded import EmbeddedServer
from opic.errors import OpicError, StoreMismatch
from opic.service import Backend
from opic.settings import Settings
from opic.store import connect
from opic.store.connection import LIBRARY, VERSION_MIN, store_errors, without_secret
from opic.store.keys import FORMAT, Keys

DISK_BYTES_WARN = 4 << 30  # The append-only file is rewritten once it has grown by 1 GB, beside the old one.
DISK_BYTES_MIN = 256 << 20
LAG_WARN = 10_000  # Some seconds of a worker's time.

Verdict = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: what was found and, unless it is well, what to do."""

    check: str
    verdict: Verdict
    found: str


def look(load: Callable[[], Settings]) -> Iterator[Finding]:
    """Check one thing after the other; what rests on something that failed is not looked at."""
    try:
        settings = load()
    except OpicError as error:
        yield Finding("settings", "FAIL", str(error))
        return
    given = ", ".join(f"OPIC_{name.upper()}" for name in sorted(settings.model_fields_set)) or "all are the defaults"
    yield Finding("settings", "ok", f"given: {given}" if settings.model_fields_set else given)
    if settings.api_token is None and settings.host not in ("127.0.0.1", "::1", "localhost"):
        yield Finding("token", "warn", f"OPIC_HOST is {settings.host} without OPIC_API_TOKEN: set one")
    url = settings.store
    if settings.embedded:
        yield from _directory(settings.data_dir())
        running = EmbeddedServer.running(settings.data_dir())
        if running is None:
            yield Finding("store", "warn", "the embedded service does not run here: `opic serve --embedded` starts it")
            return
        url = running
    try:
        yield from _store(settings, url)
    except OpicError as error:
        yield Finding("store", "FAIL", str(error))


def _directory(data: Path) -> Iterator[Finding]:
    near = data.absolute()
    while not near.exists():
        near = near.parent
    if not data.exists():
        if near.is_dir() and os.access(near, os.W_OK | os.X_OK):
            yield Finding("data directory", "warn", f"{data} is not there yet: `opic serve --embedded` makes it")
        else:
            yield Finding("data directory", "FAIL", f"{data} can't be made: {near} is not ours, choose another --data")
            return
    elif not data.is_dir() or not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "data directory", "FAIL", f"{data} is no directory that we can write: chown it, or choose another"
        )
        return
    else:
        yield Finding("data directory", "ok", f"{data} can be written")
    free = shutil.disk_usage(near).free
    verdict: Verdict = "FAIL" if free < DISK_BYTES_MIN else "warn" if free < DISK_BYTES_WARN else "ok"
    advice = "" if verdict == "ok" else f": free some, {DISK_BYTES_WARN >> 30} GiB leave room to rewrite the file"
    yield Finding("disk", verdict, f"{free / (1 << 30):,.1f} GiB free{advice}")


def _store(settings: Settings, url: str) -> Iterator[Finding]:
    client = connect(url, retries=0)
    with client, store_errors():
        info: dict[str, Any] = client.info()
    name, known = info.get("server_name", "redis"), str(info["redis_version"])
    version = str(info.get("valkey_version", known))
    where = without_secret(url)
    if tuple(int(part) for part in known.split(".")[:2]) < VERSION_MIN:
        yield Finding("store", "FAIL", f"{where} is {name} {version}: functions need Redis 7.0 or any Valkey")
        return
    yield Finding("store", "ok", f"{where} is {name} {version}")
    policy = info.get("maxmemory_policy", "noeviction")
    told = f"maxmemory-policy is {policy}"
    if policy != "noeviction":
        yield Finding("eviction", "FAIL", f"{told}, which would evict cash: set it to noeviction")
        return
    yield Finding("eviction", "ok", told)
    yield from _durability(client, info)
    yield from _crawl(settings, url, client)


def _durability(client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    if not int(info.get("aof_enabled", 0)):
        yield Finding("durability", "FAIL", "appendonly is no: a restart loses what was accepted; set it to yes")
        return
    try:
        with store_errors():
            sync = client.config_get("appendfsync")["appendfsync"]
    except (OpicError, KeyError):
        yield Finding("durability", "warn", "appendonly is yes; CONFIG is not allowed: see that appendfsync is always")
        return
    if sync != "always":
        yield Finding("durability", "warn", f"appendfsync is {sync}: a crash may lose a second; set it to always")
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield Finding("durability", "FAIL", "the last write to the append-only file failed: is the disk full?")
    else:
        yield Finding("durability", "ok", "appendonly is yes, appendfsync always")


def _crawl(settings: Settings, url: str, client: Any) -> Iterator[Finding]:
    keys = Keys(settings.crawl, 0)
    with store_errors():
        made, loaded = client.hget(keys.meta, "format"), client.function_list(LIBRARY)
    if made is None:
        yield Finding("crawl", "warn", f"no crawl named {settings.crawl!r} yet: `opic serve` or `opic replay` makes it")
        return
    if made.decode() != FORMAT:
        text = f"format version {made.decode()}, and this program reads {FORMAT}: use the one that made it"
        yield Finding("format", "FAIL", text)
        return
    yield Finding("format", "ok", f"version {FORMAT}")
    if not loaded:
        yield Finding("functions", "warn", f"{LIBRARY} was not loaded; it is now, by this look")
    else:
        yield Finding("functions", "ok", f"{LIBRARY} is loaded")
    with ExitStack() as stack:
        try:
            backend = Backend(settings, url, create=False)
        except StoreMismatch as error:
            yield Finding("crawl", "FAIL", str(error))
            return
        stack.callback(backend.close)
        lag, books = backend.lag(), backend.shard.books()
        yield Finding("crawl", "ok", f"{settings.crawl}: {books.live:,} known pages, {books.open:,} of them read")
        if lag >= LAG_WARN:
            text = f"{lag:,} accepted events wait: does the worker run, and keep up? OPIC_MAX_LAG {settings.max_lag:,}"
            yield Finding("lag", "FAIL" if lag >= settings.max_lag else "warn", text)
        else:
            yield Finding("lag", "ok", f"{lag:,} accepted events wait")
        audit = backend.shard.audit()
        if audit.conserved:
            yield Finding("audit", "ok", f"all {audit.minted:,} grains are there")
        else:
            why = "; ".join(audit.mismatches) or "minted is not pages + virtual"
            yield Finding("audit", "FAIL", f"the books don't balance ({why}): stop writing, restore a copy")
