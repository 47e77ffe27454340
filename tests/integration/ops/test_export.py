"""`opic export`: every page once, as of one moment, in each format; a file is there whole or not at all."""

import csv
import gzip
import json
import math
import resource
from pathlib import Path
from typing import Any

import duckdb
import networkx as nx
import pyarrow.parquet as pq
import pytest
from exact_readers import asked, truth
from linked_web import PAGES, Web
from servers import Server
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import BadInput, NotKept, StoreError
from opic.model.events import CrawlEvent
from opic.model.host_failures import Patience
from opic.ops import export as exports
from opic.ops import export_pages
from opic.ops.export import export, links_path, reversed_host
from opic.ops.export_pages import MetaCopy
from opic.replica import Crawl
from opic.replica.url_tail import UrlTail


def crawled(valkey: Server, name: str, shards: int = 1, *, keep_links: bool = True) -> Web:
    web = Web(valkey, name, shards, keep_links=keep_links)
    for page in range(10):
        web.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14], PAGES[(5 * page + 1) % 14]])
    web.apply(CrawlEvent(PAGES[1], [PAGES[2]], depth=1, meta={"shop": "bücher", "id": "7"}))
    web.read(PAGES[4], [], status=404)
    web.read(PAGES[12], [], status=403)
    web.read(PAGES[11], [], status=500)
    web.writer.drain()
    return web


def rows_of(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path).to_pylist()
    for row in table:
        row["meta"] = dict(row["meta"])
        row["last_fetched_at"] = row["last_fetched_at"] and row["last_fetched_at"].timestamp()
    return table


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_equal_the_answers_of_the_service(
    valkey: Server, tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_pages, "PAGES_A_BATCH", 3)
    web = crawled(valkey, f"export-{shards}", shards)
    query = asked(web.crawl)
    told = export(query, tmp_path / "p.parquet", "parquet", patience=Patience(1))
    rows = rows_of(tmp_path / "p.parquet")
    assert sorted(row["url"] for row in rows) == sorted(PAGES)
    assert told["pages"] == len(PAGES)
    assert math.fsum(row["importance"] for row in rows) == pytest.approx(1, abs=1e-9)
    for row, answer in zip(rows, query.importance([row["url"] for row in rows]), strict=True):
        assert answer is not None
        shared = ("importance", "cash", "reads", "last_fetched_at")
        assert {name: row[name] for name in shared} == {name: answer[name] for name in shared}
        assert row["rank"] == answer.get("rank")
    by_url = {row["url"]: row for row in rows}
    assert [by_url[PAGES[page]]["state"] for page in (0, 4, 11, 12, 13)] == [
        "read", "gone", "given_up", "excluded", "unread"
    ]  # fmt: skip
    assert [by_url[PAGES[page]]["status"] for page in (0, 4, 11, 12, 13)] == [200, 404, 500, 403, None]
    one = by_url[PAGES[1]]
    assert (one["depth"], one["meta"], one["class"]) == (1, {"shop": "bücher", "id": "7"}, "other")
    footer = json.loads(pq.read_schema(tmp_path / "p.parquet").metadata[b"opic"])
    assert footer["position"] == [{"lsn": head.lsn, "digest": head.digest.hex()} for head in web.crawl.heads()]
    assert (footer["policy"], footer["settings"]["shards"]) == ("exact", shards)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "csv.gz", "jsonl.gz"])
def test_text_formats_have_the_same_rows_and_links(valkey: Server, tmp_path: Path, ending: str) -> None:
    query = asked(crawled(valkey, "export-text", 2).crawl)
    text, parquet = tmp_path / f"p.{ending}", tmp_path / "p.parquet"
    told = [export(query, text, ending.removesuffix(".gz"), links=True), export(query, parquet, "parquet", links=True)]
    assert told[0]["links"] == told[1]["links"] > 0  # type: ignore[operator]

    def rows(path: Path) -> list[dict[str, Any]]:
        content = (gzip.decompress(path.read_bytes()) if ending.endswith("gz") else path.read_bytes()).decode()
        if "jsonl" in ending:
            return [json.loads(line) for line in content.splitlines()]
        kinds = {"importance": float, "last_fetched_at": float, "meta": json.loads}
        texts = ("url", "host", "state", "class")
        return [
            {name: (kinds.get(name, str if name in texts else int)(v) if v else None) for name, v in row.items()}
            for row in csv.DictReader(content.splitlines())
        ]

    expected = rows_of(parquet)
    if "csv" in ending:
        expected = [row | {"meta": row["meta"] or None} for row in expected]
    assert rows(text) == expected
    assert rows(links_path(text)) == pq.read_table(links_path(parquet)).to_pylist()
    assert json.loads((tmp_path / f"p.{ending}.meta.json").read_text())["policy"] == "exact"


