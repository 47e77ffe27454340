"""`opic compare`: importance beside the scores of a file, in every form that files have."""

import gzip
import json
from pathlib import Path

import numpy as np
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
from opic.ops.compare import agreement, compare
from opic.ops.export import export


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
    assert -1 <= found["tau_b"] <= found["spearman"] <= 1


@pytest.mark.parametrize(
    ("content", "why"),
    [("http://h0.org/0 x\n", ":1: 'http://h0.org/0 x' is not URL SCORE"), ("{}\n", "neither an export"),
     ("http://none.org/ 1\n", "1 pages, 0 of them of this crawl"), ("url,importance\nhttp://h0.org/0,x\n", "neither"),
     ("", "0 pages, 0 of them"), ("\x1f\x8bx", "can't be read")],
)  # fmt: skip
def test_unusable_file_is_refused(valkey: Server, tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "scores"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadInput, match=why):
        compare(asked(Web(valkey, "compare-bad").crawl), path)


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
