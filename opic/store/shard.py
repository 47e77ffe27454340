"""One shard of a store: its settings, and everything that can be read of it."""

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np

from opic.cash import CLASS_BITS, CLASSES_MAX, CONTINUOUS, NONE_BY_CLASS, Books, Flag, Rules
from opic.classes import Classes
from opic.errors import StoreError, StoreMismatch, StoreUnavailable
from opic.ledger import Audit, Page
from opic.series import Entry, unpack
from opic.store.columns import I64, Bytes, Int64s, Measures, Record, by_block, join_measures, unpack_measures
from opic.store.connection import Client, Line, store_errors
from opic.store.durability import Durability, await_durable
from opic.store.ids import Directory, read_run, read_urls
from opic.store.keys import BLOCK_BYTES, FORMAT, ROWS_I64, ROWS_MEASURES, ROWS_U8, Keys
from opic.store.server import check_server, make_ready

log = logging.getLogger("opic.store")

ROWS_READ_MAX = 2_000  # Pages a call: under 5 ms in which the server answers nobody else.
BUCKETS_A_CALL = 64  # Of records: 8,192 pages, each bucket a command of its own, so that nobody waits long.
AUDIT_TRIES = 5  # Unpaused looks before the server is held for one look.
HELD_PAGES_MAX = 2_000_000  # Up to so many, that one look is at once.
SECRET_BYTES = 16
VERSION_BITS = 40  # Of the number from which the steps of a shard are counted.
# Each rule that a store keeps, and the setting that a user knows it by.
SETTING_OF = {
    "q": "OPIC_DAMPING (as 1 - damping, in parts of a million)",
    "regrant_ppm": "OPIC_REGRANT (in parts of a million)",
    "measures_max": "OPIC_HISTORY_MEASURES",
    "inflow": "OPIC_INFLOW",
    "grant": "the grant",
    "minted": "the grains minted",
    "virtual": "OPIC_VIRTUAL",
    "shards": "OPIC_SHARDS",
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of pages, in the order asked, with the books of the same instant."""

    books: Books
    v: Int64s
    spent: Int64s
    inflow: Int64s  # Empty where in-flow is off.
    state: Bytes
    records: list[bytes]
    era: bytes = b""


@dataclass(frozen=True, slots=True)
class Columns:
    """Whole columns of a shard, (n,) each, by id, with the books of the same instant."""

    books: Books
    v: Int64s
    spent: Int64s
    inflow: Int64s
    state: Bytes
    reads: Int64s  # Not by page: of all pages of a bucket of ROWS_MEASURES. It grows whenever a measure is made there.


class Shard:
    """A shard that is open: its keys, its rules, its secret. Reads only; `opic.store.step` writes."""

    def __init__(self, client: Client, keys: Keys, rules: Rules, secret: bytes, shards: int = 1) -> None:
        """Use `open`, which checks that the store fits; `shards` is how many the crawl has."""
        self.client, self.keys, self.rules, self.shards = client, keys, rules, shards
        self.secret, self.directory = secret, Directory(client, keys, secret)
        self.run_id: bytes | None = None  # Of the server, when its writer looked at it last.
        self.durability = Durability()
        self.restored = ""  # The backup that it came from, if any.

    @property
    def number(self) -> int:
        """Which of the crawl's shards this is."""
        return self.keys.shard

    @property
    def minted(self) -> int:
        """Grains minted here: all of them in shard 0."""
        return 0 if self.number else self.rules.minted

    @classmethod
    def open(
        cls,
        client: Client,
        crawl: str = "default",
        given: Mapping[str, int | bool | str] | None = None,
        *,
        create: bool = True,
        shards: int = 1,
    ) -> "Shard":
        """Open a crawl's first shard, making it if it is not there. `opic.store.crawl` opens all that a crawl has.

        Args:
            client: of a server of Redis 7 or later, or Valkey.
            crawl: its name.
            given: rules that the user asked for by name, as in SETTING_OF; others are taken from the store.
            create: make it if it is not there; else that is an error.
            shards: how many the crawl gets if it is made now and `given` does not say.

        Raises:
            StoreMismatch: the store was made by another format version or with other rules.
            StoreError: the server can't keep the books, or there is no such crawl.
        """
        keys, given = Keys(crawl, 0), dict(given or {})
        check_server(client)
        make_ready(client)
        with store_errors():
            stored = client.hgetall(keys.meta)
            if not stored and not create:
                raise StoreError(f"no crawl named {crawl!r} in this store: feed it with `opic replay` or `opic serve`")
            if not stored:
                cls._make(client, keys, {"shards": shards, **given})
                stored = client.hgetall(keys.meta)
        return cls._opened(client, keys, stored, given)

    @classmethod
    def beside(cls, first: "Shard", number: int) -> "Shard":
        """Open another shard of the same crawl, making it as the first one was made if the crawl is being made.

        Raises:
            StoreMismatch: it is missing, or not of the same make.
        """
        keys = Keys(first.keys.crawl, number)
        with store_errors():
            stored = first.client.hgetall(keys.meta)
            if not stored:
                if first.client.hexists(first.keys.meta, "whole"):
                    raise StoreMismatch(
                        f"shard {number} of {first.shards} is missing: this store lost it; restore all from a backup"
                    )
                cls._make(first.client, keys, first.given(), first.secret)
                stored = first.client.hgetall(keys.meta)
        return cls._opened(first.client, keys, stored, first.given())

    def renew(self, *, create: bool = True) -> None:
        """Look again at what the shard was made with, if it may have been made anew.

        Args:
            create: make it if all of it was lost, as a writer does; else that is an error.

        Raises:
            StoreMismatch: it was made anew with other rules, or is missing where others are left.
        """
        with store_errors():
            secret = self.client.hget(self.keys.meta, "secret")
        if secret == self.secret.hex().encode():
            return
        if secret is None and not create:
            raise self._lost()
        log.warning("shard %d of crawl %r was lost as a whole; looking at it anew", self.number, self.keys.crawl)
        first = Shard.open(self.client, self.keys.crawl, self.given())
        made = Shard.beside(first, self.number) if self.number else first
        self.secret, self.directory, self.restored = made.secret, made.directory, made.restored

    def _lost(self) -> StoreUnavailable:
        return StoreUnavailable(f"shard {self.number} is not there any more: its server lost it")

    def given(self) -> dict[str, int | bool | str]:
        """Return the rules of this shard, which all shards of a crawl share."""
        return {**asdict(self.rules), "shards": self.shards}

    @classmethod
    def _opened(
        cls, client: Client, keys: Keys, stored: Mapping[bytes, bytes], given: Mapping[str, int | bool | str]
    ) -> "Shard":
        meta = {k.decode(): v.decode() for k, v in stored.items()}
        if "restoring" in meta:
            raise StoreMismatch(
                f"a backup is being restored into crawl {keys.crawl!r}, or a restore broke off: wait, or run "
                "`opic restore --replace` again"
            )
        if meta.get("format") != FORMAT:
            raise StoreMismatch(
                f"this store has format version {meta.get('format')}, this program reads version {FORMAT}: "
                "use the program that made it, or start a new store and replay the log"
            )
        for name, value in given.items():
            text = _text(value)
            if meta[name] != text:
                raise StoreMismatch(
                    f"{SETTING_OF[name]} is {text}, but this store was made with {meta[name]}, which is fixed: "
                    "leave the setting out, or start a new store"
                )
        found = cls(client, keys, _rules(meta), bytes.fromhex(meta["secret"]), int(meta["shards"]))
        found.restored = meta.get("restored", "")
        return found

    @staticmethod
    def _make(client: Client, keys: Keys, given: Mapping[str, int | bool | str], secret: bytes = b"") -> None:
        default = CONTINUOUS if given.get("virtual") == CONTINUOUS.virtual else Rules()
        meta: dict[str, int | bool | str] = {**asdict(default), "shards": 1, **given}
        books = Books.genesis(_rules({name: _text(value) for name, value in meta.items()}), keys.shard)
        meta |= {"format": FORMAT, "secret": (secret or secrets.token_bytes(SECRET_BYTES)).hex()}
        counters = {"next": 0, "buckets": 16, "sealed": 0}
        # What was read of one that was lost must not pass for this one's.
        since: dict[str, int | str] = {"version": secrets.randbits(VERSION_BITS), "era": ":" + _token().decode()}
        blobs = [_flat(part) for part in (meta, {**books.flat(), **since}, counters)]
        client.fcall("opic_1_init", 3, keys.meta, keys.books, keys.ids, *blobs)

    def line(self) -> Line:
        """Take a connection to the server of this shard, to send ahead on."""
        return Line(self.client, self.keys.books)

    def run_now(self) -> bytes:
        """Return which run of its server serves this shard."""
        line = self.line()
        line.close()
        return line.run_id

    def barrier(self, run_id: bytes | None = None) -> None:
        """Return once all that was written to this shard, by whoever, is durable as `durability` asks.

        Args:
            run_id: of the server that it was written to; the one that the shard's writer knows, if None.

        Raises:
            StoreUnavailable: it is not, or the server is another run than the writer knows: that one may lack some.
        """
        if not self.durability.wanted:
            return
        line = self.line()
        try:
            if line.run_id != (self.run_id if run_id is None else run_id):
                raise StoreUnavailable(f"shard {self.number} is served by another run of the store than a moment ago")
            await_durable(line, self.keys, self.durability)
        finally:
            line.close()

    def books(self) -> Books:
        """Return the totals of this instant."""
        with store_errors():
            return books_of(self.client.hgetall(self.keys.books))

    def series(self, newest: int = 0) -> list[Entry]:
        """Return the entries of the series, oldest first: all, some milliseconds for ENTRIES_MAX, or the newest."""
        with store_errors():
            return unpack(self.client.lrange(self.keys.series, -newest, -1))

    def classes(self) -> Classes:
        """Return the classes of pages that are defined now."""
        with store_errors():
            return Classes.unpack(self.client.hget(self.keys.classes, "definitions") or b"")

    def class_names(self) -> dict[int, str]:
        """Return the name of each class by its slot: much less to read than all that belongs to it."""
        with store_errors():
            packed = self.client.hget(self.keys.classes, "names")
        return dict(msgpack.unpackb(packed)) if packed else {}

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect."""
        with store_errors():
            return int(self.client.hget(self.keys.offsets, partition) or 0)

    def rows(self, ids: Sequence[int], *, inflow: bool = False, states: bool = True) -> Rows:
        """Read pages by id, atomically up to ROWS_READ_MAX of them.

        Args:
            ids: distinct; any order.
            inflow: read that column too.
            states: read state bytes too; the worker knows them.
        """
        order = np.argsort(np.asarray(ids, np.int64), kind="stable")
        parts = [
            self._rows(np.asarray(ids, np.int64)[order[at : at + ROWS_READ_MAX]], inflow, states)
            for at in range(0, max(len(order), 1), ROWS_READ_MAX)
        ]
        back = np.argsort(order, kind="stable")
        records = [record for part in parts for record in part.records]
        return Rows(
            parts[-1].books,
            np.concatenate([p.v for p in parts])[back],
            np.concatenate([p.spent for p in parts])[back],
            np.concatenate([p.inflow for p in parts])[back] if inflow else np.empty(0, np.int64),
            np.concatenate([p.state for p in parts])[back] if states else np.empty(0, np.uint8),
            [records[i] for i in back.tolist()],
            parts[-1].era,
        )

    def _rows(self, ids: Int64s, inflow: bool, states: bool) -> Rows:
        command = self.rows_command(ids, inflow=inflow, states=states)
        with store_errors():
            answer = self.client.execute_command(*command)
        return self.rows_answer(answer, inflow=inflow)

    def rows_command(self, ids: Int64s, *, inflow: bool = False, states: bool = False) -> list[Any]:
        """Return the command that reads rows of increasing ids, for whoever sends it himself."""
        block = self.keys.block
        i64, i64_rows = _rows_by_block(ids, ROWS_I64)
        u8, u8_rows = _rows_by_block(ids, ROWS_U8) if states else ([], [])
        packed, packed_rows = _rows_by_block(ids, ROWS_MEASURES)
        columns = "vhf" if inflow else "vh"
        names = [block(c, b) for c in columns for b in i64]
        names += [block("s", b) for b in u8] + [block("m", b) for b in packed]
        fields = [[str(row) for row in rows] for rows in packed_rows]
        blob = msgpack.packb([i64_rows * len(columns), u8_rows, fields])
        return ["FCALL_RO", "opic_1_read", 1 + len(names), self.keys.books, *names, blob]

    def rows_answer(self, answer: Any, *, inflow: bool = False) -> Rows:
        """Return the rows that `rows_command` was answered with."""
        flat, raw, state, records = answer
        numbers = np.frombuffer(raw, I64).astype(np.int64).reshape(3 if inflow else 2, -1)
        stored = dict(zip(flat[::2], flat[1::2], strict=True))
        third = numbers[2] if inflow else np.empty(0, np.int64)
        states, era = np.frombuffer(state, np.uint8), stored.get(b"era", b"")
        return Rows(books_of(stored), numbers[0], numbers[1], third, states, records, era)

    def columns(self, *, inflow: bool = False) -> Columns:
        """Read whole columns, all of one instant.

        In one transaction, which holds the server about 4 ms for a million pages: less than a step does. A larger shard
        is first read in a few calls so that nobody waits long; if a step comes between, they are read again, up to
        AUDIT_TRIES times.
        """
        for tries in range(2 * AUDIT_TRIES):
            with store_errors():
                n = int(self.client.hget(self.keys.ids, "next") or 0)
                found = self._columns(n, inflow, held=n <= HELD_PAGES_MAX or tries >= AUDIT_TRIES)
            if found is not None:
                return found
        raise AssertionError("a transaction reads one instant")

    def _columns(self, n: int, inflow: bool, held: bool) -> Columns | None:
        keys = self.keys
        names = ["v", "h", "f"] if inflow else ["v", "h"]
        # Pages may come between this count and the books: a spare block of each column, and the count again with them.
        blocks, blocks_u8 = n // ROWS_I64 + 2, n // ROWS_U8 + 2
        blocks_reads = blocks // ROWS_MEASURES + 1
        with self.client.pipeline(transaction=held) as pipe:
            pipe.hgetall(keys.books)
            pipe.hget(keys.ids, "next")
            for name in names:
                for b in range(blocks):
                    pipe.get(keys.block(name, b))
            for b in range(blocks_u8):
                pipe.get(keys.block("s", b))
            for b in range(blocks_reads):
                pipe.get(keys.block("r", b))
            pipe.hget(keys.books, "version")
            books, count, *rest, version = pipe.execute()
        if count is None:  # Whoever looks again finds another era, and has it made anew.
            raise self._lost()
        before, n = books_of(books), int(count)
        if before.version != int(version) or n > blocks * ROWS_I64:
            return None
        i64 = [self._column(rest[i * blocks : (i + 1) * blocks], I64, n) for i in range(len(names))]
        state = self._column(rest[len(names) * blocks : -blocks_reads], "u1", n)
        # The step lengthens these blocks as it goes: what is not there yet is 0.
        filled = b"".join((b or b"").ljust(BLOCK_BYTES, b"\0") for b in rest[-blocks_reads:])
        reads = np.frombuffer(filled, I64)[: -(-n // ROWS_MEASURES)].astype(np.int64)
        return Columns(before, i64[0], i64[1], i64[2] if inflow else np.empty(0, np.int64), state, reads)

    def _column(self, blocks: Sequence[bytes | None], dtype: str, n: int) -> "np.ndarray":
        filled = blocks[: -(-n // (BLOCK_BYTES // np.dtype(dtype).itemsize))]
        for b in filled:
            if b is None or len(b) != BLOCK_BYTES:
                raise StoreError("a block of a column is missing or short: the store is damaged, restore a backup")
        whole = np.frombuffer(b"".join(b for b in filled if b is not None), dtype)
        return whole[:n].astype(np.int64 if dtype == I64 else np.uint8)

    def begin_era(self, run_id: bytes, *, anew: bool = False) -> None:
        """Tell whoever keeps copies that versions may repeat, and ids be other pages', from now on.

        An era is a run of the server, or what begins `anew` within it: a backup that was restored.
        """
        with store_errors():
            now = self.client.hget(self.keys.books, "era") or b""
            if anew or now.partition(b":")[0] != run_id:
                self.client.hset(self.keys.books, "era", run_id + b":" + _token())

    def states(self) -> tuple[bytes, Books, Bytes]:
        """Read the era, the books and all state bytes, of one instant: a million pages are a megabyte."""
        with store_errors():
            n = int(self.client.hget(self.keys.ids, "next") or 0)
            with self.client.pipeline(transaction=True) as pipe:
                pipe.hget(self.keys.meta, "secret")
                pipe.hgetall(self.keys.books)
                pipe.hget(self.keys.ids, "next")
                for b in range(n // ROWS_U8 + 2):
                    pipe.get(self.keys.block("s", b))
                secret, books, count, *blocks = pipe.execute()
        if secret != self.secret.hex().encode():
            self.renew()
            return self.states()
        return books.get(b"era", b""), books_of(books), self._column(blocks, "u1", int(count))

    def measures(self, buckets: Int64s) -> Measures:
        """Read the measures of all pages of buckets, ROWS_MEASURES ids each: bucket by bucket, not of one instant.

        A measure's clock tells whether it is of an instant. Costs 80 to 190 us a bucket, a third of its pages read,
        nearly all of it in this process.
        """
        parts = []
        for start in range(0, len(buckets), BUCKETS_A_CALL):
            some = buckets[start : start + BUCKETS_A_CALL].tolist()
            with store_errors(), self.client.pipeline(transaction=False) as pipe:
                for b in some:
                    pipe.hgetall(self.keys.block("m", b))
                found = pipe.execute()
            records = [b""] * (len(some) * ROWS_MEASURES)
            for place, bucket in enumerate(found):
                first = place * ROWS_MEASURES
                for row, packed in bucket.items():
                    records[first + int(row)] = packed
            parts.append(unpack_measures(records))
        return join_measures(parts)

    def measures_of(self, ids: Int64s) -> tuple[Int64s, Measures]:
        """Read the measures of some pages, and with them how often each of their buckets was read, of one instant.

        Args:
            ids: increasing, of buckets in which there was a read.

        Returns:
            The reads of each bucket that has one of the ids, in order, each of the same instant as the measures there;
            and the measures, in the order of the ids. Buckets are of several instants if there are many ids.
        """
        counts, parts, start = [np.empty(0, np.int64)], [], 0
        while start < len(ids):
            end = min(start + ROWS_READ_MAX, len(ids))
            if end < len(ids):  # No bucket is cut in two.
                end = int(np.searchsorted(ids, ids[end] // ROWS_MEASURES * ROWS_MEASURES))
            buckets, rows = _rows_by_block(ids[start:end], ROWS_MEASURES)
            blocks, cells = _rows_by_block(np.array(buckets), ROWS_I64)
            names = [self.keys.block("r", b) for b in blocks] + [self.keys.block("m", b) for b in buckets]
            blob = msgpack.packb([cells, [], [[str(row) for row in some] for some in rows]])
            with store_errors():
                _, raw, _, records = self.client.execute_command(
                    "FCALL_RO", "opic_1_read", 1 + len(names), self.keys.books, *names, blob
                )
            counts.append(np.frombuffer(raw, I64).astype(np.int64))
            parts.append(unpack_measures(records))
            start = end
        return np.concatenate(counts), join_measures(parts)

    def audit(self) -> Audit:
        """Recount the books from the columns."""
        columns, extra = self.columns(), NONE_BY_CLASS
        for _ in range(AUDIT_TRIES):  # The definitions are of no instant but their own.
            extra = self.classes().extra()
            if extra == columns.books.extra:
                break
            columns = self.columns()
        books, state, v = columns.books, columns.state, columns.v
        known = (state & Flag.KNOWN) != 0
        gone, open_ = (state & Flag.GONE) != 0, (state & Flag.OPEN) != 0
        live = known & ~gone
        # Credit and v may be far beyond what the sum of two fits; what a page holds never is.
        cash = held(books, v, state)
        slots = state & CLASS_BITS
        recount = {
            "clock": _total(columns.spent) + books.taken_back,
            "live": int(live.sum()),
            "gone": int(gone.sum()),
            "open": int(open_.sum()),
            "open_cash": _total(cash[open_]),
            "v_gone": _total(v[gone]),
            "h_gone": _total(columns.spent[gone]),
            "known_by": _count_by(slots[known]),
            "live_by": _count_by(slots[live]),
            "open_by": _count_by(slots[open_]),
            "extra": extra,
        }
        wrong = [f"{k} is {getattr(books, k)}, counted {n}" for k, n in recount.items() if getattr(books, k) != n]
        if unknown := _total(v[~known]):
            wrong.append(f"{unknown} grains lie on pages that are not known")
        pages = _total(cash[live]) + _total(v[gone])
        return Audit(self.minted, pages, books.pool, books.net, tuple(wrong))

    def ids_of(self, urls: Sequence[str]) -> list[int | None]:
        """Return the ids of canonical URLs; None for one never seen. An id alone makes no page known."""
        return self.directory.find(urls)

    def urls_of(self, ids: Iterable[int]) -> dict[int, str]:
        """Return URLs by id."""
        return read_urls(self.client, [(self.keys, ids)])[0]

    def urls_in(self, ids: range) -> list[str]:
        """Return the URLs of pages that follow each other."""
        return read_run(self.client, self.keys, ids)

    def page(self, url: str) -> Page | None:
        """Return a page as the ledger shows it, or None if it is not known."""
        (page_id,) = self.ids_of([url])
        return None if page_id is None else next(self._pages([page_id]), None)

    def pages(self) -> Iterator[Page]:
        """Yield every known page as the ledger shows it. Walks the store: for tests and exports, not for queries."""
        n = int(self.client.hget(self.keys.ids, "next") or 0)
        for start in range(0, n, ROWS_READ_MAX):
            yield from self._pages(range(start, min(start + ROWS_READ_MAX, n)))

    def _pages(self, ids: Sequence[int]) -> Iterator[Page]:
        rows, urls = self.rows(ids, inflow=self.rules.inflow), self.urls_of(ids)
        for i, page_id in enumerate(ids):
            if not rows.state[i] & Flag.KNOWN:
                continue
            record = Record.unpack(rows.records[i])
            page = Page(urls[page_id], page_id, int(rows.v[i]), int(rows.spent[i]))
            page.inflow = int(rows.inflow[i]) if self.rules.inflow else 0
            page.state, page.reads, page.digest = int(rows.state[i]), record.reads, record.digest
            page.times_gone, page.gone_until_us = record.times_gone, record.gone_until_us
            page.measures.extend(record.measures)
            page.anchors = record.anchors
            yield page


def _rules(meta: Mapping[str, str]) -> Rules:
    kept: dict[str, Any] = {f.name: meta[f.name] for f in fields(Rules)}
    numbers = {name: int(text) for name, text in kept.items() if name != "virtual"}
    return Rules(**{**kept, **numbers, "inflow": numbers["inflow"] != 0})


def _rows_by_block(ids: Int64s, rows: int) -> tuple[list[int], list[list[int]]]:
    blocks, edges, offsets = by_block(ids, rows)
    flat = offsets.tolist()
    return blocks, [flat[a:b] for a, b in pairwise(edges)]


def books_of(stored: Mapping[bytes, bytes]) -> Books:
    """Read books as they are stored: beside the totals only the era is."""
    return Books.unflat({name.decode(): int(number) for name, number in stored.items() if name != b"era"})


def held(books: Books, v: Int64s, state: Bytes) -> Int64s:
    """Return what live pages hold; of others it means nothing."""
    if not books.weighted:
        return v + books.credit
    cash: Int64s = v + np.array(books.credits(), np.int64)[state & CLASS_BITS]
    return cash


def _count_by(slots: Bytes) -> tuple[int, ...]:
    return (0, *np.bincount(slots, minlength=CLASSES_MAX)[1:].tolist())


def _flat(part: Mapping[str, int | bool | str]) -> bytes:
    blob: bytes = msgpack.packb([text for k, v in part.items() for text in (k, _text(v))])
    return blob


def _token() -> bytes:
    return secrets.token_hex(8).encode()


def _text(value: int | bool | str) -> str:
    return str(int(value)) if isinstance(value, bool | int) else value


def _total(values: Int64s) -> int:
    """Sum exactly: a column of total history may pass 2^63, where numpy would wrap."""
    high, low = values >> 32, values & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())
