"""What the store keeps beside the pages, carried to the shards of another crawl as the rows of `Keys` say."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgpack

from opic.frontier.leases import Lease
from opic.migration.places import NO_PLACE, Places
from opic.replica.crawl import Crawl
from opic.store.commands import Command, flat
from opic.store.connection import ask
from opic.store.keys import HASH, KEYS, SET, STREAM, STRING, ZSET, Carried, Key, Keys
from opic.store.refusals import field_of
from opic.store.scan import scan_hash, scan_sorted_set
from opic.urls.canonical import shard_of

ENTRIES_A_COMMAND: Final = 500
META_BYTES: Final = 64  # Of an entry of `pagemeta` besides its value, as in kept.lua.
LETTER_BYTES: Final = 128  # Of a dead letter besides its reason and its value, likewise.
FORMER_MS: Final = 86_400_000  # How long a lease may be renewed by its former token after it was to end.
NOT_CARRIED: Final = (Carried.MADE, Carried.LEFT)


class MovedEntries:
    """Carries entries over: yields the commands that write them to the new crawl."""

    def __init__(self, crawl: Crawl, places: Places, to: Sequence[Keys], lineage: str, log_from: int) -> None:
        """Take the crawl, its pages' places, the new shards' keys and lineage, and from where the log is carried."""
        self._crawl, self._places, self._to = crawl, places, to
        self._lineage, self._log_from = lineage, log_from

    def commands(self) -> Iterator[Command]:
        """Yield all commands, of about ENTRIES_A_COMMAND entries each."""
        for key in KEYS:
            if key.carried in NOT_CARRIED:
                continue
            if key.kind == STREAM:
                yield from self._dead() if key is Keys.dead else self._log()
            elif key.kind == STRING:
                (value,) = self._ask("GET", key, [0])
                if value is not None:
                    yield ["SET", self._named(key, 0), value]
            else:
                yield from self._carried(key)
        yield from self._meta_bytes()
        yield from self._former()

    def _named(self, key: Key, shard: int) -> str:
        return self._to[shard].prefix + key.name

    def _ask(self, command: str, key: Key, shards: Iterable[int], *arguments: Any) -> list[Any]:
        prefixes = [self._crawl.shards[shard].keys.prefix for shard in shards]
        return ask(self._crawl.client, [[command, prefix + key.name, *arguments] for prefix in prefixes])

    def _carried(self, key: Key) -> Iterator[Command]:
        """Carry a hash, a sorted set or a set entry by entry."""
        command, waiting = {HASH: "HSET", ZSET: "ZADD", SET: "SADD"}[key.kind], defaultdict[int, list[Any]](list)
        for shard, entry in self._entries(key):
            for to, moved in self._of(key, shard, entry):
                waiting[to] += moved[::-1] if key.kind == ZSET else moved
                if len(waiting[to]) >= 2 * ENTRIES_A_COMMAND:
                    yield [command, self._named(key, to), *waiting.pop(to)]
        for to, some in waiting.items():
            yield [command, self._named(key, to), *some]

    def _entries(self, key: Key) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the entries of a key in all shards of the source."""
        for shard in self._crawl.shards:
            name = shard.keys.prefix + key.name
            if key.kind == HASH:
                entries: Iterable[Any] = (pair for part in scan_hash(shard.client, name) for pair in part.items())
            elif key.kind == ZSET:
                entries = ((m, repr(score)) for part in scan_sorted_set(shard.client, name) for m, score in part)
            else:
                entries = ((member,) for member in self._ask("SMEMBERS", key, [shard.number])[0])
            yield from ((shard.number, tuple(entry)) for entry in entries)

    def _of(self, key: Key, shard: int, entry: tuple[Any, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the shards that an entry goes to, and the entry there."""
        if key.carried is Carried.FIRST:
            yield 0, self._call(entry) if key is Keys.calls else entry
        elif key.carried is Carried.ALL:
            yield from ((to, entry) for to in range(self._places.shards))
        elif key.carried is Carried.BY_HOST:
            value = self._flights(shard, entry[1]) if key is Keys.flights else entry[1]
            yield shard_of(entry[0].decode(), self._places.shards), (entry[0], value)
        elif (moved := PAGES.get(key.name, _by_id)(self, shard, entry)) is not None:
            yield moved

    def _call(self, entry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a call with what its records in the log are: a log of one shard packs events, as `EventLog` does."""
        body, terms, done, *counted = msgpack.unpackb(entry[1], raw=True)
        packed = counted or [int(len(self._crawl) == 1)]
        return entry[0], msgpack.packb((body, terms, done, *packed), use_bin_type=False)  # Lua reads no other.

    def page_there(self, shard: int, page: int) -> tuple[int, int]:
        """Return the shard and the number of a page there."""
        index = int(self._places.first[shard]) + page
        return int(self._places.shard[index]), int(self._places.id[index])

    def knows(self, shard: int, page: int) -> bool:
        """Tell whether a page was known when the source came to rest."""
        return page < len(self._places.source[shard]) and self.page_there(shard, page)[1] != NO_PLACE

    def _flights(self, shard: int, packed: bytes) -> bytes:
        pages = msgpack.unpackb(packed)
        pages[::2] = [str(self.page_there(shard, int(page))[1]).encode() for page in pages[::2]]
        repacked: bytes = msgpack.packb(pages, use_bin_type=False)
        return repacked

    def _meta_bytes(self) -> Iterator[Command]:
        """Count the bytes of metadata, which have a limit."""
        sizes = defaultdict[int, int](int)
        for shard, (page, meta) in self._entries(Keys.page_meta):
            if (moved := _by_signed_id(self, shard, (page, meta))) is not None:
                sizes[moved[0]] += len(meta) + META_BYTES
        for to, size in sizes.items():
            yield ["HSET", self._to[to].metrics, "meta_bytes", size]

    def _former(self) -> Iterator[Command]:
        """Note what the tokens of running leases are there, those of earlier crawls too."""
        first = self._crawl.shards[0]
        granted = defaultdict[tuple[int, int, int], list[int]](list)
        for shard, (name, end) in self._entries(Keys.renewed):
            page, _, before = name.partition(b"-")
            granted[shard, int(page), int(float(end))].append(int(before))
        present, last = dict[str, str](), 0
        for shard, (page, end) in self._entries(Keys.leases):
            lease = shard, int(page), int(float(end))
            if self.knows(shard, lease[1]):
                last = max(last, lease[2])
                for until in (*granted[lease], lease[2]):
                    before = Lease((shard, lease[1]), until).signed(first.secret, first.lineage)
                    present[before] = Lease(self.page_there(shard, lease[1]), until).signed(first.secret, self._lineage)
        for _, (token, now) in self._entries(Keys.former):
            if now.decode() in present:
                present[token.decode()] = present[now.decode()]
        if present:
            name, pairs = self._named(Keys.former, 0), list(present.items())
            for first_pair in range(0, len(pairs), ENTRIES_A_COMMAND):
                some = pairs[first_pair : first_pair + ENTRIES_A_COMMAND]
                yield ["HSET", name, *[part for pair in some for part in pair]]
            yield ["PEXPIREAT", name, last // 1_000 + FORMER_MS]

    def _log(self) -> Iterator[Command]:
        """Carry the accepted records that have not taken effect."""
        after = f"1-{self._log_from}"
        while entries := self._ask("XRANGE", Keys.log, [0], after, "+", "COUNT", ENTRIES_A_COMMAND)[0]:
            for name, fields in entries:
                yield ["XADD", self._named(Keys.log, 0), name, *flat(fields)]
            after = f"({entries[-1][0].decode()}"

    def _dead(self) -> Iterator[Command]:
        """Carry the dead letters of all shards, oldest first, each with the bytes of those before it."""
        letters = [
            letter
            for shard_letters in self._ask("XRANGE", Keys.dead, range(len(self._crawl)), "-", "+")
            for letter in shard_letters
        ]
        last, total = (0, 0), 0
        for name, fields in sorted(letters, key=lambda letter: _stream_id(letter[0])):
            stream_id = _stream_id(name)
            last = stream_id if stream_id > last else (last[0], last[1] + 1)
            yield ["XADD", self._named(Keys.dead, 0), "{}-{}".format(*last), *flat({**fields, b"before": total})]
            total += LETTER_BYTES + len(fields.get(b"opic-error", b"")) + len(fields.get(b"value", b""))


def _stream_id(name: bytes) -> tuple[int, int]:
    first, _, second = name.partition(b"-")
    return int(first), int(second)


Moved = tuple[int, tuple[Any, ...]] | None


def _by_id(entries: MovedEntries, shard: int, entry: tuple[Any, ...]) -> Moved:
    if not entries.knows(shard, page := int(entry[0])):
        return None
    to, number = entries.page_there(shard, page)
    return to, (number, *entry[1:])


def _by_signed_id(entries: MovedEntries, shard: int, entry: tuple[Any, ...]) -> Moved:
    """Take a page, or ~page."""
    page = int(entry[0])
    if not entries.knows(shard, max(page, ~page)):
        return None
    to, number = entries.page_there(shard, max(page, ~page))
    return to, (number if page >= 0 else ~number, *entry[1:])


def _by_lease(entries: MovedEntries, shard: int, entry: tuple[Any, ...]) -> Moved:
    """Take a member page-end."""
    page, _, end = entry[0].partition(b"-")
    if (moved := _by_id(entries, shard, (page,))) is None:
        return None
    return moved[0], (b"%d-%s" % (moved[1][0], end), *entry[1:])


def _by_slot(entries: MovedEntries, shard: int, entry: tuple[Any, ...]) -> Moved:
    """Take a value that begins with its page, whose field is the page modulo the key's slots."""
    page, _, rest = entry[1].partition(b" ")
    if (moved := _by_id(entries, shard, (page,))) is None:
        return None
    return moved[0], (field_of(moved[1][0]), b"%d %s" % (moved[1][0], rest))


PAGES: Final[dict[str, Callable[[MovedEntries, int, tuple[Any, ...]], Moved]]] = {
    Keys.page_meta.name: _by_signed_id,
    Keys.renewed.name: _by_lease,
    Keys.refusals.name: _by_slot,
}
