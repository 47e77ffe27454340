"""A page of the ledger, and the schema of its columns: each is declared once, as a field of `LedgerPage`.

From that row follow: how `note` merges what events say; the array in a replica, how a batch changes it, undo, and that
it is cleared when the page is forgotten; its part of a journal record; its field in a block of the checkpoint, hence in
a backup; what an audit recounts; its column in an export. `opic.replica.page_columns` declares those of replicas alone.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

from opic.model.cash import CLASS_BITS, HEARD_OF, Anchor, Flag, PageMeasure
from opic.model.page_notes import NEAREST, depth_of, failures_after, one_deeper, status_of


class ColumnKind(Enum):
    """Where a column is kept."""

    DENSE = "an array of replicas with a value for each page"
    SPARSE = "an array up to the last page with another value than the default: a column of defaults takes no memory"
    HISTORY = "rows of the pages that were read or went away"
    STORE = "a hash of the store; replicas do not have it"


DENSE, SPARSE, HISTORY, STORE = ColumnKind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of pages."""

    name: str
    kind: ColumnKind
    dtype: str = ""  # Of the array.
    key: str = ""  # Its name in a block of the checkpoint, and in a journal record if events give it.
    # Takes the value before, and the attribute of an event that has the column's name, unless that is None.
    merge: Callable[[Any, Any], Any] | None = None
    default: float = 0  # Of a sparse column; its array has 0 in that place.
    to_links: Callable[[int], int] | None = None  # Takes the value of a page that is read; its links get that at least.
    # Its name in an export, and the value there, given the value here and how often the page was read.
    export: tuple[str, Callable[[Any, int], Any]] | None = None


def _column(kind: ColumnKind, dtype: str = "", key: str = "", *, new: Any = 0, **more: Any) -> Any:
    """Return the field of a column, with its value `new` in a page that becomes known."""
    return field(default=more.get("default", new), metadata={"kind": kind, "dtype": dtype, "key": key, **more})


def _last(_before: Any, said: Any) -> Any:
    return said


@dataclass(slots=True)
class LedgerPage:
    """A page's columns. Its cash is `v` plus the credit of its class; for a gone page, only `v`."""

    url: str
    id: int
    v: int = _column(DENSE, "i8", "v")
    spent: int = _column(HISTORY, "i8")  # H, total history.
    inflow: int = _column(DENSE, "i8", "f")  # Cash received by links from other registered domains.
    state: int = _column(DENSE, "u1", "s", new=Flag.KNOWN)
    reads: int = _column(HISTORY, "u4")
    digest: int = _column(HISTORY, "u8")  # Of the links it showed last; 0 is no links.
    times_gone: int = _column(HISTORY, "u2")
    gone_until_us: int = _column(HISTORY, "i8")
    measures: deque[PageMeasure] = field(default_factory=deque)
    anchors: tuple[Anchor, ...] = ()  # Up to two, older first; none under grants.
    # The least depth seen, as `opic.model.page_notes` says; 0 if none is known.
    nearness: int = _column(SPARSE, "u2", "d", merge=max, to_links=one_deeper, export=("depth", depth_of))
    failures: int = _column(SPARSE, "u1", "e", merge=failures_after)  # In a row; GIVEN_UP if an event gave the page up.
    # When it may be offered, as the last event or record of seeds that says so; 0: at any time.
    not_before_us: int = _column(SPARSE, "i8", "b", merge=_last)
    priority: float = _column(SPARSE, "f8", "w", merge=_last, default=1.0)
    # Of its last event, as `opic.model.page_notes.noted_status` keeps it.
    status: int = _column(SPARSE, "u2", "a", merge=_last, export=("status", status_of))
    meta: bytes = _column(STORE, new=b"", merge=_last)  # The last metadata given, packed.
    # Under which it answered last, if that is another one than its URL: see `EventLimits.name_of`.
    name: str = _column(STORE, new="", merge=_last)
    links: tuple[str, ...] | None = field(default=None, compare=False)  # Of its last read, if kept; not a column.

    def has(self, flag: int) -> bool:
        """Tell whether a bit of the state byte is set."""
        return bool(self.state & flag)

    @property
    def stays(self) -> bool:
        """Whether no rule may forget it, even if it is not trusted: an event was about it, or it is a seed."""
        return self.has(HEARD_OF) or self.nearness == NEAREST

    @property
    def slot(self) -> int:
        return self.state & CLASS_BITS


COLUMNS: Final = tuple(Column(column.name, **column.metadata) for column in fields(LedgerPage) if column.metadata)
NOTED: Final = tuple(
    (column, column.merge) for column in COLUMNS if column.merge is not None
)  # Columns that events give.


def note(page: LedgerPage, event: Any) -> None:
    """Merge what an event, or a record of seeds, says of a page into its columns."""
    for column, merge in NOTED:
        if (said := getattr(event, column.name)) is not None:
            setattr(page, column.name, merge(getattr(page, column.name), said))
