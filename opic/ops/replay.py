"""Replay: feeds recorded crawls, and simulated crawls of recorded graphs, to the service as a crawler would.

The crawl events of a file are appended to the log unchanged, one by one: an invalid event becomes a dead letter, like
an event received over the network. For a graph, the crawl is simulated: a strategy picks pages, and each read becomes
an event with the links of that page in the graph.
"""

import csv
import gzip
import logging
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast
from urllib.parse import quote

import numpy as np

from opic.arrays import Int64s
from opic.compressed import GZIP_MAGIC
from opic.errors import BadEvent, BadFraming, BadInput, BadUrl, DiskFull
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest.msgpack_values import cut_stream
from opic.messages.frontier import Page
from opic.model.event_checks import check_event
from opic.model.events import (
    CrawlEvent,
    EventLimits,
    decode_any_event,
    decode_crawl_event,
    encode_crawl_event,
    split_array,
)
from opic.model.packed_events import is_array, is_map
from opic.ops.feeder import Feeder, Progress
from opic.service.backend import Backend
from opic.settings import Settings
from opic.urls.canonical import canonical_url, shown
from opic.urls.normalization import PLAIN, Normalization

log = logging.getLogger("opic.ops")


ARCHIVES: Final = ("warc", "wat", "arc")
FORMATS: Final = ("jsonl", "msgpack", *ARCHIVES, "edges")
# Other endings of names. A WET file is one of WARC, with texts.
ENDINGS: Final = {"ndjson": "jsonl", "json": "jsonl", "wet": "warc", "wacz": "warc"}
NAMELESS: Final = "http://graph.example/"  # URL prefix of pages in graphs without URLs.
SAFE_IN_NAMES: Final = "%/:@!$&'()*+,;=~-._"

READS_PER_PAGE: Final = 1.0
SEEDS: Final = 5
BATCH: Final = 0.01  # Greedy reads this share of the known pages at a time; up to 0.1 costs no accuracy.
BATCH_MAX: Final = 1_000  # Pages asked for at once.
POLL_SECONDS: Final = 0.1
EMPTY_SECONDS: Final = 2.0  # Snapshots are at most a second old, so a frontier that is empty for this long stays empty.


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay, and how.

    `recorded` and the two after it are for archives, `ignore_unknown` is for crawl events, all others are for graphs.
    """

    format: str
    strategy: str = "log"
    reads_per_page: float = READS_PER_PAGE
    seed: int = 0  # Seed of the random choices.
    seeds: int = SEEDS  # Number of pages that greedy starts from, unless `seed_urls` names them.
    seed_urls: Sequence[str] = ()
    batch: float = BATCH  # Share of the known pages that greedy reads before it asks again.
    recorded: bool = False  # See `opic.ops.archives.replay_archives`.
    drop_nofollow: bool = False
    again: bool = False
    ignore_unknown: bool = False  # Leave unknown fields of events out, instead of refusing the events.
    columns: tuple[str, str] | None = None  # Of a CSV file of edges: their names in its first line, or numbers from 1.


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
    archive: dict[str, int] | None = None  # Of archives: how many records there were, and what was left out.


def format_of(path: Path) -> str:
    """Guess a file's format from its name; the default is an edge list.

    >>> format_of(Path("crawl.jsonl.gz")), format_of(Path("links.tsv.gz")), format_of(Path("a.warc.gz.open"))
    ('jsonl', 'edges', 'warc')
    """
    name = path.name.lower().removesuffix(".open").removesuffix(".gz").removesuffix(".zst")
    ending = name.rpartition(".")[2]
    return ENDINGS.get(ending, ending if ending in FORMATS else "edges")


def replay(
    target: Backend,
    paths: Sequence[Path],
    plan: Plan,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Feed files to a store; return after all events took effect and nothing is in flight between its shards.

    Args:
        target: the open store, at whose crawl a worker works: see `opic.service.service.feeding`.
        paths: one or more files of one format; a graph may be split over several files.
        plan: how to replay them.
        on_progress: called now and then.

    Raises:
        BadInput: a file does not have the format; the events before the error were fed.
        MissingExtra: the packages that read archives are not installed.
        StoreUnavailable: the store was unavailable, or no worker made progress, for AWAY_SECONDS_MAX. There is no limit
            while the disk is full.
    """
    feeder = Feeder(target, on_progress)
    links_before = target.crawl.totals().links
    note, archive = None, None
    if plan.format in ("jsonl", "msgpack"):
        _replay_events(feeder, paths, plan)
    elif plan.format in ARCHIVES:
        from opic.ops.archives import replay_archives

        links = {"recorded": plan.recorded, "drop_nofollow": plan.drop_nofollow}
        archive, note = replay_archives(feeder, paths, **links, again=plan.again)
    else:
        graph = read_graph(paths, target.settings, plan.columns, feeder.limits.normalization)
        note = _replay_graph(feeder, graph, plan)
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
        archive=archive,
    )


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


