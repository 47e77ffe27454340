"""Policies that draw take each page as often as their definition says: with any number of shards, after a restart too.

The seed of the draws is fixed, so the test always ends alike. Of right draws, about one seed in four has some frequency
that is off by more than three standard errors: there are some 150.
"""

from collections import Counter

import numpy as np
import pytest
from frontiers import drawn_places
from linked_web import Web
from servers import Server

from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.requests import EXPANSIONS, RECRAWLS, PagesRequest
from opic.model.cash import DAY_US
from opic.query.kept_links import KeptLinks

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

DRAWS = {1: 1_000, 16: 120}  # By number of shards; a choice looks at each of them.
SEED = 2
HUBS = [f"http://hub{n}.org/" for n in range(7)]
TARGETS = [f"http://t{n}.org/" for n in range(6)]  # Never read.
# Of each hub: the targets that its first read shows, and its second. New links are also to pages known already.
FIRST = ("0", "01", "012", "0123", "5", "", "34")
SECOND = ("012345", "01", "0124", "3", "05", "0", "345")
AGAIN = (3, 0, 6, 1, 5, 2, 4)  # The order of the second reads, a day apart as the first ones.


def filled(server: Server, name: str, shards: int) -> Web:
    web = Web(server, name, shards)
    for shown, order in ((FIRST, range(len(HUBS))), (SECOND, AGAIN)):
        for hub in order:
            web.read(HUBS[hub], [TARGETS[int(to)] for to in shown[hub]])
            web.writer.drain()
    return web


def chances(policy: str) -> dict[str, float]:
    """The share of the draws of each page by the policy's definition."""
    new = [set(second) - set(first) for first, second in zip(FIRST, SECOND, strict=True)]
    inlinks = [sum(str(target) in shown for shown in SECOND) for target in range(len(TARGETS))]
    days = [len(HUBS) + AGAIN.index(hub) - hub for hub in range(len(HUBS))]
    kinds = {
        "alike": [1.0] * len(HUBS),
        "seen": [len(set(first)) + len(some) for first, some in zip(FIRST, new, strict=True)],
        "rate": [len(some) / (length * DAY_US) for some, length in zip(new, days, strict=True)],
    }
    if policy == "AI":
        return dict(zip(TARGETS, np.array(inlinks) / sum(inlinks), strict=True))
    scores = np.array([sum(inlinks[int(target)] for target in some) for some in new])
    assert np.count_nonzero(scores == scores.max()) == 1
    kinds["link score"] = (scores == scores.max()).astype(float).tolist()
    parts = [share * np.array(kinds[kind]) / sum(kinds[kind]) for kind, share in RECRAWLS[policy].items()]
    return dict(zip(HUBS, np.sum(parts, axis=0), strict=True))


@pytest.mark.parametrize("shards", [1, 16])
def test_each_page_is_drawn_as_often_as_its_policy_defines(valkey: Server, shards: int) -> None:
    web = filled(valkey, f"draws-{shards}", shards)
    farthest, draws = 0.0, DRAWS[shards]
    for restarted in (False, True):
        if restarted:
            for store in web.writer.stores:
                store.checkpoint()
        crawl = web.opened(shards) if restarted else web.crawl
        frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0), links=KeptLinks(crawl))
        frontier._scheduler.choices.rng = np.random.default_rng(SEED)
        for policy in (*RECRAWLS, "AI"):
            request = PagesRequest.of(1, 1.0, mode="discover" if policy in EXPANSIONS else "refresh", policy=policy)
            found = Counter(place for places in drawn_places(frontier, request, draws) for place in places)
            urls = crawl.urls_of(list(found))
            expected = chances(policy)
            counts = Counter({urls[place]: count for place, count in found.items()})
            assert counts.keys() == {url for url, chance in expected.items() if chance}, policy
            for url, chance in expected.items():
                off = abs(counts[url] - draws * chance) / max(np.sqrt(draws * chance * (1 - chance)), 1)
                assert off <= 3, (policy, restarted, url, counts[url], draws * chance)
                farthest = max(farthest, off)
    print(f"{shards} shards: at most {farthest:.2f} standard errors off in {draws:,} draws by each policy")
