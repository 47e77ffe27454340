"""Diagnostics of `opic doctor`: checks the settings, Kafka, the data directory and the store, and gives advice.

It changes nothing, except that it loads the function library into the store, as every query does. It does not start the
embedded store: if the embedded service is not running, its store is not checked.
"""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import redis

from opic.errors import KafkaUnavailable, OpicError, SettingsError, StoreLost, StoreMismatch, StoreUnavailable
from opic.ingest.heartbeats import BEAT_SECONDS, events_waiting, plain_duration, workers_seen
from opic.redaction import without_secret
from opic.replica.stored_links import read_list
from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer
from opic.service.known_crawls import KnownCrawls
from opic.service.moves import after_moves
from opic.service.tokens import Tokens
from opic.settings import Settings
from opic.store import connect
from opic.store.cluster import Cluster
from opic.store.connection import store_errors
from opic.store.durability import Durability, durability_problem
from opic.store.keys import FORMAT, Keys
from opic.store.library import LIBRARY, primaries
from opic.store.loader_rights import loader_problem
from opic.store.recognition import check_not_lost
from opic.store.server import cluster_problem, server_problem

if TYPE_CHECKING:
    from opic.ingest.kafka import KafkaCluster

DISK_BYTES_WARN = 4 << 30  # The append-only file is rewritten after it has grown by 1 GB; both files need space.
DISK_BYTES_MIN = 256 << 20
SKEW_SECONDS_WARN = 5.0
JOURNAL_SHARE = 10  # maxmemory should be at least this multiple of the journals' maximum size.
LAG_WARN = 10_000  # A few seconds of work.
PROGRESS_SECONDS = 5.0  # A worker that applies events takes a step many times a second.
POLL_SECONDS = 0.1
TOKENS_SHOWN = 10

