"""Backup verification: loads each shard from the files alone, recounts its books, and compares it with the others.

It runs before a backup's manifest is written and before a restore writes anything. Only one shard at a time is in
memory.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opic.errors import SettingsError, StoreDamaged, StoreError
from opic.ingest.event_log import offsets_of
from opic.model.books import Books, BooksAudit
from opic.model.cash import CrawlRules
from opic.model.transfer import Transfer, source_of
from opic.ops.backup_files import LOG_SHARD, SEGMENT, SEGMENTS, file_name, read_values
from opic.replica.audit import audit_replica
from opic.replica.checkpoint import Loading, blocks_of
from opic.replica.effect import NO_DIGEST, Effect, Head, entry_digest
from opic.replica.follow import head_of
from opic.replica.link_segment import unpack_segment
from opic.replica.replica import Replica
from opic.replica.stored_links import LIST_FIELDS, LinkList

OUTBOX = "out:"


@dataclass(slots=True)
class Waiting:
    """The entries waiting in an outbox of the copy."""

    first: int  # Number of the first entry.
    previous: bytes  # Digest of the entry before it.
    count: int = 0
    digest: bytes = NO_DIGEST  # Digest of the last entry.
    grains: int = 0


@dataclass(slots=True)
class ShardChecked:
    """The state of one shard, read from the files."""

    audit: BooksAudit
    head: Head
    offsets: dict[str, int]
    sent: dict[int, tuple[int, bytes]]  # By target shard: number of entries sent, and digest of the last.
    taken: dict[int, bytes]  # By source shard: digest of the last entry taken.
    pages: int
    records: int
    waiting: dict[int, Waiting] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # Elements that the restored keys `linkseg` .. will have.


class Counted:
    """Counts the elements that no replica holds: what was scanned, and what the records changed since.

    A scan during which events take effect has no exact count of its own. But all changes since the copy's start are in
    the records. So what was scanned, changed by the records, has exactly as many elements as the store had at the end.
    """

    def __init__(self, pages: int, effects: Iterable[Effect]) -> None:
        """Start with the records of a shard that ends with this many pages."""
        # Pages with metadata, and with URLs. What is kept by ~page, a page's name, stands behind that of all pages.
        self._scanned, self._urls = np.zeros((2, 2 * pages), np.bool_)
        self._changed, self._again = np.zeros((2, 2 * pages), np.int8)  # Of these, 1: there in the end; -1: not.
        self._calls, self._times = array("q"), array("q")
        self._segments, self._fields = set[int](), 0  # Of kept links: segments that were copied; fields of the hash.
        for effect in effects:
            for page, meta in effect.metas.items():
                self._changed[page] = 1 if meta else -1
            self._again[effect.forgotten] = -1
            self._again[list(effect.again)] = 1
            self._put_calls(effect.calls.items())

    def count_scanned(self, name: str, values: Sequence[Any]) -> None:
        """Count a part of a scan: page, value, ..; or name of a call, time, .."""
        if name == "seen":
            self._put_calls(zip(values[::2], values[1::2], strict=True))
        elif name == "urls":
            self._urls[[int(page) for page in values[::2]]] = True
        else:
            self._scanned[[int(page) for page in values[::2]]] = True

    def take_segment(self, number: int, pages: bytes, links: bytes) -> None:
        """Check a segment of kept links.

        Raises:
            StoreDamaged: it is damaged.
        """
        unpack_segment(pages, links)
        self._segments.add(number)

    def take_list(self, fields: Mapping[str, Any]) -> None:
        """Check that the segments that count are there.

        Raises:
            StoreDamaged: one is missing.
        """
        live = LinkList.of([fields[name] for name in LIST_FIELDS]).live
        if not self._segments.issuperset(live):
            raise StoreDamaged("a segment of kept links is missing")
        self._fields = len(LIST_FIELDS) + 2 * len(live)

    def _put_calls(self, calls: Iterable[tuple[bytes, int]]) -> None:
        for name, time_us in calls:
            self._calls.append(hash(name))  # 8 bytes each: there may be many million.
            self._times.append(time_us)

    def counts(self) -> dict[str, int]:
        """Return how many elements each key has once restored."""
        metas = np.count_nonzero((self._scanned & (self._changed == 0)) | (self._changed == 1))
        urls = np.count_nonzero((self._urls & (self._again == 0)) | (self._again == 1))
        return {"linkseg": self._fields, "pagemeta": int(metas), "seen": self.calls_from(0), "urls": int(urls)}

    def calls_from(self, time_us: int) -> int:
        """Return the number of distinct calls that took effect at this time or later."""
        calls, times = np.frombuffer(self._calls, np.int64), np.frombuffer(self._times, np.int64)
        return len(np.unique(calls[times >= time_us]))

    def check(self, stored: Mapping[str, int]) -> None:
        """Compare the counts with those of the store at the end of the copy.

        Raises:
            StoreDamaged: the copy lacks some.
        """
        # The store forgets old calls, which the copy may have scanned before.
        counted = {"pagemeta": self.counts()["pagemeta"], "seen": self.calls_from(stored["seen_from"])}
        for name, count in counted.items():
            if count != stored[name]:
                raise StoreDamaged(f"it has {count:,} elements of {name!r}, but the store had {stored[name]:,}")


def rules_of(manifest: Mapping[str, Any]) -> CrawlRules:
    """Return the rules of the crawl that was copied."""
    return CrawlRules(**{name: value for name, value in manifest["rules"].items() if name != "shards"})


def check_backup(directory: Path, manifest: Mapping[str, Any]) -> list[ShardChecked]:
    """Load every shard, recount its books, and check that the shards fit together.

    Args:
        directory: the backup's directory.
        manifest: its manifest; only `shards`, `rules` and `counts` are used. `read_manifest` checks the checksums.

    Raises:
        SettingsError: a record, a block or another part is missing or damaged.
        StoreError: the books don't balance, so the copy is useless.
    """
    rules = rules_of(manifest)
    shards = [_check_shard(directory, rules, number, stored) for number, stored in enumerate(manifest["counts"])]
    wrong = [f"shard {n}: {text}" for n, shard in enumerate(shards) for text in _mismatches(shard.audit)]
    wrong += _between(shards)
    if wrong:
        raise StoreError(f"the books don't balance ({'; '.join(wrong)}): see `opic audit`")
    return shards


def summary_of(shards: Sequence[ShardChecked]) -> dict[str, Any]:
    """Return the fields of a manifest that a recount gives."""
    return {
        "audit": audit_of([shard.audit for shard in shards]),
        "offsets": [shard.offsets for shard in shards],
        "heads": [[shard.head.lsn, shard.head.digest.hex()] for shard in shards],
        "pages": sum(shard.pages for shard in shards),
        "records": sum(shard.records for shard in shards),
    }


def audit_of(parts: Sequence[BooksAudit]) -> dict[str, object]:
    """Return the audit of all shards in the form used in a manifest."""
    names = ("minted", "pages", "virtual", "in_flight")
    return {name: sum(getattr(part, name) for part in parts) for name in names} | {
        "conserved": all(part.conserved for part in parts)
    }


def _mismatches(audit: BooksAudit) -> list[str]:
    wrong = list(audit.mismatches)
    if audit.minted != audit.pages + audit.virtual + audit.in_flight:
        wrong.append("minted is not pages + virtual + in flight")
    return wrong


def _check_shard(directory: Path, rules: CrawlRules, number: int, stored: Mapping[str, int]) -> ShardChecked:
    replica = Replica(rules, number)
    try:
        hashes, waiting, end = _read_keys(directory / file_name(number, "keys"))
        records, counted = _load(directory, replica)
        counted.check(stored)
        head = head_of([hashes["head"].get(name) for name in (b"lsn", b"digest")])
        if replica.head != head:
            raise StoreDamaged(f"the journal ends at record {replica.head.lsn}, but the shard was at {head.lsn}")
        if Books.unflat(hashes["books"]) != replica.books:
            raise StoreDamaged("its totals differ from those of the last record")
        counts = {int(to): int(count) for to, count in hashes.get("sent", {}).items()}
        if counts != {to: count for to, (count, _) in replica.sent.items()}:
            raise StoreDamaged("its counts of sent entries differ from those of its records")
        if number == LOG_SHARD:
            _check_log(directory / file_name(number, "log"), end)
    except StoreDamaged as error:
        raise SettingsError(f"{directory}: shard {number}: {error}: use another backup") from error
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise SettingsError(f"{directory}: shard {number} is incomplete ({error!r}): use another backup") from error
    audit = audit_replica(replica, 0 if number else rules.minted)
    return ShardChecked(
        audit=audit,
        head=head,
        offsets={name.decode(): int(offset) for name, offset in sorted(hashes.get("offsets", {}).items())},
        sent=replica.sent,
        taken=replica.taken,
        pages=len(replica),
        records=records,
        waiting=waiting,
        counts=counted.counts(),
    )


def _load(directory: Path, replica: Replica) -> tuple[int, Counted]:
    """Load a replica; return the number of records, and the counts of what no replica holds."""
    effects: list[Effect] = []
    for record in read_values(directory / file_name(replica.shard, "journal")):
        effect = Effect.unpack(record)
        if effects and (effect.lsn, effect.previous) != (effects[-1].lsn + 1, effects[-1].digest):
            raise StoreDamaged(f"record {effect.lsn} does not follow {effects[-1].lsn}")
        effects.append(effect)
    if not effects:
        return 0, Counted(0, ())
    loading, lacking = Loading(replica, effects), set(range(blocks_of(effects[-1].pages)))
    counted = Counted(effects[-1].pages, effects)
    for name, image, *more in read_values(directory / file_name(replica.shard, "blocks")):
        is_block = name == "names" or isinstance(name, int)
        fields = {key.decode(): value for key, value in image.items()} if is_block else {}
        if name == "names":
            loading.take_names(fields)
        elif name == SEGMENT:
            counted.take_segment(image, *more)
        elif name == SEGMENTS:
            counted.take_list(image)
        elif name in ("seen", "pagemeta", "urls"):
            counted.count_scanned(name, image)
        elif fields:
            loading.take_block(name, fields)
            lacking.discard(name)
    for block in sorted(lacking):
        loading.take_block(block, {})
    loading.finish()
    return len(effects), counted


def _read_keys(path: Path) -> tuple[dict[str, dict[bytes, bytes]], dict[int, Waiting], int]:
    """Return the hashes, the waiting outbox entries, and the log's end."""
    hashes: dict[str, dict[bytes, bytes]] = {"head": {}, "books": {}}
    waiting: dict[int, Waiting] = {}
    end = 0
    for name, kind, value in read_values(path):
        if kind == "hash":
            hashes.setdefault(name, {}).update(value)
        elif name == "end":
            end = int(value)
        elif name.startswith(OUTBOX):
            for entry_id, fields in value:
                _wait(waiting, int(name.removeprefix(OUTBOX)), int(entry_id.partition(b"-")[2]), fields)
    return hashes, waiting, end


