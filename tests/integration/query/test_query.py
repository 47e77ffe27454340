"""Answers agree with the model to the last digit, and are never older than they say."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from conftest import ONE_SERVER, lend_server
from logs import NOW_US, PARTITION, pep_history, record, seeds
from servers import Server

from opic.errors import BadInput, BadUrl, SettingsError, StoreUnavailable
from opic.ingest import ShardWriter
from opic.model import windows
from opic.model.cash import GRANT_GRAINS, MILLION, CrawlRules, Flag
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.model.ledger_page import LedgerPage
from opic.model.series import Window
from opic.query.page_queries import Ask, ImportanceAnswer
from opic.query.queries import Query
from opic.query.snapshots import VIEW_SECONDS, VIEWS_KEPT_MAX, Snapshot, Snapshots
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.upkeep import AGE_SECONDS_MAX
from opic.service.stored_crawls import begin_anew
from opic.store import Shard
from opic.urls.canonical import host_of

A, B, C = "http://a.org/", "http://b.org/", "http://c.org/"


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def servers(request: pytest.FixtureRequest, running_servers: dict[str, Server]) -> Iterator[Server]:
    """An empty real server; Redis too in `make test` alone, since a replica answers whatever server it follows."""
    yield from lend_server(request.param, running_servers)


def open_query(server: Server, *records: Record, rules: CrawlRules | None = None) -> tuple[ShardWriter, Query]:
    """A store that these records took effect in, and what one may ask of it."""
    given = {"regrant_ppm": rules.regrant_ppm} if rules else {}
    store = ShardWriter(Shard.open(server.client(), "default", given))
    store.apply(PARTITION, records)
    return store, asking(store)


def asking(store: ShardWriter) -> Query:
    """What one may ask of a store, as if in another process: its snapshots are its own."""
    crawl = Crawl([store.shard])
    return Query(crawl, Snapshots(crawl))


def calls(server: Server, command: str) -> int:
    """How often a command was sent since the server started, from within functions too."""
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def score(ledger: Ledger, page: LedgerPage) -> int:
    return page.spent + ledger.cash(page)


def expected_entry(ledger: Ledger, page: LedgerPage) -> dict[str, object]:
    """What the model says of a page, but for its rank."""
    gone, last = page.has(Flag.GONE), page.measures[-1] if page.measures else None
    total = ledger.books.importance_total(ledger.rules.minted)
    bound = ledger.books.error_bound(ledger.rules.minted, ledger.rules.q)
    return {
        "url": page.url,
        "importance": 0.0 if gone else score(ledger, page) / total,
        "cash": ledger.cash(page),
        "reads": page.reads,
        "last_read_clock": last.clock if last else None,
        "last_fetched_at": last.fetched_at_us / MILLION if last else None,
        "policy": "static",
        "window": None,
        "teleport": "uniform",
        **({"error_bound": bound} if bound < 2 else {}),
        **({"gone": True} if gone else {}),
    }


def expected_ranks(ledger: Ledger) -> dict[str, int]:
    """Rank by URL, best first, live pages only; ties in order of first sight share the better rank."""
    live = sorted((p for p in ledger.pages.values() if not p.has(Flag.GONE)), key=lambda p: (-score(ledger, p), p.id))
    ranks: dict[str, int] = {}
    for place, page in enumerate(live, 1):
        before = live[place - 2] if place > 1 else None
        tied = before is not None and score(ledger, before) == score(ledger, page)
        ranks[page.url] = ranks[before.url] if before is not None and tied else place
    return ranks


@pytest.mark.parametrize("until", [10_401, None], ids=["while a page is gone", "to its end"])
@ONE_SERVER
def test_answers_on_a_real_history_equal_those_of_the_model(servers: Server, until: int | None) -> None:
    log = pep_history()[:until]
    store, query = open_query(servers, *log)
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    pages, books, ranks = list(ledger.pages.values()), ledger.books, expected_ranks(ledger)
    assert (books.gone > 0) == (until is not None)

    answers = query.importance(list(ledger.pages))
    for answer, page in zip(answers, pages, strict=True):
        assert answer is not None
        rank = answer.pop("rank", None)
        assert rank == ranks.get(page.url)
        assert answer.pop("percentile", None) == (rank and 100 * (len(ranks) + 1 - rank) / len(ranks))
        assert answer == expected_entry(ledger, page)
    assert sum(float(str(answer["importance"])) for answer in answers if answer) == pytest.approx(1.0, abs=1e-12)

    assert [page["url"] for page in query.top(len(pages))] == list(ranks)
    top = query.top(100)
    assert [page["url"] for page in top] == list(ranks)[:100]
    for shown, answer in zip(top, query.importance([str(page["url"]) for page in top]), strict=True):
        assert answer is not None
        assert shown == {"host": host_of(str(shown["url"])), **{name: answer[name] for name in shown if name != "host"}}

    grains = {"pages": sum(map(ledger.cash, pages)), "virtual": books.pool, "in_flight": 0, "conserved": True}
    assert query.audit() == {
        "minted": 1 << 62,
        **grains,
        "shards": [{"shard": 0, "minted": 1 << 62, **grains, "mismatches": []}],
    }

    stats = query.stats()
    assert (stats["known_pages"], stats["gone_pages"], stats["read_pages"]) == (books.live, books.gone, books.open)
    assert (stats["clock"], stats["rounds"]) == (books.clock, books.rounds / 2**32)
    assert (stats["reads"], stats["failures"], stats["links"]) == (books.reads, books.failures, books.links)
    assert (stats["bad_links"], stats["dead_letters"]) == (books.bad_links, books.dead_letters)
    assert (stats["version"], stats["shards"]) == (store.shard.books().version, 1)
    assert (stats["pool"], stats["granted_rounds"]) == (books.pool, books.credit / GRANT_GRAINS)
    assert stats["sweeps_left"] == books.sweeps_left(ledger.rules)


def test_every_answer_after_a_step_is_exact_on_a_small_store(servers: Server) -> None:
    store, query = open_query(servers)
    ledger, urls = Ledger(), [A, B, C, "http://d.org/"]
    for offset in range(40):
        event = record(offset, urls[offset % 3], [urls[(offset + 1) % 4], urls[(offset * 7 + 2) % 4]])
        store.apply(PARTITION, [event])
        ledger.apply(PARTITION, [event])
        ranks = expected_ranks(ledger)
        assert {str(page["url"]): page["rank"] for page in query.top(10)} == ranks
        for answer, page in zip(query.importance(list(ledger.pages)), ledger.pages.values(), strict=True):
            rank = ranks[page.url]
            percentile = 100 * (len(ranks) + 1 - rank) / len(ranks)
            assert answer == {**expected_entry(ledger, page), "rank": rank, "percentile": percentile}


def test_unknown_page_has_no_answer(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]))
    assert [answer and answer["url"] for answer in query.importance([C, A, "http://d.org/"])] == [None, A, None]


def test_urls_may_come_in_any_form_and_more_than_once(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]))
    first, again = query.importance(["HTTP://A.org:80/#top", A])
    assert first == again
    assert first is not None
    assert first["url"] == A
    with pytest.raises(BadUrl):
        query.importance([A, "mailto:a@b.org"])
    assert query.importance([]) == []


def test_url_may_be_as_long_as_its_setting_says(valkey: Server) -> None:
    long = A + "x" * 3_000
    store, query = open_query(valkey)
    with pytest.raises(BadUrl, match="OPIC_MAX_URL_BYTES 2,048"):
        query.importance([long])
    assert Query(Crawl([store.shard]), query.snapshots, url_bytes_max=4_096).importance([long]) == [None]


def test_gone_page_has_no_importance_and_no_rank(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B, C]), record(1, B, status=404))
    a, b, c = query.importance([A, B, C])
    assert a is not None
    assert b is not None
    assert c is not None
    assert (b["importance"], b["gone"], b.get("rank")) == (0.0, True, None)
    assert a["importance"] + c["importance"] == pytest.approx(1.0)  # type: ignore[operator]
    assert "gone" not in a
    assert [page["url"] for page in query.top(10)] == [A, C] if a["rank"] == 1 else [C, A]


def test_error_bound_of_two_is_left_out(valkey: Server) -> None:
    log = [record(0, A, [B]), record(1, B, [A])]
    store, query = open_query(valkey)
    seen = set()
    for event in log:
        store.apply(PARTITION, [event])
        bound = store.shard.books().error_bound(1 << 62, 150_000)
        (answer,) = query.importance([A])
        assert answer is not None
        assert answer.get("error_bound") == query.stats().get("error_bound") == (bound if bound < 2 else None)
        seen.add(bound < 2)
    assert True in seen


def test_invalid_policies_and_windows_are_refused_by_name(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]))
    for ask in (lambda **kw: query.importance([A], **kw), lambda **kw: query.top(1, **kw)):
        with pytest.raises(BadInput, match="not one of exact, static, interpolation, fixed, variable, improved"):
            ask(policy="pagerank")
        for window in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(BadInput, match="positive number of rounds"):
                ask(window=window)
    (answer,) = query.importance([A], policy="static", window=8.0)
    assert answer is not None
    assert answer["window"] is None


# Windows.

WINDOWED = ("interpolation", "fixed", "variable", "improved")


def expected_estimates(ledger: Ledger, policy: str, span: float | str) -> dict[str, float]:
    """Estimates by URL: pages of the model, one after the other, as the arrays that `opic.model.windows` takes."""
    pages, measures = list(ledger.pages.values()), [m for page in ledger.pages.values() for m in page.measures]
    past = windows.Past(
        starts=np.cumsum([0, *(len(page.measures) for page in pages)]),
        clock=np.array([m.clock for m in measures]),
        spent=np.array([m.cash for m in measures]),
        cash=np.array([ledger.cash(page) for page in pages]),
        history=np.array([page.spent for page in pages]),
        live=np.array([not page.has(Flag.GONE) for page in pages]),
        now=ledger.books.clock,
    )
    window = Window.parse(span).grains(ledger.series, ledger.books, ledger.rules.round_grains(ledger.books.live))
    found = windows.estimate(policy, past, window, ledger.rules.measures_max)
    return dict(zip(ledger.pages, found.tolist(), strict=True))


@pytest.mark.parametrize("until", [10_401, None], ids=["while a page is gone", "to its end"])
@ONE_SERVER
def test_window_policies_answer_as_worked_out_from_the_model(servers: Server, until: int | None) -> None:
    log = pep_history()[:until]
    _, query = open_query(servers, *log)
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    static = expected_estimates(ledger, "static", 1.0)
    for policy in WINDOWED:
        for rounds in (0.02, 0.5, 8.0):
            expected = expected_estimates(ledger, policy, rounds)
            assert sum(expected.values()) == pytest.approx(1.0, abs=1e-12)
            assert (expected == static) == (policy == "interpolation" and rounds == 8.0)  # Not warm yet.
            answers = query.importance(list(ledger.pages), policy, rounds)
            assert {answer["url"]: answer["importance"] for answer in answers if answer} == expected
            top = query.top(1_000, policy=policy, window=rounds)
            live = {url: share for url, share in expected.items() if not ledger.pages[url].has(Flag.GONE)}
            assert [page["url"] for page in top] == sorted(live, key=lambda url: -live[url])[:1_000]
            ranks = {answer["url"]: answer.get("rank") for answer in answers if answer}
            for page in top:
                assert (
                    page["rank"] == ranks[page["url"]] == 1 + sum(share > page["importance"] for share in live.values())
                )
                assert (page["policy"], page["window"]) == (policy, rounds)


def test_windows_in_days_answer_as_worked_out_from_the_model(servers: Server) -> None:
    """The log runs for 17 days, ten minutes a record; then a day is not what a round is."""
    log = [replace(record, time_us=NOW_US + i * 600 * MILLION) for i, record in enumerate(pep_history()[:2_500])]
    _, query = open_query(servers, *log)
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    live = [url for url, page in ledger.pages.items() if not page.has(Flag.GONE)]
    seen = set()
    for policy in WINDOWED:
        for span in ("1.5h", "2d", "48h", "10d", "18d", "1000d"):
            expected = expected_estimates(ledger, policy, span)
            assert sum(expected.values()) == pytest.approx(1.0, abs=1e-12)
            top = query.top(len(ledger.pages), policy=policy, window=span)
            assert {page["url"]: page["importance"] for page in top} == {url: expected[url] for url in live}
            assert {page["window"] for page in top} == {span}
            seen.add((policy, tuple(expected.values())))
    assert len([1 for policy, _ in seen if policy == "fixed"]) == 4  # 2d is 48h, and 18d is all there is.
    (one,) = query.importance([live[0]], "fixed", "010.0d")
    assert one is not None
    assert (one["importance"], one["window"]) == (expected_estimates(ledger, "fixed", "10d")[live[0]], "10d")


def test_window_policy_comes_without_an_error_bound_and_with_its_window(valkey: Server) -> None:
    _, query = open_query(valkey, *pep_history()[:2_000])
    url = str(query.top(1)[0]["url"])
    for policy in WINDOWED:
        static, windowed = query.importance([url])[0], query.importance([url], policy)[0]
        assert static is not None
        assert windowed is not None
        assert (windowed["policy"], windowed["window"]) == (policy, 8.0)
        assert "error_bound" not in windowed
        for name in ("url", "cash", "reads", "last_read_clock", "last_fetched_at", "teleport"):
            assert windowed[name] == static[name]


def test_policy_and_window_default_to_the_settings(valkey: Server) -> None:
    _, plain = open_query(valkey, *pep_history()[:3_000])
    query = Query(plain.crawl, plain.snapshots, policy="fixed", window_rounds=0.5)
    assert query.top(9) == plain.top(9, policy="fixed", window=0.5)
    assert query.top(9, window=0.1) == plain.top(9, policy="fixed", window=0.1)
    assert query.top(9, policy="static") == plain.top(9)
    assert query.top(9, domain="python.org") == plain.top(9, domain="python.org", policy="fixed", window=0.5)


def test_policy_whose_measures_are_not_kept_names_the_setting(valkey: Server) -> None:
    store = ShardWriter(Shard.open(valkey.client(), "default", {"measures_max": 1}))
    store.apply(PARTITION, [record(0, A, [B])])
    query = asking(store)
    for policy in ("fixed", "variable", "improved"):
        for ask in (lambda name: query.importance([A], name), lambda name: query.top(1, policy=name)):
            with pytest.raises(BadInput, match=f"policy={policy} needs . measures.*OPIC_HISTORY_MEASURES=1"):
                ask(policy)
        with pytest.raises(SettingsError, match=r"OPIC_POLICY: .*OPIC_HISTORY_MEASURES=1"):
            Query(Crawl([store.shard]), query.snapshots, policy=policy)
    (answer,) = query.importance([A], "interpolation")
    assert answer is not None


def measures_of(ledger: Ledger) -> list[tuple[int, int]]:
    """Clock and cash of all measures, in order of pages."""
    return [(m.clock, m.cash) for page in ledger.pages.values() for m in page.measures]


def wide_log(count: int, pages: int = 3_000) -> list[Record]:
    """Reads of pages at random, over many buckets; some twice in a row, hence without cash."""
    rng, log = random.Random(1), []
    while len(log) < count:
        page, *links = (f"http://h{i % 50}.org/{i}" for i in rng.sample(range(pages), 6))
        for _ in range(rng.choice([1] * 9 + [2])):
            log.append(record(len(log), page, links))
    return log[:count]


@ONE_SERVER
def test_windows_after_each_step_equal_those_of_a_new_reader(servers: Server) -> None:
    """Some reads spend nothing: they move no column of the state, but have a measure, and may push one out."""
    log = wide_log(2_400)
    store, query = open_query(servers, *log[:2_000])
    ledger = Ledger()
    ledger.apply(PARTITION, log[:2_000])
    query.top(1, policy="fixed")
    of_no_cash = 0
    for at in range(2_000, 2_400, 20):
        store.apply(PARTITION, log[at : at + 20])
        clocks = []
        for event in log[at : at + 20]:
            clocks.append(ledger.books.clock)
            ledger.apply(PARTITION, [event])
        of_no_cash += sum(a == b for a, b in pairwise([*clocks, ledger.books.clock]))
        past = query.snapshots.fresh()._past()
        assert list(zip(past.clock.tolist(), past.spent.tolist(), strict=True)) == measures_of(ledger)
        assert query.top(50, policy="fixed") == asking(store).top(50, policy="fixed")
    assert of_no_cash > 0


def test_read_of_no_cash_is_a_measure_that_windows_see(servers: Server) -> None:
    store, query = open_query(servers, record(0, A, [B]), record(1, B), rules=CrawlRules(regrant_ppm=0))
    query.top(1, policy="variable")
    before = query.snapshots.fresh()
    ledger = Ledger(CrawlRules(regrant_ppm=0))
    ledger.apply(PARTITION, [record(0, A, [B]), record(1, B)])
    for offset in range(2, 9):
        event = record(offset, A, [B])
        store.apply(PARTITION, [event])
        ledger.apply(PARTITION, [event])
        after = query.snapshots.fresh()
        assert after.spent.tolist() == before.spent.tolist()
        past = after._past()
        assert list(zip(past.clock.tolist(), past.spent.tolist(), strict=True)) == measures_of(ledger)
    assert len(measures_of(ledger)) == 4 + 1


def test_measures_are_gathered_once_per_state(valkey: Server) -> None:
    _, query = open_query(valkey, *pep_history()[:500])
    query.top(10, policy="fixed", window=1.0)
    past = query.snapshots.fresh().kept["past"]
    for policy in WINDOWED:
        for rounds in (1.0, 2.0):
            query.top(10, policy=policy, window=rounds)
    assert query.snapshots.fresh().kept["past"] is past
    assert len(query.snapshots.fresh().kept["views"]) <= VIEWS_KEPT_MAX


@pytest.mark.parametrize("looked_before", [False, True])
def test_measures_that_come_after_the_columns_were_read_are_left_out(valkey: Server, looked_before: bool) -> None:
    """The state shown stays that of one instant, though measures are read later; pages lose their oldest ones only."""
    log = pep_history()[:1_200]
    store, query = open_query(valkey, *log[:600])
    if looked_before:
        query.top(1, policy="fixed")
    store.apply(PARTITION, log[600:1_000])
    snapshot = query.snapshots.fresh()
    store.apply(PARTITION, log[1_000:])
    query.crawl.follow()
    past = snapshot._past()
    ledger = Ledger()
    ledger.apply(PARTITION, log[:1_000])
    assert past.now == ledger.books.clock
    lacking = 0
    for i, page in enumerate(list(ledger.pages.values())[: len(snapshot)]):
        at = slice(int(past.starts[i]), int(past.starts[i + 1]))
        # A later read that spent nothing did not move the clock: it can't be told, and changes no sum.
        kept = [m for m in zip(past.clock[at].tolist(), past.spent[at].tolist(), strict=True) if m[1]]
        then = [(m.clock, m.cash) for m in page.measures if m.cash]
        assert kept == then[len(then) - len(kept) :]
        lacking += len(kept) < len(then)
    assert lacking > 0
    for policy in WINDOWED:
        assert snapshot.view(policy, Window(0.5)).estimates.sum() == pytest.approx(1.0, abs=1e-12)


def test_history_is_the_last_measures_oldest_first(servers: Server) -> None:
    log = pep_history()[:6_000]
    _, query = open_query(servers, *log)
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    for page in list(ledger.pages.values())[:300]:
        measures = [{"clock": m.clock, "cash": m.cash, "fetched_at": m.fetched_at_us / MILLION} for m in page.measures]
        assert query.history(page.url) == {"url": page.url, "measures": measures}
    assert query.history("http://never.example/") is None


def test_history_of_a_page_never_read_is_empty(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]))
    assert query.history("HTTP://B.org:80") == {"url": B, "measures": []}
    assert query.history(C) is None
    with pytest.raises(BadUrl):
        query.history("/about")


DOMAIN_PAGES = [
    "http://example.org/",
    "http://www.example.org/a",
    "https://user@deep.www.example.org:8443/b",
    "http://notexample.org/",
    "http://example.org.evil.net/",
    "http://example.org.:81/",
    "http://xn--bcher-kva.example/",
    "http://shop.xn--bcher-kva.example/",
    "http://127.0.0.1/",
    "http://[::1]:8080/",
]


@pytest.mark.parametrize(
    ("domain", "places"),
    [
        ("example.org", [0, 1, 2]),
        ("EXAMPLE.ORG", [0, 1, 2]),
        ("www.example.org", [1, 2]),
        ("org", [0, 1, 2, 3]),
        ("ample.org", []),
        ("bücher.example", [6, 7]),
        ("127.0.0.1", [8]),
        ("[::1]", [9]),
        ("unknown.org", []),
    ],
)
def test_top_of_a_domain_is_its_host_and_all_below(valkey: Server, domain: str, places: list[int]) -> None:
    _, query = open_query(valkey, seeds(0, *DOMAIN_PAGES))
    found = query.top(100, domain=domain)
    assert [page["url"] for page in found] == [DOMAIN_PAGES[i] for i in places]  # All alike, so as first seen.
    assert all(page["rank"] == 1 for page in found)


def test_rank_in_a_domain_is_the_rank_among_all(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]), record(1, B, [C]), record(2, C, [B]))
    ranks = {page["url"]: page["rank"] for page in query.top(10)}
    for url in (A, B, C):
        assert [page["rank"] for page in query.top(10, domain=url.split("/")[2])] == [ranks[url]]


def test_pages_that_become_known_later_are_found_by_their_domain(valkey: Server) -> None:
    store, query = open_query(valkey, seeds(0, A))
    assert query.top(10, domain="a.org")
    for offset in range(1, 4):
        urls = [f"http://h{offset}.a.org/{i}" for i in range(300)]
        store.apply(PARTITION, [seeds(offset, *urls)])
        assert [page["url"] for page in query.top(1000, domain=f"h{offset}.a.org")] == urls
        assert len(query.top(1000, domain="a.org")) == 1 + min(offset * 300, 999)


def test_bad_parameters_of_top_are_refused(valkey: Server) -> None:
    _, query = open_query(valkey, seeds(0, A))
    with pytest.raises(BadInput, match="at least one page"):
        query.top(0)
    with pytest.raises(BadInput, match="not a host"):
        query.top(1, domain="a.org/path")


def test_empty_store_has_answers_too(valkey: Server) -> None:
    _, query = open_query(valkey)
    assert query.top(10) == query.top(10, domain="a.org") == []
    assert query.importance([A]) == [None]
    assert query.stats()["known_pages"] == 0
    assert query.audit()["conserved"]


def test_audit_detects_a_missing_grain(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    assert query.audit()["conserved"]
    store.checkpoint()
    block = store.shard.keys.block(0)
    v = np.frombuffer(store.shard.client.hget(block, "v"), "<i8").copy()
    v[1] -= 1  # B was never read: of the totals only that of all pages has its cash.
    store.shard.client.hset(block, "v", v.tobytes())
    audit = asking(store).audit()
    assert not audit["conserved"]
    assert int(str(audit["minted"])) == int(str(audit["pages"])) + int(str(audit["virtual"])) + 1
    v[0] -= 1  # And A was.
    store.shard.client.hset(block, "v", v.tobytes())
    (shard,) = asking(store).audit()["shards"]  # type: ignore[misc]
    assert any("open_cash" in mismatch for mismatch in shard["mismatches"])


def test_clock_beyond_double_precision_is_answered_to_the_grain(valkey: Server) -> None:
    store, _ = open_query(valkey, record(0, A, [B]))
    huge = (1 << 61) + 1
    replica = store.replica
    replica.books.clock = replica.histories.rows.spent[replica.columns.row[0]] = huge
    store.apply(PARTITION, [record(1, B, [A])])
    store.checkpoint()
    a, b = asking(store).importance([A, B])
    books = store.shard.books()
    assert books.clock > huge
    assert a is not None
    assert b is not None
    assert b["last_read_clock"] == books.clock
    assert a["importance"] == (huge + int(str(a["cash"]))) / books.importance_total(1 << 62)
    assert (a["rank"], b["rank"]) == (1, 2)
    assert asking(store).top(1)[0]["importance"] == a["importance"]


# Snapshots.


def test_nothing_is_recomputed_while_nothing_changes(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    query.top(10)
    started = time.time()
    first = query.snapshots.fresh()
    second = query.snapshots.fresh()
    assert started <= first.as_of <= second.as_of <= time.time()
    assert second.scores is first.scores
    store.apply(PARTITION, [record(1, B, [A])])
    assert query.snapshots.fresh().books.version == first.books.version + 1


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping up takes long, as on a large crawl."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_busy_store_is_shown_at_most_a_second_old(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    snapshots = query.snapshots
    shown = snapshots.fresh()
    offset, kept, deadline = 0, 0, time.monotonic() + 20
    versions: set[int] = set()
    ranks_of_then = 0
    while len(versions) < 4 or not kept:
        assert time.monotonic() < deadline
        offset += 1
        store.apply(PARTITION, [record(offset, A, [B])])
        asked = time.time()
        shown = snapshots.fresh()
        assert asked - shown.as_of <= AGE_SECONDS_MAX + 0.05
        kept += shown.books.version < store.shard.books().version
        versions.add(shown.books.version)
        # A single page is exact all the same.
        (answer,) = query.importances([Ask([A])])
        assert isinstance(answer, ImportanceAnswer)
        assert answer.pages[0] is not None
        assert answer.pages[0]["reads"] == offset + 1
        assert answer.as_of >= asked
        if answer.rank_as_of is not None:
            assert asked - answer.rank_as_of <= AGE_SECONDS_MAX + 0.05
            ranks_of_then += 1
    assert ranks_of_then


@pytest.mark.usefixtures("long")
def test_idle_store_is_shown_up_to_date(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    snapshots = query.snapshots
    snapshots.fresh()
    store.apply(PARTITION, [record(1, B, [A])])
    last, deadline = store.shard.books().version, time.monotonic() + 20
    while (shown := snapshots.fresh()).books.version != last:
        assert time.monotonic() < deadline
        assert time.time() - shown.as_of <= AGE_SECONDS_MAX + 0.05
    asked = time.time()
    shown = snapshots.fresh()
    assert (shown.books.version, shown.as_of >= asked) == (last, True)


@pytest.mark.usefixtures("long")
def test_fresh_answer_is_available_on_a_busy_store(valkey: Server) -> None:
    store, query = open_query(valkey)
    for offset in range(5):
        store.apply(PARTITION, [record(offset, A, [B])])
        asked = time.time()
        shown = query.snapshots.fresh(0.0)
        assert (shown.books.version, shown.as_of >= asked) == (store.shard.books().version, True)


# Keeping up.


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_replicas_follow_without_queries(servers: Server, caplog: pytest.LogCaptureFixture) -> None:
    """And go on after the store was away, which is said once."""
    caplog.set_level(logging.INFO, "opic.replica")
    store = ShardWriter(Shard.open(servers.client()))
    crawl = Crawl.open(servers.client(), create=False)
    crawl.keep_following(0.01)
    for offset in range(3):
        store.apply(PARTITION, [record(offset, A, [B])])
        until(lambda at=offset: crawl.replicas[0].books.reads == at + 1)  # type: ignore[misc]
    (standing,) = crawl.standing()
    assert (standing.lsn, standing.pages, standing.loads) == (3, 2, crawl.replicas[0].loads)
    assert 0 <= standing.age_seconds < 20
    servers.kill()
    until(lambda: crawl.standing()[0].age_seconds > 0.2)
    with pytest.raises(StoreUnavailable):
        crawl.follow()
    servers.restart()
    until(lambda: crawl.standing()[0].age_seconds < 0.2)
    until(lambda: len(caplog.messages) == 2)
    assert caplog.messages[0].startswith("can't follow the store: ")
    assert caplog.messages[1] == "following the store again after an outage"
    crawl.close()
    assert not crawl._keeper.is_alive()  # type: ignore[union-attr]
    looked = crawl.standing()[0].age_seconds
    time.sleep(0.1)
    assert crawl.standing()[0].age_seconds > looked  # Nobody looks any more.


def test_following_thread_skips_what_queries_have_just_read(valkey: Server) -> None:
    _, query = open_query(valkey)
    query.crawl.keep_following(0.05)
    before, asked, deadline = calls(valkey, "hmget"), 0, time.monotonic() + 1
    while time.monotonic() < deadline:
        query.crawl.follow()
        asked += 1
    assert calls(valkey, "hmget") - before <= asked + 2
    query.crawl.close()


def test_interrupted_load_shows_nothing_until_it_is_complete(valkey: Server) -> None:
    """Not an empty crawl, nor half of one, to whoever had already caught up when it began."""
    log = pep_history()[:300]
    store, query = open_query(valkey, *log)
    urls = [page.url for page in query.crawl.pages()]
    (replica,), (follower,) = query.crawl.replicas, query.crawl._followers
    with (
        patch.object(follower, "_read_blocks", side_effect=StoreUnavailable("away")),
        pytest.raises(StoreUnavailable, match="away"),
    ):
        follower.load()
    assert replica.head.lsn == store.replica.head.lsn  # Nothing was touched yet.
    with (
        patch("opic.replica.checkpoint.Loading.finish", side_effect=StoreUnavailable("away")),
        pytest.raises(StoreUnavailable, match="away"),
    ):
        follower.load()
    for look in (lambda: query.crawl.rows([(0, 0)]), lambda: Snapshot.of(0.0, query.crawl)):
        with pytest.raises(StoreUnavailable, match="could not be read to its end"):
            look()
    assert [answer and answer["url"] for answer in query.importance(urls)] == urls
    assert query.top(len(urls)) == asking(store).top(len(urls))


@pytest.mark.parametrize("how", ["made anew", "without its tail"])
def test_reader_of_a_replaced_store_shows_only_its_pages(servers: Server, how: str) -> None:
    """The ids of before are other pages' now, and so are the numbers of hosts."""
    log = [record(i, f"http://h{i % 7}.org/{i}", [f"http://h{i % 5}.net/{i}"]) for i in range(100)]
    store = ShardWriter(Shard.open(servers.client()))
    store.apply(PARTITION, log)
    crawl = Crawl.open(servers.client(), create=False)
    query = Query(crawl, Snapshots(crawl))
    lost = [record(100 + i, f"http://lost.org/{i}", [f"http://lost{i}.org/"]) for i in range(50)]
    kept = []
    if how == "made anew":
        store.apply(PARTITION, lost)
    else:
        files = (servers.directory / "appendonlydir").glob("*.incr.aof")
        file = max(files, key=lambda file: int(file.name.split(".")[2]))
        durable, kept = file.stat().st_size, log
        store.apply(PARTITION, lost)
    urls = [page["url"] for page in query.top(1_000)]
    assert "http://lost.org/1" in urls
    assert query.sites("host", 100, "fixed")["hosts"]
    assert query.top(5, domain="lost.org")
    if how == "made anew":
        servers.client().flushall()
        begin_anew(servers.client(), "default", {}, 1)
    else:
        servers.kill()
        with file.open("r+b") as written:
            written.truncate(durable)
        servers.restart()
    other = [record(len(kept) + i, f"http://other.org/{i}", [f"http://{i}.other.net/", B]) for i in range(50)]
    now = ShardWriter(Shard.open(servers.client()))
    assert now.next_offset(PARTITION) == len(kept)
    now.apply(PARTITION, other)
    ledger = Ledger()
    ledger.apply(PARTITION, [*kept, *other])
    assert {page["url"]: page["rank"] for page in query.top(1_000)} == expected_ranks(ledger)
    known = list(ledger.pages)
    assert [answer and answer["url"] for answer in query.importance(known)] == known
    assert query.importance(["http://lost.org/1", "http://lost1.org/"]) == [None, None]
    assert query.top(5, domain="lost.org") == []
    plain = asking(now)
    for policy in ("static", "fixed"):
        assert query.top(1_000, policy=policy) == plain.top(1_000, policy=policy)
        assert query.sites("host", 1_000, policy)["hosts"] == plain.sites("host", 1_000, policy)["hosts"]


