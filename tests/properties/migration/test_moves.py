"""Whatever a crawl has read, and however often it is moved to other numbers of shards, nothing of it changes."""

from contextlib import closing
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, forget, notes, record, seeds, some_packed, trusts
from migrations import answers_of, known_since_of, links_of, moved, opened, pages_of
from same_state import BATCH_LINKS, small_batches
from servers import Server

from opic.errors import NoTrust
from opic.ingest import Writer
from opic.model.cash import DAY_US, MILLION, CrawlRules, Flag
from opic.model.classes import check_classes, encode_classes
from opic.model.events import EventLimits, Record
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.settings import Settings

HOSTS = [f"{name}.org" for name in "abcdefgh"] + ["www.a.org", "www.b.org"]
URLS = [f"http://{host}/{name}" for host in HOSTS for name in "pq"]
KINDS = ["read"] * 9 + [
    "gone",
    "gone",
    "failed",
    "excluded",
    "moved",
    "seeds",
    "seeds",
    "dead",
    "call",
    "classes",
    "forget",
]
FLOAT_SLACK = 1e-9
names = count()
urls = st.sampled_from(URLS)
others = st.sampled_from(["", "mailto:x@y", "HTTP://A.org:80/p#top", "https://www.A.org/p?utm_source=x"])
times = st.integers(0, 40).map(lambda days: (NOW_US + days * DAY_US // 16 - 30 * DAY_US) / MILLION)
patterns = st.sampled_from([
    {"hosts": ["a.org", "c.org"]}, {"hosts": ["org"]}, {"contains": ["/p"]}, {"urls": ["http://b.org/"]},
    {"tags": ["news"]}, {"tags": ["spam"], "hosts": ["d.org"]},
])  # fmt: skip
definitions = st.dictionaries(
    st.sampled_from("stuv"), st.tuples(st.sampled_from([1, 0.5, 3, 40]), patterns), max_size=3
).map(lambda found: [{"name": name, "weight": weight, **what} for name, (weight, what) in found.items()])
rules = st.builds(
    CrawlRules,
    q=st.sampled_from([150_000, 500_000]),
    regrant_ppm=st.sampled_from([0, 10_000, 500_000]),
    measures_max=st.sampled_from([3, 8]),
    inflow=st.booleans(),
    normalize=st.sampled_from(["", "", "www,https,tracking"]),
)


@st.composite
def logs(draw: st.DrawFn, size: int) -> list[Record]:
    made: list[Record] = []
    late_us = 0
    for offset in range(size):
        kind, url, at, noted = draw(st.sampled_from(KINDS)), draw(urls), draw(times), draw(notes)
        if kind == "read":
            tags = draw(st.sampled_from([{}, {}, {"tags": ["news"]}, {"tags": ["spam", "other"]}]))
            links = draw(st.lists(st.one_of(urls, urls, urls, others), max_size=8))
            made.append(record(offset, url, links, fetched_at=at, **noted, **tags))
        elif kind == "classes":
            made.append(Record(offset, NOW_US + offset, encode_classes(check_classes(draw(definitions))), kind))
        elif kind == "call":
            number = draw(st.integers(0, 3))
            made.append(replace(record(offset, URLS[number], ["", *URLS[number + 2 :: 3]]), call=b"call %d" % number))
        elif kind == "seeds":
            made.append(seeds(offset, *draw(st.lists(urls, min_size=1, max_size=4)), trust=draw(trusts), **noted))
        elif kind == "forget":
            made.append(forget(offset, *draw(st.lists(urls, min_size=1, max_size=4))))
        elif kind == "dead":
            made.append(Record(offset, NOW_US + offset, b"\xff"))
        elif kind == "moved":
            made.append(record(offset, url, status=301, redirect=draw(urls), fetched_at=at, **noted))
        else:
            status = {
                "gone": st.sampled_from([404, 410]),
                "failed": st.sampled_from([0, 500]),
                "excluded": st.just(403),
            }
            more: dict[str, Any] = {"excluded": True} if kind == "excluded" else {}
            made.append(record(offset, url, status=draw(status[kind]), fetched_at=at, **noted, **more))
        late_us += draw(st.sampled_from([0, 0, 0, 1, 1_800, 3_600, 90_000, -1_800])) * MILLION
        made[-1] = replace(made[-1], time_us=made[-1].time_us + late_us)
    return made


def backend(server: Server, crawl: str, **more: Any) -> Backend:
    told = {"host_delay_seconds": 0.0, "revisit_seconds": 0.0, **more}
    return Backend(Settings.load(store=server.url, crawl=crawl, **told), server.url, create=False)


def told(server: Server, crawl: str, known: list[str], *, links: bool) -> dict[str, Any]:
    """What the service answers of a crawl, without what is of its shards: numbers, and the order of equals."""
    with closing(backend(server, crawl, keep_links=links)) as of:
        found: dict[str, Any] = {}
        for policy in ("static", "interpolation", "fixed", "variable", "improved"):
            rows = of.query.importance(known, policy)
            found[policy] = {row["url"]: row["importance"] for row in rows if row is not None}
        found["top"] = sorted((str(row["url"]), row["importance"]) for row in of.query.top(100, policy="static"))
        for kind in ("host", "domain"):
            sites = of.query.sites(kind, 100, "static")[f"{kind}s"]
            found[kind] = sorted((str(row[kind]), row["importance"], row["pages"]) for row in sites)
        found["bound"] = of.query.top_from(1, policy="static")["pages"][:1]
        found["bound"] = [row.get("error_bound") for row in found["bound"]]
        standings = {url: of.explain(url, "static", None) for url in known[::3]}
        found["frontier"] = {
            url: (row["state"], {**row["frontier"], "place": None, "why_not": len(row["frontier"]["why_not"])})  # type: ignore[dict-item, index]
            for url, row in standings.items()
            if row is not None
        }
        if links:
            found["exact"] = {r["url"]: r["importance"] for r in of.query.importance(known, "exact") if r is not None}
        if links and of.coverage.trusts:
            try:
                found["coverage"] = {**of.coverage.now().answer(), "as_of": 0}
            except NoTrust as error:  # All trusted pages are gone.
                found["coverage"] = str(error)
        # Times are only known to a record; of entries at one clock, a crawl of many shards tells the last one's rounds.
        found["series"] = [*{row["clock"]: row["rounds"] for row in of.curve.series(1_000)}.items()]
        found["stats"] = {k: v for k, v in of.query.stats().items() if k not in ("shards", "version")}
        return found


def assert_same_answer(found: Any, expected: Any, at: str, within: float = 1e-9) -> None:
    """Fail unless two answers are equal, floats but for the order in which shares were summed; `at` names them."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key, value in expected.items():
            assert_same_answer(found[key], value, f"{at} {key}", within)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), (at, found, expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_answer(one, other, at, within)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=within, abs=within), at
    else:
        assert found == expected, at


def check_bound(crawl: Crawl) -> None:
    """Compare the static estimates with exact PageRank of the kept links, by a dense solve."""
    crawl.follow()
    pages = {page.url: page for page in crawl.pages()}
    live = [url for url, page in pages.items() if not page.has(Flag.GONE)]
    books, q = crawl.totals(), crawl.rules.q / MILLION
    if not live or books.cuts:
        return
    row, walk = {url: at for at, url in enumerate(live)}, np.zeros((len(live), len(live)))
    for url, links in links_of(crawl).items():
        kept = [link for link in links if link in row]
        if pages[url].has(Flag.OPEN) and url in row:
            for link in kept:
                walk[row[link], row[url]] += (1 - q) / len(kept)
    weight = np.array([1 + books.extra[pages[url].slot] / MILLION for url in live])
    exact = np.linalg.solve(np.eye(len(live)) - walk, weight)
    held = np.array(
        [float(max(page.spent + page.v + books.credit_of(page.slot), 0)) for page in map(pages.__getitem__, live)]
    )
    error = np.abs(held / held.sum() - exact / exact.sum()).sum()
    assert error <= books.error_bound(crawl.rules.minted, crawl.rules.q) + FLOAT_SLACK


def apply(crawl: Crawl, log: list[Record], limits: EventLimits) -> None:
    writer = Writer(crawl, limits)
    writer.apply(PARTITION, log)
    writer.drain()


def measures_aside(pages: Any) -> Any:
    """Pages without the clocks of their measures, which are on an axis of their shard where there are many."""
    return {
        url: replace(page, measures=tuple(replace(one, clock=0) for one in page.measures))
        for url, page in pages.items()
    }


moves = given(
    data=st.data(),
    rules=rules,
    chain=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=3),
    links=BATCH_LINKS,
    keep_links=st.sampled_from([True, True, False]),
    host_pages_max=st.sampled_from([0, 0, 0, 1]),
)


@examples(40)
@moves
def test_moved_crawl_is_the_same(valkey: Server, **drawn: Any) -> None:
    move_about(valkey, **drawn)


def move_about(
    valkey: Server, data: st.DataObject, rules: CrawlRules, chain: list[int], links: int, keep_links: bool,
    host_pages_max: int,
) -> None:  # fmt: skip
    valkey.reset()
    limits, at = EventLimits(host_pages_max=host_pages_max), 0
    name = f"crawl{next(names)}"
    crawl = Crawl.open(valkey.client(), name, {**asdict(rules), "shards": chain[0]}, keep_links=keep_links)
    with small_batches(links):
        for shards in chain[1:]:
            log = data.draw(some_packed(logs(data.draw(st.integers(1, 25)))))
            log = [replace(one, offset=at + number) for number, one in enumerate(log)]
            at += len(log)
            apply(crawl, log, limits)
            before, pages, totals = told(valkey, name, URLS, links=keep_links), pages_of(crawl), answers_of(crawl)
            kept, since = links_of(crawl) if keep_links else {}, known_since_of(crawl)
            was, to = len(crawl), f"crawl{next(names)}"
            moved(valkey, name, to, shards=shards, regrant_ppm=rules.regrant_ppm)
            crawl, name = opened(valkey, to), to
            after = told(valkey, name, URLS, links=keep_links)
            whole, parts = crawl.audit()
            assert whole.conserved, whole.mismatches
            assert all(part.conserved for part in parts)
            assert (len(crawl), crawl.resume(PARTITION)) == (shards, at)
            now = pages_of(crawl)
            assert now.keys() == pages.keys()
            if was == 1:
                assert now == pages
            assert measures_aside(now) == measures_aside(pages)
            assert answers_of(crawl) == totals
            assert known_since_of(crawl) == since
            if keep_links:
                assert {url: found for url, found in links_of(crawl).items() if found} == {
                    url: found for url, found in kept.items() if found
                }
                check_bound(crawl)
            assert before.keys() == after.keys()
            for key, answer in before.items():
                if key == "series" and was > 1:
                    continue  # Interpolated between those of the shards.
                assert_same_answer(after[key], answer, key, 1e-9 if was == 1 else 1e-5)
    crawl.client.close()
