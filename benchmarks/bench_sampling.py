"""How many steps a second does a focused walk make?  Pass --pages 10000,100000,1000000 to measure.

A made-up graph: most links go to popular pages, some both ways; every third page is on the topic. A walk steps from
page to page, in each focus; links and topic are in memory, so that only the walk's own work is timed. Nothing that a
step does depends on the number of pages. But a first visit freezes the neighbours of a page, on a large graph nearly
every visit is a first one, and popular pages have more neighbours there. Beside it: the paper's walk written down as it
is, which looks at all neighbours of a page to count its degree on the topic before it leaves.

Before a time counts: hard focus must have kept to the topic, and the estimated share of popular pages must be the
topic's within five standard errors. Exits 1 otherwise. Times are the least of several.
"""

import argparse
import math
import random
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
from harness import write_result

from experiments.algorithms.matrix_pages import MatrixPages
from opic.graph.crawled import LinkMatrix, link_matrix
from opic.graph.focused_walk import Focus, FocusedWalk, Visit, WalkOptions
from opic.graph.walk_samples import estimate_share, take_samples

PAGES = "10000"
STEPS = 3_000  # So few that even on the smallest graph most visits are first ones.
PLAIN_STEPS = 2_000
LINKS = 10  # Of each page.
BACK_SHARE = 0.3  # Of the links that have one back.
SKEW = 1.5  # Page number int(n * u^SKEW), u uniform.
TOPIC_OF = 3
REPEATS = 5
ERRORS_MAX = 5.0
SEED = 20050131


def made_up_graph(pages: int) -> LinkMatrix:
    """Return links between pages; page 0 is the most popular."""
    rng = np.random.default_rng(SEED)
    sources = np.repeat(np.arange(pages), LINKS)
    targets = (pages * rng.random(len(sources)) ** SKEW).astype(np.int64)
    back = rng.random(len(sources)) < BACK_SHARE
    ends = np.stack((np.concatenate((sources, targets[back])), np.concatenate((targets, sources[back]))), axis=1)
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    return link_matrix(ends[:, 0], ends[:, 1], (pages, pages))


def walked(web: MatrixPages, focus: Focus, steps: int, seed: int) -> tuple[list[Visit[int]], float]:
    """Return the visits of a walk, and the seconds that it took."""
    walk = FocusedWalk(web, 0, random.Random(seed), WalkOptions(focus))
    started = time.perf_counter()
    visits = list(islice(walk.visits(), steps))
    return visits, time.perf_counter() - started


def plain_steps(web: MatrixPages, steps: int) -> float:
    """Walk as the paper's text says; return the seconds that it took."""
    rng, at = random.Random(SEED), 0
    started = time.perf_counter()
    for _ in range(steps):
        neighbours = [*web.load_page(at).links, *web.inlinks(at)]
        on_topic = [page for page in neighbours if web.load_page(page).on_topic]
        at = on_topic[rng.randrange(len(on_topic))]
    return time.perf_counter() - started


def errors_off(visits: list[Visit[int]], pages: int) -> float:
    """Return how many standard errors the estimated share of popular pages, the first quarter, is from the truth."""
    samples = take_samples(visits)
    numbers = np.array([visit.page for visit in visits])[samples.visit]
    found = estimate_share(samples, numbers < pages // 4, numbers)
    truth = math.ceil((pages // 4) / TOPIC_OF) / math.ceil(pages / TOPIC_OF)
    return abs(found.share - truth) / math.sqrt(truth * (1 - truth) / found.effective)


def main() -> int:
    """Measure, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", default=PAGES, help="pages of the graphs, separated by commas")
    parser.add_argument("--steps", type=int, default=STEPS, help="real steps of a walk")
    parser.add_argument(
        "--result", type=Path, help="where to write the result; default benchmarks/results/sampling.json"
    )
    given = parser.parse_args()
    graphs, wrong = [], list[str]()
    for pages in map(int, given.pages.split(",")):
        links = made_up_graph(pages)
        web = MatrixPages(links, np.arange(pages) % TOPIC_OF == 0, np.arange(pages) // 10)
        row: dict[str, object] = {"pages": pages, "links": int(links.nnz)}
        for focus in Focus:
            took, visits = math.inf, list[Visit[int]]()
            for repeat in range(REPEATS):
                visits, seconds = walked(web, focus, given.steps, repeat)
                took = min(took, seconds)
            row[f"{focus}_steps_per_s"] = round(given.steps / took)
            row[f"{focus}_first_visits"] = len({visit.page for visit in visits})
            if focus is Focus.HARD:
                if any(visit.page % TOPIC_OF for visit in visits):
                    wrong.append(f"{pages:,} pages: hard focus left the topic")
                if (off := errors_off(visits, pages)) > ERRORS_MAX:
                    wrong.append(f"{pages:,} pages: the estimate is {off:.1f} standard errors off")
        row["text_steps_per_s"] = round(PLAIN_STEPS / plain_steps(web, PLAIN_STEPS))
        graphs.append(row)
        speeds = ", ".join(f"{focus} {row[f'{focus}_steps_per_s']:,}" for focus in Focus)
        print(
            f"{pages:>9,} pages, {links.nnz:>10,} links: {speeds}; the text's hard {row['text_steps_per_s']:,} steps/s"
        )
    write_result("sampling", {"steps": given.steps, "graphs": graphs}, given.result)
    for sentence in wrong:
        print(f"FAIL: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
