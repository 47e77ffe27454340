"""The documents' figures are those of the result files.

A row of a table names where its figures come from in a comment in its last cell:

    | none | 7,600 | 106 µs <!-- journal.json speed/kind=warm/now: events_per_s; worker_cpu_us --> |

that is: a file in benchmarks/results/, a path that all figures of the row share, and a path for each figure behind the
first cell, in order. `name=value` in a path selects entries of a list; if several match, the figure is their median. A
slash in a name is written `\\/`. ` /1000` or ` *100` behind a path changes the unit. `<!-- by hand -->` marks figures
that are in no result file; such a row names its command.

To renew figures, run the benchmark, then this test: it prints what each row should say.
"""

import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT, repository_files

RESULTS = ROOT / "benchmarks/results"
MEASUREMENTS = ROOT / "docs/measurements.md"
DOCUMENTS = [path for path in repository_files() if path.suffix == ".md" and "decisions" not in path.parts]
COMMENT = re.compile(r"<!-- (.+?) -->")
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
BY_HAND = "by hand"
SETTINGS, FILE, COMMAND = "settings", "result file", "measured by hand with"
WITHOUT_FIGURES = (SETTINGS, FILE)
DIGITS_MIN = 2  # Of 7,600 the zeros are rounding; of 20 the zero counts.


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with the comments in it."""

    place: str
    heads: list[str]
    cells: list[str]
    comments: list[str]

    @property
    def figures(self) -> list[str]:
        """The figures behind its first cell, outside code and the columns of settings and files."""
        cells = [cell for head, cell in zip(self.heads, self.cells, strict=True) if head not in WITHOUT_FIGURES]
        return FIGURE.findall(" ".join(re.sub(r"`[^`]*`", "", cell) for cell in cells[1:]))


def rows(path: Path) -> Iterator[Row]:
    """The rows of a document's tables, without their heads."""
    inside = fenced = False
    heads: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        cells = [cell.strip() for cell in COMMENT.sub("", line).strip().strip("|").split("|")]
        if fenced or not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"[|: -]+", line):
            inside = True
        elif inside:
            yield Row(
                f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{number}",
                heads,
                cells,
                COMMENT.findall(line),
            )
        else:
            heads = cells


@cache
def result(name: str, folder: Path = RESULTS) -> Any:
    """A result file."""
    return json.loads((folder / name).read_text())


def _selected(entries: list[Any], selector: str) -> list[Any]:
    wanted = dict(part.split("=", 1) for part in selector.split(","))
    shown = [{name: str(value).lower() for name, value in entry.items()} for entry in entries]
    return [entry for entry, texts in zip(entries, shown, strict=True) if wanted.items() <= texts.items()]


def looked_up(node: Any, path: str) -> float:
    """The figure at a path; the median, where a selector matches several entries."""
    path, _, factor = path.partition(" /")
    path, _, times = path.partition(" *")
    nodes = [node]
    for escaped in re.split(r"(?<!\\)/", path.strip("/")):
        segment = escaped.replace("\\/", "/")
        nodes = [
            found for one in nodes for found in (_selected(one, segment) if isinstance(one, list) else [one[segment]])
        ]
    if not nodes:
        raise KeyError(path)
    return statistics.median(map(float, nodes)) * float(times or 1) / float(factor or 1)


def sources(row: Row, folder: Path = RESULTS) -> list[float]:
    """What the result files have for the figures of a row, in order."""
    found = []
    for comment in row.comments:
        place, _, paths = comment.partition(": ")
        name, _, base = place.partition(" ")
        found += [looked_up(result(name, folder), f"{base}/{path.strip()}") for path in paths.split(";")]
    return found


def unit(figure: str) -> float:
    """The unit of a figure's last digit that counts: 0.1 of 3.8, 100 of 7,600, 1 of 20."""
    whole, _, decimals = figure.replace(",", "").partition(".")
    if decimals:
        return 10.0 ** -len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return 10.0 ** max(0, min(zeros, len(whole) - DIGITS_MIN))


def agrees(figure: str, measured: float) -> bool:
    """Whether a figure is what was measured, to the precision in which it is printed."""
    return abs(float(figure.replace(",", "")) - measured) <= unit(figure) * 0.5000001


