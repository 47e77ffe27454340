"""Whatever crawlers do, a frontier by exact importance keeps leases and delays, and hands out the best free pages."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_web import MANY, Ordered
from servers import Server

from opic.frontier import PolitenessSettings
from opic.model.cash import MILLION, Flag
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow

NEAR = 1e-6  # The order is settled to a bound of 2e-9.
URLS = MANY[:18]
PAGE = st.integers(0, len(URLS) - 1)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(1, 6), st.sampled_from(["discover", "refresh", "any"])),
        st.tuples(st.just("next"), st.integers(1, 3), st.just("discover")),
        st.tuples(st.sampled_from(["read", "read now"]), PAGE, st.lists(PAGE, max_size=5)),
        st.tuples(st.sampled_from(["fail", "gone"]), PAGE, st.just(0)),
        st.tuples(st.just("release"), PAGE, st.just(0)),
    ),
    min_size=4,
    max_size=14,
)


class Rules:
    """Which pages may not be offered; no lease, host delay or revisit time ends in an example."""

    def __init__(self, web: Ordered, *, delay: bool) -> None:
        self.web, self.delay = web, delay
        self.leased: dict[str, str] = {}
        self.resting: set[str] = set()
        self.recent: set[str] = set()  # Read a moment ago; all other reads were long ago.
        self.failed: set[str] = set()

    def free(self, mode: str) -> dict[str, float]:
        """Return the pages of a mode that may be offered, with their keys."""
        keys, cash = self.web.keys(mode), self.web.cash(URLS)
        return {url: key for url, key in keys.items() if cash[url] > 0 and self.is_free(url)}

    def is_free(self, url: str) -> bool:
        held = url in self.leased or url in self.recent or url in self.failed
        return not held and host_of(url) not in self.resting

    def take(self, page: dict[str, Any]) -> None:
        assert self.is_free(page.url)
        self.leased[page.url] = page.lease
        if self.delay:
            self.resting.add(host_of(page.url))


@settings(max_examples=25)
@given(deeds=DEEDS, delay=st.booleans(), seeds=st.integers(1, 6))
def test_no_page_is_leased_twice_and_free_pages_come_in_order(
    valkey: Server, deeds: list[tuple[str, int, Any]], delay: bool, seeds: int
) -> None:
    valkey.reset()
    politeness = PolitenessSettings(300.0 if delay else 0.0, 600.0, 600.0, revisit_seconds=3600.0)
    web = Ordered(valkey, "exact", politeness=politeness)
    web.seed(URLS[:seeds])
    rules, long_ago_us = Rules(web, delay=delay), web.at_us
    web.seed(URLS, depth=None)
    for deed, at, more in deeds:
        url = URLS[at % len(URLS)]
        if deed == "next":
            hand_out(rules, at, more)
        elif deed == "release" and rules.leased:
            url = sorted(rules.leased)[at % len(rules.leased)]
            assert web.frontier.release([rules.leased.pop(url)]).released == 1
        elif deed.startswith("read"):
            now = deed == "read now" or url in rules.recent
            long_ago_us, web.at_us = web.at_us if not now else long_ago_us, long_ago_us
            if now:
                web.at_us = round(time.time() * MILLION)
                rules.recent.add(url)
            web.read(url, [URLS[link] for link in more])
            rules.leased.pop(url, None)
            rules.failed.discard(url)
        elif deed in {"fail", "gone"}:
            web.at_us = round(time.time() * MILLION)
            web.read(url, [], 500 if deed == "fail" else 404)
            rules.leased.pop(url, None)
            rules.failed.discard(url)
            if deed == "fail":  # A gone page has no back-off: a link may bring it back.
                rules.failed.add(url)


def hand_out(rules: Rules, n: int, mode: str) -> None:
    """Ask for pages: each is the best free one of its mode; mode any hands out both kinds, those never read first."""
    web = rules.web
    answer = web.next(n, mode=mode)
    found = answer.pages
    assert answer.order == "exact"
    opened = {page.url for page in web.crawl.pages() if page.has(Flag.OPEN)}
    kinds = [page.url in opened for page in found]
    assert kinds == sorted(kinds)
    assert mode == "any" or all(kind == (mode == "refresh") for kind in kinds)
    for page in found:
        if mode != "any":
            keys = rules.free(mode)
            assert keys[page.url] >= (1 - NEAR) * max(keys.values())
        rules.take(page)
