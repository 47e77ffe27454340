"""Exact importance through a storm: never further from PageRank than its bound, and exact again once all is still.

PageRank is computed here with scipy alone. While all is still, endpoints are asked for the importance of all pages, and
the links are those that the confirmed events show. While things break, a reader that has followed the journals all the
time is compared with the links in the store, as one finds them who begins at that moment.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
import numpy as np
import redis
from exact_readers import pagerank
from link_pools import links_of
from processes import wait_until

from opic.errors import OpicError
from opic.model.cash import Flag
from opic.query.exact import Exact
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import BOUND, PageFlows, PageStates
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.store import connect

URLS_A_CALL = 5_000
CURRENT_SECONDS_MAX = 60.0
LOOK_SECONDS = 1.0
TRIES = 5


def pagerank_shown(crawl: Crawl, inlinks: Mapping[str, set[str]]) -> dict[str, float]:
    """PageRank of the pages that are there, with the links that events show: by page those that link to it."""
    there = [page.url for page in crawl.pages() if not page.has(Flag.GONE)]
    number = {url: at for at, url in enumerate(there)}
    moved = [page for url in there for page in inlinks.get(url, {url + ": unknown to events"}) if page not in number]
    assert not moved, f"pages changed while all was still: {moved[:3]}"
    pairs = [(number[page], number[url]) for url in there for page in inlinks[url]]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return dict(zip(there, pagerank(ends[:, 0], ends[:, 1], len(there)).tolist(), strict=True))


def importance_wrong(who: str, told: Mapping[str, float], bound: float, truth: Mapping[str, float]) -> list[str]:
    """What is wrong with the importance of all pages, of which those that are gone have none."""
    error = sum(abs(share - truth.get(url, 0.0)) for url, share in told.items())
    wrong = [f"{url} has no importance at {who}" for url in sorted(truth.keys() - told.keys())[:3]]
    if error > bound:
        wrong.append(f"{who} is off by {error:.3g}, and says {bound:.3g} at most")
    if bound > BOUND:
        wrong.append(f"{who} says {bound:.3g} at most while all is still, and {BOUND} is wanted")
    return wrong


class NotCurrent(Exception):
    """The answers are not of one moment, or of an earlier one than is asked for."""


def told_by(url: str, pages: Sequence[str], headers: dict[str, str]) -> tuple[dict[str, float], float]:
    """The exact importance of pages as a service tells it, of now or later, and the bound that comes with it.

    Args:
        url: of the service.
        pages: their URLs.
        headers: of each call.
    """
    found: list[tuple[dict[str, float], float]] = []
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        one = client.get("/v1/importance", params={"url": pages[0], "policy": "static"})
        since = float(one.raise_for_status().json()["as_of"])  # By its clock, which may be wrong.

        def current() -> bool:
            try:
                found[:] = [_told_since(client, since, pages)]
            except NotCurrent:
                return False
            return True

        wait_until(current, CURRENT_SECONDS_MAX)
    return found[0]


def _told_since(client: httpx.Client, since: float, pages: Sequence[str]) -> tuple[dict[str, float], float]:
    told, bounds = dict[str, float](), set[float]()
    for at in range(0, len(pages), URLS_A_CALL):
        body = {"urls": pages[at : at + URLS_A_CALL], "policy": "exact"}
        answer = client.post("/v1/importance", json=body)
        if answer.status_code == 503:  # It is still reading the links.
            raise NotCurrent
        found = answer.raise_for_status().json()
        if found["as_of"] < since:
            raise NotCurrent
        for page in found["pages"]:
            if page["importance"] is None:
                raise NotCurrent
            told[page["url"]] = page["importance"]
            bounds.add(page["error_bound"])
    if len(bounds) != 1:
        raise NotCurrent
    return told, bounds.pop()


class Onlooker(threading.Thread):
    """Follows a crawl through all that breaks, as an endpoint does, and now and then looks at what it would tell."""

    def __init__(self, url: str, crawl_name: str) -> None:
        super().__init__(name="onlooker", daemon=True)
        self._url, self._crawl_name = url, crawl_name
        self._client = connect(url)
        self._exact: Exact | None = None
        self._wrong, self._done, self._looking = list[str](), threading.Event(), threading.Lock()
        self._failure: BaseException | None = None
        self.looks = self.missed = 0  # Missed: the store was away, or the crawl went on in the middle of a look.

    def run(self) -> None:
        try:
            while not self._done.wait(LOOK_SECONDS):
                try:
                    with self._looking:
                        looked = self._look()
                except (OpicError, redis.RedisError, OSError):
                    looked = False
                self.looks, self.missed = self.looks + looked, self.missed + (not looked)
        except BaseException as error:
            self._failure = error
            raise

    def end(self) -> None:
        self._done.set()
        self.join()
        self._client.close()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Meanwhile it asks for nothing."""
        with self._looking:
            yield

    def seen_wrong(self) -> list[str]:
        """What was wrong since the last call."""
        if self._failure is not None:
            raise self._failure
        found, self._wrong = self._wrong, []
        return found

    def _look(self) -> bool:
        """Compare, and return whether both were of the same moment."""
        if self._exact is None:
            self._exact = Exact(PageFlows(KeptLinks(Crawl.open(self._client, self._crawl_name, create=False))))
        with connect(self._url) as client:
            anew = KeptLinks(Crawl.open(client, self._crawl_name, create=False))
            for _ in range(TRIES):
                with anew.lock:
                    read = anew.catch_up(anew.check, PageStates.of)
                view = self._exact.view()
                if view.heads == read.heads:
                    truth = pagerank_kept(anew, read.taken)
                    error = sum(abs((view.share(place) or 0.0) - share) for place, share in truth.items())
                    if error > view.bound:
                        self._wrong.append(f"a reader is off by {error:.3g}, and says {view.bound:.3g} at most")
                    return True
        return False


def pagerank_kept(kept: KeptLinks, states: Sequence[PageStates]) -> dict[Place, float]:
    """PageRank of the pages that are there, with the links that the store keeps: by shard and id."""
    places = [
        (shard, page)
        for shard, taken in enumerate(states)
        for page in np.flatnonzero((taken.state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN).tolist()
    ]
    at = {kept.numbers.number_of(*place): number for number, place in enumerate(places)}
    pairs = list[tuple[int, int]]()
    for page, number in at.items():
        shard, place = places[number]
        links = links_of(kept.pool, page)
        if links is not None and states[shard].state[place] & Flag.OPEN:
            pairs += [(number, at[target]) for target in links.tolist() if target in at]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return dict(zip(places, pagerank(ends[:, 0], ends[:, 1], len(places)).tolist(), strict=True))
