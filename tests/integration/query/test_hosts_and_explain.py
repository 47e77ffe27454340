"""Importance of hosts and domains, and why a page has its score: as worked out from the model."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, pep_history, record, seeds
from servers import Server

from opic.errors import BadInput, BadUrl
from opic.ingest import Writer
from opic.model.cash import MILLION, Flag
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.model.windows import POLICIES
from opic.query.explain import explain
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.urls.canonical import host_of, registered_domain

pytestmark = pytest.mark.slow

A, B, C = "http://a.org/", "http://b.org/", "http://c.org/"


def opened(server: Server, *log: Record, **given: object) -> tuple[Writer, Query]:
    """A crawl that these records took effect in, and what one may ask of it."""
    crawl = Crawl.open(server.client(), "default", given)  # type: ignore[arg-type]
    writer = Writer(crawl)
    writer.apply(PARTITION, log)
    while writer.deliver():
        pass
    return writer, Query(crawl, Snapshots(crawl))


def modelled(log: list[Record]) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    return ledger


def expected_hosts(ledger: Ledger) -> dict[str, tuple[int, int, int]]:
    """Score, pages and read pages of each host by the model, the best first; ties in order of first sight."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for page in ledger.pages.values():
        host = found[host_of(page.url)]
        if not page.has(Flag.GONE):
            host[0] += page.spent + ledger.cash(page)
            host[1] += 1
            host[2] += page.has(Flag.OPEN)
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return {host: (score, pages, read) for host, (score, pages, read) in ranked if pages}


# Hosts.


@pytest.mark.parametrize("until", [10_401, None], ids=["while a page is gone", "to its end"])
def test_hosts_of_a_real_history_are_the_sums_of_their_pages(valkey: Server, until: int | None) -> None:
    log = pep_history()[:until]
    _, query = opened(valkey, *log)
    expected, ledger = expected_hosts(modelled(log)), modelled(log)
    total = ledger.books.importance_total(ledger.rules.minted)
    hosts = query.sites("host", 10_000)["hosts"]
    assert [host["host"] for host in hosts] == list(expected)
    for host in hosts:
        score, pages, read = expected[str(host["host"])]
        assert (host["importance"], host["pages"], host["read_pages"]) == (score / total, pages, read)
    assert sum(float(str(host["importance"])) for host in hosts) == pytest.approx(1.0, abs=1e-12)
    assert query.sites("host", 3)["hosts"] == hosts[:3]


def test_hosts_of_a_window_policy_sum_up_its_estimates(valkey: Server) -> None:
    log = pep_history()[:3_000]
    _, query = opened(valkey, *log)
    for policy in POLICIES:
        pages = query.top(10_000, policy=policy, window=0.5)
        sums: dict[object, float] = defaultdict(float)
        for page in pages:
            sums[page["host"]] += float(str(page["importance"]))
        hosts = query.sites("host", 10_000, policy, 0.5)["hosts"]
        assert {host["host"]: host["importance"] for host in hosts} == pytest.approx(dict(sums), abs=1e-12)
        assert {(host["policy"], host["window"]) for host in hosts} == {(policy, None if policy == "static" else 0.5)}


PAGES = [f"http://h{i % 5}.org/{i}" for i in range(15)]
# Two hosts of one registered domain, one of another, an address and a name of one label.
SITE_PAGES = [
    f"http://{host}/{i}"
    for host in ("a.x.org", "b.x.org", "x.co.uk", "www.x.co.uk", "127.0.0.1", "localhost")
    for i in range(3)
]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(PAGES), st.lists(st.sampled_from(PAGES), max_size=5), st.sampled_from([200, 200, 404, 500])
    ),
    max_size=12,
)


@settings(max_examples=15)
@given(events=EVENTS, shards=st.sampled_from([1, 3]))
def test_hosts_sum_to_one_and_percentiles_fall_with_importance(
    valkey: Server, events: list[tuple[str, list[str], int]], shards: int
) -> None:
    valkey.client().flushall()
    log = [record(i, url, links, status=status) for i, (url, links, status) in enumerate(events)]
    _, query = opened(valkey, *log, shards=shards)
    hosts = query.sites("host", 100)["hosts"]
    known = [answer for answer in query.importance(PAGES) if answer and "gone" not in answer]
    assert sum(float(str(host["importance"])) for host in hosts) == pytest.approx(1.0 if known else 0.0, abs=1e-12)
    assert sum(int(str(host["pages"])) for host in hosts) == len(known)
    ordered = sorted(known, key=lambda answer: -float(str(answer["importance"])))
    percentiles = [float(str(answer["percentile"])) for answer in ordered]
    assert percentiles == sorted(percentiles, reverse=True)
    assert all(0 < percentile <= 100 for percentile in percentiles)
    assert percentiles[:1] == [100.0] * bool(known)


