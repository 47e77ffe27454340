"""What the benchmarks on recorded graphs share: their options, the graphs that are here, means of several runs."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.recorded_graphs import NoGraph, RecordedGraph, load_graph


def graph_arguments(description: str, graphs: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of a benchmark on some graphs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--graphs", nargs="*", default=list(graphs), choices=list(graphs))
    parser.add_argument("--data", type=Path, help="where the recorded graphs are that the repository does not ship")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    return parser


def graphs_here(names: Sequence[str], data: Path | None) -> Iterator[RecordedGraph]:
    """Yield the graphs that are here; print which are not."""
    for name in names:
        try:
            yield load_graph(name, data)
        except NoGraph as error:
            print(error)


def mean_and_error(runs: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Return the means of the columns of several runs, and their standard errors (0 for one run)."""
    of = np.array(runs, np.float64)
    spread = of.std(axis=0, ddof=1) / np.sqrt(len(of)) if len(of) > 1 else np.zeros(of.shape[1])
    return {"mean": of.mean(axis=0).round(5).tolist(), "standard error": spread.round(5).tolist()}
