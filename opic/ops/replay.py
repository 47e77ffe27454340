"""Replay: feeds recorded crawls, and simulated crawls of recorded graphs, to the service as a crawler would.

The crawl events of a file are appended to the log unchanged, one by one: an invalid event becomes a dead letter, like
an event received over the network. For a graph, the crawl is simulated: a strategy picks pages, and each read becomes
an event with the links of that page in the graph.
"""

import gzip
import logging
import random
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeVar, cast
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from opic.errors import BadEvent, BadFraming, BadInput, BadUrl, DiskFull, NotBuiltYet, StoreUnavailable
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.ingest.event_log import EventLog, KeyedCall, Log, Positions
from opic.ingest.msgpack_values import cut_stream, is_map
from opic.ingest.worker import LogSource, work
from opic.model.events import CrawlEvent, EventLimits, check_event, decode_crawl_event, encode_crawl_event, encode_seeds
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import Shard
from opic.urls.canonical import canonical_url, shown

log = logging.getLogger("opic.ops")

Int64s = npt.NDArray[np.int64]
Answer = TypeVar("Answer")

FORMATS: Final = ("jsonl", "msgpack", "warc", "wat", "edges")
BUILT: Final = ("jsonl", "msgpack", "edges")
STRATEGIES: Final = ("log", "random", "greedy", "cycle")
NAMELESS: Final = "http://graph.example/"  # URL prefix of pages in graphs without URLs.
SAFE_IN_NAMES: Final = "%/:@!$&'()*+,;=~-._"
GZIP_MAGIC: Final = b"\x1f\x8b"

READS_PER_PAGE: Final = 1.0
SEEDS: Final = 5
BATCH: Final = 0.01  # Greedy reads this share of the known pages at a time; up to 0.1 costs no accuracy.
BATCH_MAX: Final = 1_000  # Pages asked for at once.
VALUES_A_CALL: Final = 500  # The number of records that the worker takes at once.
BYTES_A_CALL: Final = 4 << 20
REFUSED_SHOWN_MAX: Final = 5
PROGRESS_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.005
EMPTY_SECONDS: Final = 2.0  # Snapshots are at most a second old, so a frontier that is empty for this long stays empty.
AWAY_SECONDS_MAX: Final = 60.0  # A killed store is back within a second, or within 12 s if it has to load 1 GB.
ASK_AGAIN_SECONDS: Final = 0.5
SAY_AGAIN_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 2.0  # A running worker takes a batch in well under a second; after this, work here instead.


class Target(Protocol):
    """The interface that a replay needs of an open store; implemented by `opic.service.service.Backend`."""

    settings: Settings
    crawl: Crawl
    shard: Shard  # The shard that has the log.

    @property
    def log(self) -> Log:
        """The log of accepted events."""

    def accept(self, values: Sequence[bytes], kind: str = "event", time_us: int | None = None) -> Positions:
        """Append records to the log; return its end offset."""

    def accept_once(self, call: KeyedCall, judge: Callable[[int, EventLimits], "EventChunk"]) -> "EventChunk":
        """Append events to the log once, however often this is repeated with the same call."""

    def lag(self) -> int:
        """Return the number of accepted records that have not taken effect yet."""

    def disk_full(self) -> str | None:
        """Return a message if the disk is full, so that nothing may be written; else None."""


@dataclass(slots=True)
class EventChunk:
    """Encoded events that are appended to the log together."""

    values: list[bytes]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay, and how. All fields except `format` are for graphs only."""

    format: str
    strategy: str = "log"
    reads_per_page: float = READS_PER_PAGE
    seed: int = 0  # Seed of the random choices.
    seeds: int = SEEDS  # Number of pages that greedy starts from, unless `seed_urls` names them.
    seed_urls: Sequence[str] = ()
    batch: float = BATCH  # Share of the known pages that greedy reads before it asks again.


@dataclass(slots=True)
class Progress:
    """The progress of a replay."""

    events: int = 0  # Events appended to the log.
    total: int | None = None  # Final number of events, if it is known.
    lag: int = 0
    undelivered: int = 0  # Transfers between shards that are not delivered yet, at the end of the replay.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a replay. Counts are of this replay only, except `pages`, the pages now known to the store."""

    events: int
    accepted: int
    dead_letters: int
    pages: int
    links: int
    seconds: float
    events_per_second: float
    note: str | None = None  # Reason for ending early.
    links_left_out: int | None = None  # Links over OPIC_MAX_LINKS, if any.