@settings(max_examples=15)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(SITE_PAGES), st.lists(st.sampled_from(SITE_PAGES), max_size=5), st.sampled_from([200, 404])
        ),
        max_size=12,
    ),
    shards=st.sampled_from([1, 4]),
)
def test_domains_are_the_sums_of_their_pages_on_any_number_of_shards(
    valkey: Server, events: list[tuple[str, list[str], int]], shards: int
) -> None:
    valkey.client().flushall()
    log = [record(i, url, links, status=status) for i, (url, links, status) in enumerate(events)]
    _, query = opened(valkey, *log, shards=shards)
    snapshot = query.snapshots.fresh()
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for url, place in zip(SITE_PAGES, query.crawl.ids_of(SITE_PAGES), strict=True):
        if place is not None:
            at = snapshot.positions(np.array([place[0]]), np.array([place[1]]))[0]
            if snapshot.scores[at] >= 0:
                domain = expected[registered_domain(host_of(url))]
                domain[0] += int(snapshot.scores[at])
                domain[1] += 1
                domain[2] += bool(snapshot.state[at] & Flag.OPEN)
    domains = query.sites("domain", 100)["domains"]
    assert {d["domain"]: [d["importance"], d["pages"], d["read_pages"]] for d in domains} == {
        name: [score / snapshot.total, pages, read] for name, (score, pages, read) in expected.items()
    }  # To the bit: the scores are integers, divided once.
    shares = [float(str(d["importance"])) for d in domains]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0 if expected else 0.0, abs=1e-12)
    for policy in POLICIES:
        hosts, sums = query.sites("host", 100, policy, 2.0)["hosts"], defaultdict[str, float](float)
        for host in hosts:
            sums[registered_domain(str(host["host"]))] += float(str(host["importance"]))
        windowed = query.sites("domain", 100, policy, 2.0)["domains"]
        assert {d["domain"]: d["importance"] for d in windowed} == pytest.approx(dict(sums), abs=1e-12)
        assert sum(int(str(d["hosts"])) for d in windowed) == len(hosts)


@settings(max_examples=15)
@given(events=EVENTS, cuts=st.sets(st.integers(0, 12)), shards=st.sampled_from([1, 3]))
def test_snapshots_that_followed_a_log_equal_one_taken_at_its_end(
    valkey: Server, events: list[tuple[str, list[str], int]], cuts: set[int], shards: int
) -> None:
    valkey.client().flushall()
    log = [record(i, url, links, status=status) for i, (url, links, status) in enumerate(events)]
    writer, query = opened(valkey, shards=shards)
    snapshots = query.snapshots
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(log)), len(log)]
    for start, end in pairwise(edges):
        writer.apply(PARTITION, log[start:end])
        while writer.deliver():
            pass
        seen = snapshots.fresh()
        _ = seen.host, seen.dangling
        query.sites("host", 3, "variable")
    followed, late = snapshots.fresh(), Snapshots(Crawl.open(valkey.client(), create=False)).fresh()
    for name in ("scores", "cash", "spent", "state", "dangling"):
        assert getattr(followed, name).tolist() == getattr(late, name).tolist()
    assert followed.ranking.ascending.tolist() == late.ranking.ascending.tolist()
    assert [followed.hosts[n] for n in followed.host] == [late.hosts[n] for n in late.host]
    other = Crawl.open(valkey.client(), create=False)
    assert query.crawl.ids_of(PAGES) == other.ids_of(PAGES)
    again = Query(query.crawl, Snapshots(query.crawl))
    assert query.sites("host", 9, "variable")["hosts"] == again.sites("host", 9, "variable")["hosts"]


def test_two_endpoints_answer_alike_in_whatever_order_they_learned_of_pages(valkey: Server) -> None:
    """All pages are alike, so the order is that of first sight; one endpoint has seen pages of a shard earlier."""
    writer, early = opened(valkey, seeds(0, *PAGES[:4]), shards=4)
    early.sites("host", 10)
    writer.apply(PARTITION, [seeds(1, *PAGES)])
    while writer.deliver():
        pass
    late = Query(writer.crawl, Snapshots(writer.crawl))
    assert early.sites("host", 10)["hosts"] == late.sites("host", 10)["hosts"]
    assert len(late.sites("host", 10)["hosts"]) == 5
    assert early.top(100) == late.top(100)
    assert early.importance(PAGES) == late.importance(PAGES)


