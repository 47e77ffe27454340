"""What calls change of pages and hosts: follows a shard's stream of changes, read behind its journal in one round trip.

Each entry names the record of the journal that it came after, so changes and records are applied in the order in which
the server made them. An entry is heard by all who follow; `tell` in `opic/store/back_offs.lua` describes its fields.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Fields = Mapping[bytes, bytes]
Change = tuple[Fields, int]  # The fields of an entry, and the LSN of the record that it came after.


class ChangeId(NamedTuple):
    """The id of an entry, in the order of entries."""

    ms: int
    nth: int

    @classmethod
    def parse(cls, text: bytes) -> "ChangeId":
        """Parse an id; an empty text comes before all."""
        ms, _, nth = text.partition(b"-")
        return cls(int(ms or 0), int(nth or 0))


class Changes:
    """Reads the changes of a shard from an entry on. For the thread that follows the journal."""

    def __init__(self, key: str, hear: Callable[[list[Change]], None], lost: Callable[[], None]) -> None:
        """Read nothing until `begin`.

        Args:
            key: of the stream.
            hear: takes entries, in their order; the replica's lock is held.
            lost: is called when entries are gone that were not read.
        """
        self.key, self._hear, self._lost = key, hear, lost
        self.last: bytes | None = None  # The id of the last entry that was read; None while none is to be read.
        self.waiting = deque[tuple[bytes, int, Fields]]()  # Entries after records that the replica lacks.
        self.heard = ChangeId(0, 0)  # The last entry that was heard.

    def begin(self, entry_id: bytes) -> None:
        """Read the entries after this one."""
        self.last, self.heard = entry_id, ChangeId.parse(entry_id)
        self.waiting.clear()

    def add_entries(self, entries: Sequence[tuple[bytes, Fields]]) -> None:
        """Take the entries from the last one on, which were read after the journal."""
        if not entries or entries[0][0] != self.last:
            self.last = None
            self._lost()
        else:
            self.waiting += [(name, int(fields[b"n"]), fields) for name, fields in entries[1:]]
            self.last = entries[-1][0]

    def hear(self, lsn: int) -> None:
        """Hear of all changes that came before the record after this one."""
        heard, name = list[Change](), b""
        while self.waiting and self.waiting[0][1] <= lsn:
            name, after, fields = self.waiting.popleft()
            heard.append((fields, after))
        if heard:
            self.heard = ChangeId.parse(name)
            self._hear(heard)
