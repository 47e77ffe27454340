"""A page of the ledger: the columns of a page, in the form that tests compare and exports read."""

from collections import deque
from dataclasses import dataclass, field

from opic.model.cash import CLASS_BITS, Anchor, Flag, PageMeasure


@dataclass(slots=True)
class LedgerPage:
    """A page's columns. Its cash is `v` plus the credit of its class; for a gone page, only `v`."""

    url: str
    id: int
    v: int = 0
    spent: int = 0  # H, total history.
    inflow: int = 0
    state: int = Flag.KNOWN
    reads: int = 0
    digest: int = 0  # Of the links it showed last; 0 is no links.
    times_gone: int = 0
    gone_until_us: int = 0
    measures: deque[PageMeasure] = field(default_factory=deque)
    anchors: tuple[Anchor, ...] = ()  # Up to two, older first; none under grants.
    nearness: int = 0  # The least depth seen, as `opic.model.page_notes` says; 0 if none is known.
    meta: bytes = b""  # The last metadata given, packed.
    name: str = ""  # Under which it answered last, if that is another one than its URL: see `EventLimits.name_of`.
    failures: int = 0  # Failed fetches in a row; GIVEN_UP if an event gave the page up.
    not_before_us: int = 0  # When it may be offered, as the last event or record of seeds that says so; 0: at any time.
    priority: float = 1.0
    status: int = 0  # Of its last event, as `opic.model.page_notes.noted_status` keeps it.
    links: tuple[str, ...] | None = field(default=None, compare=False)  # Of its last read, if kept; not a column.

    def has(self, flag: int) -> bool:
        """Tell whether a bit of the state byte is set."""
        return bool(self.state & flag)

    @property
    def slot(self) -> int:
        """The page's class."""
        return self.state & CLASS_BITS
