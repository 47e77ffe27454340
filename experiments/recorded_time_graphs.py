"""Recorded graphs whose links have times, and recorded graphs whose links are given some."""

import json
from pathlib import Path
from typing import Final

import numpy as np

from experiments.algorithms.time_graph import WINDOW_S, TimeGraph
from experiments.recorded_graphs import lines_of, load_graph
from opic.graph.crawled import degrees

DAYS_OF_THE_PAPER: Final = 24  # Its blog posts span that many days.
DAY_S: Final = 86_400.0
NEVER: Final = 1e12  # Seconds: after everything.


def mathoverflow(data: Path | None, window_s: float = WINDOW_S) -> TimeGraph:
    """Load who answered or commented on whom at MathOverflow, 2009 to 2016: lines `FROM TO TIME`, not in order of time.

    Raises:
        NoGraph: the file is missing.
    """
    rows = np.array([line.split() for line in lines_of("sx-mathoverflow", "sx-mathoverflow.txt.gz", data)], np.int64)
    _, numbers = np.unique(rows[:, :2], return_inverse=True)
    source, target = numbers.reshape(-1, 2).T
    return TimeGraph.windowed(source, target, rows[:, 2].astype(np.float64), window_s)


def pep_history(data: Path | None) -> TimeGraph:
    """Load the site of the Python Enhancement Proposals, 2000 to 2026, from the versions of its pages in order of time.

    A link is there from the version that first has it to the one that no longer does. A page that is removed has none.

    Raises:
        NoGraph: the file is missing.
    """
    page: dict[str, int] = {}
    since: dict[int, dict[int, float]] = {}
    links: list[tuple[int, int, float, float]] = []
    for line in lines_of("pep-history", "events.jsonl.gz", data):
        event = json.loads(line)
        source, time = page.setdefault(event["url"], len(page)), float(event["t"])
        out = {page.setdefault(url, len(page)) for url in event["out"]} if event["status"] == 200 else set()
        there = since.setdefault(source, {})
        for target in [target for target in there if target not in out]:
            start = there.pop(target)
            if time > start:
                links.append((source, target, start, float(np.nextafter(time, start))))
        for target in out:
            there.setdefault(target, time)
    links += [(source, target, start, NEVER) for source, there in since.items() for target, start in there.items()]
    source, target, start, end = np.array(links).T
    return TimeGraph(source.astype(np.int64), target.astype(np.int64), start, end, len(page))


def with_random_times(name: str, data: Path | None, seed: int) -> TimeGraph:
    """Load a recorded graph whose links come at random moments of 24 days, each for 7 days: a dense time graph.

    Raises:
        NoGraph: one of its files is missing.
    """
    links = load_graph(name, data).links
    source = np.repeat(np.arange(links.shape[0]), degrees(links).astype(np.int64))
    time = np.random.default_rng(seed).uniform(0, DAYS_OF_THE_PAPER * DAY_S, len(source))
    return TimeGraph.windowed(source, links.indices.astype(np.int64), time, pages=links.shape[0])
