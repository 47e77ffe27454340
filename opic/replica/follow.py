"""Following a journal: loads a replica from a shard's checkpoint and keeps it current with the journal.

The order of the reads makes the result exact. A load reads the journal from its first entry on, then the blocks, then
the entries appended meanwhile, and applies to each block the effects that it lacks. A block stays valid until a later
record changes it, and the journal is trimmed only past records that the blocks contain. On any inconsistency (a gap, a
different digest, a head behind the replica's) the follower loads again.
"""

import logging
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from opic.errors import BeingRestored, StoreDamaged, StoreUnavailable
from opic.memory import give_back_what_is_free
from opic.replica.changes import Changes
from opic.replica.checkpoint import URLS_A_FIELD, Loading, blocks_of, fields_of, lsn_of, url_field
from opic.replica.effect import Effect, Head
from opic.replica.packed_lines import pack_lines, unpack_urls
from opic.replica.replica import Replica
from opic.store.connection import Client, ask, store_errors
from opic.store.keys import Keys

log = logging.getLogger("opic.replica")

ENTRY_BYTES_AIM: Final = 512 << 10  # Target size of one read of the journal; a server reads 1 MB in about 1 ms.
ENTRIES_MAX: Final = 16
ENTRIES_LOADED_MAX: Final = 64  # Entries per read while loading.
BLOCKS_A_READ: Final = 8
LOADS_MAX: Final = 20  # Consecutive loads that failed because the journal was trimmed in the meantime.
TAIL_LOOK_BYTES: Final = 16 << 20  # Bytes of records applied before the start of the journal is read again.
JITTER_SECONDS: Final = 0.05  # So that many readers do not reload at the same time.
NO_HEAD: Final = Head()