def test_answer_overtaken_by_a_new_load_is_computed_again(valkey: Server) -> None:
    """Between the choice of the top and the look at its URLs, ids became other pages'."""
    _, query = open_query(valkey, *(record(i, f"http://h.org/{i}", [A]) for i in range(20)))
    urls_of = query.crawl.urls_of
    turns = []

    def overtaken(places: Iterable[Place]) -> dict[Place, str]:
        if not turns:
            turns.append(1)
            valkey.client().flushall()
            begin_anew(valkey.client(), "default", {}, 1)
            ShardWriter(Shard.open(valkey.client())).apply(PARTITION, [record(0, B, [C])])
            query.crawl.follow()
        return urls_of(places)

    with patch.object(query.crawl, "urls_of", overtaken):
        assert {page["url"] for page in query.top(10)} == {B, C}


def test_rows_and_ranks_of_an_answer_are_of_one_state_though_another_thread_follows(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]), record(1, B, [C]))
    look, ledger = query.crawl.find_rows, Ledger()
    ledger.apply(PARTITION, [record(0, A, [B]), record(1, B, [C]), record(2, C, [A])])
    turns = []

    def overtaken(urls: Sequence[str], since: float) -> object:
        found = look(urls, since)
        if not turns:
            turns.append(1)
            store.apply(PARTITION, [record(2, C, [A])])
            query.crawl.follow()
        return found

    with patch.object(query.crawl, "find_rows", overtaken):
        found = query.importance([A, B, C])
    ranks = expected_ranks(ledger)
    for answer in found:
        assert answer is not None
        expected = {**expected_entry(ledger, ledger.pages[str(answer["url"])]), "rank": ranks[str(answer["url"])]}
        assert {name: answer[name] for name in expected} == expected


