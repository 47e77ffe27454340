"""The open shards of a crawl, and what the store says of all of them: it needs no replica."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from opic.errors import StoreMismatch
from opic.model.books import Books
from opic.model.crawl_books import payout_due
from opic.model.transfer import source_of
from opic.store.connection import Client, ask, store_errors
from opic.store.durability import Durability
from opic.store.shard import Shard
from opic.urls.canonical import host_of, shard_of


class CrawlShards:
    """The shards of one crawl, in order. All pages of a host are in one shard."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Use `open` instead: it checks that the store matches."""
        self.shards = tuple(shards)
        self.client, self.rules = shards[0].client, shards[0].rules

    def __len__(self) -> int:
        return len(self.shards)

    @classmethod
    def open(
        cls,
        client: Client,
        name: str = "default",
        given: Mapping[str, int | bool | str] | None = None,
        *,
        create: bool = True,
        shards: int = 1,
        durability: Durability | None = None,
        yields: bool = True,
        keep_links: bool | None = None,
    ) -> Self:
        """Open all shards of a crawl, creating them if they do not exist; see also `Shard.open`.

        Args:
            client: a client of a server or of a cluster.
            name: the name of the crawl.
            given: rules that the user set.
            create: create a missing crawl.
            shards: number of shards of a new crawl.
            durability: what must hold before an offset counts as durable; if None, whatever the server does.
            yields: keep what reads of each page have discovered, see `opic.replica.page_yields`.
            keep_links: keep the links of each page that is read from now on, see `opic.query.kept_links`; False ends
                that, and None goes on as the crawl does.

        Raises:
            StoreMismatch: the store has another format version or other rules, or a shard is missing.
            StoreError: the server can't keep the books, or the crawl does not exist.
        """
        first = Shard.open(client, name, given, create=create, shards=shards)
        others = [Shard.beside(first, number) for number in range(1, first.shards)]
        for shard in (first, *others):
            shard.durability, shard.yields = durability or Durability(), yields
            shard.keep_links = keep_links
        for other in others:
            if other.restored != first.restored:
                raise StoreMismatch(
                    f"shard {other.number} was restored from backup {other.restored or 'none'}, shard 0 from "
                    f"{first.restored or 'none'}: they do not match; restore all shards from one backup"
                )
        if others:
            with store_errors():
                client.hset(first.keys.meta, "whole", 1)  # From now on a missing shard means lost data.
        return cls([first, *others])

    def shard_of(self, url: str) -> Shard:
        """Return the shard of the page with a canonical URL."""
        return self.shards[shard_of(host_of(url), len(self))]

    def metas_of(self, shard: int, ids: Sequence[int]) -> list[bytes]:
        """Return the packed metadata of pages of a shard, by ~page their names, b"" for none, as in the store now."""
        (metas,) = self.ask([["HMGET", self.shards[shard].keys.page_meta, *ids]])
        return [meta or b"" for meta in metas]

    def home(self, partition: str) -> Shard:
        """Return the shard that stores a partition's resume point."""
        return self.shards[shard_of(partition, len(self.shards))]

    def resume(self, partition: str) -> int:
        """Return the offset from which to read a partition: all records below it have taken effect."""
        return self.resumes([partition])[partition]

    def resumes(self, partitions: Iterable[str]) -> dict[str, int]:
        """Return the `resume` of partitions, with one round trip to each shard that stores some."""
        stored, offsets = dict[Shard, list[str]](), dict[str, int]()
        for partition in partitions:
            stored.setdefault(self.home(partition), []).append(partition)
        for home, names in stored.items():
            key = home.keys.offsets if len(self.shards) == 1 else home.keys.resume
            offsets |= zip(names, home.offsets_in(key, names), strict=True)
        return offsets

    def era(self) -> bytes:
        """Return the era of the crawl, in which offsets and page ids are valid: each restored backup begins one."""
        with store_errors():
            return self.client.hget(self.shards[0].keys.meta, "era") or b""

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one pipeline, each to the shard that its keys name; return the replies in order."""
        return ask(self.client, commands)

    def books(self) -> list[Books]:
        return [Books.unflat(stored) for stored in self.ask([["HGETALL", shard.keys.books] for shard in self.shards])]

    def totals(self) -> Books:
        return Books.merged(self.books(), self.rules)

    def waiting(self) -> int:
        """Return the number of entries in all outboxes that were sent but not yet taken by the receiving shard."""
        taken, sent = self.outboxes()
        return sum(max(count - taken[box], 0) for box, count in sent.items())

    def outboxes(self) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """Return how many entries were ever taken from each outbox, by (sender, receiver), and how many sent to it."""
        taken, sent = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        if len(self) == 1:
            return taken, sent
        both = [["HGETALL", key] for shard in self.shards for key in (shard.keys.offsets, shard.keys.sent)]
        answers = self.ask(both)
        # `taken` is read before `sent`: an entry sent in between counts as waiting, and taken never exceeds sent.
        for sender, counts in enumerate(answers[1::2]):
            for to, count in counts.items():
                sent[sender, int(to)] = int(count)
                taken[sender, int(to)] = int(answers[2 * int(to)].get(source_of(sender).encode(), 0))
        return taken, sent

    def undelivered(self) -> int:
        """Return the work left for `Writer.deliver`: entries in outboxes; if there are none, 1 if a grant is due.

        Once the result is 0, it stays 0 until another record takes effect.
        """
        if len(self) == 1:
            return 0
        if waiting := self.waiting():
            return waiting
        books = self.books()  # Read after the outboxes: a grant decided in between is visible in the credits.
        return int(
            len({part.credit for part in books}) > 1
            or payout_due(books, Books.merged(books, self.rules), self.rules) > 0
        )
