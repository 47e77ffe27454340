"""Are leases and host delays kept?  Callers at once take pages; what they were told is looked through afterwards.

Only answers are judged, by their own times: a lease runs from `lease_until` less the seconds that were asked for, by
the store's clock, to `lease_until`, or until its crawler began to give it back. A page that an event read meanwhile is
free again, so of pages that events may read only the host's delay is looked at.
"""

import asyncio
import json
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import time
from urllib.parse import urlsplit

from http_load import Line, Request

LONG_SECONDS, SHORT_SECONDS = 900.0, 1.0
EMPTY_SECONDS_MAX = 0.5  # A caller that got nothing comes back at the latest after so long.
MICROSECONDS_OFF = 3e-6  # Times in answers are doubles of microseconds since 1970.
MODES = ("any", "any", "discover", "refresh")


@dataclass(slots=True)
class Suggestion:
    """A page that a caller was given, from when until when."""

    url: str
    crawler: str
    since: float
    until: float


@dataclass(slots=True)
class Verdict:
    """What was looked at, and what was wrong."""

    suggestions: int = 0
    distinct_pages: int = 0
    hosts: int = 0
    pages_again: int = 0  # Pairs of leases of one page that were compared.
    hosts_again: int = 0  # Pairs of suggestions of one host.
    given_back: int = 0
    host_gap_min_s: float = float("inf")
    violations: list[str] = field(default_factory=list)


class Caller:
    """A crawler that takes pages, and keeps them, gives them back, or never says a word again."""

    def __init__(self, number: int, url: str, n: int) -> None:
        """Connect to an endpoint."""
        self.name, self.n, self.random = f"crawler-{number}", n, random.Random(number)
        self.lines = Line(url)
        self.lease_seconds = SHORT_SECONDS if number % 4 == 1 else LONG_SECONDS
        self.releases = number % 4 == 2
        self.mode = MODES[number // 4 % len(MODES)]
        self.found: list[Suggestion] = []
        self.given_back = 0

    async def turn(self) -> int:
        """Ask once; return how many pages came."""
        asked = {"n": self.n, "crawler": self.name, "lease_seconds": self.lease_seconds, "mode": self.mode}
        answer = json.loads(await self.lines.ask(Request("POST", "/v1/next", json.dumps(asked))))
        pages = answer["pages"]
        found = [
            Suggestion(page["url"], self.name, page["lease_until"] - self.lease_seconds, page["lease_until"])
            for page in pages
        ]
        self.found += found
        if not pages:
            await asyncio.sleep(min(answer["retry_after"], EMPTY_SECONDS_MAX))
        elif self.releases and self.random.random() < 0.5:
            now = time()
            for one in found:
                one.until = min(one.until, now)
            leases = json.dumps({"leases": [page["lease"] for page in pages]})
            self.given_back += json.loads(await self.lines.ask(Request("POST", "/v1/release", leases)))["released"]
        return len(pages)


async def take(urls: Sequence[str], callers: int, suggestions: int, n: int) -> tuple[list[Suggestion], int]:
    """Let callers, spread over endpoints, take so many pages; return them, and how many leases were given back."""
    some = [Caller(number, urls[number // 4 % len(urls)], n) for number in range(callers)]
    have = 0

    async def run(caller: Caller) -> None:
        nonlocal have
        while have < suggestions:
            came = await caller.turn()  # Others took some meanwhile.
            have += came
        caller.lines.close()

    await asyncio.gather(*(run(caller) for caller in some))
    return [one for caller in some for one in caller.found], sum(caller.given_back for caller in some)


def judge(found: Iterable[Suggestion], host_delay_seconds: float, may_be_read: Collection[str]) -> Verdict:
    """Look for a page leased twice at once, and for a host suggested before its delay.

    >>> twice = [Suggestion("http://a.example/", "x", 0.0, 10.0), Suggestion("http://a.example/", "y", 5.0, 15.0)]
    >>> judge(twice, 1.0, []).violations
    ['http://a.example/: leased to x until 10.000000, and to y from 5.000000']
    >>> len(judge(twice, 6.0, []).violations)
    2
    """
    pages: dict[str, list[Suggestion]] = {}
    hosts: dict[str, list[Suggestion]] = {}
    verdict = Verdict()
    for one in found:
        verdict.suggestions += 1
        pages.setdefault(one.url, []).append(one)
        hosts.setdefault(urlsplit(one.url).netloc, []).append(one)
    verdict.distinct_pages, verdict.hosts = len(pages), len(hosts)
    for url, some in pages.items():
        if url in may_be_read:
            continue
        for first, second in pairwise(sorted(some, key=lambda one: one.since)):
            verdict.pages_again += 1
            if second.since < first.until - MICROSECONDS_OFF:
                verdict.violations.append(
                    f"{url}: leased to {first.crawler} until {first.until:.6f}, "
                    f"and to {second.crawler} from {second.since:.6f}"
                )
    for host, some in hosts.items():
        for first, second in pairwise(sorted(some, key=lambda one: one.since)):
            verdict.hosts_again += 1
            gap = second.since - first.since
            verdict.host_gap_min_s = min(verdict.host_gap_min_s, gap)
            if gap < host_delay_seconds - MICROSECONDS_OFF:
                verdict.violations.append(f"{host}: suggested {gap:.6f} s after the last time")
    return verdict
