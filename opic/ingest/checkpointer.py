"""The checkpointer: decides which blocks of a shard to write next and how far the journal may be trimmed.

It does the same for kept links, which `opic.ingest.link_keeper` writes as segments.

It runs each time 1/64 of the journal's budget has been appended. It writes the blocks that have been dirty longest, as
many as are needed to write all dirty blocks by the time 0.6 of the budget has been appended. A block counts as written,
and the journal may be trimmed past it, only after the write was confirmed in this run of the server.
"""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from opic.arrays import Int64s, Uint32s
from opic.ingest.link_keeper import LinkKeeper, LinksCall
from opic.model.transfer import COUNTS
from opic.replica.checkpoint import (
    FINGERPRINTS,
    HISTORIES,
    URLS,
    URLS_A_FIELD,
    Loading,
    blocks_of,
    changed_fields,
    fields_of,
    pack_block,
    pack_names,
    url_field,
    without_forgotten,
)
from opic.replica.columns import Growing
from opic.replica.effect import Effect, Head
from opic.replica.packed_lines import pack_lines, unpack_urls
from opic.replica.page_columns import BY_KEY
from opic.replica.replica import PAGES_A_BLOCK, Replica
from opic.store.connection import Client, ask, store_errors
from opic.store.keys import Keys, of_call

JOURNAL_BYTES: Final = 64 << 20  # Per server, divided among the shards of a crawl.
LOOKS_A_BUDGET: Final = 64
WRITTEN_BY: Final = 0.6  # Fraction of the budget by which all blocks that were dirty have been written.
CALL_BYTES_AIM: Final = 128 << 10  # Bytes of blocks per call: blocks the server for less than half a millisecond.
PURGE_SECONDS_MAX: Final = 60.0  # URLs of forgotten pages are stored no longer, however often pages are forgotten.
BITS: Final = {name: 1 << bit for bit, name in enumerate((*BY_KEY, FINGERPRINTS, HISTORIES, URLS))}
NEW: Final = (1 << len(BITS)) - 1
CLEAN: Final = 0


@dataclass(slots=True)
class BlocksCall:
    """A call that writes blocks. It succeeds or fails as a whole, independently of other calls."""

    keys: list[str]
    arguments: list[Any]
    blocks: list[int] = field(default_factory=list)
    hosts: int | None = None  # If it writes the names too: the number of hosts.
    size: int = 0

    @property
    def command(self) -> list[Any]:
        return of_call("blocks", self.keys, *self.arguments)


class _Blocks(Growing):
    COLUMNS = (("since", "i8"), ("touched", "i8"), ("fields", "u4"))
    since: Int64s  # The first record that the block lacks; CLEAN if it lacks none.
    touched: Int64s  # The last record that changed it.
    fields: Uint32s  # The fields that changed since it was written, a bit each: see BITS.