def values_by_number(path: Path, format: str, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield the events of a file of crawl events, jsonl or msgpack, each with its number; see the two below."""
    return enumerate(values_of(path, bytes_max), 1) if format == "msgpack" else lines_of(path, bytes_max)


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


def _replay_events(feeder: Feeder, paths: Sequence[Path], plan: Plan) -> None:
    limits, bytes_max = feeder.limits, feeder.settings.max_body_bytes
    for path in paths:
        try:
            values = values_by_number(path, plan.format, bytes_max)
            for number, value in ((number, element) for number, whole in values for element in _elements(whole)):
                taken = value
                try:
                    event, unknown = decode_any_event(value) if plan.ignore_unknown else (decode_crawl_event(value), ())
                    if unknown:
                        taken = encode_crawl_event(event)
                    feeder.links_left_out += check_event(event, time.time_ns() // 1000, limits).links_left_out
                except BadEvent as error:
                    feeder.refuse(f"{path}:{number}: {error}")
                feeder.feed(taken)
        except BadInput as error:
            feeder.settle()
            raise BadInput(f"{error}; {feeder.progress.events:,} events were fed before") from None


def _elements(value: bytes) -> list[bytes]:
    """Return the events of an array, as a topic may have it; any other value as it is."""
    try:
        return split_array(value) if is_array(value) else [value]
    except BadEvent:
        return [value]


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


def url_of_name(name: str, bytes_max: int, normalization: Normalization = PLAIN) -> str:
    """Return the canonical URL of a node: its name if that is an absolute URL, else a URL under http://graph.example/.

    Characters that are invalid in a path are percent-encoded; existing percent-encoding is kept.

    >>> url_of_name("HTTP://A.example", 99), url_of_name("Caf%C3%A9_100%?", 99)
    ('http://a.example/', 'http://graph.example/Caf%C3%A9_100%25%3F')

    Raises:
        BadUrl: the URL is longer than `bytes_max`, or can't be parsed.
    """
    if not name[:8].lower().startswith(("http://", "https://")):
        name = NAMELESS + quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", name), safe=SAFE_IN_NAMES)
    return canonical_url(name, bytes_max, normalization)


# A heading of CDX, or a record of CDX or CDXJ: a URL, its host's labels in reverse in the SURT form, and a time.
CDX_LINE: Final = re.compile(r"CDX( \S)+$|\S+ ([0-9]{14}|[0-9]{17})\s")


def _edges(path: Path, bytes_max: int, columns: tuple[str, str] | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the edges of a file with their lines' numbers.

    Without columns a line is `FROM TO`, split at the tab if there is one, else at white space, or a `#` comment. With
    columns it is CSV; if these are names, the first line has them.

    Raises:
        BadInput: a line is not an edge, or the file has no such column.
    """
    places = [int(name) - 1 for name in columns] if columns and all(name.isdigit() for name in columns) else None
    for number, line in lines_of(path, bytes_max):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}:{number}: not UTF-8, so not an edge list ({error.reason})") from None
        if columns:
            row = [name.strip() for name in next(csv.reader([text]))]
            if places is None:
                if missing := [name for name in columns if name not in row]:
                    raise BadInput(
                        f"{path}:{number}: no column {shown(missing[0])}: the first line has {', '.join(row)}"
                    )
                places = [row.index(name) for name in columns]
                continue
            names = [row[index] for index in places if 0 <= index < len(row)]
        elif text.startswith("#"):
            continue
        else:
            names = [name.strip() for name in text.split("\t")] if "\t" in text else text.split()
        if len(names) != 2 or not all(names):
            form = f"columns {' and '.join(columns)} of a line" if columns else "a line is FROM TO, or a # comment"
            if CDX_LINE.match(text):
                form = "this looks like a CDX or CDXJ index, which is not read; give the WARC files that it is of"
            raise BadInput(f"{path}:{number}: {shown(text)} is not an edge: {form}")
        yield number, names