@pytest.mark.parametrize("shards", [1, 3])
def test_pagerank_of_the_exported_graph_is_the_importance(valkey: Server, tmp_path: Path, shards: int) -> None:
    web = crawled(valkey, f"export-graph-{shards}", shards)
    told = export(asked(web.crawl), tmp_path / "p.parquet", "parquet", links=True)
    rows = rows_of(tmp_path / "p.parquet")
    graph = nx.DiGraph()
    graph.add_nodes_from(row["url"] for row in rows if row["state"] != "gone")
    for link in pq.read_table(tmp_path / "p.links.parquet").to_pylist():
        graph.add_edge(rows[link["from"]]["url"], rows[link["to"]]["url"])
    found = nx.pagerank(graph, 0.85, tol=1e-13, max_iter=1_000)
    assert found == pytest.approx(truth(web), abs=1e-12)
    assert sum(abs(row["importance"] - found.get(row["url"], 0)) for row in rows) <= told["error_bound"]  # type: ignore[operator]


def test_events_during_an_export_are_not_in_it(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_pages, "PAGES_A_BATCH", 4)
    web = crawled(valkey, "export-busy", 2)
    reader = Web(valkey, "export-busy", 2)
    export(asked(reader.crawl), tmp_path / "before.jsonl", "jsonl", links=True)

    def meanwhile(done: int, *_: object) -> None:
        if done:
            new = CrawlEvent(PAGES[done % 14], [f"http://new.org/{done}"], meta={"id": "8"}, depth=0)
            web.apply(new, CrawlEvent(PAGES[1], [], meta={"id": "9"}))
            web.writer.drain()
            for store in web.writer.stores:
                store.checkpoint()

    export(asked(reader.crawl), tmp_path / "during.jsonl", "jsonl", links=True, on_progress=meanwhile)
    assert len(list(web.crawl.pages())) > len(PAGES)
    for name in ("before.jsonl", "before.links.jsonl"):
        assert (tmp_path / name.replace("before", "during")).read_text() == (tmp_path / name).read_text()


def test_recreating_a_crawl_during_an_export_is_an_error_and_leaves_no_file(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_pages, "PAGES_A_BATCH", 4)
    web = Web(valkey, "export-anew")
    for url in PAGES:
        web.read(url, [])

    def anew(done: int, *_: object) -> None:
        if done == 4:
            valkey.client().delete(*valkey.client().keys("opic:{export-anew:*"))
            other = Web(valkey, "export-anew")
            other.read("http://other.org/", PAGES)
            other.writer.stores[0].checkpoint()
            reader.crawl.replicas[0].tail = UrlTail()  # URLs that are not the newest are read from the store.

    reader = Web(valkey, "export-anew")
    with pytest.raises(StoreError):
        export(asked(reader.crawl), tmp_path / "p.csv", "csv", on_progress=anew)
    assert not list(tmp_path.iterdir())


def test_hosts_are_ranked_in_common_crawls_columns(valkey: Server, tmp_path: Path) -> None:
    web = Web(valkey, "export-hosts")
    web.read("http://www.a.example/", ["http://a.example/x", "http://b.a.example/"])
    web.read("http://a.example/x", ["http://b.a.example/"])
    export(asked(web.crawl), tmp_path / "ranks.txt", "cc-ranks")
    header, *lines = (tmp_path / "ranks.txt").read_text().splitlines()
    assert header.split("\t") == ["#harmonicc_pos", "#harmonicc_val", "#pr_pos", "#pr_val", "#host_rev"]
    rows = [line.split("\t") for line in lines]
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        ("---", "---", "1", "example.a.b"),
        ("---", "---", "2", "example.a"),
        ("---", "---", "3", "example.a.www"),
    ]
    assert math.fsum(float(row[3]) for row in rows) == pytest.approx(1, abs=1e-9)
    assert reversed_host("www.b.a.example.") == "example.a.b.www"