Verdict = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check and, unless it is ok, what to do."""

    check: str
    verdict: Verdict
    text: str


def run_checks(load: Callable[[], Settings]) -> Iterator[Finding]:
    """Run the checks in order; skip those that depend on a failed one."""
    try:
        settings = load()
    except OpicError as error:
        yield Finding("settings", "FAIL", str(error))
        return
    given = ", ".join(f"OPIC_{name.upper()}" for name in sorted(settings.model_fields_set)) or "all have their defaults"
    yield Finding("settings", "ok", f"set: {given}" if settings.model_fields_set else given)
    if settings.tokens_file is not None:
        yield _tokens(settings)
    elif settings.api_token is None and not settings.on_loopback:
        advice = "set one, or `opic serve` needs --allow-open"
        yield Finding("token", "warn", f"OPIC_HOST is {settings.host} without OPIC_API_TOKEN: {advice}")
    if settings.processes > (cores := os.cpu_count() or 1):
        advice = "each keeps all pages in memory, and more than cores bring nothing"
        yield Finding("processes", "warn", f"OPIC_PROCESSES is {settings.processes} on {cores} cores: {advice}")
    log_answers = True
    if settings.kafka_bootstrap is not None:
        try:
            for finding in _kafka(settings):
                log_answers &= finding.verdict != "FAIL"
                yield finding
        except OpicError as error:
            log_answers = False
            away = isinstance(error, KafkaUnavailable)
            yield Finding(
                "kafka", "FAIL", f"{error}; is it running, and is OPIC_KAFKA_BOOTSTRAP right?" if away else str(error)
            )
    url = settings.store
    if settings.embedded:
        yield from _directory(settings.data_dir())
        running = EmbeddedServer.running(settings.data_dir())
        if running is None:
            new = not settings.data_dir().exists()
            said = "there is none yet" if new else "the embedded service is not running"
            yield Finding("store", "ok" if new else "warn", f"{said}: `opic serve --embedded` starts it")
            return
        url = running
    try:
        yield from _store(settings, url, log_answers)
    except OpicError as error:
        away = isinstance(error, StoreUnavailable) and not settings.embedded
        yield Finding("store", "FAIL", f"{error}; is it running, and is OPIC_STORE right?" if away else str(error))


def _tokens(settings: Settings) -> Finding:
    """Check the file of tokens, which an endpoint refuses to start without."""
    assert settings.tokens_file is not None
    try:
        tokens = Tokens(settings).tokens
    except SettingsError as error:
        return Finding("tokens", "FAIL", str(error))
    if not (here := [token for token in tokens if token.is_for([settings.crawl])]):
        advice = f"`opic tokens new NAME --role read --crawl {settings.crawl}` makes one"
        return Finding("tokens", "warn", f"none in {settings.tokens_file} is for crawl {settings.crawl}: {advice}")
    if settings.tokens_file.stat().st_mode & stat.S_IWOTH:
        text = f"any user of this machine may write {settings.tokens_file}, and so give itself a token: chmod o-w"
        return Finding("tokens", "warn", text)
    told = "; ".join(f"{token.name}: {token.shown_roles()}" for token in here[:TOKENS_SHOWN])
    more = f"; and {len(here) - TOKENS_SHOWN} more" if len(here) > TOKENS_SHOWN else ""
    return Finding("tokens", "ok", f"{told}{more}")


def _kafka(settings: Settings) -> Iterator[Finding]:
    from opic.ingest.kafka import KafkaCluster, topics
    from opic.ingest.kafka.connection import slow_checksums

    cluster = KafkaCluster(settings)
    if (slow := slow_checksums()) is not None:
        yield Finding("checksums", "warn", slow)
    with closing(cluster.admin()) as admin:
        there = topics.brokers(cluster, admin)
        yield Finding("kafka", "ok", f"{cluster.where} answers, {there} broker{'s' if there > 1 else ''}")
        setups = topics.find(cluster, admin, [cluster.topic, cluster.dlq])
    for name in (cluster.topic, cluster.dlq):
        if name not in setups:
            yield Finding("topic", "FAIL", f"there is no topic {name}: `opic topics create` creates it")
    if (topic := setups.get(cluster.topic)) is None:
        return
    replicas = f"{topic.replication} replica{'s' if topic.replication > 1 else ''}"
    partitions = f"{topic.partitions} partition{'s' if topic.partitions > 1 else ''}"
    many = f"{topic.name} has {partitions}, {replicas} of each"
    if topic.replication == 1:
        how = "give it 3 replicas" if there > 1 else "run 3 brokers, and give it 3 replicas"
        yield Finding("topic", "warn", f"{many}: accepted events are lost if their broker is lost; {how}")
    else:
        yield Finding("topic", "ok", many)
    yield _kafka_rights(cluster)
    if not topic.config:
        yield Finding("topic", "warn", f"this user may not read the configuration of {topic.name}: DescribeConfigs")
        return
    kind = topic.config.get("message.timestamp.type")
    if kind == "LogAppendTime":
        yield Finding("record time", "ok", f"{topic.name} uses the brokers' clock")
    else:
        text = "a producer with a wrong clock gives events a wrong time; set message.timestamp.type=LogAppendTime"
        yield Finding("record time", "warn", f"{topic.name} uses {kind}: {text}")
    if (size := int(topic.config.get("max.message.bytes", 0))) < settings.max_body_bytes:
        text = f"an event of OPIC_MAX_BODY_BYTES {settings.max_body_bytes:,} would be refused"
        yield Finding("record size", "warn", f"{topic.name} accepts records of up to {size:,} bytes: {text}")


def _kafka_rights(cluster: "KafkaCluster") -> Finding:
    """Try what workers and endpoints need. Some installations have a user for each."""
    from opic.ingest.kafka.rights import missing_rights

    missing = missing_rights(cluster)
    lacks = "; ".join(f"{role} also need {', '.join(rights)}" for role, rights in missing.items() if rights)
    if not lacks:
        return Finding("kafka rights", "ok", "this user may do what workers and endpoints do")
    if all(missing.values()):
        return Finding("kafka rights", "FAIL", f"{lacks}: see docs/operations.md")
    (role,) = (role for role, rights in missing.items() if not rights)
    return Finding("kafka rights", "ok", f"this user may do what {role} do; {lacks}")


def _directory(data: Path) -> Iterator[Finding]:
    near = data.absolute()
    while not near.exists():
        near = near.parent
    if data.exists():
        usable, success = data.is_dir() and os.access(data, os.R_OK | os.W_OK | os.X_OK), f"{data} is writable"
        problem = f"{data} is not a writable directory: chown it, or choose another --data"
    else:
        usable = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
        success = f"{data} does not exist yet: `opic serve --embedded` creates it"
        problem = f"{data} can't be created: {near} is not writable, choose another --data"
    yield Finding("data directory", "ok" if usable else "FAIL", success if usable else problem)
    if not usable:
        return
    free = shutil.disk_usage(near).free
    verdict: Verdict = "FAIL" if free < DISK_BYTES_MIN else "warn" if free < DISK_BYTES_WARN else "ok"
    advice = "" if verdict == "ok" else f": rewriting the append-only file may need {DISK_BYTES_WARN >> 30} GiB"
    yield Finding("disk", verdict, f"{free / (1 << 30):,.1f} GiB free{advice}")


def _store(settings: Settings, url: str, log_answers: bool) -> Iterator[Finding]:
    client = connect(url, retries=0)
    where = without_secret(url)
    with client, store_errors():
        servers = primaries(client)
        infos: list[dict[str, Any]] = [server.info() for server in servers]
        versions = {
            f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}" for info in infos
        }
        clustered = isinstance(client, Cluster)
        problems = [problem for info in infos if (problem := server_problem(info, clustered)) is not None]
        if problems:
            yield Finding("eviction" if "maxmemory-policy" in problems[0] else "store", "FAIL", problems[0])
            return
        kind = f"a cluster, {len(servers)} primaries of " if clustered else ""
        yield Finding("store", "ok", f"{where} is {kind}{', '.join(sorted(versions))}")
        if clustered:
            down = cluster_problem(servers[0].execute_command("CLUSTER INFO"))
            if down is not None:
                yield Finding("slots", "FAIL", str(down))
                return
            yield Finding("slots", "ok", "every slot has a node")
        yield Finding("eviction", "ok", "maxmemory-policy is noeviction: the server drops no data")
        yield from _clocks(servers)
        yield _journal(settings, infos)
        yield from _durability(settings, client, infos)
        yield from _files(servers, infos)
        yield _rights(servers, infos)
        yield from _crawl(settings, url, client, log_answers)


def _files(servers: Sequence[Any], infos: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Say whether an older server can read the append-only files: not if these begin in a server's own format."""
    if not any(int(info.get("aof_enabled", 0)) for info in infos):
        return
    try:
        own = any(server.config_get("aof-use-rdb-preamble").get("aof-use-rdb-preamble") != "no" for server in servers)
    except redis.ResponseError:  # CONFIG is not allowed, as `durability` says.
        return
    readers = "only this version of the server and newer ones are sure to read them; see Upgrade in docs/operations.md"
    text = f"aof-use-rdb-preamble is yes: {readers}" if own else "aof-use-rdb-preamble is no: they hold plain commands"
    yield Finding("append-only files", "ok", text)


