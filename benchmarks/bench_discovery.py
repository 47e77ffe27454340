"""What does one step of a greedy discovery crawl cost?  Pass --candidates 10000,100000,1000000 to measure.

A frontier of pages with as many links seen to each as a power law gives it. A step takes the page with the most links
seen to it (Crawl-GAI of Kumar, Lang, Marlow and Tomkins) and counts the links on it, to pages of the frontier and to
new ones. Beside it: the same by looking at all candidates, as the paper's sentence says, with numpy; and the random
choice in proportion to the links seen (Crawl-AI). Each greedy choice is checked against the greatest count.

Exits 1 when a choice is not of the greatest count. Times are the least of several runs.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from harness import write_result

from experiments.algorithms.weighted_picks import ByCount, GreatestCount

CANDIDATES = (1_000, 10_000)
STEPS = 2_000
SCAN_STEPS = 200  # Of looking at all candidates.
LINKS = 10  # On a page.
NEW_SHARE = 0.3  # Of the links go to pages not seen before.
EXPONENT = 2.1  # Of the power law of in-degrees, as on the web.
REPEATS = 3
SEED = 2008


class Scan:
    """The page with the most links, by looking at all candidates."""

    def __init__(self, pages_max: int) -> None:
        self._count = np.zeros(pages_max, np.int64)

    def increment(self, page: int) -> None:
        self._count[page] += 1

    def discard(self, page: int) -> None:
        self._count[page] = 0

    def pick(self, _rng: np.random.Generator) -> int:
        return int(np.argmax(self._count))


Frontier = GreatestCount | Scan | ByCount


def links_to_candidates(candidates: int) -> list[int]:
    """Return the targets of links, in a random order: at least one link to each candidate."""
    rng = np.random.default_rng(SEED)
    return rng.permutation(
        np.repeat(np.arange(candidates), np.minimum(rng.zipf(EXPONENT, candidates), 10_000))
    ).tolist()


def links_of_steps(candidates: int, steps: int) -> list[list[int]]:
    """Return the targets of the links on the page of each step: known candidates, and new ones."""
    rng = np.random.default_rng(SEED + 1)
    targets = rng.integers(0, candidates, (steps, LINKS))
    new = rng.random((steps, LINKS)) < NEW_SHARE
    targets[new] = candidates + np.arange(new.sum())
    return targets.tolist()


def run(frontier: Frontier, steps: list[list[int]], counts: dict[int, int] | None) -> float:
    """Take the steps; return the seconds that they took.

    Args:
        frontier: filled with the candidates.
        steps: targets of the links on the page of each.
        counts: links to each candidate, to check each choice by; None to measure.
    """
    rng = np.random.default_rng(SEED)
    crawled = set[int]()
    sizes = np.bincount(list(counts.values())).tolist() if counts is not None else []
    started = time.perf_counter()
    for links in steps:
        page = frontier.pick(rng)
        assert page is not None
        if counts is not None:
            while not sizes[-1]:
                sizes.pop()
            if counts[page] != len(sizes) - 1:
                raise SystemExit(f"FAIL: page {page} has {counts[page]} links, the best {len(sizes) - 1}")
            sizes[counts.pop(page)] -= 1
        frontier.discard(page)
        crawled.add(page)
        for target in links:
            if target not in crawled:
                frontier.increment(target)
                if counts is not None:
                    count = counts[target] = counts.get(target, 0) + 1
                    sizes += [0] * (count + 1 - len(sizes))
                    sizes[count] += 1
                    sizes[count - 1] -= count > 1
    return time.perf_counter() - started


def measure(name: str, candidates: int, steps: int) -> dict[str, float]:
    """Return microseconds a step of the crawl, and microseconds a link while the frontier was filled."""
    seen, ahead = links_to_candidates(candidates), links_of_steps(candidates, steps)
    made = {"Crawl-GAI": GreatestCount, "Crawl-AI": ByCount}
    took, filling = [], []
    for repeat in range(REPEATS + 1):
        frontier: Frontier = made[name]() if name in made else Scan(candidates + steps * LINKS)
        started = time.perf_counter()
        for page in seen:
            frontier.increment(page)
        filling.append(time.perf_counter() - started)
        if repeat:
            took.append(run(frontier, ahead, None))
        elif name != "Crawl-AI":
            counts = np.bincount(seen).tolist()
            run(frontier, ahead, dict(enumerate(counts)))
    return {
        "us_a_step": round(min(took) / steps * 1e6, 2),
        "us_a_link_seen": round(min(filling) / len(seen) * 1e6, 3),
    }


def main() -> int:
    """Measure, check, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--candidates",
        type=lambda text: [int(part) for part in text.split(",")],
        default=list(CANDIDATES),
        help="sizes of the frontier",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="steps measured at each size")
    parser.add_argument("--result", type=Path, help="default benchmarks/results/discovery.json")
    given = parser.parse_args()
    rows = []
    for candidates in given.candidates:
        for name in ("Crawl-GAI", "Crawl-AI", "scan"):
            steps = min(given.steps, SCAN_STEPS) if name == "scan" else given.steps
            row = {"candidates": candidates, "name": name} | measure(name, candidates, steps)
            rows.append(row)
            took, seen = row["us_a_step"], row["us_a_link_seen"]
            print(f"{candidates:>10,} {name:<10} {took:>10,.2f} us a step, {seen:.3f} us a link seen before")
    write_result("discovery", {"links_a_page": LINKS, "steps": given.steps, "rows": rows}, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
