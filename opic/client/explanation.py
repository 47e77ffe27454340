"""The answer to `explain`: why a page has its score, and whether it comes next."""

from msgspec import Struct, field

from opic.client.answers import Importance, Measure


class CashParts(Struct, frozen=True):
    """The parts of a page's cash: what came by links less what reads spent, and grants.

    `from_links`, all that ever came by links, is None under OPIC_VIRTUAL=continuous.
    """

    deposits: int
    credit: int
    from_links: int | None = None


class Spent(Struct, frozen=True):
    """What a page's reads have spent: in all, the number of reads, the last ones."""

    total: int
    reads: int
    measures: list[Measure]


class Estimate(Struct, frozen=True):
    """The rule and the formula that gave a score, with their numbers: importance is `value` / `of`."""

    rule: str
    formula: str
    numbers: dict[str, float]
    value: float
    of: float
    window_grains: float | None = None
    warm: bool | None = None


class AppliedRule(Struct, frozen=True):
    """A URL rule or a trap rule that applies to a page."""

    rule: str
    effect: str


class Standing(Struct, frozen=True):
    """Whether a page is handed out next, and if not, why not: in sentences, and in the words of `HeldBack`.

    `place` is its rank in the order of suggestions, None if it is not in it. Times are None where they do not apply.
    `failures` counts failed fetches and expired leases since the last success; `failed_fetches`, those in a row, is
    None if an event gave the page up. After `max_failures` a page is given up, None for never.
    """

    state: str
    host: str
    next: bool
    why_not: list[str]
    held_back: list[str] = []
    place: int | None = None
    lease_until: float | None = None
    waits_until: float | None = None
    revisit_at: float | None = None
    revisit_seconds: float = 0.0
    not_before: float | None = None
    priority: float = 1.0
    host_free_at: float | None = None
    host_delay_seconds: float = 0.0
    host_in_flight: int = 0
    host_in_flight_max: int | None = None
    failures: int = 0
    failed_fetches: int | None = 0
    max_failures: int | None = None
    refused: str | None = None
    rules: list[AppliedRule] = []


class Explanation(Importance, frozen=True, kw_only=True):
    """Why a page has its score, and whether it comes next.

    `state` is unread, read, gone, excluded or given_up; `known_pages`, the number of pages that are ranked; `estimate`
    is None for a gone page. `weight` is that of its class in grants.
    """

    state: str
    known_pages: int
    cash_parts: CashParts
    history: Spent
    estimate: Estimate | None
    weight: float
    frontier: Standing
    depth: int | None = None
    meta: dict[str, str] = field(default_factory=dict)
    excluded: bool = False
