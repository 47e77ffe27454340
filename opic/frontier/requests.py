"""Frontier settings (politeness, order of pages) and the validated request of a crawler for pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from opic.errors import BadInput
from opic.frontier.page_keys import GREEDY
from opic.messages.terms import DEPTH_MAX
from opic.model.events import crawler_digest
from opic.model.host_failures import Patience
from opic.model.page_notes import nearness_of
from opic.store.back_offs import WAITS_MAX
from opic.urls.canonical import canonical_host, shown
from opic.urls.normalization import PLAIN, Normalization

# Policies: the orders that pages come by, with their shares of the choices; see `opic.frontier.policy_orders`.
RECRAWLS: Final = {  # Of mode refresh; see `opic.frontier.recrawl`.
    "U": {"alike": 1.0},
    "OR": {"seen": 1.0},
    "YR": {"rate": 1.0},
    "YRU": {"rate": 0.5, "alike": 0.5},
    "LDU": {"link score": 0.5, "alike": 0.5},
}
EXPANSIONS: Final = {"GAI": {"in-links": 1.0}, "AI": {"drawn in-links": 1.0}}  # Of mode discover; see `.expansion`.
POLICIES: Final = {**RECRAWLS, **EXPANSIONS}
NEED_YIELDS: Final = ("OR", "YR", "YRU", "LDU")
BY_LINK_SCORE: Final = "LDU"
MODES: Final = ("any", "discover", "refresh", "coverage")
SHARE_BY_IMPORTANCE: Final = 0.5  # Of never-read pages in mode any where pages come by importance, if not set.
BY_HOST, BY_DOMAIN, BY_ADDRESS = "host", "domain", "address"  # What shares the delay of hosts.
LEASE_SECONDS_MAX: Final = 86_400.0
DOMAINS_MAX: Final = 100  # Of one request.
DOMAIN_BYTES: Final = 64 << 20
CRAWL_DELAY_SECONDS_MAX: Final = 300.0  # A longer crawl-delay is cut to this; Heritrix uses the same limit.


@dataclass(frozen=True, slots=True)
class PolitenessSettings:
    """Host delay, retry delay and lease duration, in seconds, and the cap of leases per host; 0 disables each."""

    host_delay_seconds: float = 1.0  # Minimum time between two suggestions of one host.
    retry_seconds: float = 60.0  # Initial back-off after a failed fetch or an expired lease; it doubles up to a day.
    lease_seconds: float = 300.0  # Default duration of a lease.
    host_in_flight: int = 0  # Maximum number of pages of one host leased at once; 0 means no limit.
    revisit_seconds: float = 0.0  # Minimum time from a page's read to its next suggestion; the service's is an hour.
    waits_max: int = WAITS_MAX  # Number of pages of each shard whose back-off and failures are remembered.
    max_failures: int = 0  # Failed fetches in a row after which a page is given up; 0 means never. The service's is 8.
    by: str = BY_ADDRESS  # One of the above; see `opic.frontier.host_groups`.

    @property
    def patience(self) -> Patience:
        """When pages and hosts are given up."""
        return Patience(self.max_failures, self.retry_seconds)


@dataclass(frozen=True, slots=True)
class FrontierTerms:
    """The settings that decide which pages are handed out."""

    politeness: PolitenessSettings
    discovery: float = 1.0  # Factor on the cash of never-read pages in the greedy order.
    strategy: str = GREEDY  # What orders pages; see `opic.frontier.page_keys`.
    share: float | None = None  # Fraction of never-read pages in answers with mode "any"; purely by cash if None.
    domain_bytes: int = DOMAIN_BYTES  # For cached hosts and pages of the domains that requests name.
    importance: str = "exact"  # Which importance pages come by, once there is some.

    def order(self, *, ranked: bool) -> str:
        """Name what orders pages, by importance if `ranked`: exact or loaded, else cash, random or cycle."""
        return self.importance if ranked else "cash" if self.strategy == GREEDY else self.strategy


class Choice(NamedTuple):
    """What pages are chosen by; parts of requests that share it are given pages of one choice."""

    mode: str = "any"
    policy: str | None = None
    domains: tuple[str, ...] = ()
    busy: frozenset[str] = frozenset()
    nearness: int = 0
    host_pages: int | None = None
    hosts: int | None = None
    alone: int = -1  # A request with a limit on hosts shares its choice with no other.


@dataclass(frozen=True, slots=True)
class PagesRequest:
    """A crawler's request for pages. Create it with `PagesRequest.of`, which validates it."""

    n: int
    seconds: float
    crawler: bytes = b""  # Digest of its crawler's name; see `opic.model.events.crawler_digest`.
    # "discover": only pages never read since they became known or came back; "refresh": only other pages; "coverage":
    # pages never read, by the trust that waits at them instead of cash (RankMass).
    mode: str = "any"
    # With mode "refresh", a recrawl policy, which draws pages at random (`opic.frontier.recrawl`); with "discover", GAI
    # or AI (`opic.frontier.expansion`). None: most cash first.
    policy: str | None = None
    domains: tuple[str, ...] = ()  # Hosts or domains to stay within, sorted; all pages if empty.
    busy: frozenset[str] = frozenset()  # Hosts to skip.
    nearness: int = 0  # Only pages at least so near to a seed, see `opic.model.page_notes`; 0 for all.
    crawl_delays: Mapping[str, float] = field(default_factory=dict)  # By host, in seconds, from its robots.txt.
    host_pages: int | None = None  # Maximum number of pages of a host; if None, one where it has a delay.
    hosts: int | None = None  # Maximum number of hosts; `n` is a multiple of it.
    gone: Callable[[], bool] = field(default=lambda: False, compare=False)  # Whether its crawler has disconnected.

    @property
    def wanted(self) -> int:
        """The maximum number of hosts, or of pages without a limit on hosts."""
        return self.hosts or self.n

    def choice(self, mode: str, hosts: int | None = None, alone: int = -1) -> Choice:
        """Return what its pages of a mode are chosen by; with a limit on hosts, for request `alone` only."""
        by = self.policy, self.domains, self.busy, self.nearness, self.host_pages
        return Choice(mode, *by, hosts, alone if hosts else -1)

    @classmethod
    def of(
        cls,
        n: int,
        seconds: float,
        *,
        crawler: str = "",
        mode: str = "any",
        policy: str | None = None,
        domain: str | None = None,
        domains: Sequence[str] = (),
        busy_hosts: Sequence[str] = (),
        crawl_delays: Mapping[str, float] | None = None,
        max_depth: int | None = None,
        host_pages: int | None = None,
        hosts: int | None = None,
        gone: Callable[[], bool] = lambda: False,
        normalization: Normalization = PLAIN,
    ) -> "PagesRequest":
        """Validate a request.

        Args:
            n, seconds, mode, policy, host_pages, hosts, gone: as the fields.
            crawler: name of the crawler.
            domain, domains: only pages of these hosts or domains and their subdomains; at most 100.
            busy_hosts: hosts to skip.
            crawl_delays: the crawl-delay in each host's robots.txt. It is stored, and applies where it is longer than
                the configured host delay.
            max_depth: only pages whose depth is known and at most this.
            normalization: the rules of the crawl: crawlers name hosts as in the URLs that they were handed.

        Raises:
            BadInput: a parameter is invalid.
        """
        host_of_name = partial(canonical_host, normalization=normalization)
        _check(n, mode, policy, max_depth, len(domains))
        check_lease_seconds(seconds)
        within = sorted({host_of_name(name) for name in (*domains, *(() if domain is None else (domain,)))})
        near = 0 if max_depth is None else nearness_of(min(max_depth, DEPTH_MAX))
        if hosts is not None:
            hosts = max(min(hosts, n), 1)
        delays = {host_of_name(host): _crawl_delay(host, delay) for host, delay in (crawl_delays or {}).items()}
        return cls(
            n if hosts is None else n // hosts * hosts, seconds, crawler_digest(crawler), mode, policy, tuple(within),
            frozenset(map(host_of_name, busy_hosts)), near, delays, host_pages, hosts, gone,
        )  # fmt: skip