def wrong_figures(row: Row, folder: Path = RESULTS) -> list[str]:
    """What is wrong with a row that names its source, a sentence each."""
    if BY_HAND in row.comments:
        return [] if "`" in "".join(row.cells) else [f"{row.place} is measured by hand, and names no command"]
    figures = row.figures
    try:
        measured = sources(row, folder)
    except (KeyError, FileNotFoundError) as error:
        return [f"{row.place} names a source that is not there: {error}"]
    if len(figures) != len(measured):
        return [f"{row.place} has the figures {figures} and names {len(measured)} sources"]
    return [
        f"{row.place} says {figure}, measured was {value:.6g}"
        for figure, value in zip(figures, measured, strict=True)
        if not agrees(figure, value)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_equal_those_in_the_result_files(path: Path) -> None:
    assert [sentence for row in rows(path) if row.comments for sentence in wrong_figures(row)] == []


def test_each_row_of_the_measurements_names_its_source() -> None:
    found = list(rows(MEASUREMENTS))
    assert len(found) > 40
    assert [row.place for row in found if not row.comments] == []


def test_tables_of_the_measurements_have_one_form() -> None:
    """What was measured, the settings that differ from their defaults, the figures, the file that holds them."""
    for row in rows(MEASUREMENTS):
        assert (row.heads[1], row.heads[-1]) in {(SETTINGS, FILE), (SETTINGS, COMMAND)}, row.place
        assert row.cells[1] in ("default", "none") or row.cells[1].startswith("`"), row.place
        if row.heads[-1] == FILE:
            names = {comment.split()[0].rstrip(":") for comment in row.comments}
            linked = {Path(target).name for target in re.findall(r"\(([^)]+)\)", row.cells[-1])}
            assert linked == names, row.place


def test_measurements_tell_no_history() -> None:
    text = COMMENT.sub("", MEASUREMENTS.read_text())
    assert re.findall(r"(?i)\b(?:missed|wanted|versions? before|was to|aims?|aimed)\b", text) == []


def test_each_result_file_that_is_used_has_its_benchmark_named() -> None:
    text = MEASUREMENTS.read_text()
    named = {
        comment.split()[0].rstrip(":") for row in rows(MEASUREMENTS) for comment in row.comments if comment != BY_HAND
    }

    def benchmarks(name: str) -> list[str]:  # journal-large.json is of bench_journal.py.
        parts = name.removesuffix(".json").split("-")
        return [f"bench_{'_'.join(parts[:count])}.py" for count in range(1, len(parts) + 1)]

    assert {name for name in named if not any(script in text for script in benchmarks(name))} == set()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("| a | 7,600 <!-- x.json a/kind=warm: rate --> |", None),
        ("| a | 7,700 <!-- x.json a/kind=warm: rate --> |", "says 7,700, measured was 7647"),
        ("| a | 7.6 thousand <!-- x.json a/kind=warm: rate /1000 --> |", None),
        ("| a | 20 <!-- x.json a/kind=cold: rate --> |", None),
        ("| a | 30 <!-- x.json a: n=1/rate --> |", None),
        ("| a | 1, 2 <!-- x.json a/kind=warm: rate --> |", "has the figures ['1', '2'] and names 1 sources"),
        ("| a | 1 <!-- x.json a/kind=hot: rate --> |", "names a source that is not there"),
        ("| a | 1 <!-- y.json a: rate --> |", "names a source that is not there"),
        ("| a | 1 <!-- by hand --> |", "names no command"),
        ("| a | 1 | `make demo` <!-- by hand --> |", None),
    ],
)
def test_figure_that_was_not_measured_is_detected(tmp_path: Path, line: str, complaint: str | None) -> None:
    entries = [
        {"kind": "warm", "rate": 7647, "n": 0},
        {"kind": "cold", "rate": 20.4, "n": 1},
        {"kind": "c", "rate": 40, "n": 1},
    ]
    (tmp_path / "x.json").write_text(json.dumps({"a": entries}))
    (tmp_path / "page.md").write_text(f"| what | figure |\n|---|---|\n{line}\n")
    (row,) = rows(tmp_path / "page.md")
    found = wrong_figures(row, tmp_path)
    assert not found if complaint is None else complaint in found[0]


def test_errors_by_order_of_suggestions_equal_those_in_the_result_file() -> None:
    found = result("reproduce/service-order.json")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    text = (ROOT / "docs/guide/reproduce.md").read_text()
    section = text[text.index("### Orders under a service's conditions") : text.index("### Windows")]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^  \|.+\|$", section, re.M)]
    orders = ["cash, never read times 3" if name == "weight 3" else name for name in table[0][1:]]
    graphs = {str(row["graph"]) for row in rows}
    assert len(table) == 2 + len(graphs)
    for name, *cells in table[2:]:
        (graph,) = (graph for graph in graphs if name in graph)
        for order, cell in zip(orders, cells, strict=True):
            measured = [
                row["l1"]
                for row in rows
                if (row["graph"], row["delays"], row["n"], row["order"]) == (graph, True, 10, order)
                and row["reads"] >= 1
            ]
            for figure, error in zip(cell.split(" / "), measured, strict=True):
                assert float(figure) == pytest.approx(error, abs=0.5001 * 10 ** -len(figure.partition(".")[2]))
