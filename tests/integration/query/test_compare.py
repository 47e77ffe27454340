"""`opic compare`: importance beside the scores of a file, in every form that files have."""

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from exact_readers import asked
from hypothesis import given
from hypothesis import strategies as st
from linked_web import PAGES, Web
from scipy import stats
from servers import Server
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import BadInput
from opic.model.classes import check_classes, encode_classes
from opic.model.events import CrawlEvent, Record
from opic.ops.agreement import agreement, rank_classes
from opic.ops.compare import compare
from opic.ops.export import export
from opic.query.queries import Query


@pytest.fixture(scope="module")
def scores() -> dict[str, float]:
    return {url: float(len(PAGES) - at) for at, url in enumerate(PAGES)}


def crawled(valkey: Server, name: str) -> Web:
    web = Web(valkey, name, 2)
    for page in range(10):
        web.read(PAGES[page], [PAGES[0], PAGES[(page + 3) % 14], PAGES[(5 * page + 1) % 14]])
    web.read(PAGES[13], [], status=404)
    web.writer.drain()
    return web


@pytest.mark.parametrize(
    ("name", "format"), [("p.parquet", "parquet"), ("p.csv.gz", "csv"), ("p.jsonl", "jsonl"), ("r.txt", "cc-ranks")]
)
def test_export_agrees_with_its_crawl(valkey: Server, tmp_path: Path, name: str, format: str) -> None:
    query = asked(crawled(valkey, f"compare-{format}").crawl)
    told = export(query, tmp_path / name, format)
    found = compare(query, tmp_path / name)
    assert found["of"] == ("hosts" if format == "cc-ranks" else "pages")
    assert (found["tau_b"], found["spearman"]) == (pytest.approx(1), pytest.approx(1))
    assert (found["overlap_100"], found["overlap_1000"]) == (1, 1)
    gone = 0 if format == "cc-ranks" else 1
    assert (found["only_here"], found["only_there"]) == (0, gone)
    assert found["compared"] == told.get("pages", told.get("hosts")) - gone  # type: ignore[operator]


def test_lines_of_scores_are_compared_by_canonical_url(
    valkey: Server, tmp_path: Path, scores: dict[str, float]
) -> None:
    crawled(valkey, "compare-lines")
    lines = [f"{url.replace('http', 'HTTP')}#x\t{score}" for url, score in scores.items()]
    path = tmp_path / "scores.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(["# mine", *lines, "http://other.org/ 3", ""]).encode()))
    command = ["compare", str(path), "--store", valkey.url, "--crawl", "compare-lines", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["compared"], found["only_here"], found["only_there"]) == (13, 0, 2)
    assert (found["repeated_rows"], found["skipped_lines"]) == (0, 1)
    assert -1 <= found["tau_b"] <= found["spearman"] <= 1


@pytest.mark.parametrize(
    ("content", "why"),
    [("http://h0.org/0 x\n", ":1: 'http://h0.org/0 x' is not URL SCORE"), ("{}\n", "neither an export"),
     ("http://none.org/ 1\n", "1 pages, 0 of them of this crawl"), ("url,importance\nhttp://h0.org/0,x\n", "neither"),
     ("", "0 pages, 0 of them"), ("\x1f\x8bx", "can't be read"), ("http://h0.org/0 nan\n", ":1: the score nan"),
     ("url,importance\nh0.org,1\n", ":2: 'h0.org' is not"), ('{"url": "x", "importance": 1}\n', ":1: 'x' is not")],
)  # fmt: skip
def test_unusable_file_is_refused(valkey: Server, tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "scores"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadInput, match=why):
        compare(asked(Web(valkey, "compare-bad").crawl), path)