def read_graph(
    paths: Sequence[Path],
    settings: Settings,
    columns: tuple[str, str] | None = None,
    normalization: Normalization = PLAIN,
) -> Graph:
    """Read a list of edges, as `_edges` does; the URLs are those of a crawl with these rules.

    Raises:
        BadInput: a line is invalid.
    """
    page_of_name: dict[str, int] = {}
    page_of_url: dict[str, int] = {}
    ends: list[int] = []

    def page(name: str, path: Path, number: int) -> int:
        known = page_of_name.get(name)
        if known is None:
            try:
                url = url_of_name(name, settings.max_url_bytes, normalization)
            except BadUrl as error:
                raise BadInput(f"{path}:{number}: {error}") from None
            known = page_of_name[name] = page_of_url.setdefault(url, len(page_of_url))
        return known

    for path in paths:
        for number, names in _edges(path, settings.max_body_bytes, columns):
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


def _read(feeder: Feeder, graph: Graph, page: int) -> None:
    """Add a read of a page of a graph. Its links over OPIC_MAX_LINKS take no effect, and are counted."""
    links = int(graph.starts[page + 1] - graph.starts[page])
    feeder.links_left_out += max(0, links - feeder.settings.max_links)
    feeder.feed(graph.event(page))


def _replay_graph(feeder: Feeder, graph: Graph, plan: Plan) -> str | None:
    """Simulate a crawl of a graph; return the reason if it ended early."""
    pages = len(graph.urls)
    reads = max(1, round(plan.reads_per_page * pages))
    feeder.progress.total = reads
    choice = random.Random(plan.seed)  # noqa: S311 - a simulation that must repeat
    if plan.strategy == "greedy":
        return _crawl_greedily(feeder, graph, reads, _greedy_seeds(graph, plan, choice, feeder.limits), plan.batch)
    if plan.strategy in ("random", "cycle"):
        feeder.seed(graph.urls)
    for read in range(reads):
        _read(feeder, graph, choice.randrange(pages) if plan.strategy == "random" else read % pages)
    return None


def _greedy_seeds(graph: Graph, plan: Plan, choice: random.Random, limits: EventLimits) -> list[str]:
    if not plan.seed_urls:
        return [graph.urls[i] for i in choice.sample(range(len(graph.urls)), min(plan.seeds, len(graph.urls)))]
    known, seeds = set(graph.urls), [limits.canonical(url) for url in plan.seed_urls]
    for url in seeds:
        if url not in known:
            raise BadInput(f"--seed-url {url} is not a page of this graph; its first page is {graph.urls[0]}")
    return seeds


def _next(target: Backend, frontier: Frontier, n: int) -> list[Page]:
    if (reason := target.disk_full()) is not None:
        raise DiskFull(reason)
    return frontier.next(n, crawler="opic replay").pages


def _batch(feeder: Feeder, frontier: Frontier, n: int) -> list[Page]:
    """Lease n pages, fewer if the service suggests no more."""
    batch = list[Page]()
    while len(batch) < n:
        ask = min(n - len(batch), BATCH_MAX, feeder.settings.max_n)
        pages = feeder.patiently(partial(_next, feeder.target, frontier, ask))
        batch += pages
        if len(pages) < ask:  # The end of the order, or half of the best page's cash: see `Frontier.next`.
            break
    return batch


def _crawl_greedily(feeder: Feeder, graph: Graph, reads: int, seeds: Sequence[str], share: float = BATCH) -> str | None:
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
            if feeder.undelivered():  # Cash in transit between shards is on no page yet.
                filled = time.monotonic()
            if time.monotonic() - filled > EMPTY_SECONDS:
                return f"ended {left:,} reads early: no available page has cash"
            time.sleep(POLL_SECONDS)
            continue
        strangers = [page.url for page in batch if page.url not in page_of]
        if strangers:
            frontier.release([page.lease for page in batch])
            raise BadInput(
                f"the store offers {strangers[0]}, which is not a page of this graph: "
                "replay the graph into a new store or another --crawl"
            )
        for page in batch:
            _read(feeder, graph, page_of[page.url])
        feeder.settle()
        left, filled = left - len(batch), time.monotonic()
    return None
