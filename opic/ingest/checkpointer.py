"""The checkpointer: which blocks of a shard a worker writes next, and up to where the journal may be trimmed.

It looks once for every 64th of the journal's budget. Of the blocks that changed since they were written it writes the
oldest, so many that all would be written by the time 0.6 of the budget was appended. A block counts as written, and the
journal may be trimmed past it, only once the write was confirmed in this run of the server.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.replica.checkpoint import URLS_A_FIELD, Loading, blocks_of, pack_block, pack_names
from opic.replica.effect import Effect, Head
from opic.replica.replica import PAGES_A_BLOCK, Replica, unpack_bits
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

Int64s = NDArray[np.int64]
JOURNAL_BYTES: Final = 64 << 20  # Of a server, divided among the shards of a crawl.
LOOKS_A_BUDGET: Final = 64
WRITTEN_BY: Final = 0.6  # Of the budget: by then all blocks that were dirty are written.
CALL_BYTES_AIM: Final = 128 << 10  # Of blocks: under half a millisecond in which the server answers nobody else.
FIELDS: Final = ("v", "f", "s", "m", "p", "o", "u")  # A bit each.
V, F, S, M, U = 1, 2, 4, 8, 64
NEW: Final = (1 << len(FIELDS)) - 1
CLEAN: Final = 0


@dataclass(slots=True)
class BlocksCall:
    """A call that writes blocks. It takes effect, or is refused, as a whole and without the others."""

    command: list[Any] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    hosts: int | None = None  # How many there were, where it writes the names too.
    size: int = 0


@dataclass(slots=True)
class Written:
    """Blocks that were sent, as of one head, and are not confirmed yet."""

    head: Head
    calls: list[BlocksCall] = field(default_factory=list)

    @property
    def commands(self) -> list[list[Any]]:
        """What is sent."""
        return [call.command for call in self.calls]


class Checkpointer:
    """Of one shard, for one worker, whose replica it listens to."""

    def __init__(self, client: Client, keys: Keys, replica: Replica, journal_bytes: int = JOURNAL_BYTES) -> None:
        """Begin with a replica that stands at genesis; `journal_bytes` is what this shard's journal may take."""
        self.client, self.keys, self.replica, self.budget = client, keys, replica, max(1, journal_bytes)
        self.ours = False  # Whether the effect being applied is this worker's own.
        self.blocks_written = self.bytes_written = 0
        self._reset()
        replica.effect_listeners.append(self._note)
        replica.load_listeners.append(self._loaded)

    def _reset(self) -> None:
        self._since = np.zeros(0, np.int64)  # Of each block: the first record that it lacks, CLEAN if it lacks none.
        self._touched = np.zeros(0, np.int64)  # The last record that changed it.
        self._fields = np.zeros(0, np.uint8)  # What changed since it was written.
        self._names_since, self._names_touched, self._hosts_written = CLEAN, 0, 0
        self._journal: deque[tuple[int, int]] = deque()  # Records that are not trimmed, and their bytes.
        self._journal_bytes = self._looked_bytes = 0
        self._others = False  # Whether another worker appended since the last look.

    @property
    def journal_bytes(self) -> int:
        """Bytes of the records in the journal, as far as this worker knows."""
        return self._journal_bytes

    @property
    def dirty(self) -> int:
        """Blocks that changed since they were written."""
        return int(np.count_nonzero(self._since)) + (self._names_since != CLEAN)

    # What changed.

    def _loaded(self, loading: Loading) -> None:
        """Take over how far each block of the checkpoint is behind the journal."""
        self._reset()
        self._hosts_written = len(self.replica.hosts)
        for effect in loading.effects:
            self._mark(effect, loading.block_lsn)
            if effect.lsn > loading.names_lsn:
                self._mark_names(effect)
                self._hosts_written = min(self._hosts_written, effect.host_count - len(effect.host_names))
        self._looked_bytes = 0

    def _note(self, effect: Effect) -> None:
        self._others |= not self.ours
        if effect.lsn == 1:  # Of a shard that was empty, or made anew.
            self._reset()
        self._mark(effect)
        self._mark_names(effect)

    def _mark_names(self, effect: Effect) -> None:
        rare = effect.host_names or effect.entries or effect.sent or effect.taken or effect.classes is not None
        if rare:
            self._names_since, self._names_touched = self._names_since or effect.lsn, effect.lsn

    def _mark(self, effect: Effect, lsn_of: Int64s | None = None) -> None:
        """Note what an effect changed, in blocks that were written before it."""
        count = blocks_of(effect.pages)
        if count > len(self._since):
            for name in ("_since", "_touched", "_fields"):
                old = getattr(self, name)
                grown = np.zeros(max(64, 2 * count), old.dtype)
                grown[: len(old)] = old
                setattr(self, name, grown)
        fields = np.zeros(len(self._since), np.uint8)
        for bit, pages in self._changed(effect):
            fields[pages.astype(np.int64) // PAGES_A_BLOCK] |= np.uint8(bit)
        first, new = effect.first_page, len(effect.fingerprints)
        if new:
            fields[first // PAGES_A_BLOCK : blocks_of(first + new)] = NEW
        if lsn_of is not None:
            written = lsn_of[: len(fields)] >= effect.lsn
            fields[: len(written)][written] = 0
        some = np.flatnonzero(fields)
        self._since[some] = np.where(self._since[some] == CLEAN, effect.lsn, self._since[some])
        self._touched[some] = effect.lsn
        self._fields[some] |= fields[some]
        self._journal.append((effect.lsn, effect.size))
        self._journal_bytes += effect.size
        self._looked_bytes += effect.size

    def _changed(self, effect: Effect) -> list[tuple[int, NDArray[Any]]]:
        found: list[tuple[int, NDArray[Any]]] = [
            (V, effect.links), (V | M, effect.read_page), (V, effect.moved_page), (S, effect.state_page),
            (M, effect.gone_page), (F, effect.inflow_page),
        ]  # fmt: skip
        if self.replica.rules.inflow:
            found.append((F, effect.links[unpack_bits(effect.across, len(effect.links))]))
        return found

    # What is written.

    def due(self) -> bool:
        """Tell whether to look for blocks to write."""
        return self._looked_bytes * LOOKS_A_BUDGET >= self.budget

    def write(self, head: Head, *, everything: bool = False) -> Written | None:
        """Return commands that write blocks as they are at the replica's head, to be sent behind its append.

        Args:
            head: of the replica, which the server has by the time the commands reach it, or else refuses them.
            everything: all that changed, for a checkpoint as a whole.
        """
        if self._others:
            self._learn(np.flatnonzero(self._since))
            self._others = False
        dirty = np.flatnonzero(self._since)
        share = self._looked_bytes / (WRITTEN_BY * self.budget)
        if self._journal_bytes > self.budget:
            share = max(share, self._journal_bytes / self.budget - WRITTEN_BY)  # Behind: more at once.
        self._looked_bytes = 0
        count = len(dirty) if everything else min(len(dirty), math.ceil(share * len(dirty)))
        oldest = dirty[np.argsort(self._since[dirty], kind="stable")[:count]]
        written = Written(head)
        images: list[tuple[int | None, dict[str, bytes]]] = []
        for block in oldest.tolist():
            bits = int(self._fields[block])
            names = [name for at, name in enumerate(FIELDS) if bits >> at & 1]
            if not self.replica.rules.inflow:
                names = [name for name in names if name != "f"]
            images.append((block, pack_block(self.replica, block, names)))
        names_age = self._names_since
        if names_age != CLEAN and (everything or not len(oldest) or names_age <= int(self._since[oldest[-1]])):
            images.append((None, pack_names(self.replica, self._hosts_written)))
        self._compose(written, images)
        return written if written.calls else None

    def _compose(self, written: Written, images: Sequence[tuple[int | None, dict[str, bytes]]]) -> None:
        """Put images of blocks, of None for the names, into calls."""
        keys: list[str] = []
        arguments: list[Any] = []
        call = BlocksCall()

        def close() -> None:
            if keys:
                head = written.head
                rests_on = head.lsn, head.digest
                call.command += ["FCALL", "opic_4_blocks", 1 + len(keys), self.keys.head, *keys, *rests_on, *arguments]
                written.calls.append(call)

        for block, image in images:
            size = sum(map(len, image.values()))
            if keys and call.size + size > CALL_BYTES_AIM:
                close()
                keys, arguments, call = [], [], BlocksCall()
            if block is None:
                keys.append(self.keys.names_block)
                call.hosts = len(self.replica.hosts)
            else:
                keys.append(self.keys.block(block))
                call.blocks.append(block)
            arguments.append(2 * len(image))
            for name, value in image.items():
                arguments += (name, value)
            call.size += size
            self.bytes_written += size
        close()

    def confirm(self, head: Head, calls: Sequence[BlocksCall]) -> None:
        """Take the blocks of these calls for written as of a head: the server said so. Others stay as they are."""
        lsn = head.lsn
        for block in [block for call in calls for block in call.blocks]:
            self.blocks_written += 1
            if self._touched[block] <= lsn:
                self._since[block], self._fields[block] = CLEAN, 0
            else:  # Changed again meanwhile; what was written is true up to its record.
                self._since[block] = lsn + 1
        for hosts in [call.hosts for call in calls if call.hosts is not None]:
            self._hosts_written = hosts
            self._names_since = CLEAN if self._names_touched <= lsn else lsn + 1
        lacking = np.flatnonzero(self._fields & U)
        first = int(lacking[0]) * PAGES_A_BLOCK if len(lacking) else self.replica.pages
        self.replica.tail.drop(first // URLS_A_FIELD * URLS_A_FIELD)  # A field that fills is written again whole.

    def trim_command(self, head: Head) -> list[Any] | None:
        """Return the command that lets go of what every block has, if that is worth a call."""
        since = self._since[self._since != CLEAN]
        least = min(int(since.min(initial=head.lsn)), self._names_since or head.lsn, head.lsn)
        freed = 0
        for lsn, size in self._journal:
            if lsn >= least:
                break
            freed += size
        if freed * LOOKS_A_BUDGET < self.budget:
            return None
        return ["FCALL", "opic_4_trim", 2, self.keys.head, self.keys.journal, head.lsn, head.digest, least]

    def trimmed(self, least: int) -> None:
        """Note that the records below `least` are gone."""
        while self._journal and self._journal[0][0] < least:
            self._journal_bytes -= self._journal.popleft()[1]

    def _learn(self, blocks: Int64s) -> None:
        """Ask how far blocks are written by now: another worker may have done it."""
        with store_errors(), self.client.pipeline(transaction=False) as pipe:
            for block in blocks.tolist():
                pipe.hget(self.keys.block(block), "l")
            found = [int(lsn or 0) for lsn in pipe.execute()] if len(blocks) else []
        for block, lsn in zip(blocks.tolist(), found, strict=True):
            if lsn >= self._touched[block]:
                self._since[block], self._fields[block] = CLEAN, 0
            else:
                self._since[block] = max(lsn + 1, int(self._since[block]))
