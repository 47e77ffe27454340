"""What a shard's server is asked when pages are leased, and what it answers: the two ends of `opic_1_lease`."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import msgpack
import numpy as np
import zstandard

from opic.cash import CLASS_BITS, MILLION, Books, Flag
from opic.errors import BadInput
from opic.frontier.held import Stamp
from opic.frontier.view import NEVER, View
from opic.frontier.wish import Terms
from opic.store import Crawl, Keys
from opic.store.columns import I64, Record
from opic.store.crawl import Place
from opic.store.ids import url_in
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8, ROWS_URLS
from opic.store.shard import books_of
from opic.urls import shown

RELEASES_A_CALL: Final = 1_000
LEASE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,15})-([0-9]{1,16})")  # Shard, page, end of the lease in microseconds.
URLS_KEPT_MAX: Final = 100_000  # Some 15 MB.
HELD_SECONDS_MIN: Final = 0.01  # What was refused is not asked for again at once, whatever the clocks say.
MODE_NUMBER: Final = {"any": 0, "discover": 1, "refresh": 2}
PAGE_HELD, HOST_HELD, COUNTS_LESS = 1, 2, 3  # Why a page was refused; compare leases.lua.


@dataclass(frozen=True, slots=True)
class Leased:
    """A page that was leased, as it is then."""

    position: int
    place: Place
    host: int
    url: str
    cash: int
    counts: float  # In the greedy order: whole grains, but where pages never read count more, or less.
    importance: float
    read_before: bool
    until_us: int  # By the clock of its shard's server.
    host_free: float  # When its host has rested, by ours (monotonic).


@dataclass(slots=True)
class Chunk:
    """Pages that one call asks a shard for, in their order, and whose they are to be."""

    shard: int
    mode: str = "any"
    positions: list[int] = field(default_factory=list)
    wishes: list[tuple[Any, float, float]] = field(
        default_factory=list
    )  # Of each page but the spare: whose, and terms.
    before: list[tuple[float, int, float]] = field(default_factory=list)  # Of the view, where pages are held meanwhile.

    @classmethod
    def empty(cls, shard: int) -> "Chunk":
        """Ask for no page: only how the shard stands."""
        return cls(shard)

    def add(self, position: int, part: Any, seconds: float, least: float) -> None:
        """Ask for one more page."""
        self.positions.append(position)
        self.wishes.append((part, seconds, least))

    def quotas(self) -> Iterator[tuple[Any, int, float, float]]:
        """Yield whose the pages are to be, how many, for how long, and what each has to count."""
        for _, some in groupby(self.wishes, key=lambda wish: id(wish[0])):
            terms = list(some)
            yield terms[0][0], len(terms), terms[0][1], terms[0][2]

    def take(self, view: View) -> None:
        """Hold the pages, and hosts that rest, until it is known what became of them."""
        for position in self.positions:
            host = int(view.host[position])
            self.before.append((view.free[position].item(), host, view.host_free[host].item()))
            view.free[position] = NEVER
            if view.single[host]:
                view.host_free[host] = NEVER


class Urls:
    """URLs of pages that were handed out a while ago: they never change while an era lasts."""

    def __init__(self) -> None:
        """Know none yet."""
        self._urls: dict[Place, str] = {}
        self._eras: dict[int, bytes] = {}

    def get(self, place: Place) -> str | None:
        """Return a URL that is known."""
        return self._urls.get(place)

    def put(self, place: Place, url: str) -> None:
        """Keep a URL; forget all, rarely, where there are too many."""
        if len(self._urls) >= URLS_KEPT_MAX:
            self._urls.clear()
        self._urls[place] = url

    def check(self, shard: int, era: bytes) -> None:
        """Forget all where a shard's server was started anew: ids may be other pages' since."""
        if self._eras.setdefault(shard, era) != era:
            self._urls.clear()
            self._eras[shard] = era


def lease_keys(keys: Keys) -> list[str]:
    """Return the keys that each call of leases.lua has before its blocks."""
    names = [keys.leases, keys.waits, keys.fails, keys.hosts, keys.freed]
    return [*names, keys.polite, keys.crawl_delays, keys.flights, keys.flight_ends, keys.books]


class Lessor:
    """Asks shards to lease pages, and notes what they say."""

    def __init__(self, crawl: Crawl, terms: Terms) -> None:
        """Ask the shards of an open crawl."""
        self.crawl, self.terms, self.urls = crawl, terms, Urls()
        self._unpacker = zstandard.ZstdDecompressor()

    def command(self, view: View, chunk: Chunk, *, state: bool, held: bool, sweep: bool) -> list[Any]:
        """Return the command that leases pages of a shard.

        Args:
            view: that they were chosen by.
            chunk: which.
            state: lease nothing if the columns moved since the view saw them.
            held: nor if what is held did.
            sweep: first end leases that ran out.
        """
        shard, stamp, snapshot = chunk.shard, view.stamps[chunk.shard], view.snapshot
        keys = self.crawl.shards[shard].keys
        names, blocks = lease_keys(keys), []
        positions = np.array(chunk.positions, np.int64)
        ids = positions - snapshot.starts[shard]
        known = [self.urls.get((shard, page)) is not None for page in ids.tolist()]
        never_read = (snapshot.state[positions] & Flag.OPEN) == 0  # Of the others a read is known.
        everywhere, none = np.ones(len(ids), np.bool_), len(names)
        for column, rows, wanted in (
            ("v", ROWS_I64, everywhere),
            ("h", ROWS_I64, everywhere),
            ("s", ROWS_U8, everywhere),
            ("m", ROWS_MEASURES, never_read),
            ("u", ROWS_URLS, ~np.array(known, np.bool_)),
        ):
            numbers, at = np.unique(ids[wanted] // rows, return_inverse=True)
            places = np.zeros(len(ids), np.int64)
            places[wanted] = at + 1 + len(names) - none
            names += [keys.block(column, number) for number in numbers.tolist()]
            blocks.append(places.tolist())
        credits = snapshot.parts[shard].books.credits()
        wishes = [term for _, *terms in chunk.quotas() for term in terms]
        hosts = [snapshot.hosts[host] for host in view.host[positions].tolist()]
        blob = [
            [stamp.era, stamp.version] if state else None,
            [stamp.freed, stamp.leases] if held else None,
            MODE_NUMBER[chunk.mode], self.terms.discovery, credits, wishes, ids.tolist(), hosts, *blocks,
        ]  # fmt: skip
        politeness = self.terms.politeness
        terms = (politeness.retry_seconds, politeness.host_delay_seconds, politeness.host_in_flight, int(sweep))
        return ["FCALL", "opic_1_lease", len(names), *names, *terms, msgpack.packb(blob, use_bin_type=False)]

    def heard(self, view: View, chunk: Chunk, answer: Sequence[Any]) -> tuple[bool, list[Leased]]:
        """Take a shard's answer: note in the view what is held now, and give each wish its pages.

        Returns:
            Whether the shard stands as the view saw it; and what was leased.
        """
        now_us, stamped, running, books_flat, granted, rows, states, records, blocks, refused = answer
        shard, snapshot, stamp = chunk.shard, view.snapshot, Stamp(*stamped)
        self.urls.check(shard, stamp.era)
        same = view.hear(shard, now_us / MILLION, stamp, running, sum(map(len, granted)) // 3)
        parts = [part.books for part in snapshot.parts]
        if books_flat:
            parts[shard] = books_of(dict(zip(books_flat[::2], books_flat[1::2], strict=True)))
        books = Books.merged(parts, self.crawl.rules) if books_flat else snapshot.books
        total = snapshot.total_of(books)
        credits = parts[shard].credits()
        columns: list[list[int]] = np.frombuffer(rows, I64).astype(np.int64).reshape(-1, 2).tolist()

        found: list[Leased] = []
        undecided = dict(enumerate(chunk.positions))
        for (part, *_), flat in zip(chunk.quotas(), granted, strict=False):
            for i in range(0, len(flat), 3):
                at, until_us, delay_ms = flat[i] - 1, flat[i + 1], flat[i + 2]
                nth = len(found)
                (v, spent), state, position = columns[nth], states[nth], undecided.pop(at)
                place = shard, position - int(snapshot.starts[shard])
                cash, read = v + credits[state & CLASS_BITS], bool(state & Flag.OPEN)
                page = Leased(
                    position=position,
                    place=place,
                    host=int(view.host[position]),
                    url=self._url(place, blocks[nth]),
                    cash=cash,
                    counts=self.terms.counts(cash, read),
                    importance=min(max(spent + cash, 0) / total, 1.0),
                    read_before=read or Record.unpack(records[nth]).reads > 0,
                    until_us=until_us,
                    host_free=view.ours(shard, (now_us + delay_ms * 1000) / MILLION) if delay_ms else 0.0,
                )
                part.granted.append(page)
                found.append(page)
                view.note(page, self.terms.politeness.retry_seconds)
        for i in range(0, len(refused), 3):
            at, why, until_us = refused[i] - 1, refused[i + 1], refused[i + 2]
            # What counts less than it seemed does so until the next view, which knows how much.
            soon = time.monotonic() + HELD_SECONDS_MIN
            until = NEVER if why == COUNTS_LESS else max(view.ours(shard, until_us / MILLION), soon)
            if why != HOST_HELD:
                _put_back(view, chunk, at, page=False)
            view.refuse(undecided.pop(at), until, host_held=why == HOST_HELD)
        for at in undecided:
            _put_back(view, chunk, at, page=True)
        return same, found

    def _url(self, place: Place, block: bytes) -> str:
        url = self.urls.get(place)
        if url is None:
            url = block.decode() if block.startswith(b"http") else url_in(block, place[1] % ROWS_URLS, self._unpacker)
            self.urls.put(place, url)
        return url


def _put_back(view: View, chunk: Chunk, at: int, *, page: bool) -> None:
    """Let a page's host, or both, stand as they did before it was asked for."""
    before, host, host_before = chunk.before[at]
    if view.host_free[host] == NEVER:
        view.host_free[host] = host_before
    if page:
        view.free[chunk.positions[at]] = before


def given_back(crawl: Crawl, leases: Sequence[str]) -> dict[int, list[int]]:
    """Let the store take leases back; return the pages of those that still ran, by shard.

    Raises:
        BadInput: a text is no lease; none is given back.
    """
    tokens: dict[int, list[str]] = {}
    for lease in dict.fromkeys(leases):
        match = LEASE.fullmatch(lease)
        if match is None or int(match[1]) >= len(crawl):
            raise BadInput(f"{shown(lease)} is not a lease: give back what came as `lease` with a page")
        tokens.setdefault(int(match[1]), []).extend((match[2], match[3]))
    asked = [
        (shard, some[at : at + 2 * RELEASES_A_CALL])
        for shard, some in tokens.items()
        for at in range(0, len(some), 2 * RELEASES_A_CALL)
    ]
    commands = []
    for shard, some in asked:
        keys = crawl.shards[shard].keys
        commands.append(["FCALL", "opic_1_release", 2, keys.leases, keys.freed, *some])
    released: dict[int, list[int]] = {}
    for (shard, _), ids in zip(asked, crawl.ask(commands) if commands else [], strict=True):
        released.setdefault(shard, []).extend(map(int, ids))
    return released
