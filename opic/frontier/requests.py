"""What a crawler asks for, checked; and what is owed to hosts and among crawlers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opic.errors import BadInput
from opic.urls.canonical import canonical_host, shown

MODES: Final = ("any", "discover", "refresh")
LEASE_SECONDS_MAX: Final = 86_400.0
CRAWL_DELAY_SECONDS_MAX: Final = 300.0  # What a site asks for beyond it is cut: Heritrix respects as much.


@dataclass(frozen=True, slots=True)
class PolitenessSettings:
    """What is owed to hosts and among crawlers, in seconds; 0 is none."""

    host_delay_seconds: float = 1.0  # The least time between two suggestions of one host.
    retry_seconds: float = 60.0  # The first wait after a failed fetch or an expired lease, doubling up to a day.
    lease_seconds: float = 300.0  # How long a suggestion is a crawler's own.
    host_in_flight: int = 0  # Pages of one host that may be leased at once; 0 is any number.


@dataclass(frozen=True, slots=True)
class FrontierTerms:
    """By what pages are handed out."""

    politeness: PolitenessSettings
    discovery: float = 1.0  # In the greedy order, cash of pages never read counts so many times.
    share: float | None = None  # Of the pages for who asks for any, so much is never read; purely by cash if None.

    def counts(self, cash: int, read: bool) -> float:
        """Return what a page's cash counts in the greedy order: at least a grain, since 0 is not offered."""
        return abs(cash) if read or self.discovery == 1 else max(cash * self.discovery, 1.0)


@dataclass(frozen=True, slots=True)
class PagesRequest:
    """Pages that a crawler asks for. Use `Wish.of`, which checks it."""

    n: int
    seconds: float
    mode: str = "any"
    domain: str | None = None
    busy: frozenset[str] = frozenset()  # Hosts to pass over.
    crawl_delays: Mapping[str, float] = field(default_factory=dict)  # By host, as its robots.txt asks for.
    gone: Callable[[], bool] = field(default=lambda: False, compare=False)  # Whether its crawler has gone meanwhile.

    @classmethod
    def of(
        cls,
        n: int,
        seconds: float,
        *,
        mode: str = "any",
        domain: str | None = None,
        busy_hosts: Sequence[str] = (),
        crawl_delays: Mapping[str, float] | None = None,
    ) -> "PagesRequest":
        """Check a wish.

        Raises:
            BadInput: a parameter can't be taken.
        """
        if n < 1:
            raise BadInput(f"n={n}: ask for at least one page")
        if not 0 < seconds <= LEASE_SECONDS_MAX:  # NaN fails every comparison.
            raise BadInput(f"lease_seconds={seconds} is not over 0 and up to {LEASE_SECONDS_MAX:,.0f}, a day")
        if mode not in MODES:
            raise BadInput(f"mode={shown(mode)} is none of {', '.join(MODES)}")
        delays = {}
        for host, delay in (crawl_delays or {}).items():
            if not 0 <= delay < float("inf"):
                raise BadInput(f"crawl_delays: {delay} of {shown(host)} is no number of seconds from 0 on")
            delays[canonical_host(host)] = min(float(delay), CRAWL_DELAY_SECONDS_MAX)
        within = None if domain is None else canonical_host(domain)
        return cls(n, seconds, mode, within, frozenset(map(canonical_host, busy_hosts)), delays)