def format_of(path: Path) -> str:
    """Guess a file's format from its name; the default is an edge list.

    >>> format_of(Path("crawl.jsonl.gz")), format_of(Path("links.tsv.gz")), format_of(Path("a.warc.gz"))
    ('jsonl', 'edges', 'warc')
    """
    name = path.name.lower().removesuffix(".gz")
    ending = name.rpartition(".")[2]
    return {"ndjson": "jsonl", "json": "jsonl"}.get(ending, ending if ending in FORMATS else "edges")


def replay(
    target: Target,
    paths: Sequence[Path],
    plan: Plan,
    *,
    works_here: bool,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Feed files to a store; return after all events took effect and nothing is in flight between its shards.

    Args:
        target: the open store.
        paths: one or more files of one format; a graph may be split over several files.
        plan: how to replay them.
        works_here: apply the records in this process; if False, the worker of a running service applies them.
        on_progress: called now and then.

    Raises:
        BadInput: a file does not have the format; the events before the error were fed.
        NotBuiltYet: the format is not implemented yet.
        StoreUnavailable: the store was unavailable for AWAY_SECONDS_MAX. There is no limit while its disk is full.
    """
    if plan.format not in BUILT:
        raise NotBuiltYet(f"--format {plan.format} is not built yet: use one of {', '.join(BUILT)}")
    feeder = _Feeder(target, works_here, on_progress)
    links_before = target.crawl.totals().links
    note = None
    if plan.format in ("jsonl", "msgpack"):
        _replay_events(feeder, paths, plan.format)
    else:
        note = _replay_graph(feeder, read_graph(paths, target.settings), plan)
    feeder.finish()
    books, progress = target.crawl.totals(), feeder.progress
    return Summary(
        events=progress.events,
        accepted=progress.events - feeder.dead_letters,
        dead_letters=feeder.dead_letters,
        pages=books.live,
        links=books.links - links_before,
        seconds=round(progress.seconds, 3),
        events_per_second=round(progress.events / max(progress.seconds, 1e-6), 1),
        note=note,
        links_left_out=feeder.links_left_out or None,
    )


class _Feeder:
    """Appends records to the log in batches, and applies them or waits until a worker has applied them."""

    def __init__(self, target: Target, works_here: bool, on_progress: Callable[[Progress], None]) -> None:
        self.target, self.settings = target, target.settings
        if not isinstance(target.log, EventLog):
            raise BadInput("a replay writes to the store's own log: use `opic publish` for Kafka, or omit --kafka")
        self._log = target.log
        self.dead_letters = self.links_left_out = 0
        self.progress = Progress()
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._told, self._said = 0.0, float("-inf")
        self._values: list[bytes] = []
        self._bytes = 0
        self._name, self._number = uuid.uuid4().hex, 0  # Name of this replay, and number of its next batch.
        self._end = self._log.end()  # Earlier records take effect first.
        self._values_max = min(VALUES_A_CALL, self.settings.max_lag)
        self._writer: Writer | None = None
        if works_here:
            self._work()

    def feed(self, value: bytes) -> None:
        """Add an event to the current batch; send the batch if it is full."""
        if self._values and self._bytes + len(value) > BYTES_A_CALL:
            self.send()
        self._values.append(value)
        self._bytes += len(value)
        if len(self._values) >= self._values_max:
            self.send()

    def read(self, graph: "Graph", page: int) -> None:
        """Add a read of a page of a graph. Its links over OPIC_MAX_LINKS take no effect, and are counted."""
        links = int(graph.starts[page + 1] - graph.starts[page])
        self.links_left_out += max(0, links - self.settings.max_links)
        self.feed(graph.event(page))

    def refuse(self, reason: str) -> None:
        """Count an event that becomes a dead letter; log the first ones."""
        self.dead_letters += 1
        if self.dead_letters <= REFUSED_SHOWN_MAX:
            log.warning("dead letter: %s", reason)

    def send(self) -> None:
        """Append the current batch to the log."""
        values, self._values, self._bytes = self._values, [], 0
        if values:
            # The batch has a name, so that it may be sent again if its answer was lost.
            call, batch = KeyedCall.of(f"opic replay {self._name} {self._number}", "", b""), EventChunk(values)
            self._number += 1
            self._accept(len(values), lambda: self.target.accept_once(call, lambda *_: batch))
            self.progress.events += len(values)
            self._tell()

    def seed(self, urls: Sequence[str]) -> None:
        """Add seed pages, and wait until they are known."""
        for at in range(0, len(urls), VALUES_A_CALL):
            record = encode_seeds(list(urls[at : at + VALUES_A_CALL]))  # Adding the same seeds again has no effect.
            self._accept(1, partial(self.target.accept, [record], "seeds"))
        self.settle()

    def settle(self) -> None:
        """Send the current batch; return after all events took effect."""
        self.send()
        if self._writer is None:
            self._await(lambda: self._applied() >= self._end)
        self.progress.lag = 0
        self._tell(now=True)

    def finish(self) -> None:
        """Send the current batch; return after all events took effect and all transfers are delivered."""
        self.settle()
        if self._writer is None:
            self._await(lambda: self._undelivered() == 0)
        self.deliver()
        self._checkpoint()
        self.progress.undelivered = 0
        self._tell(now=True)

    def deliver(self) -> None:
        """Deliver all transfers between shards, if this process applies the records."""
        if (writer := self._writer) is not None:
            self.patiently(lambda: writer.drain(self._told_delivery))

    def _checkpoint(self) -> None:
        """Write a checkpoint of all shards of an embedded store, so that the next start need not read the journal."""
        if self._writer is None or not self.settings.embedded or self.target.disk_full() is not None:
            return
        try:
            for store in self._writer.stores:
                store.checkpoint()
        except StoreUnavailable as error:  # Nothing is lost: the journal has all records.
            log.info("the replay is complete, but the last checkpoint failed: %s", error)

    def _told_delivery(self) -> None:
        self._undelivered()
        self._tell()

    def _undelivered(self) -> int:
        self.progress.undelivered = self.patiently(self.target.crawl.undelivered)
        return self.progress.undelivered

    def _accept(self, count: int, accept: Callable[[], object]) -> None:
        if self._writer is None:
            room = self.settings.max_lag - count
            self._await(lambda: self.patiently(self.target.lag) <= room)
        self.patiently(accept)
        self._end = self.patiently(self._log.end)
        if self._writer is not None:
            self._work()

    def _applied(self) -> int:
        return self.patiently(lambda: self.target.crawl.resume(self._log.partition))

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Repeat a call until the store answers: up to AWAY_SECONDS_MAX, but without limit while its disk is full."""
        away: float | None = None
        while True:
            try:
                return ask()
            except StoreUnavailable as error:
                now = time.monotonic()
                if self._disk_is_full():
                    away = None
                elif away is None:
                    away = now
                elif now - away > AWAY_SECONDS_MAX:
                    raise StoreUnavailable(f"{error}; {self.progress.events:,} events were accepted before") from error
            time.sleep(ASK_AGAIN_SECONDS)

    def _disk_is_full(self) -> bool:
        """Return whether the store's disk is full; log a warning now and then."""
        full, now = self.target.disk_full(), time.monotonic()
        if full is not None and now - self._said > SAY_AGAIN_SECONDS:
            self._said = now
            log.warning("%s; waiting, %s events were accepted before", full, f"{self.progress.events:,}")
        return full is not None

    def _work(self) -> None:
        if self._writer is None:
            self._writer = Writer.of(self.target.crawl, self.settings)
        source = LogSource(self._log, self._writer.resume, until_offset=self._end)
        work(self._writer, source, full=self.target.disk_full)

    def _await(self, done: Callable[[], bool]) -> None:
        """Wait for the service's worker while it makes progress; if it stops, apply the records in this process.

        The service may be working on another crawl of the store. If its worker resumes, two workers are slower, but
        the result is still correct.
        """
        seen, moved = (-1, -1), time.monotonic()
        while not done():
            now, at = time.monotonic(), (self._applied(), self.progress.undelivered)
            if at != seen or self._disk_is_full():
                seen, moved = at, now
            elif now - moved > PATIENCE_SECONDS:
                self._end = self.patiently(self._log.end)
                return self._work()
            self._tell()
            time.sleep(POLL_SECONDS)
        return None

    def _tell(self, now: bool = False) -> None:
        self.progress.seconds = time.monotonic() - self._began
        if now or self.progress.seconds - self._told >= PROGRESS_SECONDS:
            self._told = self.progress.seconds
            self.progress.lag = self.patiently(self.target.lag)
            self._on_progress(self.progress)


# Files.


def lines_of(path: Path, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered non-blank lines of a file, plain or gzip (by its first bytes), without line ends.

    Raises:
        BadInput: the file can't be read, its gzip is broken, or a line is longer than `bytes_max`.
    """
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(bytes_max + 2):
                number += 1
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                line = line.rstrip(b"\r\n")
                if len(line) > bytes_max:
                    raise BadInput(f"{path}:{number}: the line is over OPIC_MAX_BODY_BYTES {bytes_max:,} bytes")
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: broken gzip after line {number:,}: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror or error}") from None


def values_of(path: Path, bytes_max: int) -> Iterator[bytes]:
    """Yield the MessagePack values of a file, plain or gzip.

    Raises:
        BadInput: the file can't be read or split into values, its gzip is broken, it does not start with a map, or a
            value is longer than `bytes_max`.
    """
    try:
        with _open(path) as file:
            for number, value in enumerate(cut_stream(file, bytes_max)):
                if number == 0 and not is_map(value):
                    raise BadInput(f"{path}: does not start with a map: a MessagePack file is a sequence of maps")
                yield value
    except BadFraming as error:
        raise BadInput(f"{path}: {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: broken gzip: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror or error}") from None


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file, plain or gzip (by its first bytes)."""
    with path.open("rb") as raw:
        packed = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw


def _replay_events(feeder: _Feeder, paths: Sequence[Path], kind: str) -> None:
    limits, bytes_max = feeder.settings.limits(), feeder.settings.max_body_bytes
    for path in paths:
        try:
            values = enumerate(values_of(path, bytes_max), 1) if kind == "msgpack" else lines_of(path, bytes_max)
            for number, value in values:
                try:
                    event = check_event(decode_crawl_event(value), time.time_ns() // 1000, limits)
                    feeder.links_left_out += event.links_left_out
                except BadEvent as error:
                    feeder.refuse(f"{path}:{number}: {error}")
                feeder.feed(value)
        except BadInput as error:
            feeder.settle()
            raise BadInput(f"{error}; {feeder.progress.events:,} events were fed before") from None


# Graphs.


@dataclass(frozen=True, slots=True)
class Graph:
    """Pages in order of first mention. Page `i` links to `targets[starts[i]:starts[i + 1]]`: distinct other pages."""

    urls: list[str]
    starts: Int64s  # (pages + 1,)
    targets: Int64s  # (links,)

    def event(self, page: int) -> bytes:
        """Return the encoded crawl event of a read of this page."""
        links = [self.urls[i] for i in self.targets[self.starts[page] : self.starts[page + 1]].tolist()]
        return encode_crawl_event(CrawlEvent(self.urls[page], links))


def url_of_name(name: str, bytes_max: int) -> str:
    """Return the canonical URL of a node: its name if that is an absolute URL, else a URL under http://graph.example/.

    Characters that are invalid in a path are percent-encoded; existing percent-encoding is kept.

    >>> url_of_name("HTTP://A.example", 99), url_of_name("Caf%C3%A9_100%?", 99)
    ('http://a.example/', 'http://graph.example/Caf%C3%A9_100%25%3F')

    Raises:
        BadUrl: the URL is longer than `bytes_max`, or can't be parsed.
    """
    if not name[:8].lower().startswith(("http://", "https://")):
        name = NAMELESS + quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", name), safe=SAFE_IN_NAMES)
    return canonical_url(name, bytes_max)


def read_graph(paths: Sequence[Path], settings: Settings) -> Graph:
    """Read a list of edges: lines `FROM TO`, split at the tab if there is one, else at white space; `#` comments.

    Raises:
        BadInput: a line is invalid.
    """
    page_of_name: dict[str, int] = {}
    page_of_url: dict[str, int] = {}
    ends: list[int] = []

    def page(name: str, path: Path, number: int) -> int:
        found = page_of_name.get(name)
        if found is None:
            try:
                url = url_of_name(name, settings.max_url_bytes)
            except BadUrl as error:
                raise BadInput(f"{path}:{number}: {error}") from None
            found = page_of_name[name] = page_of_url.setdefault(url, len(page_of_url))
        return found

    for path in paths:
        for number, line in lines_of(path, settings.max_body_bytes):
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as error:
                raise BadInput(f"{path}:{number}: not UTF-8, so not an edge list ({error.reason})") from None
            if text.startswith("#"):
                continue
            names = [name.strip() for name in text.split("\t")] if "\t" in text else text.split()
            if len(names) != 2 or not all(names):
                raise BadInput(f"{path}:{number}: {shown(text)} is not an edge: a line is FROM TO, or a # comment")
            ends += (page(name, path, number) for name in names)
    pages = len(page_of_url)
    if not pages:
        raise BadInput(f"{', '.join(map(str, paths))}: contains no edge")
    pairs = np.array(ends, np.int64).reshape(-1, 2)
    keys = np.unique(pairs[:, 0] * pages + pairs[:, 1])
    sources, targets = keys // pages, keys % pages
    others = sources != targets
    sources, targets = sources[others], targets[others]
    starts = np.searchsorted(sources, np.arange(pages + 1)).astype(np.int64)
    urls = list(page_of_url)
    most = int(np.argmax(np.diff(starts)))
    if (links := int(np.diff(starts)[most])) > settings.max_links:
        text = "%s has %s links; of each page the first %s are taken, as OPIC_MAX_LINKS says"
        log.warning(text, urls[most], f"{links:,}", f"{settings.max_links:,}")
    return Graph(urls, starts, targets)


def _replay_graph(feeder: _Feeder, graph: Graph, plan: Plan) -> str | None:
    """Simulate a crawl of a graph; return the reason if it ended early."""
    pages = len(graph.urls)
    reads = max(1, round(plan.reads_per_page * pages))
    feeder.progress.total = reads
    choice = random.Random(plan.seed)  # noqa: S311 - a simulation that must repeat
    if plan.strategy == "greedy":
        return _crawl_greedily(feeder, graph, reads, _greedy_seeds(graph, plan, choice), plan.batch)
    if plan.strategy in ("random", "cycle"):
        feeder.seed(graph.urls)
    for read in range(reads):
        feeder.read(graph, choice.randrange(pages) if plan.strategy == "random" else read % pages)
    return None


def _greedy_seeds(graph: Graph, plan: Plan, choice: random.Random) -> list[str]:
    if not plan.seed_urls:
        return [graph.urls[i] for i in choice.sample(range(len(graph.urls)), min(plan.seeds, len(graph.urls)))]
    known, seeds = set(graph.urls), [canonical_url(url) for url in plan.seed_urls]
    for url in seeds:
        if url not in known:
            raise BadInput(f"--seed-url {url} is not a page of this graph; its first page is {graph.urls[0]}")
    return seeds


def _next(target: Target, frontier: Frontier, n: int) -> object:
    if (reason := target.disk_full()) is not None:
        raise DiskFull(reason)
    return frontier.next(n, crawler="opic replay")["pages"]


def _batch(feeder: _Feeder, frontier: Frontier, n: int) -> list[Any]:
    """Lease n pages, fewer if the service suggests no more."""
    batch: list[Any] = []
    while len(batch) < n:
        ask = min(n - len(batch), BATCH_MAX, feeder.settings.max_n)
        found: Any = feeder.patiently(partial(_next, feeder.target, frontier, ask))
        batch += found
        if len(found) < ask:  # The end of the order, or half of the best page's cash: see `Frontier.next`.
            break
    return batch


def _crawl_greedily(
    feeder: _Feeder, graph: Graph, reads: int, seeds: Sequence[str], share: float = BATCH
) -> str | None:
    target, settings = feeder.target, feeder.settings
    page_of = {url: page for page, url in enumerate(graph.urls)}
    # Disable delays: the graph may be a single host, and nothing is fetched.
    politeness = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0, lease_seconds=settings.lease_seconds)
    frontier = Frontier(target.crawl, politeness)
    feeder.seed(seeds)
    left, filled = reads, time.monotonic()
    while left:
        live = feeder.patiently(target.crawl.totals).live
        batch = _batch(feeder, frontier, min(max(1, int(live * share)), left))
        if not batch:
            feeder.deliver()  # Cash in transit between shards is on no page yet.
            if time.monotonic() - filled > EMPTY_SECONDS:
                return f"ended {left:,} reads early: no available page has cash"
            time.sleep(POLL_SECONDS * 20)
            continue
        strangers = [found["url"] for found in batch if found["url"] not in page_of]
        if strangers:
            frontier.release([found["lease"] for found in batch])
            raise BadInput(
                f"the store offers {strangers[0]}, which is not a page of this graph: "
                "replay the graph into a new store or another --crawl"
            )
        for found in batch:
            feeder.read(graph, page_of[found["url"]])
        feeder.settle()
        left, filled = left - len(batch), time.monotonic()
    return None