def test_an_empty_store_has_no_hosts_and_zero_hosts_may_not_be_requested(valkey: Server) -> None:
    _, query = opened(valkey)
    assert query.sites("host", 10)["hosts"] == []
    with pytest.raises(BadInput, match="at least one host"):
        query.sites("host", 0)
    assert query.sites("domain", 10)["domains"] == []
    with pytest.raises(BadInput, match="at least one domain"):
        query.sites("domain", 0)


# Why a page has its score.


def value_of(estimate: dict[str, object]) -> float:
    """What the formula gives with its numbers."""
    return max(eval(str(estimate["formula"]), {"min": min}, estimate["numbers"]), 0)  # type: ignore[arg-type]


def explained(query: Query, url: str, policy: str | None = None, window: float | None = None) -> dict[str, object]:
    found = explain(query, url, policy, window)
    assert found is not None
    return found


def test_static_score_is_explained_with_the_numbers_of_the_model(valkey: Server) -> None:
    log = pep_history()[:10_401]
    _, query = opened(valkey, *log)
    ledger = modelled(log)
    seen = set()
    for page in list(ledger.pages.values())[::37] + [p for p in ledger.pages.values() if p.has(Flag.GONE)]:
        found = explained(query, page.url)
        gone, credit = page.has(Flag.GONE), ledger.books.credit
        seen.add(found["state"])
        assert found["state"] == ("gone" if gone else "read" if page.has(Flag.OPEN) else "unread")
        assert found["cash"] == ledger.cash(page)
        # Each grain that links brought is held, or was spent after the grants were added.
        links = ledger.cash(page) + page.spent - (0 if gone else credit)
        assert found["cash_parts"] == {"deposits": page.v, "credit": 0 if gone else credit, "from_links": links}
        history = found["history"]
        assert isinstance(history, dict)
        assert (history["total"], history["reads"]) == (page.spent, page.reads)
        assert [m["cash"] for m in history["measures"]] == [m.cash for m in page.measures]
        (answer,) = query.importance([page.url])
        assert answer is not None
        assert {name: found[name] for name in answer} == answer
        estimate = found["estimate"]
        if gone:
            assert estimate is None
            continue
        assert isinstance(estimate, dict)
        assert estimate["numbers"] == {"H": page.spent, "C": ledger.cash(page)}
        assert value_of(estimate) == estimate["value"]
        assert estimate["value"] / estimate["of"] == found["importance"]
    assert seen == {"gone", "read", "unread"}


@pytest.mark.slow
@pytest.mark.parametrize("virtual", ["grants", "continuous"])
def test_windowed_scores_are_explained_by_formulas_that_give_them(valkey: Server, virtual: str) -> None:
    log = [replace(one, time_us=NOW_US + i * 600 * MILLION) for i, one in enumerate(pep_history()[:4_000])]
    given = {"virtual": virtual} | ({} if virtual == "grants" else {"grant": 1 << 21, "minted": 1 << 46})
    _, query = opened(valkey, *log, replace(seeds(len(log), A), time_us=log[-1].time_us), **given)
    urls = [A, *(str(page["url"]) for page in query.top(10_000)[::40])]
    rules = set()
    for policy in POLICIES[1:]:
        for window in (0.02, 0.5, 8.0):
            answers = query.importance(urls, policy, window)
            for url, answer in zip(urls, answers, strict=True):
                found = explained(query, url, policy, window)
                estimate = found["estimate"]
                assert isinstance(estimate, dict)
                assert answer is not None
                assert found["importance"] == answer["importance"]
                assert value_of(estimate) == pytest.approx(estimate["value"], rel=1e-9, abs=1e-15)
                assert value_of(estimate) / estimate["of"] == pytest.approx(answer["importance"], rel=1e-9, abs=1e-15)
                rules.add((estimate["rule"], estimate["formula"]))
    whole = "(H + C) / (G + U)" + (" + D" if virtual == "continuous" else "")
    assert {
        ("fixed", "S / min(T, G)"),
        ("fixed", "(S + C) / (G - G1)"),
        ("variable", "(S + C) / (G - G1)"),
        ("interpolation", "h / W"),
        ("interpolation", "C / (G - g)"),
        ("whole life", whole),
    } <= rules


def test_unknown_page_is_not_explained(valkey: Server) -> None:
    _, query = opened(valkey, record(0, A, [B]))
    assert explain(query, C) is None
    with pytest.raises(BadUrl):
        explain(query, "/about")
    with pytest.raises(BadInput, match="not one of exact, static"):
        explain(query, A, "pagerank")


def test_explain_says_that_a_page_is_excluded(valkey: Server) -> None:
    _, query = opened(valkey, record(0, A, [B]), record(1, B, status=403))
    assert [explained(query, url)["excluded"] for url in (A, B)] == [False, True]