# Every form, by canonical names.


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet", "p.tsv"])
def test_urls_are_canonical_in_every_form(valkey: Server, tmp_path: Path, name: str) -> None:
    query = asked(crawled(valkey, f"compare-urls-{name}").crawl)
    scores = {
        url.replace("http://h", "HTTP://H").replace(".org/", ".org:80/./") + "#x": n for n, url in enumerate(PAGES, 1)
    }
    path, urls, values = tmp_path / name, list(scores), [float(n) for n in scores.values()]
    if name == "p.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"url": urls, "importance": values, "x": values}), path)
    elif name == "p.csv":
        path.write_text(
            "x,importance,url\n" + "".join(f"1,{value},{url}\n" for url, value in zip(urls, values, strict=True))
        )
    elif name == "p.jsonl":
        rows = ({"url": url, "importance": value} for url, value in zip(urls, values, strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join(f"{url}\t{value}\n" for url, value in zip(urls, values, strict=True)))
    found = compare(query, path)
    assert (found["compared"], found["only_here"], found["only_there"]) == (13, 0, 1)


def test_url_named_twice_counts_once(valkey: Server, tmp_path: Path) -> None:
    query = asked(crawled(valkey, "compare-twice").crawl)
    (tmp_path / "s").write_text("".join(f"{url} 1\n" for url in [*PAGES, PAGES[0] + "#a"]))
    found = compare(query, tmp_path / "s")
    assert found["compared"] == 13
    assert "1 rows name a page that an earlier row names: the last one counts" in found["notes"]  # type: ignore[operator]


@pytest.fixture
def sites(valkey: Server) -> Query:
    web = Web(valkey, "compare-sites")
    for n in range(8):
        web.read(f"http://p{n}.example/", ["http://www.one.example/"])
    web.read("http://p0.example/", ["http://www.one.example/", "http://two.example/", "http://a.github.io/"])
    web.read(
        "http://p1.example/",
        ["http://www.one.example/", "http://one.example/", "http://b.github.io/", "http://a.github.io/"],
    )
    web.read("http://www.one.example/", ["http://two.example/", "http://p2.example/"])
    return asked(web.crawl)


@pytest.mark.parametrize("header", ["#harmonicc_pos\t#harmonicc_val", "#hc_pos\t#hc_val"])
@pytest.mark.parametrize(
    ("columns", "names", "only_here"),
    [
        ("#host_rev", ["example.one.www", "example.two", "io.github.a", "example.one"], 9),
        ("#host_rev", ["example.one", "example.two", "io.github.a", "io.github.b"], 8),
        ("#host_rev\t#n_hosts", ["example.one", "example.two", "io.github"], 8),
        ("#host_rev\t#n_hosts", ["example.one", "example.two", "io.github.a", "io.github.b"], 8),
    ],
)
def test_hosts_and_domains_are_compared_by_the_names_that_the_file_has(
    sites: Query, tmp_path: Path, header: str, columns: str, names: list[str], only_here: int
) -> None:
    values = [0.5, 0.2, 0.1, 0.05]
    more = "\t2" if "n_hosts" in columns else ""
    lines = [
        f"{n}\t---\t{n}\t{value}\t{name}{more}" for n, (name, value) in enumerate(zip(names, values, strict=False), 1)
    ]
    (tmp_path / "ranks.txt.gz").write_bytes(
        gzip.compress("\n".join([f"{header}\t#pr_pos\t#pr_val\t{columns}", *lines]).encode())
    )
    found = compare(sites, tmp_path / "ranks.txt.gz")
    assert found["of"] == ("domains" if more else "hosts")
    assert (found["compared"], found["only_here"], found["only_there"]) == (len(names), only_here, 0)
    assert found["tau_b"] == pytest.approx(1)
    assert any("PageRank of the graph of" in note for note in found["notes"])  # type: ignore[attr-defined]


# What the numbers mean.


@pytest.fixture
def leaves(valkey: Server) -> tuple[Query, "PlainGraph"]:
    """A crawl in which most pages have the same importance: no page links to them; some have no links at all."""
    web, random = Web(valkey, "compare-leaves"), Random(7)
    hubs = [f"http://hub{n}.org/" for n in range(20)]
    events = [CrawlEvent(f"http://leaf{n}.org/", random.sample(hubs, 3)) for n in range(300)]
    events += [CrawlEvent(hub, random.sample(hubs, n % 4)) for n, hub in enumerate(hubs[:15])]
    web.apply(*events, *(CrawlEvent(f"http://alone{n}.org/") for n in range(40)))
    query = asked(web.crawl)
    return query, PlainGraph(web.links, hubs)


class PlainGraph:
    """PageRank as tools compute it, right and wrong, by power iteration on a dense matrix."""

    def __init__(self, links: Mapping[str, Sequence[str]], others: Sequence[str]) -> None:
        self.urls = list(dict.fromkeys([*links, *others]))
        number = {url: n for n, url in enumerate(self.urls)}
        self.walk = np.zeros((len(number), len(number)))
        for url, targets in links.items():
            for target in targets:
                self.walk[number[target], number[url]] = 1 / len(targets)
        self.alone = (self.walk.sum(0) == 0) & (self.walk.sum(1) == 0)

    def pagerank(self, damping: float = 0.85, *, leaks: bool = False, keeps: bool = False) -> np.ndarray:
        """`leaks`: what pages without links have is lost; `keeps`: they keep it, as if they linked to themselves."""
        pages = len(self.urls)
        sinks = self.walk.sum(0) == 0
        walk = self.walk + np.diag(sinks * keeps) if keeps else self.walk
        lost = 0 if leaks else np.outer(np.ones(pages), sinks & (not keeps)) / pages
        return np.linalg.solve(np.eye(pages) - damping * (walk + lost), np.full(pages, (1 - damping) / pages))

    def write(self, path: Path, scores: np.ndarray, form: str = "{!r}") -> Path:
        rows = zip(self.urls, scores.tolist(), strict=True)
        path.write_text("".join(f"{url}\t{form.format(score)}\n" for url, score in rows))
        return path


def noted(query: Query, path: Path) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = compare(query, path)
    return found, "; ".join(found["notes"])


def test_two_right_solvers_agree_though_thousands_of_pages_tie(
    leaves: tuple[Query, PlainGraph], tmp_path: Path
) -> None:
    query, graph = leaves
    noise = np.random.default_rng(3).uniform(-3e-7, 3e-7, len(graph.urls))
    scores = graph.pagerank() * (1 + noise)
    found, notes = noted(query, graph.write(tmp_path / "s", scores))
    assert (found["tau_b"], found["spearman"]) == (pytest.approx(1, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert (found["overlap_100"], found["only_here"], notes) == (1, 0, "")
    assert found["l1"] <= found["error_bound"] + 1e-6
    assert stats.kendalltau(graph.pagerank(), scores).statistic < 0.5  # Without ties within a difference.


def test_pages_that_differ_most_are_named(leaves: tuple[Query, PlainGraph], tmp_path: Path) -> None:
    query, graph = leaves
    scores = graph.pagerank()
    scores[5] += 0.01
    scores[7] += 0.02
    found, notes = noted(query, graph.write(tmp_path / "s", scores))
    assert [row["url"] for row in found["differ_most"][:2]] == [graph.urls[7], graph.urls[5]]
    assert found["differ_most"][0]["there"] == pytest.approx(scores[7] / scores.sum())
    assert found["l1"] == pytest.approx(0.06, abs=0.005)  # What these two have more, the others have less.
    assert "the scores sum to 1.03" in notes


@pytest.mark.parametrize(
    ("scores", "note"),
    [
        (lambda graph: graph.pagerank(), ""),
        (lambda graph: graph.pagerank() * len(graph.urls), "divided by 360, the number of pages"),
        (lambda graph: graph.pagerank(leaks=True), "the tool loses what pages without links have"),
        (lambda graph: graph.pagerank(leaks=True) * len(graph.urls), "the tool loses what pages without links have"),
        (lambda graph: graph.pagerank() * 3, "they are not PageRank as they are"),
        (lambda graph: graph.pagerank(0.5), "off PageRank of this graph by"),
        (lambda graph: graph.pagerank(keeps=True), "off PageRank of this graph by"),
        (lambda graph: np.zeros(len(graph.urls)), "they have no positive sum"),
        (lambda graph: -graph.pagerank(), "they have no positive sum"),
        (lambda graph: graph.pagerank().astype(np.float32).astype(float), "the scores are of 32 bits"),
    ],
)
def test_list_that_cannot_be_pagerank_of_the_graph_is_told(
    leaves: tuple[Query, PlainGraph], tmp_path: Path, scores: Callable[[PlainGraph], np.ndarray], note: str
) -> None:
    query, graph = leaves
    _, notes = noted(query, graph.write(tmp_path / "s", scores(graph)))
    assert note in notes
    assert bool(notes) == bool(note)


def test_error_of_a_list_is_within_what_its_note_says(leaves: tuple[Query, PlainGraph], tmp_path: Path) -> None:
    query, graph = leaves
    wrong = graph.pagerank(keeps=True)
    _, notes = noted(query, graph.write(tmp_path / "s", wrong))
    least, most = re.search(r"by (\S+) to (\S+) in L1", notes).groups()  # type: ignore[union-attr]
    assert float(least) * 0.9 <= np.abs(wrong / wrong.sum() - graph.pagerank()).sum() <= float(most) * 1.1


def test_rounded_scores_and_missing_pages_are_told(leaves: tuple[Query, PlainGraph], tmp_path: Path) -> None:
    query, graph = leaves
    _, notes = noted(query, graph.write(tmp_path / "s", graph.pagerank(), "{:.3g}"))
    assert "the scores have 3 significant digits" in notes
    path = tmp_path / "linked"
    rows = zip(graph.urls, graph.pagerank().tolist(), graph.alone, strict=True)
    path.write_text("".join(f"{url} {score!r}\n" for url, score, alone in rows if not alone))
    found, notes = noted(query, path)
    assert found["only_here"] == 40
    assert notes.startswith("the file lacks 40 pages of the crawl, 40 of them without any link: a tool that makes")


def test_weighted_jump_counts_in_what_is_told(valkey: Server, tmp_path: Path) -> None:
    web = crawled(valkey, "compare-classes")
    classes = check_classes([{"name": "main", "weight": 4, "hosts": ["h0.org"]}])
    web.last = [Record(web.offset, web.at_us, encode_classes(classes), "classes")]
    web.offset += 1
    web.again()
    query = asked(web.crawl)
    export(query, tmp_path / "p.csv", "csv")
    found, notes = noted(query, tmp_path / "p.csv")
    assert (found["tau_b"], notes) == (pytest.approx(1), "")


def test_without_kept_links_the_rest_is_told(valkey: Server, tmp_path: Path) -> None:
    web = Web(valkey, "compare-plain", keep_links=False)
    web.read(PAGES[0], PAGES[1:5])
    (tmp_path / "s").write_text("".join(f"{url} {n}\n" for n, url in enumerate(PAGES[:5], 1)))
    _, notes = noted(asked(web.crawl), tmp_path / "s")
    assert notes == "the scores sum to 15, those of PageRank to 1: they are not PageRank as they are"


# Agreement.


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.sampled_from([0.0, 1e-6, 0.05, 0.5]))
def test_scores_of_a_rank_are_within_the_difference_and_ranks_are_in_order(values: list[int], tied: float) -> None:
    scores = np.array(values, float)
    ranks = rank_classes(scores, tied)
    assert sorted(set(ranks.tolist())) == list(range(len(set(ranks.tolist()))))
    for rank in set(ranks.tolist()):
        members = scores[ranks == rank]
        assert members.max() <= members.min() * (1 + tied)
        higher = scores[ranks == rank + 1]
        assert not len(higher) or higher.min() > members.min() * (1 + tied)


numbers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=40)


@given(numbers)
def test_agreement_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, float) for column in zip(*pairs, strict=True))
    found = agreement(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found["tau_b"] is None
        assert found["spearman"] is None
    else:
        assert found["tau_b"] == pytest.approx(stats.kendalltau(a, b).statistic)
        assert found["spearman"] == pytest.approx(stats.spearmanr(a, b).statistic)
