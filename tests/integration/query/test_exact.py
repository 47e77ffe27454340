"""Exact importance: PageRank of the known graph as networkx computes it, within the bound told, after any events."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from exact_readers import asked, error_and_bound, shares, truth
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server
from serving import serving, serving_embedded

from opic.client import Client, Conflict
from opic.errors import BadInput, NotKept
from opic.query.explain import explain
from opic.query.page_queries import Ask, ImportanceAnswer
from opic.query.queries import Query
from opic.service.service import EmbeddedService
from opic.settings import Settings

WAIT_SECONDS = 20.0


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_importance_is_pagerank_of_the_known_graph_within_the_bound(valkey: Server, shards: int) -> None:
    """Asked by a reader that follows all along, and by one that begins now."""
    web, draw = Web(valkey, f"exact-{shards}", shards), random.Random(shards)
    following = asked(web.crawl)
    for step in range(60):
        url, links, what = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 4)), draw.random()
        web.read(url, links[:1] if 0.15 <= what < 0.25 else links, 404 if what < 0.15 else 301 if what < 0.25 else 200)
        if step % 4 == 3:
            web.writer.drain()
            expected = truth(web)
            for query in (following, asked(web.opened(shards))):
                error, bound = error_and_bound(query, expected)
                assert error <= bound <= 0.01
                found = query.importance(list(expected))
                assert {page["policy"] for page in found if page} == {"exact"}
                assert sum(shares(found).values()) == pytest.approx(1.0)


def test_top_hosts_domains_and_explain_agree(valkey: Server) -> None:
    web = Web(valkey, "says", 1)
    for page in range(12):
        web.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14]])
    query, expected = asked(web.crawl), truth(web)
    top = query.top(20)
    assert shares(top) == pytest.approx(expected, abs=1e-5)
    assert [page["rank"] for page in top] == sorted(page["rank"] for page in top)  # type: ignore[type-var]
    assert top[0]["certain"]
    assert top[0]["error_bound"] <= 1e-6  # type: ignore[operator]
    by_host = dict[str, float]()
    for url, share in expected.items():
        host = url.split("/")[2]
        by_host[host] = by_host.get(host, 0.0) + share
    hosts, domains = query.sites("host")["hosts"], query.sites("domain")["domains"]
    assert {host["host"]: host["importance"] for host in hosts} == pytest.approx(by_host, abs=1e-5)
    assert all(one["error_bound"] <= 1e-6 for one in [*hosts, *domains])
    assert sum(one["importance"] for one in domains) == pytest.approx(1.0)
    found = explain(query, PAGES[0])
    assert found is not None
    estimate = found["estimate"]
    assert estimate["rule"] == "exact"  # type: ignore[index]
    assert estimate["value"] / estimate["of"] == pytest.approx(found["importance"])  # type: ignore[index]


def test_explanation_is_as_of_the_state_that_its_importance_is_of(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web(valkey, "explained")
    web.read(PAGES[0], [PAGES[1], PAGES[2]])
    query = asked(web.crawl)
    (before,), look = query.importance([PAGES[1]]), query.crawl.find_rows
    assert before is not None

    def look_and_change(*asked_for: Any) -> Any:
        found = look(*asked_for)
        web.read(PAGES[1], [PAGES[3]])
        return found

    monkeypatch.setattr(query.crawl, "find_rows", look_and_change)
    found = explain(query, PAGES[1])
    assert found is not None
    assert found["importance"] == before["importance"]


def test_questions_take_the_last_settled_state_where_keeping_up_takes_long(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opic.query.exact.LOOK_SECONDS", 3_600.0)  # The thread beside does nothing here.
    web = Web(valkey, "busy")
    web.read(PAGES[0], [PAGES[1]])
    exact = asked(web.crawl).exact
    assert exact is not None
    first = exact.view()
    exact.start()
    web.read(PAGES[1], [PAGES[2]])
    second = exact.view()
    assert second.shares is not first.shares
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    web.read(PAGES[2], [PAGES[3]])
    web.crawl.follow()
    third = exact.view()
    assert third.shares is second.shares
    assert (third.heads, third.as_of) == (second.heads, second.as_of)
    assert second.heads != web.crawl.heads()
    assert second.bound <= 0.01 < third.bound  # A page was read for the first time, and another one is new.
    with ThreadPoolExecutor(1) as pool, exact.flows.kept.lock:  # As a settling that takes long.
        assert pool.submit(exact.view).result(WAIT_SECONDS).shares is second.shares
    web.crawl.show()
    assert exact.view().heads == web.crawl.heads()
    exact.close()


def test_an_old_state_is_settled_by_the_question_where_no_thread_keeps_importance_up(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.serves", lambda *_: False)  # As after a second.
    web = Web(valkey, "asked-seldom")
    web.read(PAGES[0], [PAGES[1]])
    exact = asked(web.crawl).exact
    assert exact is not None
    exact.view()
    exact.start(always=False)  # Another policy is the default.
    web.read(PAGES[1], [PAGES[2]])
    web.crawl.follow()
    assert exact.view().heads == web.crawl.heads()
    assert exact.view().bound <= 0.01
    exact.close()


def test_rank_of_pages_with_overlapping_bounds_is_uncertain(valkey: Server) -> None:
    web = Web(valkey, "near", 1)
    web.read(PAGES[0], [PAGES[1], PAGES[2]])  # The two have the same importance.
    top = asked(web.crawl).top(3)
    assert [page["certain"] for page in top if page["url"] in PAGES[1:3]] == [False, False]


def test_pages_read_before_links_were_kept_widen_the_bound(valkey: Server) -> None:
    web = Web(valkey, "late", keep_links=False)
    for page in PAGES[:8]:
        web.read(page, [PAGES[9]])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        asked(web.crawl).importance(PAGES[:1], "exact")
    assert asked(web.crawl).importance(PAGES[:1])[0]["policy"] == "static"  # type: ignore[index]
    web.writer = type(web.writer)(web.opened(keep_links=True))
    web.read(PAGES[8], [PAGES[9]])
    query, expected = asked(web.crawl), truth(web)
    found = query.importance(list(expected), "exact")
    bound = found[0]["error_bound"]  # type: ignore[index]
    assert sum(abs(expected[page] - share) for page, share in shares(found).items()) <= bound
    assert bound > 1
    assert query.importance(PAGES[:1])[0]["policy"] == "static"  # type: ignore[index]


@pytest.mark.parametrize("shards", [1, 3])
def test_importance_is_exact_after_links_are_switched_off_and_on_again(valkey: Server, shards: int) -> None:
    """The bound counts the pages read meanwhile, and those of before; once all are read again it is exact."""
    web, draw = Web(valkey, f"switched-{shards}", shards), random.Random(shards)
    following = asked(web.opened(shards))

    def read_all(pages: Sequence[str]) -> None:
        for page in pages:
            web.read(page, draw.sample([*PAGES, "http://x.org/"], 3))
            if draw.random() < 0.2:
                web.writer.stores[0].checkpoint()
        web.writer.drain()

    def told() -> list[tuple[float, float]]:
        """The true error and the bound, of a reader that follows and of one that begins now."""
        expected = truth(web)
        return [error_and_bound(query, expected) for query in (following, asked(web.opened(shards)))]

    read_all(PAGES)
    assert all(error <= bound <= 0.01 for error, bound in told())
    web.writer = type(web.writer)(web.opened(shards, keep_links=False))
    read_all(PAGES[:9])
    if shards == 1:  # Of the others a shard may have read nothing.
        with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
            following.importance(PAGES[:1], "exact")
    assert following.importance(PAGES[:1])[0]["policy"] == "static"  # type: ignore[index]
    web.writer = type(web.writer)(web.opened(shards, keep_links=True))
    for page in PAGES[::-1]:
        read_all([page])
        assert all(error <= bound for error, bound in told())
    assert all(bound <= 0.01 for _, bound in told())
    assert following.importance(PAGES[:1])[0]["policy"] == "exact"  # type: ignore[index]


@pytest.mark.slow
def test_service_answers_by_links_by_default(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", keep_links=True) as (http, client):
        events = [{"url": page, "links": [PAGES[0], PAGES[3]]} for page in PAGES]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == len(PAGES), WAIT_SECONDS)
        one = client.importance(PAGES[0])
        assert (one.policy, one.rank) == ("exact", 1)
        assert one.error_bound is not None
        assert one.error_bound <= 0.01
        assert client.importance(PAGES[0], policy="static").policy == "static"
        assert client.top(2).pages[0].certain is not None
        many = client.importances([PAGES[0], "http://nowhere.example/"])
        assert many.pages[0].policy == "exact"
        assert many.pages[1].importance is None
        shown = http.get("/metrics").text
        for name in ("residual", "settle_seconds", "age_seconds", "drift"):
            assert f"\nopic_exact_{name} " in shown


@pytest.mark.slow
def test_exact_importance_is_there_for_who_asks_where_another_policy_is_the_default(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", policy="loaded") as (http, _):
        asked = {"url": PAGES[0], "policy": "exact"}

        def importance_after(links: list[str]) -> dict[str, Any]:
            events = [{"url": page, "links": links} for page in PAGES]
            after = http.post("/v1/events", json=events).json()["position"]
            wait_until(lambda: http.get("/v1/importance", params=asked | {"after": after}).is_success, WAIT_SECONDS)
            answer: dict[str, Any] = http.get("/v1/importance", params=asked).json()
            return answer

        assert importance_after([PAGES[0], PAGES[3]])["rank"] == 1
        assert importance_after([PAGES[3]])["rank"] > 1


@pytest.mark.slow
def test_service_without_links_says_what_to_set(tmp_path: Path) -> None:
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", keep_links=False)) as service,
        serving(service) as url,
        Client(url) as client,
    ):
        client.seed(PAGES[:1])
        for ask in (client.importance, client.explain):
            with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off is set for the workers"):
                ask(PAGES[0], policy="exact")
        for ask in (client.top, client.hosts, client.domains):
            with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off is set for the workers"):
                ask(policy="exact")
        assert client.importance(PAGES[0]).policy == "static"


def followed(web: Web, monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query on a store that counts as a large one, followed and settled in threads."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    query = asked(web.crawl)
    assert query.exact is not None
    query.exact.start()
    web.crawl.keep_following()
    return query


def at_hand(query: Query, ask: Ask) -> Any:
    (found,) = query.importances_at_hand([ask])
    return found


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_immediate_answer_equals_the_one_that_waits_for_the_store(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    web = Web(valkey, f"at-hand-{shards}", shards)
    for page in range(12):
        web.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14]], 404 if page == 5 else 200)
    web.writer.drain()
    query = followed(web, monkeypatch)
    wait_until(query.exact.usable, WAIT_SECONDS)  # type: ignore[union-attr]
    try:
        for policy in (None, "exact", "static"):
            for url in PAGES[:14]:
                ask = Ask([url], policy)
                (waited,) = query.importances([ask])
                found = wait_until(lambda one=ask: at_hand(query, one), WAIT_SECONDS)
                assert isinstance(waited, ImportanceAnswer)
                assert found.pages == waited.pages
                assert found.as_of > waited.as_of - 1
        asks = [Ask([PAGES[0]]), Ask(["http://never.seen/"]), Ask(["no URL"]), Ask([PAGES[0]], "interpolation")]

        def together() -> list[Any] | None:
            found: list[Any] = query.importances_at_hand(asks)
            return found if found[0] is not None else None  # While a thread follows, there is no answer.

        first, unknown, bad, slow = wait_until(together, WAIT_SECONDS)
        again = wait_until(lambda: at_hand(query, asks[0]), WAIT_SECONDS)
        assert (first.pages, first.rank_as_of) == (again.pages, again.rank_as_of)
        assert first.as_of <= again.as_of
        assert isinstance(bad, BadInput)
        assert (unknown, slow) == (None, None)
    finally:
        web.crawl.close()
        query.exact.close()  # type: ignore[union-attr]


def test_no_immediate_answer_while_the_replica_changes_or_is_not_followed(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web(valkey, "busy-hand")
    web.read(PAGES[0], [PAGES[1]])
    query, ask = followed(web, monkeypatch), Ask([PAGES[0]])
    try:
        wait_until(lambda: at_hand(query, ask), WAIT_SECONDS)
        replica = web.crawl.replicas[0]
        with ThreadPoolExecutor(1) as pool, ExitStack() as held:

            def answered_while_locked() -> bool:
                held.enter_context(replica.lock)  # A choice holds the lock, and changes nothing.
                if pool.submit(at_hand, query, ask).result() is not None:
                    return True
                held.close()  # The answer had become too old by then, and with the lock held it stays so.
                return False

            wait_until(answered_while_locked, WAIT_SECONDS)
            with replica.following():
                assert pool.submit(at_hand, query, ask).result() is None
                with replica.following():
                    pass
                assert pool.submit(at_hand, query, ask).result() is None
        wait_until(lambda: at_hand(query, ask), WAIT_SECONDS)
        web.crawl.close()
        wait_until(lambda: at_hand(query, ask) is None, WAIT_SECONDS)
    finally:
        web.crawl.close()
        query.exact.close()  # type: ignore[union-attr]
