"""`opic load-importance`: importance computed elsewhere from an export, taken whole or not at all; policy loaded."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from exact_readers import asked
from linked_web import PAGES, Web
from logs import NOW_US
from processes import wait_until
from repository import ROOT
from servers import Server
from serving import serving
from typer.testing import CliRunner

from examples.pagerank_igraph import pagerank
from opic.cli.main import app
from opic.errors import BadInput, ChangedMeanwhile, NotKept, StoreError
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.ops.backup import backup
from opic.ops.export import export, links_path
from opic.ops.load_importance import load_importance, remove_importance
from opic.ops.restore import restore
from opic.query import loaded as of_loaded
from opic.query.loaded_order import LoadedOrder
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import connect
from opic.store import loaded_importance as stored

SOLVED = 1e-5  # L1 distance of float32 numbers of some thousand pages, solved by igraph, from exact PageRank.
POLITE = PolitenessSettings(host_delay_seconds=0, revisit_seconds=0)


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_loaded, "LOOK_SECONDS", 0.0)


def hollins(server: Server, name: str, shards: int, *, keep_links: bool) -> Crawl:
    """A crawl in which each page of the graph with an even number was read; others are known by links."""
    with gzip.open(ROOT / "tests/data/hollins/hollins.dat.gz", "rt", encoding="latin-1") as lines:
        pages, *_ = map(int, next(lines).split())
        named = [next(lines).split()[0] for _ in range(pages)]
        links: dict[str, list[str]] = {}
        for line in lines:
            if len(ends := line.split()) == 2:
                links.setdefault(ends[0], []).append(ends[1])

    def url(page: str) -> str:
        return f"http://h{int(page) % 97}.example/{page}"

    crawl = Crawl.open(server.client(), name, {"shards": shards}, keep_links=keep_links)
    events = [CrawlEvent(url(page), [url(to) for to in links.get(page, [])]) for page in named if int(page) % 2 == 0]
    records = [Record(at, NOW_US + at, encode_crawl_event(event)) for at, event in enumerate(events)]
    writer = Writer(crawl)
    writer.apply("log/0", records)
    writer.drain()
    return crawl


def importance_of(query: Query, policy: str, urls: Sequence[str]) -> np.ndarray:
    return np.array([(page or {})["importance"] for page in query.importance(urls, policy)])


def reader(crawl: Crawl, policy: str | None = None) -> Query:
    return Query(crawl, Snapshots(crawl), policy=policy)


def by_duckdb(pages: Path, links: Path, result: Path) -> None:
    """PageRank by SQL: power iteration until nothing moves."""
    base = duckdb.connect()
    read = f"read_parquet('{pages}', file_row_number = true)"
    base.execute(f"CREATE TABLE pages AS SELECT url, file_row_number AS row FROM {read} WHERE state != 'gone'")
    share = '1.0 / count(*) OVER (PARTITION BY "from")'
    inside = '"from" IN (SELECT row FROM pages) AND "to" IN (SELECT row FROM pages)'
    links_of = f"read_parquet('{links}') WHERE {inside}"
    base.execute(f'CREATE TABLE links AS SELECT "from" AS a, "to" AS b, {share} AS share FROM {links_of}')
    base.execute("CREATE TABLE ranks AS SELECT row, 1.0 / (SELECT count(*) FROM pages) AS r FROM pages")
    came = "SELECT b, .85 * sum(r * share) AS r FROM links JOIN ranks ON a = row GROUP BY b"
    rest = "(1 - (SELECT sum(r) FROM came)) / (SELECT count(*) FROM pages)"
    for _ in range(100):
        base.execute(f"CREATE OR REPLACE TABLE came AS {came}")
        ranks = f"SELECT row, coalesce(r, 0) + {rest} AS r FROM pages LEFT JOIN came ON b = row"
        base.execute(f"CREATE OR REPLACE TABLE ranks AS {ranks}")
    base.execute(f"COPY (SELECT url, r AS importance FROM ranks JOIN pages USING (row)) TO '{result}' (FORMAT parquet)")


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "engine"), [(1, "igraph"), (3, "igraph"), (1, "duckdb")])
def test_importance_of_an_engine_is_exact_importance(valkey: Server, tmp_path: Path, shards: int, engine: str) -> None:
    """On a real graph, from its export and back; the bound that is told is true."""
    crawl = hollins(valkey, f"loaded-{engine}-{shards}", shards, keep_links=True)
    query = asked(crawl)
    pages, result = tmp_path / "pages.parquet", tmp_path / "importance.parquet"
    told = export(query, pages, "parquet", links=True)
    if engine == "igraph":
        table, as_of = pagerank(str(pages), str(links_path(pages)))
        assert as_of == told["as_of"]
        pq.write_table(table, result)
    else:
        by_duckdb(pages, links_path(pages), result)
    answer = load_importance(query, result)
    urls = [page.url for page in crawl.pages()]
    assert (answer["rows"], answer["loaded_pages"], answer["missing_pages"]) == (len(urls), len(urls), 0)
    exact = importance_of(query, "exact", urls)
    bound = (query.importance(urls[:1], "exact")[0] or {})["error_bound"]
    for asks in (query, reader(Crawl.open(valkey.client(), crawl.shards[0].keys.crawl, create=False))):
        loaded = importance_of(asks, "loaded", urls)
        assert loaded.sum() == pytest.approx(1, abs=1e-9)
        assert np.abs(loaded - exact).sum() <= bound + answer["loaded_error_bound"]  # type: ignore[operator]
    further = query.exact_view(further=True)
    exact = np.array([further.share(place) or 0.0 for place in crawl.ids_of(urls) if place is not None])
    assert answer["loaded_error_bound"] < SOLVED  # type: ignore[operator]
    assert np.abs(loaded - exact).sum() < SOLVED + further.bound
    top = query.top(20, policy="loaded")
    assert [page["url"] for page in top[:5]] == [page["url"] for page in query.top(20, policy="exact")[:5]]
    assert {page["loaded_at"] for page in top} == {answer["loaded_at"]}
    assert sum(
        float(str(host["importance"])) for host in query.sites("host", 1_000, "loaded")["hosts"]
    ) == pytest.approx(1)


def scores(path: Path, given: dict[str, float]) -> Path:
    path.write_text("url,importance\n" + "".join(f"{url},{score!r}\n" for url, score in given.items()))
    return path


def web(valkey: Server, name: str, shards: int = 1, *, keep_links: bool = False) -> Web:
    found = Web(valkey, name, shards, keep_links=keep_links)
    for page in range(10):
        found.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14], PAGES[(5 * page + 1) % 14]])
    found.writer.drain()
    return found


def weights() -> dict[str, float]:
    total = sum(range(1, 15))
    return {url: number / total for number, url in enumerate(PAGES, 1)}


@pytest.mark.parametrize("shards", [1, 3])
def test_pages_that_become_known_later_have_their_static_share(valkey: Server, tmp_path: Path, shards: int) -> None:
    one = web(valkey, f"later-{shards}", shards)
    query = reader(one.crawl)
    answer = load_importance(query, scores(tmp_path / "s.csv", weights()), as_of=5.0)
    assert (answer["loaded_pages"], answer["loaded_as_of"], answer["loaded_error_bound"]) == (14, 5.0, None)
    assert importance_of(query, "loaded", PAGES) == pytest.approx(list(weights().values()), rel=1e-6)
    new = ["http://new.org/a", "http://new.org/b"]
    one.read(PAGES[0], [*new, PAGES[1]])
    one.read(PAGES[13], [], status=404)
    one.writer.drain()
    static = importance_of(query, "static", new)
    assert importance_of(query, "loaded", new) == pytest.approx(static)
    old = importance_of(query, "loaded", PAGES[:13])
    assert old == pytest.approx(np.array([*weights().values()][:13]) / (1 - 14 / 105) * (1 - static.sum()), rel=1e-6)
    gone = query.importance(PAGES[13:], "loaded")[0]
    assert gone is not None
    assert (gone["importance"], gone["gone"]) == (0.0, True)


@pytest.mark.parametrize("shards", [1, 3])
def test_pages_come_by_loaded_importance(valkey: Server, tmp_path: Path, shards: int) -> None:
    """Those never read first, then the others; new ones among them by their share of cash."""
    one = web(valkey, f"order-{shards}", shards)
    snapshots = Snapshots(one.crawl)
    query, order = Query(one.crawl, snapshots, policy="loaded"), LoadedOrder(snapshots)
    frontier = Frontier(one.crawl, POLITE, worth=order, shares=query.shares)
    assert (order.recent(), query.policy) == (None, "static")
    load_importance(query, scores(tmp_path / "s.csv", weights()))
    assert query.policy == "loaded"
    one.read(PAGES[0], ["http://new.org/a"])
    one.writer.drain()
    order._at = float("-inf")
    found = frontier.next(4, mode="discover").pages
    never = [PAGES[number] for number in (13, 12, 11, 10)]
    wanted = sorted([*never, "http://new.org/a"], key=lambda url: -importance_of(query, "loaded", [url])[0])
    assert [page.url for page in found] == wanted[: len(found)]
    assert found[0].importance == pytest.approx(importance_of(query, "loaded", wanted[:1])[0])
    standing = frontier.explain(wanted[-1])
    assert standing is not None
    assert standing.order == "loaded"


REFUSED = [
    ({**weights(), PAGES[3]: float("nan")}, "s.csv:5: the score nan is no finite number"),
    ({**weights(), PAGES[3]: float("inf")}, "s.csv:5: the score inf is no finite number"),
    ({**weights(), PAGES[3]: -1e-9}, "s.csv:5: the importance -1e-09 is below 0"),
    ({**weights(), "http://H0.org/0": 0.1}, "s.csv:16: an earlier row has http://h0.org/0 too: give each page once"),
    ({**weights(), "h0.org": 0.1}, "s.csv:16: "),
    (dict.fromkeys(PAGES, 0.0), "sums to 0.0: there is nothing to load"),
    ({url: score / 2 for url, score in weights().items()}, "sums to 0.5, not to 1 nor to 14, its number of pages"),
    ({**dict.fromkeys(PAGES, 0.05), "http://other.org/": 0.3}, "1 of 15 pages, with 30.0% of the importance, are not"),
    ({PAGES[0]: 1.0}, "it lacks 13 of 14 pages: is it a part of the result"),
    ({}, "sums to 0.0: there is nothing to load"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_file_that_cannot_be_right_is_refused_and_nothing_changes(
    valkey: Server, tmp_path: Path, given: dict[str, float], said: str
) -> None:
    one = web(valkey, "refused")
    query = reader(one.crawl)
    load_importance(query, scores(tmp_path / "good.csv", weights()))
    before = one.crawl.client.hgetall(one.crawl.shards[0].keys.loaded)
    with pytest.raises(BadInput) as caught:
        load_importance(query, scores(tmp_path / "s.csv", given))
    assert said in str(caught.value)
    assert one.crawl.client.hgetall(one.crawl.shards[0].keys.loaded) == before
    assert importance_of(query, "loaded", PAGES) == pytest.approx(list(weights().values()), rel=1e-6)


def test_force_takes_what_speaks_against_itself(valkey: Server, tmp_path: Path) -> None:
    query = reader(web(valkey, "forced").crawl)
    answer = load_importance(query, scores(tmp_path / "s.csv", {PAGES[0]: 3.0, "http://other.org/": 3.0}), force=True)
    assert (answer["loaded_pages"], answer["missing_pages"], answer["unknown_pages"]) == (1, 13, 1)
    static = importance_of(query, "static", PAGES)
    found = importance_of(query, "loaded", PAGES)
    assert found[1:] == pytest.approx(static[1:])
    assert found.sum() == pytest.approx(1)


def test_each_form_of_a_file_is_taken(valkey: Server, tmp_path: Path) -> None:
    """Also scores that sum to the number of pages, and a directory of parts, as Spark writes it."""
    query = reader(web(valkey, "forms").crawl)
    times = {url: 14 * score for url, score in weights().items()}
    table = pa.table({"url": list(times), "importance": list(times.values())})
    pq.write_table(table, tmp_path / "s.parquet")
    with gzip.open(tmp_path / "s.csv.gz", "wt", newline="") as text:
        csv.writer(text).writerows([("url", "importance"), *weights().items()])
    lines = [json.dumps({"url": url, "importance": score}) for url, score in weights().items()]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    (tmp_path / "s.txt").write_text("# a comment\n" + "".join(f"{url}\t{score}\n" for url, score in weights().items()))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/_SUCCESS").touch()
    for at in (0, 7):
        pq.write_table(table.slice(at, 7), tmp_path / f"parts/part-{at}.snappy.parquet", compression="snappy")
    for name in ("s.parquet", "s.csv.gz", "s.jsonl", "s.txt", "parts"):
        remove_importance(query)
        load_importance(query, tmp_path / name)
        assert importance_of(query, "loaded", PAGES) == pytest.approx(list(weights().values()), rel=1e-6), name


def test_nothing_loaded_is_told(valkey: Server, tmp_path: Path) -> None:
    one = web(valkey, "nothing")
    for query in (reader(one.crawl), reader(one.crawl, "loaded")):
        with pytest.raises(NotKept, match="no importance was loaded"):
            query.importance(PAGES[:1], "loaded")
        with pytest.raises(NotKept, match="no importance was loaded"):
            query.top(policy="loaded")
        assert query.policy == "static"
        assert query.top()[0]["policy"] == "static"
    assert remove_importance(query) == {"removed": False}
    load_importance(query, scores(tmp_path / "s.csv", weights()))
    assert query.top()[0]["policy"] == "loaded"
    assert remove_importance(query) == {"removed": True}
    assert query.top()[0]["policy"] == "static"
    assert one.crawl.client.hgetall(one.crawl.shards[0].keys.loaded) == {}


class Killed(Exception):
    pass


@pytest.mark.parametrize("shards", [1, 3])
def test_load_that_is_killed_changes_nothing(
    valkey: Server, tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each command that it sends; the next load removes what it left."""
    monkeypatch.setattr(stored, "PAGES_A_BLOCK", 2)
    monkeypatch.setattr(stored, "BLOCKS_A_CALL", 1)
    one = web(valkey, f"killed-{shards}", shards)
    query, other = reader(one.crawl), reader(one.opened(shards))
    load_importance(query, scores(tmp_path / "a.csv", weights()))
    equal = scores(tmp_path / "b.csv", dict.fromkeys(PAGES, 1 / 14))
    real, sent, before = redis.Redis.execute_command, 0, list(weights().values())
    for count in range(1, 200):
        sent = 0

        def execute(self: Any, *args: Any, count: int = count, **options: Any) -> Any:
            nonlocal sent
            sent += args[0] in {"HSET", "HDEL"}
            if sent == count and args[0] in {"HSET", "HDEL"}:
                raise Killed
            return real(self, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(redis.Redis, "execute_command", execute)
            try:
                load_importance(query, equal)
                break
            except Killed:
                pass
        found = importance_of(other, "loaded", PAGES)
        assert found == pytest.approx(before, rel=1e-6) or found == pytest.approx([1 / 14] * 14)
    assert count > 8
    assert importance_of(other, "loaded", PAGES) == pytest.approx([1 / 14] * 14)
    names = {name for shard in one.crawl.shards for name in one.crawl.client.hkeys(shard.keys.loaded)}
    assert len({name.partition(b":")[0] for name in names}) == 2  # One load, and what is known of it.


def test_load_that_another_one_overtook_says_so(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = web(valkey, "overtaken")
    query = reader(one.crawl)
    file, published = scores(tmp_path / "s.csv", weights()), stored.publish

    def late(*args: Any) -> None:
        monkeypatch.undo()
        load_importance(reader(one.opened()), scores(tmp_path / "b.csv", dict.fromkeys(PAGES, 1 / 14)))
        published(*args)

    monkeypatch.setattr("opic.ops.load_importance.publish", late)
    with pytest.raises(ChangedMeanwhile, match="another load ended first"):
        load_importance(query, file)
    assert importance_of(reader(one.opened()), "loaded", PAGES) == pytest.approx([1 / 14] * 14)


@pytest.mark.parametrize("shards", [1, 3])
def test_backup_has_it_and_a_store_with_other_pages_does_not_use_it(
    valkey: Server, tmp_path: Path, shards: int
) -> None:
    one = web(valkey, f"backed-{shards}", shards)
    backup(one.crawl, tmp_path / "before")
    new = [f"http://n{number}.org/" for number in range(30)]
    one.read(PAGES[0], new)
    one.writer.drain()
    query = reader(one.crawl)
    load_importance(query, scores(tmp_path / "s.csv", dict.fromkeys([*PAGES, *new], 1 / 44)))
    backup(one.crawl, tmp_path / "after")
    named = {name: value for shard in one.crawl.shards for name, value in [(shard.number, shard.keys.loaded)]}
    held = {number: one.crawl.client.hgetall(key) for number, key in named.items()}
    for name, usable in (("after", True), ("before", False)):
        restore(valkey.client(), tmp_path / name, one.name, replace=True)
        again = one.opened(shards)
        if not usable:  # As if the load had been kept, and the pages lost: their ids go to other pages.
            for number, key in named.items():
                again.client.hset(key, mapping=held[number])
        ask = reader(again, "loaded")
        assert ask.policy == ("loaded" if usable else "static")
        if usable:
            assert importance_of(ask, "loaded", new) == pytest.approx([1 / 44] * 30, rel=1e-6)
        else:
            with pytest.raises(NotKept, match="is of other pages than this store has: load it again"):
                ask.importance(PAGES, "loaded")


def test_forgotten_pages_are_left_out(valkey: Server, tmp_path: Path) -> None:
    one = web(valkey, "forgets")
    query = reader(one.crawl)
    load_importance(query, scores(tmp_path / "s.csv", weights()))
    one.forget(PAGES[13])
    assert query.importance([PAGES[13]], "loaded") == [None]
    assert importance_of(query, "loaded", PAGES[:13]).sum() == pytest.approx(1)


def test_damaged_numbers_are_refused(valkey: Server, tmp_path: Path) -> None:
    one = web(valkey, "damaged")
    load_importance(reader(one.crawl), scores(tmp_path / "s.csv", weights()))
    key = one.crawl.shards[0].keys.loaded
    (name,) = [name for name in one.crawl.client.hkeys(key) if name != stored.ABOUT]
    one.crawl.client.hset(key, name, b"\0" * 56)
    with pytest.raises(StoreError, match="lacks a part of the loaded importance: load it again"):
        reader(one.opened()).importance(PAGES, "loaded")


def test_command_loads_and_the_service_answers_by_it(valkey: Server, tmp_path: Path) -> None:
    one = web(valkey, "commanded")
    run = CliRunner()
    env = {"OPIC_STORE": valkey.url, "OPIC_CRAWL": one.name, "OPIC_POLICY": "loaded"}
    file = scores(tmp_path / "s.csv", weights())
    words = ["load-importance", str(file), "--as-of", "2026-01-02", "--bound", "0.001", "--json"]
    told = run.invoke(app, words, env=env)
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert (answer["loaded_pages"], answer["loaded_as_of"], answer["loaded_error_bound"]) == (
        14,
        1_767_312_000.0,
        0.001,
    )
    stats = json.loads(run.invoke(app, ["stats", "--json"], env=env).stdout)
    assert (stats["policy"], stats["loaded_pages"], stats["loaded_at"]) == ("loaded", 14, answer["loaded_at"])
    page = json.loads(run.invoke(app, ["importance", PAGES[13], "--json"], env=env).stdout)
    assert (page["policy"], page["rank"], page["loaded_error_bound"]) == ("loaded", 1, 0.001)
    why = json.loads(run.invoke(app, ["explain", PAGES[13], "--json"], env=env).stdout)
    assert why["estimate"]["rule"] == "loaded"
    assert why["estimate"]["value"] == pytest.approx(14 / 105, rel=1e-6)
    for words in (["load-importance"], ["load-importance", str(file), "--remove"]):
        assert run.invoke(app, words, env=env).exit_code


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_running_service_notices_a_load_and_keeps_it_over_a_restart(tmp_path: Path, shards: int) -> None:
    """Without kept links: the default answers, the order of next pages, and the age in the metrics."""
    settings = Settings.load(
        data=tmp_path / "data", policy="loaded", keep_links=False, shards=shards, host_delay_seconds=0
    )
    file = scores(tmp_path / "s.csv", weights())
    for loaded in (False, True):
        with EmbeddedService(settings) as service, serving(service) as url, httpx.Client(base_url=url) as http:

            def policy(url: str = PAGES[0], http: httpx.Client = http) -> str:
                return str(http.get("/v1/importance", params={"url": url}).raise_for_status().json()["policy"])

            if not loaded:
                events = [{"url": page, "links": PAGES} for page in PAGES[:10]]
                http.post("/v1/events", json=events).raise_for_status()
                wait_until(lambda http=http: http.get("/v1/stats").json()["known_pages"] == 14)
                assert policy() == "static"
                assert "opic_loaded_importance_age_seconds" not in http.get("/metrics").text
                load_importance(reader(Crawl.open(connect(service.backend.store), create=False)), file)
            wait_until(lambda policy=policy: policy() == "loaded")
            wait_until(lambda http=http: http.get("/v1/frontier", params={"n": 1}).json()["order"] == "loaded")
            assert "opic_loaded_importance_age_seconds" in http.get("/metrics").text
            if loaded:
                answer = http.post("/v1/next", json={"n": 1, "crawler": "a"}).raise_for_status().json()
                assert (answer["policy"], [page["url"] for page in answer["pages"]]) == ("loaded", [PAGES[13]])
                assert answer["pages"][0]["importance"] == pytest.approx(14 / 105, rel=1e-6)
                top = http.get("/v1/top", params={"n": 2}).json()["pages"]
                assert [page["url"] for page in top] == [PAGES[13], PAGES[12]]
