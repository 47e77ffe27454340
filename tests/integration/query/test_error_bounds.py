"""Each answer has the error bound of the policy that answered, in every call and on many shards, and it is true."""

import random
from collections import defaultdict
from typing import Any

import pytest
from exact_readers import asked, truth
from linked_web import PAGES, Web
from servers import Server

from opic.model.events import CrawlEvent
from opic.query.explain import explain
from opic.query.queries import Query
from opic.urls.canonical import host_of, registered_domain

ROUNDS = 12
NAMES = {"hosts": "host", "domains": "domain"}


def answers(query: Query, policy: str) -> dict[str, list[dict[str, Any]]]:
    """All pages or sites, by call."""
    return {
        "importance": [page for page in query.importance(PAGES, policy) if page],
        "one": [page for url in PAGES for page in query.importance([url], policy) if page],
        "top": query.top(50, policy=policy),
        "hosts": query.sites("host", 50, policy=policy)["hosts"],
        "domains": query.sites("domain", 50, policy=policy)["domains"],
        "explain": [page for url in PAGES if (page := explain(query, url, policy)) is not None],
    }


def by_name(expected: dict[str, float], call: str) -> dict[str, float]:
    """PageRank by page, host or domain."""
    if call not in ("hosts", "domains"):
        return expected
    found: dict[str, float] = defaultdict(float)
    for url, share in expected.items():
        found[host_of(url) if call == "hosts" else registered_domain(host_of(url))] += share
    return found


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_bound_belongs_to_the_policy_and_is_never_below_the_error(valkey: Server, shards: int) -> None:
    web, draw = Web(valkey, f"bounds-{shards}", shards), random.Random(shards)
    links = {url: [PAGES[(at + 1) % 14], *draw.sample(PAGES[:4], 2)] for at, url in enumerate(PAGES)}
    for _ in range(ROUNDS):  # Each page many times, so that the bound by cash says something.
        web.apply(*(CrawlEvent(url, links[url]) for url in PAGES))
    web.writer.drain()
    query, expected = asked(web.crawl), truth(web)
    for policy in ("exact", "static", "fixed", "variable", "improved", "interpolation"):
        for call, found in answers(query, policy).items():
            named = by_name(expected, call)
            assert len(found) == len(named), (policy, call)
            assert {page["policy"] for page in found} == {policy}, call
            bounds = {page.get("error_bound") for page in found}
            if policy not in ("exact", "static"):
                assert bounds == {None}, (policy, call)
                continue
            error = sum(abs(page["importance"] - named[page[NAMES.get(call, "url")]]) for page in found)
            assert len(bounds) == 1, (policy, call)
            assert error <= bounds.pop() < 2, (policy, call)