def test_reader_releases_urls_that_the_checkpoint_has(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its memory would grow by the URL of each page that ever became known."""
    monkeypatch.setattr("opic.replica.follow.TAIL_LOOK_BYTES", 20_000)
    store = ShardWriter(Shard.open(servers.client()), journal_bytes=10_000)
    crawl = Crawl.open(servers.client(), create=False)
    query, urls = Query(crawl, Snapshots(crawl)), list[str]()
    kept = 0
    for offset in range(60):
        more = [f"http://h{offset}.org/{i}" for i in range(500)]
        urls += more
        store.apply(PARTITION, [seeds(offset, *more)])
        crawl.follow()
        (tail,) = (replica.tail for replica in crawl.replicas)
        assert tail.end == len(urls)
        kept = max(kept, tail.end - tail.first)
    assert crawl.replicas[0].loads == 2, "the journal was trimmed under it, so all URLs were let go of"
    assert kept < len(urls) // 3
    assert tail.first > len(urls) // 2
    assert [page["url"] for page in query.top(len(urls))] == urls  # All alike, so as first seen.


def test_batched_queries_are_answered_like_single_ones(servers: Server) -> None:
    log = pep_history()[:2_000]
    _, query = open_query(servers, *log)
    urls = [page.url for page in query.crawl.pages()][:60]
    asks = [Ask(urls[i : i + i % 4]) for i in range(40)]
    asks += [Ask([urls[0], "http://never.example/"]), Ask(urls[:5], "fixed", 0.5), Ask([]), Ask(urls[::-1], "variable")]
    plain = [query.importance(ask.urls, ask.policy, ask.window) for ask in asks]
    bad = [Ask([urls[0], "mailto:a@b.org"]), Ask([urls[0]], "pagerank"), Ask([urls[0]], window=-1.0)]
    found = query.importances([*bad, *asks])
    assert [type(one).__name__ for one in found[:3]] == ["BadUrl", "BadInput", "BadInput"]
    assert [one.pages for one in found[3:] if isinstance(one, ImportanceAnswer)] == plain


def test_batched_queries_cost_one_round_trip(valkey: Server) -> None:
    _, query = open_query(valkey, *pep_history()[:2_000])
    urls = [page.url for page in query.crawl.pages()][:500]
    asks = [Ask([url]) for url in urls]
    cold = query.importances(asks)

    def commands() -> tuple[int, ...]:
        return tuple(calls(valkey, name) for name in ("hmget", "xrange", "hget", "hgetall", "get", "fcall_ro", "fcall"))

    before = commands()
    assert [one.pages for one in query.importances(asks) if isinstance(one, ImportanceAnswer)] == [
        one.pages for one in cold if isinstance(one, ImportanceAnswer)
    ]
    assert commands() == (before[0] + 1, before[1] + 1, *before[2:])


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_window_policies_show_a_state_of_a_moment_ago_and_say_so(valkey: Server) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    snapshots, offset, kept, deadline = query.snapshots, 0, 0, time.monotonic() + 20
    versions: set[int] = set()
    while len(versions) < 4 or not kept:
        assert time.monotonic() < deadline
        offset += 1
        store.apply(PARTITION, [record(offset, A, [B])])
        asked, as_of = time.time(), query.sites("host", 1, "fixed", 1.0)["as_of"]
        shown, _ = snapshots.view("fixed", Window(1.0))
        assert asked - shown.as_of <= VIEW_SECONDS + 0.05
        assert as_of <= shown.as_of
        kept += shown.books.version < store.shard.books().version
        versions.add(shown.books.version)


def test_snapshot_is_read_only(valkey: Server) -> None:
    _, query = open_query(valkey, record(0, A, [B]))
    snapshot = query.snapshots.fresh()
    for column in (snapshot.parts[0].cash, snapshot.sums, snapshot.state, snapshot.cash, snapshot.host):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(AttributeError):
        snapshot.as_of = 0.0  # type: ignore[misc]


def test_readers_see_states_of_one_instant_while_a_worker_steps(valkey: Server) -> None:
    """Sum of H + C over the pages is what the books say: not so if a column or a block were of another step."""
    log = pep_history()[:6_000]
    store, query = open_query(valkey, *log[:10])
    known = [str(page["url"]) for page in query.top(50)]
    done = threading.Event()
    seen: list[int] = []
    wrong: list[str] = []

    def look() -> None:
        while not done.is_set():
            snapshot = query.snapshots.fresh()
            total = snapshot.books.importance_total(1 << 62)
            if int(snapshot.scores[snapshot.scores >= 0].sum()) != total:
                wrong.append(f"version {snapshot.books.version}")
            if len(snapshot.host) != len(snapshot) or int(snapshot.host.max()) >= len(snapshot.hosts):
                wrong.append(f"hosts of version {snapshot.books.version}")
            if None in query.importance(known):
                wrong.append(f"a known page was not found in version {snapshot.books.version}")
            top = query.top(50)
            if [p["rank"] for p in top] != sorted(int(str(p["rank"])) for p in top):
                wrong.append(f"order of version {snapshot.books.version}")
            seen.append(snapshot.books.version)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for at in range(0, len(log), 40):
        store.apply(PARTITION, log[at : at + 40])
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(set(seen)) > 10


def test_last_fetched_at_is_the_time_of_the_fetch(valkey: Server) -> None:
    at = NOW_US / MILLION - 86_400.25
    _, query = open_query(valkey, record(0, A, [B], fetched_at=at))
    (answer,) = query.importance([A])
    assert answer is not None
    assert answer["last_fetched_at"] == pytest.approx(at, abs=1e-6)


def test_rank_is_one_more_than_the_number_of_larger_scores(valkey: Server) -> None:
    _, query = open_query(valkey, *pep_history()[:3_000])
    snapshot = query.snapshots.fresh()
    scores = snapshot.scores[snapshot.scores >= 0].tolist()
    wanted = [1 + sum(other > score for other in scores) for score in scores]
    assert snapshot.ranking.ranks(scores) == wanted
    assert max(wanted) > 50


@pytest.mark.usefixtures("long")
def test_ranks_of_a_busy_store_are_recomputed_twice_a_second(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store, query = open_query(valkey, record(0, A, [B]))
    now = time.time()
    monkeypatch.setattr("opic.query.snapshots.time.time", lambda: now)
    (first,) = query.importances([Ask([A])])
    store.apply(PARTITION, [record(1, C, [A])])
    (second,) = query.importances([Ask([A, C])])
    assert isinstance(first, ImportanceAnswer)
    assert isinstance(second, ImportanceAnswer)
    assert first.rank_as_of is None
    assert second.rank_as_of is not None
    assert second.pages[1] is not None
    assert second.pages[1]["reads"] == 1
    now += AGE_SECONDS_MAX
    (third,) = query.importances([Ask([A, C])])
    assert isinstance(third, ImportanceAnswer)
    assert third.rank_as_of is None
