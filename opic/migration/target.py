"""Writes the shards of the new crawl: blocks, links, what is kept beside them, and last its head and settings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Int64s, Uint32s
from opic.errors import StoreError
from opic.ingest.link_keeper import SEGMENT_BYTES
from opic.model.cash import FORGOTTEN, CrawlRules
from opic.model.page_links import PageLinks
from opic.model.transfer import SWEEP, SWEEP_BITS
from opic.replica.audit import audit_replica
from opic.replica.checkpoint import (
    URLS_A_FIELD,
    blocks_of,
    fields_of,
    pack_block,
    pack_names,
    url_field,
)
from opic.replica.effect import Effect
from opic.replica.follow import Follower
from opic.replica.known_since import ENTRY
from opic.replica.link_segment import pack_segment
from opic.replica.packed_lines import pack_lines
from opic.replica.replica import Replica
from opic.replica.stored_links import LinkList
from opic.store.commands import Command, flat, portions
from opic.store.connection import Client, Line, ask, store_errors
from opic.store.durability import Durability, await_durable
from opic.store.keys import FORMAT, Keys
from opic.urls.canonical import shard_of

# Fields of the source's meta that are not carried: they are of the rules, or of what goes on there.
OWN_META: Final = ("restoring", "closed", "moving", "moved", "whole", "format", "shards")


class Target:
    """The store of the new crawl, while nobody else may open it."""

    def __init__(self, client: Client, crawl: str, rules: CrawlRules, shards: int, token: str) -> None:
        self.client, self.rules, self.token = client, rules, token
        self.keys = [Keys(crawl, number) for number in range(shards)]
        self._segments: list[list[int]] = [[] for _ in self.keys]  # Bytes, by number from 1 on.
        self._waiting: list[list[PageLinks]] = [[] for _ in self.keys]
        self._fields = [0] * shards  # How many fields of URLs were written,
        self._blank = [set[int]() for _ in self.keys]  # and which of them are to be written again.

    def claim(self) -> None:
        """Keep everybody out until `open`, or until it is removed."""
        self.send([["HSET", keys.meta, "restoring", self.token] for keys in self.keys])

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands, about a megabyte at a time."""
        for some in portions(commands):
            ask(self.client, some)

    def check_claimed(self) -> None:
        """Check that nobody else writes there.

        Raises:
            StoreError: the crawl was removed, or made, by another process.
        """
        tokens = ask(self.client, [["HGET", keys.meta, "restoring"] for keys in self.keys])
        if any(token != self.token.encode() for token in tokens):
            raise StoreError(
                f"crawl {self.keys[0].crawl!r} was changed by another process while it was made: run `opic migrate "
                "--abort`"
            )

    def await_durable(self, durability: Durability) -> None:
        """Wait until all that was written is as durable as events are: the old crawl ends next.

        Raises:
            StoreUnavailable: it is not in time.
        """
        if durability.wanted:
            for keys in self.keys:
                with closing(Line(self.client, keys.head)) as line, store_errors():
                    await_durable(line, keys, durability)

    # Links.

    def add_links(self, shard: int, links: PageLinks) -> Iterator[Command]:
        """Let links of distinct pages wait for a segment; yield the commands of those that are full."""
        waiting = self._waiting[shard]
        waiting.append(links)
        if sum(int(part.weights().sum()) for part in waiting) >= SEGMENT_BYTES:
            yield self._segment(shard)

    def end_links(self, lsn: int) -> Iterator[Command]:
        """Yield the commands of the last segments, and of the lists of all."""
        for shard, keys in enumerate(self.keys):
            if self._waiting[shard]:
                yield self._segment(shard)
            sizes = self._segments[shard]
            if sizes:
                link_list = LinkList(len(sizes), lsn, tuple(range(1, len(sizes) + 1)), sum(sizes))
                yield ["HSET", keys.link_segments, *flat(link_list.fields())]

    def _segment(self, shard: int) -> Command:
        links = PageLinks.joined(self._waiting[shard])
        links = links.select_rows(links.last_of_each())
        self._waiting[shard] = []
        packed = pack_segment(links)
        sizes = self._segments[shard]
        sizes.append(sum(map(len, packed)))
        return ["HSET", self.keys[shard].link_segments, f"p{len(sizes)}", packed[0], f"l{len(sizes)}", packed[1]]

    # Pages.

    def write_urls(self, shard: int, urls: Callable[[range], list[str]], pages: int, *, end: bool) -> Iterator[Command]:
        """Yield the commands that write the URLs of a shard's pages that were not written yet.

        Args:
            shard: the number of the shard.
            urls: returns those of consecutive ids, "" for forgotten pages.
            pages: how many pages there are.
            end: write those of the last field too, which is not full.
        """
        first, fields = self._fields[shard], pages // URLS_A_FIELD + (end and pages % URLS_A_FIELD > 0)
        for number in (*sorted(self._blank[shard]), *range(first, fields)):
            block, field, _ = url_field(number * URLS_A_FIELD)
            ids = range(number * URLS_A_FIELD, min((number + 1) * URLS_A_FIELD, pages))
            yield ["HSET", self.keys[shard].block(block), field, pack_lines(urls(ids))]
        self._fields[shard] = max(first, fields)
        self._blank[shard].clear()

    def write_again(self, shard: int, page: int) -> None:
        """Have `write_urls` write the field of a page again if it was written: the page was forgotten, or came back."""
        if page // URLS_A_FIELD < self._fields[shard]:
            self._blank[shard].add(page // URLS_A_FIELD)

    def write_pages(self, replica: Replica, seconds: Int64s, lsn: int) -> Iterator[Command]:
        """Yield the commands that write the blocks of a shard and its one record, which becomes the replica's head."""
        keys = self.keys[replica.shard]
        starts, again = _known_since(seconds, replica.state != FORGOTTEN)
        replica.columns.put("known_again", np.arange(len(again)), again, None)
        replica.books.version = 1
        own = Effect.of_new_history(lsn, bytes(8), replica.books, replica.pages, len(replica.hosts))
        record = own.pack()
        replica.head = own.head
        for block in range(blocks_of(replica.pages)):
            yield ["HSET", keys.block(block), *flat(pack_block(replica, block, fields_of(replica)))]
        yield ["HSET", keys.names_block, *flat(pack_names(replica, 0))]
        yield ["XADD", keys.journal, f"{lsn}-0", "r", record]
        yield ["HSET", keys.books, *flat(replica.books.flat())]
        if starts:
            yield ["HSET", keys.known_since, 0, starts]

    def write_offsets(
        self, resume: Mapping[str, int], replicas: Sequence[Replica], *, sweeps: bool
    ) -> Iterator[Command]:
        """Yield the commands that say from where each partition is to be read: all shards are equally far."""
        many = len(self.keys) > 1
        for keys, replica in zip(self.keys, replicas, strict=True):
            offsets = {partition: offset for partition, offset in resume.items() if offset}
            if many and replica.classes.version and not sweeps:
                offsets[SWEEP] = (replica.classes.version << SWEEP_BITS) + replica.pages
            if offsets:
                yield ["HSET", keys.offsets, *flat(offsets)]
        for partition, offset in resume.items() if many else ():
            home = self.keys[shard_of(partition, len(self.keys))]
            rests_on = {f"{partition}@{shard}": offset for shard in range(len(self.keys))}
            yield ["HSET", home.resume, partition, offset, *flat(rests_on)]

    def write_end(self, replicas: Sequence[Replica], meta: Mapping[bytes, bytes]) -> list[Command]:
        """Return the commands that write the heads and the settings; the crawl stays closed."""
        kept = {name: value for name, value in meta.items() if name.decode() not in OWN_META}
        rules: dict[str, Any] = {**asdict(self.rules), "shards": len(self.keys), "format": FORMAT}
        rules["lineage"] = self.token
        rules = {name: int(value) if isinstance(value, bool) else value for name, value in rules.items()}
        if len(self.keys) > 1:
            rules["whole"] = 1
        commands: list[Command] = []
        for keys, replica in zip(self.keys, replicas, strict=True):
            commands.append(["HSET", keys.meta, *flat(kept), *flat(rules)])
            commands.append(["HSET", keys.head, "lsn", replica.head.lsn, "digest", replica.head.digest])
        return commands

    def check(self, made: Sequence[Replica]) -> None:
        """Load every shard as it is written, and recount it.

        Raises:
            StoreError: it is not what was made.
        """
        for keys, replica in zip(self.keys, made, strict=True):
            loaded = Replica(self.rules, replica.shard, yields=replica.keeps_yields)
            Follower(self.client, keys, loaded).load()
            audit = audit_replica(loaded, 0 if replica.shard else self.rules.minted)
            if not audit.conserved or loaded.head != replica.head or loaded.books != replica.books:
                what = "; ".join(audit.mismatches) or "its totals differ"
                raise StoreError(f"shard {replica.shard} of the copy is damaged: {what}")

    def open(self) -> None:
        """Open the crawl to all; shard 0 last, because opening a crawl begins with it."""
        for keys in reversed(self.keys):
            ask(self.client, [["HDEL", keys.meta, "restoring"]])


def _known_since(seconds: Int64s, known: Bools) -> tuple[bytes, Uint32s]:
    """Return the notes of when the pages of a shard became known, and the column `known_again`.

    Args:
        seconds: when each page became known, (pages,).
        known: whether it is not forgotten, (pages,): else this does not count.
    """
    counted = np.where(known, seconds, seconds.max(initial=0))
    base = np.minimum.accumulate(counted[::-1])[::-1]  # A page that was forgotten and came back is later than the next.
    starts = np.flatnonzero(np.diff(base, prepend=0) > 0)
    entries = np.zeros(len(starts), ENTRY)
    entries["page"], entries["seconds"] = starts, base[starts]
    return entries.tobytes(), np.where(known & (seconds > base), seconds, 0).astype(np.uint32)
