"""What all experiments share: recorded graphs, progress, repeated runs, the table with its digits, and the picture.

An experiment is a function that yields the rows of one run, and a description of its table. Runs differ in their random
numbers alone. Each figure is combined over the runs; with `--runs`, it is a mean, and its standard error is beside it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from experiments.recorded_graphs import LoadedT, RecordedGraph, available, load_graph
from experiments.result import Progress, Result
from opic.cli.pictures import Panel
from opic.errors import BadInput

DAVIS_DHILLON: Final = "Davis, Dhillon 2006"
CHO_SCHONFELD: Final = "Cho, Schonfeld 2007"
KUMAR: Final = "Kumar, Lang, Marlow, Tomkins 2008"
SAMPLING_PAPER: Final = "Bar-Yossef, Kanungo, Krauthgamer 2005"
OPIC_PAPER: Final = "Abiteboul, Preda, Cobena 2003"
NOT_IN_THE_PAPER: Final = "not in the paper"  # In place of the paper's figure in a claim.
KEY: Final = "key"
ERROR: Final = " ±"  # At the end of a column's name: its standard error.
JobT = TypeVar("JobT")
Row = dict[str, Any]
Points = Iterable[tuple[float, float]]
Printed = Mapping[str, Sequence[tuple[float, float]]]


class Extreme(NamedTuple):
    """A column that holds the least or the greatest value of another one over the runs, with its digits."""

    choose: Callable[[Iterable[float]], float]
    of: str
    digits: int


# How a column is shown: KEY tells rows apart; digits after the point; a format, as ".1%"; None for what is as it is.
Columns = Mapping[str, int | str | Extreme | None]


def keys(*names: str) -> dict[str, str]:
    """Return columns that tell rows apart."""
    return dict.fromkeys(names, KEY)


class Axes(NamedTuple):
    """What the axes of a panel show, and their scales; see `opic.cli.pictures.Panel`."""

    x: str = ""
    y: str = ""
    x_scale: str = "linear"
    y_scale: str = "log"


class Run:
    """One run of an experiment: its number and random numbers, the recorded graphs, and its notes.

    number  of the run, from 0
    count   of all runs
    quick   whether it is a small one, to see that it works
    data    directory of recorded graphs, if one was named
    notes   sentences for below the table
    missing what is left out for want of a recorded graph, a sentence each
    """

    def __init__(self, data: Path | None, count: int, quick: bool, axes: Axes, progress: Progress) -> None:
        """Stand before the first run."""
        self.number, self.count, self.quick, self.data = 0, count, quick, data
        self.notes, self.missing = dict[str, None](), dict[str, None]()
        self._axes, self._progress = axes, progress
        self._levels: list[tuple[int, int, str]] = []
        self._graphs: dict[str, RecordedGraph] = {}
        self._curves: dict[tuple[str, Axes], dict[str, dict[int, list[tuple[float, float]]]]] = {}

    def rng(self, first: int = 0) -> np.random.Generator:
        """Return the random numbers of a run: the first run's are those of seed `first`, the next one's of the next."""
        return np.random.default_rng(first + self.number)

    def either(self, full: JobT, quick: JobT) -> JobT:
        """Return a setting, or the one of a small run."""
        return quick if self.quick else full

    def load(self, loaders: Mapping[str, Callable[[], LoadedT]]) -> dict[str, LoadedT]:
        """Load what is here, by name.

        Raises:
            NoGraph: nothing is.
        """
        missing = list[str]()
        loaded = available(loaders, missing)
        self.missing |= dict.fromkeys(missing)
        return loaded

    def graphs(self, names: Sequence[str]) -> list[RecordedGraph]:
        """Return the recorded graphs that are here, loaded once.

        Raises:
            NoGraph: none is.
        """
        if not self._graphs:
            self._graphs = self.load({name: partial(load_graph, name, self.data) for name in names})
        return list(self._graphs.values())

    def steps(self, jobs: Iterable[JobT], text: Callable[[JobT], str] = str) -> Iterator[JobT]:
        """Yield jobs and show progress; steps within steps are counted as parts of them."""
        planned, level = list(jobs), len(self._levels)
        for number, job in enumerate(planned):
            self._levels[level:] = [(number, len(planned), text(job))]
            done, total = 0, 1
            for at, of, _ in self._levels:
                done, total = done * of + at, total * of
            self._progress(done, total, ", ".join(filter(None, (words for *_, words in self._levels))))
            yield job
        del self._levels[level:]
        if not level:
            self._progress(len(planned), len(planned), "")

    def note(self, *sentences: str) -> None:
        """Say something below the table, once in all runs."""
        self.notes |= dict.fromkeys(sentences)

    def draw(self, title: str, line: str, points: Points, axes: Axes | None = None) -> None:
        """Add points to a line of a panel; runs that draw the same line are combined, point by point."""
        lines = self._curves.setdefault((title, axes or self._axes), {})
        lines.setdefault(line, {}).setdefault(self.number, []).extend(points)

    def panels(self, combine: Callable[[Sequence[float]], float]) -> list[Panel]:
        """Return the picture."""
        return [
            Panel(title, {name: _combined(list(of.values()), combine) for name, of in lines.items()}, *axes)
            for (title, axes), lines in self._curves.items()
        ]


def _combined(
    runs: Sequence[Sequence[tuple[float, float]]], combine: Callable[[Sequence[float]], float]
) -> Sequence[tuple[float, float]]:
    """Combine the points that all runs have."""
    if len(runs) == 1:
        return runs[0]
    together = zip(*runs, strict=False)
    return [(combine([x for x, _ in of]), combine([y for _, y in of])) for of in together]


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return float(np.mean(values))


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    name      by which it is called
    title     what it shows, a line
    source    the paper
    columns   of its table, in order
    rows      yields the rows of a run: values in the order of the columns
    paper     the paper's figures, rows of one shape; or what makes claims and our figures from the rows
    notes     what differs from the paper and why, a sentence each
    axes      of its panels, where they don't have their own
    printed   points that the paper prints, by line
    runs      how often it is run, unless `--runs` or `--quick` says otherwise; 0: nothing in it is random
    combine   what is made of the figures of several runs without `--runs`
    finish    computes columns from others once the runs are combined, orders rows or adds some
    """

    name: str
    title: str
    source: str
    columns: Columns
    rows: Callable[[Run], Iterable[Sequence[object]]]
    paper: Sequence[Mapping[str, object]] | Callable[[Sequence[Row]], Sequence[Mapping[str, object]]] = ()
    notes: Sequence[str] = ()
    axes: Axes = field(default_factory=Axes)
    printed: Printed = field(default_factory=dict)
    runs: int = 1
    combine: Callable[[Sequence[float]], float] = mean
    finish: Callable[[Run, list[Row]], Iterable[Row]] = lambda _, rows: rows

    @property
    def recorded(self) -> str:
        """How often it is run for the recorded results."""
        return f"{self.combine.__name__} of {self.runs}" if self.runs > 1 else "1" if self.runs else "1, not random"

    def run(self, data: Path | None, progress: Progress, *, quick: bool = False, runs: int | None = None) -> Result:
        """Run the experiment; see `experiments.catalogue.reproduce`."""
        if runs and runs > 1 and not self.runs:
            raise BadInput(f"{self.name}: nothing in it is random, so {runs} runs would be the same; leave out --runs")
        combine, count = mean if runs else self.combine, runs or (1 if quick else self.runs) or 1
        started, found = time.perf_counter(), dict[tuple[object, ...], list[Row]]()
        run = Run(data, count, quick, self.axes, progress)
        for number in run.steps(range(count), lambda number: f"run {number + 1}" if count > 1 else ""):
            run.number = number
            for values in self.rows(run):
                row = dict(zip(self.columns, values, strict=True))
                found.setdefault(tuple(row[name] for name, how in self.columns.items() if how == KEY), []).append(row)
        rows = list(self.finish(run, [self._row(of, combine) for of in found.values()]))
        shown = self._shown(rows) if runs else dict(self.columns)
        notes = [*run.notes, *self.notes]
        if runs:
            notes.insert(0, f"figures are means of {count} runs, or of those that `runs` says; ± is the standard error")
        return Result(
            self.name,
            self.paper(rows) if callable(self.paper) else self.paper,
            list(shown),
            [[_cell(row.get(name, ""), how) for name, how in shown.items()] for row in rows],
            time.perf_counter() - started,
            self.beside_paper(run.panels(combine)),
            list(run.missing),
            list(dict.fromkeys(notes)),
            self.caption(count, combine),
        )

    def caption(self, count: int, combine: Callable[[Sequence[float]], float]) -> str:
        """Say what the picture shows, after which paper, and what its circles are."""
        runs = f"; {combine.__name__} of {count} runs" if count > 1 else ""
        beside = "; circles: figures that the paper prints, of its own graphs" if self.printed else ""
        return f"{self.title[0].upper()}{self.title[1:]}. After {self.source}{runs}{beside}."

    def beside_paper(self, panels: Sequence[Panel]) -> list[Panel]:
        """Return panels with the figures that the paper prints in the last one, which has the largest graph."""
        if not panels or not self.printed:
            return list(panels)
        last = panels[-1]
        printed = {name: points for name, points in self.printed.items() if name in last.lines}
        return [*panels[:-1], replace(last, paper=printed)]

    def _row(self, of: Sequence[Row], combine: Callable[[Sequence[float]], float]) -> Row:
        """Return one row for the same row of several runs."""
        row: Row = {**of[0], "runs": len(of)}
        for name, how in self.columns.items():
            if isinstance(how, Extreme):
                row[name] = how.choose(one[how.of] for one in of)
            elif how != KEY and name != "runs" and len(of) > 1:
                values = [one[name] for one in of]
                numbers = [value for value in values if isinstance(value, float | int)]
                if len(numbers) == len(values):
                    row[name] = combine(numbers)
                    row[name + ERROR] = float(np.std(numbers, ddof=1) / np.sqrt(len(numbers)))
                elif numbers:
                    row[name] = f"in {len(numbers)} of {len(values)} runs"
        return row

    def _shown(self, rows: Sequence[Row]) -> Columns:
        """Return the columns with the number of runs after the keys, and standard errors after the figures."""
        shown: dict[str, int | str | Extreme | None] = {name: how for name, how in self.columns.items() if how == KEY}
        shown["runs"] = None
        for name, how in self.columns.items():
            if not isinstance(how, Extreme):
                shown.setdefault(name, how)
                if any(name + ERROR in row for row in rows):
                    shown[name + ERROR] = how
        return shown


def _cell(value: Any, how: int | str | Extreme | None) -> object:
    """Return a value as the table shows it: a number in the digits or the format of its column."""
    digits = how.digits if isinstance(how, Extreme) else how
    if not isinstance(value, float | int) or digits in (None, KEY):
        return value
    return round(float(value), digits) if isinstance(digits, int) else format(value, str(digits))


def claim(sentence: str, paper: str | float, ours: str | float) -> Row:
    """Return a row of the paper's claims, and what we found."""
    return {"claim": sentence, "paper": paper, "ours": ours}