class Follower:
    """Keeps one replica in sync with one shard's journal. For one thread at a time; takes the replica's lock itself."""

    def __init__(self, client: Client, keys: Keys, replica: Replica) -> None:
        """Follow with a replica that is at genesis or where another follower left it."""
        self.client, self.keys, self.replica = client, keys, replica
        self.changes = list[Changes]()  # What else is read, by whom, beside the journal.
        self._entry_bytes = 64 << 10  # Moving average of entry sizes.
        self._loaded = False
        self._forked = False  # Whether the last load found a record whose digest the next record does not name.
        self._tail_bytes = 0  # Bytes of records applied since the start of the journal was last read.
        self._tail_needed = 0  # The first new page of the journal's first record at that time.
        self.stopped = False  # Whether the shard takes no writes, because its crawl is being moved to another one.
        self.checked_at = float("-inf")  # When (monotonic) the request for the last comparison of heads was sent.

    def commands(self) -> list[list[Any]]:
        """Return the commands that follow the journal: read the head, then the next entries, which may be newer.

        Changes are read after the journal: all are there that came before its last entry. Every TAIL_LOOK_BYTES, the
        last command reads the journal's first entry.
        """
        count = max(1, min(ENTRIES_MAX, ENTRY_BYTES_AIM // self._entry_bytes))
        asked: list[list[Any]] = [
            ["HMGET", self.keys.head, "lsn", "digest", "stop"],
            ["XRANGE", self.keys.journal, f"({self.replica.head.lsn}-0", "+", "COUNT", count],
        ]
        asked += [["XRANGE", stream.key, stream.last, "+"] for stream in self.changes if stream.last is not None]
        if self._tail_bytes >= TAIL_LOOK_BYTES:
            asked.append(["XRANGE", self.keys.journal, "-", "+", "COUNT", 1])
        return asked

    def apply_answers(self, answers: Sequence[Any]) -> bool:
        """Apply the replies to `commands`; return whether the replica has reached that head or passed it.

        Raises:
            StoreDamaged: an entry can't be read.
        """
        (*stored_head, stop), entries, *first = answers
        head, replica, self.stopped = head_of(stored_head), self.replica, stop is not None
        with replica.following():
            read = [stream for stream in self.changes if stream.last is not None]
            for stream, changed in zip(read, first, strict=False):
                if len(changed) != 1 or changed[0][0] != stream.last:  # Mostly there are none after the last.
                    stream.add_entries(changed)
            del first[: len(read)]
            news = [stream for stream in self.changes if stream.waiting]
            if not self._loaded:
                if head != replica.head:
                    return self._reload("")
                self._loaded = replica.whole = True
            if head.lsn < replica.head.lsn or (head.lsn == replica.head.lsn and head != replica.head):
                return self._reload(f"the head is record {head.lsn}, behind record {replica.head.lsn} seen before")
            if head.lsn > replica.head.lsn and not entries:
                return self._reload("the journal was trimmed past the replica")
            for name, fields in entries:
                effect = Effect.unpack(fields[b"r"])
                if (effect.lsn, effect.previous) != (replica.head.lsn + 1, replica.head.digest):
                    return self._reload(f"record {name.decode()} does not follow {replica.head.lsn}")
                if effect.restored:  # Even if it follows: the rest of the store may be of another time.
                    return self._reload("a backup was restored")
                for stream in news:
                    stream.hear(effect.lsn - 1)
                replica.apply(effect)
                self._entry_bytes += (len(fields[b"r"]) - self._entry_bytes) // 8
                self._tail_bytes += len(fields[b"r"])
            if head.lsn == replica.head.lsn and head != replica.head:
                return self._reload(f"record {head.lsn} is not the one that the head names")
            for stream in news:
                stream.hear(replica.head.lsn)
            if first:
                self._shorten_tail(first[0])
            return replica.head.lsn >= head.lsn

    def _shorten_tail(self, entries: Sequence[Any]) -> None:
        """Drop URLs that the checkpoint holds: those of pages before the start of the journal, as of the previous read.

        It uses the previous read, not this one: a server that loses its last second of writes may lose recent blocks.
        """
        self._tail_bytes = 0
        self.replica.tail.drop(self._tail_needed // URLS_A_FIELD * URLS_A_FIELD)  # Fields are written whole.
        if entries:
            ((_, fields),) = entries
            self._tail_needed = Effect.unpack(fields[b"r"]).first_page

    def _reload(self, why: str) -> bool:
        if why:
            log.info("shard %d: reloading the replica: %s", self.keys.shard, why)
            time.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311 - jitter, not a secret
        self.load()
        return False

    def catch_up(self) -> None:
        """Bring the replica up to date: at least to the journal's head at some moment during this call.

        Raises:
            StoreUnavailable: the store is unavailable, or grew faster than it could be read.
            StoreDamaged: a record or a block can't be read.
        """
        catch_up(self.client, [self])

    def load(self) -> None:
        """Load the replica from the checkpoint and the journal."""
        self._loaded = False
        for _ in range(LOADS_MAX):
            if self._load():
                self._loaded, self._tail_bytes, self._tail_needed = True, 0, 0
                give_back_what_is_free()
                return
        if self._forked:
            raise StoreDamaged(
                f"shard {self.keys.shard}: the digests of the journal's records do not form a chain: restore a backup"
            )
        raise StoreUnavailable(f"shard {self.keys.shard}: the journal was trimmed during every load: try again")

    def _load(self) -> bool:
        effects: list[Effect] = []
        if not self._read_journal(effects, 0):
            return False
        with self.replica.following():
            if not effects:
                self.replica.reset()
                return True
            images = self._read_blocks(blocks_of(effects[-1].pages))
            with store_errors():
                names = {name.decode(): value for name, value in self.client.hgetall(self.keys.names_block).items()}
            newest = max(map(lsn_of, [*images, names]))
            if not self._read_journal(effects, newest):
                return False
            loading = Loading(self.replica, effects)
            try:
                for block, image in enumerate(images):
                    loading.take_block(block, image)
                loading.take_names(names)
                loading.finish()
                self._extend_tail(loading.known_before)
            except BaseException:
                self.replica.reset()
                self.replica.whole = False
                raise
            return True

    def _read_journal(self, effects: list[Effect], least: int) -> bool:
        """Append effects up to the head, and at least up to record `least`; return False if there is a gap."""
        while True:
            after = f"({effects[-1].lsn}-0" if effects else "-"
            entries_after = ["XRANGE", self.keys.journal, after, "+", "COUNT", ENTRIES_LOADED_MAX]
            stored_head, entries = ask(self.client, [["HMGET", self.keys.head, "lsn", "digest"], entries_after])
            head = head_of(stored_head)
            self._check_restored(head)
            for _, fields in entries:
                effect = Effect.unpack(fields[b"r"])
                if effects and (effect.lsn, effect.previous) != (effects[-1].lsn + 1, effects[-1].digest):
                    self._forked = effect.lsn == effects[-1].lsn + 1
                    return False
                effects.append(effect)
            if not entries:
                if not effects:
                    if head == NO_HEAD:
                        return True
                    raise StoreDamaged(f"shard {self.keys.shard}: the journal lacks its last record: restore a backup")
                if head != effects[-1].head:
                    self._forked = head.lsn == effects[-1].lsn
                    return False
                if least > head.lsn:
                    raise StoreDamaged(
                        f"shard {self.keys.shard}: a block of the checkpoint is of record {least}, but the journal "
                        f"ends at {head.lsn}: restore a backup"
                    )
                return True

    def _check_restored(self, head: Head) -> None:
        if head.lsn == 0 and head != NO_HEAD:
            raise BeingRestored(
                f"shard {self.keys.shard} is being restored from a backup, or a restore was interrupted: wait, or run "
                "`opic restore --replace` again"
            )

    def _read_blocks(self, count: int) -> list[dict[str, bytes]]:
        images, fields = [], ("l", *fields_of(self.replica))
        for first in range(0, count, BLOCKS_A_READ):
            numbers = range(first, min(first + BLOCKS_A_READ, count))
            for stored in ask(self.client, [["HMGET", self.keys.block(n), *fields] for n in numbers]):
                pairs = zip(fields, stored, strict=True)
                images.append({name: value for name, value in pairs if value is not None})
        return images

    def _extend_tail(self, known_before: int) -> None:
        """Extend the tail back to the start of a field of URLs, so that the whole field can be written again."""
        start = known_before - known_before % URLS_A_FIELD
        if start == known_before:
            return
        block, field, _ = url_field(start)
        with store_errors():
            packed = self.client.hget(self.keys.block(block), field)
        urls = unpack_urls(packed or b"")[: known_before - start]
        if len(urls) < known_before - start:
            raise StoreDamaged(f"URLs of pages {start} to {known_before - 1} are missing: restore a backup")
        chunks = self.replica.tail
        self.replica.tail = chunks.preceded(start, pack_lines(urls))


def head_of(stored: Sequence[bytes | None]) -> Head:
    lsn, digest = stored
    return Head(int(lsn), digest) if lsn is not None and digest is not None else NO_HEAD


def catch_up(client: Client, followers: Iterable["Follower"]) -> None:
    """Bring several followers up to date, with one pipeline per round for all of them."""
    todo = list(followers)
    for _ in range(LOADS_MAX * ENTRIES_MAX):
        if not todo:
            return
        asked_at = time.monotonic()
        commands = [follower.commands() for follower in todo]
        answers = iter(ask(client, [command for part in commands for command in part]))
        behind = []
        for follower, follower_commands in zip(todo, commands, strict=True):
            if follower.apply_answers([next(answers) for _ in follower_commands]):
                follower.checked_at = asked_at
            else:
                behind.append(follower)
        todo = behind
    raise StoreUnavailable("journals grow faster than they can be read: try again")