def test_disk_without_room_is_an_error_and_leaves_no_file(valkey: Server, tmp_path: Path) -> None:
    query = asked(crawled(valkey, "export-full").crawl)
    for format in ("csv", "jsonl", "parquet"):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))  # As of a full disk: a write fails in the middle.
        try:
            with pytest.raises(BadInput, match=r"p can't be written \(.*File too large"):
                export(query, tmp_path / "p", format, links=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(tmp_path.iterdir())


def test_temporary_file_without_room_is_an_error_that_says_where(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = crawled(valkey, "export-temporary")
    web.apply(*(CrawlEvent(page, [], meta={"long": "m" * 800}) for page in PAGES))

    def small(crawl: Crawl) -> MetaCopy:
        copy = MetaCopy(crawl)
        copy._file.execute("PRAGMA max_page_count = 2")  # SQLite's own way to say that the disk is full.
        return copy

    monkeypatch.setattr(exports, "MetaCopy", small)
    with pytest.raises(BadInput, match=r"temporary copy of all metadata .*disk is full.*SQLITE_TMPDIR"):
        export(asked(web.crawl), tmp_path / "p.csv", "csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_duckdb_reads_the_exported_files(valkey: Server, tmp_path: Path) -> None:
    crawled(valkey, "export-command", 2)
    path = tmp_path / "p.parquet"
    command = ["export", str(path), "--links", "--store", valkey.url, "--crawl", "export-command", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["files"] == [str(path), str(tmp_path / "p.links.parquet")]
    (pages, total), *_ = duckdb.sql(f"SELECT count(*), sum(importance) FROM '{path}'").fetchall()
    assert (pages, total) == (told["pages"], pytest.approx(1, abs=1e-9))


def test_printed_fields_are_plain_values(valkey: Server, tmp_path: Path) -> None:
    crawled(valkey, "export-printed", 2)
    path = tmp_path / "p.csv"
    command = ["export", str(path), "--links", "--store", valkey.url, "--crawl", "export-printed"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    fields = dict(line.split("\t") for line in done.stdout.splitlines())
    files = [path, tmp_path / "p.csv.meta.json", tmp_path / "p.links.csv"]
    assert list(fields)[:5] == ["files", "pages", "links", "bytes", "crawl"]
    assert fields["files"] == ", ".join(map(str, files))
    assert int(fields["pages"]) == len(path.read_text().splitlines()) - 1
    assert int(fields["bytes"]) == sum(one.stat().st_size for one in files)
    assert (fields["shards"], fields["damping"]) == ("2", "0.85")
    assert not [value for value in fields.values() if value.startswith(("{", "["))]


@pytest.mark.parametrize(
    ("name", "format", "links", "why"),
    [
        ("p.txt", "cc-ranks", True, "cc-ranks has hosts"),
        ("p.parquet.gz", "parquet", False, "Parquet compresses by itself"),
        ("none/p.csv", "csv", False, "none is no directory"),
    ],
)
def test_impossible_combination_of_options_is_refused_before_anything_is_read(
    valkey: Server, tmp_path: Path, name: str, format: str, links: bool, why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        export(asked(Web(valkey, "export-wish").crawl), tmp_path / name, format, links=links)
    assert not list(tmp_path.iterdir())


def test_export_of_links_that_are_not_kept_is_refused(valkey: Server, tmp_path: Path) -> None:
    query = asked(crawled(valkey, "export-none", keep_links=False).crawl)
    with pytest.raises(NotKept):
        export(query, tmp_path / "p.csv", "csv", links=True)
    assert export(query, tmp_path / "p.csv", "csv")["policy"] == "static"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.csv.meta.json"]