def _clocks(servers: Sequence[Any]) -> Iterator[Finding]:
    """Compare clocks: everything in the store goes by the server's, what crawlers and people see by their own."""
    skews = []
    for server in servers:
        before = time.time()
        seconds, micros = server.time()
        skews.append(seconds + micros / 1e6 - (before + time.time()) / 2)
    worst = max(skews, key=abs)
    told = f"the store's clock is {abs(worst):.1f} s {'ahead of' if worst > 0 else 'behind'} this machine's"
    if abs(worst) > SKEW_SECONDS_WARN:
        yield Finding("clock", "warn", f"{told}: run NTP on both machines, or leases end early or late")
    else:
        yield Finding("clock", "ok", told)


def _journal(settings: Settings, infos: Sequence[dict[str, Any]]) -> Finding:
    """Compare the journals' maximum size with the memory of the smallest server, which may hold all of them."""
    size = f"the journals take up to OPIC_JOURNAL_BYTES {settings.journal_bytes:,}"
    limits = [int(info["maxmemory"]) for info in infos if int(info.get("maxmemory", 0))]
    if not limits or settings.journal_bytes * JOURNAL_SHARE <= min(limits):
        return Finding("journal", "ok", f"{size} bytes")
    text = f"{size} bytes, more than a tenth of maxmemory {min(limits):,}: lower it, or raise maxmemory"
    return Finding("journal", "warn", text)