class Checkpointer:
    """Writes the checkpoint of one shard for one worker. It listens to the effects applied to the worker's replica."""

    def __init__(self, client: Client, keys: Keys, replica: Replica, journal_bytes: int = JOURNAL_BYTES) -> None:
        """Start with a replica at genesis; `journal_bytes` is the budget of this shard's journal."""
        self.client, self.keys, self.replica, self.budget = client, keys, replica, max(1, journal_bytes)
        self.ours = False  # Whether the effect being applied is this worker's own.
        self.blocks_written = 0
        self.links = LinkKeeper(client, keys, replica, self.budget)
        self._reset()
        replica.effect_listeners.append(self._note)
        replica.load_listeners.append(self._loaded)

    def _reset(self) -> None:
        self._blocks = _Blocks()
        self._names_since, self._names_touched, self._hosts_written = CLEAN, 0, 0
        self._journal: deque[tuple[int, int]] = deque()  # Records not trimmed yet: LSN, bytes.
        self.journal_bytes = self._looked_bytes = 0  # Of the records in the journal; of those since the last `write`.
        self._others = False  # Whether another worker has appended since the last `write`.
        self.forgot = 0  # The last record that forgot pages, unless neither blocks nor the journal have their URLs.
        self._forgot_first = self._forgot_last = 0.0  # When the first of these pages was forgotten, and the last one.
        self._blank: dict[int, set[int]] = {}  # By block: numbers of fields with URLs of pages that were forgotten.
        self.links.reset()

    @property
    def dirty(self) -> int:
        """Number of blocks that changed since they were written."""
        return int(np.count_nonzero(self._blocks.since)) + (self._names_since != CLEAN)

    # Tracking changes.

    def _loaded(self, loading: Loading) -> None:
        """After a load, mark the blocks of the checkpoint that are behind the journal."""
        self._reset()
        self._hosts_written = len(self.replica.hosts)
        for effect in loading.effects:
            self._mark(effect, loading.block_lsn)
            if effect.lsn > loading.names_lsn:
                self._mark_names(effect)
                self._hosts_written = min(self._hosts_written, effect.host_count - len(effect.host_names))
        self._looked_bytes = 0
        self.links.load(loading.effects)

    def _note(self, effect: Effect) -> None:
        self._others |= not self.ours
        if effect.lsn == 1:  # The shard was empty or was recreated.
            self._reset()
        self._mark(effect)
        self._mark_names(effect)
        self.links.note(effect, ours=self.ours)

    def _mark_names(self, effect: Effect) -> None:
        rare = effect.host_names or effect.entries or effect.sent or effect.taken or effect.classes is not None
        rare = rare or effect.trusted is not None or effect.ends_links or len(effect.failing_host) > 0
        if rare or COUNTS in effect.offsets:
            self._names_since, self._names_touched = self._names_since or effect.lsn, effect.lsn

    def _mark(self, effect: Effect, lsn_of: Int64s | None = None) -> None:
        """Mark what an effect changed; if `lsn_of` is given, only in blocks written before the effect."""
        self._blocks.reserve(blocks_of(effect.pages))
        fields = np.zeros(len(self._blocks.since), np.uint32)
        for names, pages in changed_fields(self.replica, effect):
            if len(pages):
                fields[pages.astype(np.int64) // PAGES_A_BLOCK] |= np.uint32(sum(BITS[name] for name in names))
        first, new = effect.first_page, len(effect.fingerprints)
        if new:
            fields[first // PAGES_A_BLOCK : blocks_of(first + new)] = NEW
        if lsn_of is not None:
            written = lsn_of[: len(fields)] >= effect.lsn
            fields[: len(written)][written] = 0
        if len(effect.forgotten):
            self._note_forgotten(effect, lsn_of)
        some, blocks = np.flatnonzero(fields), self._blocks
        blocks.since[some] = np.where(blocks.since[some] == CLEAN, effect.lsn, blocks.since[some])
        blocks.touched[some] = effect.lsn
        blocks.fields[some] |= fields[some]
        self._journal.append((effect.lsn, effect.size))
        self.journal_bytes += effect.size
        self._looked_bytes += effect.size

    def _note_forgotten(self, effect: Effect, lsn_of: Int64s | None) -> None:
        """Note which fields of URLs have to be written without those of forgotten pages."""
        now = time.monotonic()
        self._forgot_first = self._forgot_first if self.forgot else now
        self.forgot, self._forgot_last = effect.lsn, now
        for number in np.unique(effect.forgotten.astype(np.int64) // URLS_A_FIELD).tolist():
            block = number * URLS_A_FIELD // PAGES_A_BLOCK
            if lsn_of is None or lsn_of[block] < effect.lsn:
                self._blank.setdefault(block, set()).add(number)

    # Writing blocks.

    def due(self) -> bool:
        return self._looked_bytes * LOOKS_A_BUDGET >= self.budget

    def write(self, head: Head, *, everything: bool = False) -> list[BlocksCall | LinksCall]:
        """Return calls that write blocks as of the replica's head. Send them after the append of that record.

        Args:
            head: the replica's head. The server refuses the calls if its head is different when they arrive.
            everything: write all dirty blocks, for a full checkpoint.
        """
        if self._others:
            self._learn(np.flatnonzero(self._blocks.since))
            self._others = False
        dirty = np.flatnonzero(self._blocks.since)
        share = self._looked_bytes / (WRITTEN_BY * self.budget)
        if self.journal_bytes > self.budget:
            share = max(share, self.journal_bytes / self.budget - WRITTEN_BY)  # Over budget: write more at once.
        self._looked_bytes = 0
        count = len(dirty) if everything else min(len(dirty), math.ceil(share * len(dirty)))
        oldest = dirty[np.argsort(self._blocks.since[dirty], kind="stable")[:count]]
        images: list[tuple[int | None, dict[str, bytes]]] = []
        fields = (*fields_of(self.replica), URLS)
        for block in oldest.tolist():
            bits = int(self._blocks.fields[block])
            image = pack_block(self.replica, block, [name for name in fields if bits & BITS[name]])
            images.append((block, self._blanked(block, image) | image))
        names_age = self._names_since
        if names_age != CLEAN and (everything or not len(oldest) or names_age <= int(self._blocks.since[oldest[-1]])):
            images.append((None, pack_names(self.replica, self._hosts_written)))
        return [*self._compose(head, images), *self.links.compose(head, everything=everything)]

    def _blanked(self, block: int, image: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the fields of a block that have URLs of forgotten pages, without these; except those of the image."""
        fields = {url_field(number * URLS_A_FIELD)[1]: number for number in self._blank.get(block, ())}
        wanted = sorted(fields.keys() - image.keys())
        if not wanted:
            return {}
        with store_errors():
            stored = dict(zip(wanted, self.client.hmget(self.keys.block(block), wanted), strict=True))
        return {
            name: pack_lines(without_forgotten(self.replica, fields[name] * URLS_A_FIELD, unpack_urls(packed)))
            for name, packed in stored.items()
            if packed is not None
        }

    def purge_due(self, seconds: float) -> bool:
        """Return whether it is time to remove the URLs of forgotten pages: see `ShardWriter.purge`."""
        now = time.monotonic()
        return bool(self.forgot) and (
            now - self._forgot_last >= seconds or now - self._forgot_first >= PURGE_SECONDS_MAX
        )

    def _compose(self, head: Head, images: Sequence[tuple[int | None, dict[str, bytes]]]) -> list[BlocksCall]:
        """Distribute images of blocks over calls. The block number None stands for the names."""
        calls: list[BlocksCall] = []
        for block, image in images:
            size = sum(map(len, image.values()))
            if not calls or calls[-1].size + size > CALL_BYTES_AIM:
                calls.append(BlocksCall([self.keys.head], [head.lsn, head.digest]))
            call = calls[-1]
            if block is None:
                call.keys.append(self.keys.names_block)
                call.hosts = len(self.replica.hosts)
            else:
                call.keys.append(self.keys.block(block))
                call.blocks.append(block)
            call.arguments += (2 * len(image), *(part for pair in image.items() for part in pair))
            call.size += size
        return calls

    def confirm(self, head: Head, done: Sequence[BlocksCall | LinksCall]) -> None:
        """Mark the blocks and the links of these calls, which the server confirmed, as written as of a head."""
        lsn, calls = head.lsn, [call for call in done if isinstance(call, BlocksCall)]
        for call in done:
            if isinstance(call, LinksCall):
                self.links.confirm(call)
        for block in [block for call in calls for block in call.blocks]:
            self.blocks_written += 1
            if self._blocks.touched[block] <= lsn:
                self._blocks.since[block], self._blocks.fields[block] = CLEAN, 0
                self._blank.pop(block, None)
            else:  # Changed again in the meantime: the written block is valid up to `lsn`.
                self._blocks.since[block] = lsn + 1
        for hosts in [call.hosts for call in calls if call.hosts is not None]:
            self._hosts_written = hosts
            self._names_since = CLEAN if self._names_touched <= lsn else lsn + 1
        lacking = np.flatnonzero(self._blocks.fields & np.uint32(BITS[URLS]))
        first = int(lacking[0]) * PAGES_A_BLOCK if len(lacking) else self.replica.pages
        self.replica.tail.drop(first // URLS_A_FIELD * URLS_A_FIELD)  # An incomplete field is written again as a whole.

    def trim_command(self, head: Head) -> list[Any] | None:
        """Return the command that trims records contained in every block.

        None if it would free too little, unless it removes the last URLs of pages that were forgotten.
        """
        since = self._blocks.since[self._blocks.since != CLEAN]
        links_since = self.links.since or head.lsn
        least = min(int(since.min(initial=head.lsn)), self._names_since or head.lsn, links_since, head.lsn)
        freed = 0
        for lsn, size in self._journal:
            if lsn >= least:
                break
            freed += size
        blank = least - 1 if len(since) or self._names_since or self.links.since else head.lsn
        if freed * LOOKS_A_BUDGET < self.budget and not 0 < self.forgot <= blank:
            return None
        names = self.keys.head, self.keys.journal, self.keys.copied
        return of_call("trim", names, head.lsn, head.digest, least, blank)

    def trimmed(self, least: int, blank: int) -> None:
        """Record that the journal was trimmed below `least`, with blocks blank of what was forgotten up to `blank`."""
        if self.forgot <= min(blank, least):
            self.forgot = 0
        while self._journal and self._journal[0][0] < least:
            self.journal_bytes -= self._journal.popleft()[1]

    def _learn(self, blocks: Int64s) -> None:
        """Read the LSNs of blocks from the store: another worker may have written them."""
        lsns = ask(self.client, [["HGET", self.keys.block(block), "l"] for block in blocks.tolist()])
        for block, text in zip(blocks.tolist(), lsns, strict=True):
            if (lsn := int(text or 0)) >= self._blocks.touched[block]:
                self._blocks.since[block], self._blocks.fields[block] = CLEAN, 0
                self._blank.pop(block, None)
            else:
                self._blocks.since[block] = max(lsn + 1, int(self._blocks.since[block]))