def _check(n: int, mode: str, policy: str | None, max_depth: int | None, domains: int) -> None:
    """Raise BadInput for a number out of range, for a mode or a policy that does not exist, or one of another mode."""
    if n < 1:
        raise BadInput(f"n={n}: ask for at least one page")
    if max_depth is not None and max_depth < 0:
        raise BadInput(f"max_depth={max_depth}: the depth of a seed is 0, and none is less")
    if domains > DOMAINS_MAX:
        raise BadInput(f"domains: {domains:,} is over the limit of {DOMAINS_MAX}: send several requests")
    if mode not in MODES:
        raise BadInput(f"mode={shown(mode)} is not one of {', '.join(MODES)}")
    if policy is not None and policy not in POLICIES:
        raise BadInput(f"policy={shown(policy)} is not one of {', '.join(POLICIES)}")
    if policy in RECRAWLS and mode != "refresh":
        raise BadInput(f"policy={shown(policy)} is about pages read before: ask with mode=refresh")
    if policy in EXPANSIONS and mode != "discover":
        raise BadInput(f"policy={shown(policy)} is about pages never read: ask with mode=discover")


def _crawl_delay(host: str, delay: float) -> float:
    if not 0 <= delay < float("inf"):
        raise BadInput(f"crawl_delays: {delay} of {shown(host)} must be a finite number of seconds, 0 or more")
    return min(float(delay), CRAWL_DELAY_SECONDS_MAX)


def check_lease_seconds(seconds: float) -> float:
    """Return a duration of leases that can be taken.

    Raises:
        BadInput: it is not over 0 and at most a day.
    """
    if not 0 < seconds <= LEASE_SECONDS_MAX:  # NaN fails every comparison.
        raise BadInput(f"lease_seconds={seconds} must be over 0 and at most {LEASE_SECONDS_MAX:,.0f}, a day")
    return seconds
