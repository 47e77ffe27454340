"""Whatever crawlers do, the frontier hands out what a plain model of it does: by the strategy, and by all the rules."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontiers import Crawl
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server

from opic.admission import check_policy, verdicts
from opic.frontier import PolitenessSettings, choices, hot_crawl
from opic.frontier.page_keys import random_keys
from opic.model.cash import Flag
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow

TRAP = "a/a/a/a/"
URLS = [f"http://h{at % 5}.org/{TRAP if at % 8 == 7 else ''}{at}" for at in range(24)]
# Rules, and the URLs that each means, in words of its own.
RULES: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "host": ({"effect": "deny", "host": "h1.org"}, lambda url: "//h1.org/" in url),
    "ones": ({"effect": "deny", "path": "/1"}, lambda url: ".org/1" in url),
    "trap": ({"effect": "allow", "path": "*/a/a/a"}, lambda url: TRAP in url),
    "site": ({"effect": "allow", "domain": "h2.org"}, lambda url: "//h2.org/" in url),
    "all": ({"effect": "deny"}, lambda _url: True),
}
PAGE = st.integers(0, len(URLS) - 1)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(1, 8), st.sampled_from(["any", "discover", "refresh"])),
        st.tuples(st.just("next"), st.integers(1, 8), st.just("any")),
        st.tuples(st.just("read"), PAGE, st.lists(PAGE, max_size=4)),
        st.tuples(st.just("fail"), PAGE, st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), st.just(0)),
        st.tuples(st.just("rules"), st.just(0), st.lists(st.sampled_from(sorted(RULES)), max_size=2, unique=True)),
    ),
    max_size=14,
)


class Model:
    """What is out, what waits and which hosts rest: nothing that takes less than a minute ends in an example."""

    def __init__(self, delay: bool, cap: int, strategy: str) -> None:
        self.delay, self.cap, self.strategy = delay, cap, strategy
        self.read_at: dict[str, int] = {}  # In seconds.
        self.leased: dict[str, str] = {}
        self.waits: set[str] = set()
        self.resting: set[str] = set()
        self.rules: list[str] = []

    def shut(self, url: str) -> bool:
        """Whether rules or the shape of its URL keep a page back: the first rule that means it decides."""
        for effect, meant in ((RULES[name][0]["effect"], RULES[name][1]) for name in self.rules):
            if meant(url):
                return bool(effect == "deny")
        return TRAP in url

    def denied(self, crawl: Crawl, mode: str) -> int:
        """Count the pages of a mode that are kept back, and not leased nor gone."""
        pages = [page for page in crawl.pages.pages() if mode == "any" or page.has(Flag.OPEN) == (mode == "refresh")]
        return sum(self.shut(page.url) and page.url not in self.leased and not page.has(Flag.GONE) for page in pages)

    def key(self, page: Any, cash: int) -> int:
        read_us = 1_000_000 * self.read_at.get(page.url, 0)
        if self.strategy == "random":
            return int(random_keys(np.array([page.id]), np.array([read_us]))[0])
        return -read_us if self.strategy == "cycle" else cash

    def next(self, crawl: Crawl, n: int, mode: str) -> list[str]:
        books, flying = crawl.pages.totals(), Counter(map(host_of, self.leased))
        pages = sorted(crawl.pages.pages(), key=lambda page: (-self.key(page, page.v + books.credit), page.id))
        found, resting = list[tuple[int, str]](), set(self.resting)
        for page in pages:
            cash, host, read = page.v + books.credit, host_of(page.url), page.has(Flag.OPEN)
            fit = mode == "any" or read == (mode == "refresh")
            busy = page.url in self.leased or page.url in self.waits or host in resting
            busy = busy or self.shut(page.url)
            if cash <= 0 or not fit or busy or (self.cap and flying[host] >= self.cap):
                continue
            cut = self.strategy == "greedy" and (n + len(self.leased)) * 10 > books.live
            if len(found) == n or (found and cut and 2 * cash < found[0][0]):
                break
            found.append((cash, page.url))
            flying[host] += 1
            if self.delay:
                resting.add(host)  # Its other pages are passed over.
        return [url for _, url in found]


def judge_slowly(patch: pytest.MonkeyPatch) -> None:
    """Judge pages so slowly that most are judged when they are chosen, however long that takes."""
    patch.setattr(verdicts, "URLS_AT_ONCE", 2)
    patch.setattr(hot_crawl, "URLS_AT_ONCE", 2)
    patch.setattr(choices, "JUDGE_BATCHES", 1)
    patch.setattr(choices, "JUDGE_SECONDS", 20.0)
    patch.setattr(choices, "JUDGE_SECONDS_MAX", 20.0)


@settings(max_examples=40)
@given(
    deeds=DEEDS,
    delay=st.booleans(),
    cap=st.sampled_from([0, 0, 2]),
    strategy=st.sampled_from(["greedy", "greedy", "cycle", "random"]),
    slow=st.booleans(),
)
def test_frontier_suggests_the_same_pages_as_the_model(
    valkey: Server, deeds: list[tuple[str, int, Any]], delay: bool, cap: int, strategy: str, slow: bool
) -> None:
    """Before all pages are judged by the present rules, it hands out some that may be had, if there are any."""
    with pytest.MonkeyPatch.context() as patch:
        if slow:
            judge_slowly(patch)
        compare(valkey, deeds, delay, cap, strategy, slow)


def compare(
    valkey: Server, deeds: list[tuple[str, int, Any]], delay: bool, cap: int, strategy: str, slow: bool
) -> None:
    valkey.reset()
    crawl = Crawl(
        valkey, PolitenessSettings(30.0 if delay else 0.0, 600.0, 600.0, cap), strategy=strategy, admitted=True
    )
    model, leases = Model(delay, cap, strategy), []
    crawl.seed(URLS)
    for second, (deed, at, more) in enumerate(deeds, 1_700_000_000):
        if deed == "next":
            expected, answer = model.next(crawl, at, more), crawl.frontier.next(at, mode=more)
            found: Any = answer.pages
            urls = [page.url for page in found]
            assert urls == expected or (slow and urls)
            assert not any(map(model.shut, urls))
            if delay:
                model.resting |= set(map(host_of, urls))
            assert not {page.url for page in found} & model.leased.keys()
            model.leased |= {page.url: page.lease for page in found}
            leases += [page.lease for page in found]
            waiting: Any = answer.waiting
            assert slow or waiting.denied == model.denied(crawl, more)
        elif deed == "read":
            crawl.event(URLS[at], [URLS[link] for link in more], fetched_at=float(second))
            model.read_at[URLS[at]] = second
            model.leased.pop(URLS[at], None)
            model.waits.discard(URLS[at])
        elif deed == "fail":
            crawl.event(URLS[at], status=500)
            model.leased.pop(URLS[at], None)
            model.waits.add(URLS[at])
        elif deed == "release" and leases:
            lease = leases[at % len(leases)]
            runs = {text: url for url, text in model.leased.items()}
            assert crawl.frontier.release([lease]).released == int(lease in runs)
            model.leased.pop(runs.get(lease, ""), None)
        elif deed == "rules":
            model.rules = more
            policy = check_policy({"rules": [RULES[name][0] for name in more]})
            assert crawl.frontier.admission is not None
            crawl.frontier.admission.put(policy)
        elif deed == "forget":
            crawl.frontier._scheduler.forget()