def _durability(settings: Settings, client: Any, infos: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if any(info.get("aof_last_write_status", "ok") != "ok" for info in infos):
        yield Finding("durability", "FAIL", "the last write to the append-only file failed: is the disk full?")
        return
    risk = durability_problem(client, Durability(settings.durability, settings.wait_replicas, settings.wait_seconds))
    if risk is None:
        yield Finding("durability", "ok", "appendonly is yes, appendfsync always: what was accepted is on disk")
    else:
        yield Finding("durability", "FAIL" if risk.fatal else "warn", risk.text)


def _workers(backend: Backend) -> Finding:
    """Check that a worker is there and that waiting events take effect."""
    seen = workers_seen(backend.shard.client, backend.shard.keys)
    if (problem := backend.worker_problem()) is not None:
        return Finding("workers", "FAIL", problem)
    if seen.seconds is None:
        return Finding("workers", "warn", "no worker runs, and no event waits for one: start one with `opic worker`")
    there = f"{seen.workers} worker{'s' if seen.workers != 1 else ''}, last seen {plain_duration(seen.seconds)} ago"
    backend.crawl.follow()  # What was applied before is no progress.
    before = backend.crawl.heads()
    deadline = time.monotonic() + PROGRESS_SECONDS
    while backend.lag() and backend.crawl.heads() == before:
        if time.monotonic() > deadline:
            waiting = events_waiting(backend.lag(), exact=backend.lag_is_exact)
            text = f"no worker has applied an event for {plain_duration(PROGRESS_SECONDS)}, and {waiting}; seen:"
            return Finding("workers", "FAIL", f"{text} {there}: /readyz and log of each say why")
        time.sleep(POLL_SECONDS)
        backend.crawl.follow()
    if seen.seconds > 2 * BEAT_SECONDS:
        return Finding("workers", "warn", f"{there}, though a worker says every {BEAT_SECONDS:.0f} s that it is there")
    return Finding("workers", "ok", there)


def _partitions(backend: Backend) -> Iterator[Finding]:
    """Say how many workers can be busy at once."""
    if backend.settings.kafka_bootstrap is None:
        return
    from opic.ingest.kafka import KafkaCluster
    from opic.ingest.kafka.assignment import workers_at_once

    cluster, shards = KafkaCluster(backend.settings), len(backend.crawl)
    with closing(cluster.consumer()) as consumer:
        partitions = len(cluster.partitions(consumer))
    busy = workers_at_once(partitions, shards)
    many = "1 worker is busy at a time" if busy == 1 else f"up to {busy} workers are busy at a time"
    text = f"partitions: {partitions}, shards: {shards}; {many}, any other stands by"
    text = f"{text}: Size in docs/operations.md says from which load on more shards pay"
    yield Finding("partitions", "ok", text)


def _lost_events(backend: Backend) -> Iterator[Finding]:
    """Check that the topic still has all that has not taken effect."""
    if backend.settings.kafka_bootstrap is None:
        return
    missing = backend.log.missing()
    if not missing:
        yield Finding("lost events", "ok", "the topic has all events that have not taken effect")
        return
    text = (
        f"Kafka's retention deleted {sum(missing.values()):,} records of accepted events of "
        f"{', '.join(sorted(missing))} before they took effect: raise retention.ms, publish them again, or give them "
        "up with OPIC_KAFKA_SKIP_LOST=true"
    )
    yield Finding("lost events", "FAIL", text)


def _kept_links(backend: Backend) -> Finding:
    if not backend.links.kept:
        on = backend.settings.keep_links
        why = " yet: workers begin to with their next batch" if on else ": OPIC_KEEP_LINKS is off"
        return Finding("kept links", "ok", f"none are kept{why}")
    lists = [read_list(shard.client, shard.keys) for shard in backend.crawl.shards]
    size, segments = sum(link_list.size for link_list in lists), sum(len(link_list.live) for link_list in lists)
    segments_told = f"{segments:,} segment{'s' if segments != 1 else ''}"
    return Finding("kept links", "ok", f"{size:,} bytes in {segments_told}, and the newest in the journal")


def _rights(servers: Sequence[Any], infos: Sequence[dict[str, Any]]) -> Finding:
    """Check that no restart skips what is in the append-only files."""
    for server, info in zip(servers, infos, strict=True):
        if (problem := loader_problem(server, info)) is not None:
            return Finding("access rules", "FAIL" if problem.fatal else "warn", problem.text)
    return Finding("access rules", "ok", "a restart reads back the whole append-only file")


def _crawl(settings: Settings, url: str, client: Any, log_answers: bool) -> Iterator[Finding]:
    named, settings = settings.crawl, after_moves(client, settings)
    if settings.crawl != named:
        yield Finding("crawl", "warn", f"{named} was moved to {settings.crawl}: set OPIC_CRAWL={settings.crawl}")
    keys = Keys(settings.crawl, 0)
    with store_errors():
        meta = client.hgetall(keys.meta)
        made = meta.get(b"format")
        loaded = all(server.function_list(LIBRARY) for server in primaries(client))
    try:
        check_not_lost(client, settings.crawl, meta, settings.shards)
        KnownCrawls(settings).check(client)
        if settings.kafka_bootstrap is not None and log_answers:
            from opic.ingest.kafka import KafkaCluster
            from opic.ingest.kafka.known_offsets import check_used

            check_used(KafkaCluster(settings), client)
    except StoreLost as error:
        yield Finding("crawl", "FAIL", str(error))
        return
    if made is None:
        text = f"no crawl named {settings.crawl!r} yet: `opic serve` or `opic replay` creates it"
        yield Finding("crawl", "warn", text)
        return
    if made.decode() != FORMAT:
        text = f"format version {made.decode()}, and this program reads {FORMAT}: use the one that made it"
        yield Finding("format", "FAIL", text)
        return
    yield Finding("format", "ok", f"version {FORMAT}")
    told = "is loaded" if loaded else "was not loaded; this check loaded it"
    yield Finding("functions", "ok" if loaded else "warn", f"{LIBRARY} {told}")
    try:
        backend = Backend(settings, url, create=False)
    except StoreMismatch as error:
        yield Finding("crawl", "FAIL", str(error))
        return
    with closing(backend):
        yield from _books(backend, settings, log_answers)


def _books(backend: Backend, settings: Settings, log_answers: bool) -> Iterator[Finding]:
    books = backend.crawl.totals()
    yield Finding("crawl", "ok", f"{settings.crawl}: {books.live:,} known pages, {books.open:,} of them read")
    if not log_answers:
        yield Finding("lag", "warn", "how many accepted events are waiting is known once Kafka answers")
    else:
        if (lag := backend.lag()) >= min(LAG_WARN, settings.max_lag):
            text = f"{lag:,} accepted events are waiting, OPIC_MAX_LAG is {settings.max_lag:,}: is a worker running?"
            yield Finding("lag", "FAIL" if lag >= settings.max_lag else "warn", text)
        else:
            yield Finding("lag", "ok", f"{lag:,} accepted events are waiting")
        yield from _lost_events(backend)
        yield from _partitions(backend)
        yield _workers(backend)
    audit, _ = backend.crawl.audit()
    yield _kept_links(backend)
    if audit.conserved:
        yield Finding("audit", "ok", f"all {audit.minted:,} grains are accounted for")
    else:
        why = "; ".join(audit.mismatches) or "minted is not pages + virtual"
        yield Finding("audit", "FAIL", f"the books don't balance ({why}): stop the workers and restore a backup")