def _wait(waiting: dict[int, Waiting], to: int, number: int, fields: Mapping[bytes, bytes]) -> None:
    outbox = waiting.setdefault(to, Waiting(number, fields[b"p"], digest=fields[b"p"]))
    if number != outbox.first + outbox.count or fields[b"p"] != outbox.digest:
        raise SettingsError(f"the outbox to shard {to} lacks entry {outbox.first + outbox.count}: use another backup")
    outbox.count, outbox.digest = outbox.count + 1, entry_digest(outbox.digest, fields[b"v"])
    outbox.grains += int(Transfer.unpack(fields[b"v"]).grains.sum())


def _between(shards: Sequence[ShardChecked]) -> list[str]:
    """Describe mismatches between shards: each sent entry was either taken by its target, or waits in the outbox."""
    wrong, grains = [], 0
    for sender, source in enumerate(shards):
        for to, target in enumerate(shards):
            sent, last = source.sent.get(to, (0, NO_DIGEST))
            taken = target.offsets.get(source_of(sender), 0)
            outbox = source.waiting.get(to) or Waiting(sent, last, digest=last)
            grains += outbox.grains
            if (outbox.first, outbox.first + outbox.count, outbox.digest) != (taken, sent, last):
                wrong.append(
                    f"shard {sender} sent {sent} entries to shard {to}, which took {taken}, but {outbox.count} are "
                    "waiting"
                )
            elif outbox.previous != target.taken.get(sender, NO_DIGEST):
                wrong.append(f"shard {to} took entries from shard {sender} that differ from those sent")
    if grains != (in_flight := sum(shard.audit.in_flight for shard in shards)):
        wrong.append(f"{in_flight} grains are in flight, but the outboxes hold {grains}")
    return wrong


def _check_log(path: Path, end: int) -> None:
    next_: int | None = None
    for entries in read_values(path):
        for entry_id, fields in entries:
            number = int(entry_id.partition(b"-")[2])
            if next_ is not None and number + 1 - offsets_of(fields) != next_:
                raise StoreDamaged(f"the log of accepted events lacks event {next_}")
            next_ = number + 1
    if next_ is not None and next_ != end:
        raise StoreDamaged(f"the log of accepted events ends at {next_}, not at {end}")
