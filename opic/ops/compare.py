"""Comparison of importance with the scores of a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from opic.arrays import Float64s
from opic.errors import BadInput, NotKept
from opic.model.cash import MILLION
from opic.ops.agreement import TIED, agreement
from opic.ops.export import reversed_host
from opic.ops.export_pages import CrawlPicture, MetaCopy, take_picture
from opic.ops.pagerank_check import missing_notes, one_step, precision_notes, step_notes, sum_notes
from opic.ops.score_files import ScoreFile, read_scores
from opic.query.queries import Query
from opic.urls.canonical import icann_domain, registered_domain

COMPARED_MIN: Final = 2
OWN_GRAPH: Final = "Common Crawl ranks {0} by PageRank of the graph of {0}: it is not the sum of their pages' PageRank"
FURTHEST: Final = 10  # Pages that differ most, in an answer.


def compare(query: Query, path: Path) -> dict[str, object]:
    """Compare the importance of pages with the scores that a file gives them; larger is better.

    Args:
        query: the crawl.
        path: an export of pages (Parquet, CSV, JSON Lines), ranks of hosts or domains as Common Crawl publishes them
            (their `#pr_val`), or lines `URL SCORE`, split at a tab or at white space; text may be gzipped.

    Returns:
        "of", what is compared; "compared", how many of them both have; "only_here", "only_there"; of the file's
        lines left out, "repeated_rows" (another row names the same) and "skipped_lines" (empty, or comments); what
        `agreement` returns, with "ties_within", the relative difference up to which scores are equal; "l1", the
        distance of both scaled to sum 1; "differ_most", those furthest apart, with both; "notes", what shows that the
        file can't be PageRank of this graph; "policy", "error_bound", "as_of".

    Raises:
        BadInput: the file can't be read, or has less than two pages in common with the crawl.
    """
    file = read_scores(path, query.canonical)
    with MetaCopy(query.crawl) as metas:
        picture, with_links = _picture(query, metas, with_links=file.kind == "pages")
        here, ours, notes = (
            _pages(picture, file, with_links=with_links) if file.kind == "pages" else _sites(picture, file)
        )
    if len(ours) < COMPARED_MIN:
        raise BadInput(f"{path}: {len(file.scores):,} {file.kind}, {len(ours)} of them of this crawl")
    names, a = list(ours), np.array(list(ours.values()))
    b = np.array([file.scores[name] for name in names])
    if file.repeated:
        notes.append(f"{file.repeated:,} rows name a page that an earlier row names: the last one counts")
    bound = query.bound_of(picture.snapshot, picture.view)
    tied = max(TIED, bound) if bound is not None and bound < 1 else TIED
    return {
        "of": file.kind,
        "compared": len(ours),
        "only_here": here - len(ours),
        "only_there": len(file.scores) - len(ours),
        "repeated_rows": file.repeated,
        "skipped_lines": file.skipped,
        **agreement(a, b, tied),
        "ties_within": tied,
        **distance(names, a, b, file.kind.removesuffix("s").replace("page", "url")),
        "notes": notes + precision_notes(b),
        "policy": picture.policy,
        "error_bound": bound,
        "as_of": picture.snapshot.as_of,
    }


def distance(names: list[str], a: Float64s, b: Float64s, kind: str) -> dict[str, object]:
    """Return how far two scores are apart in L1, each scaled to sum 1, and where most; None if one can't be scaled."""
    if a.min() < 0 or b.min() < 0 or not a.sum() or not b.sum():
        return {"l1": None, "differ_most": []}
    here, there = a / a.sum(), b / b.sum()
    apart = np.abs(here - there)
    furthest = [index for index in np.argsort(-apart, kind="stable")[:FURTHEST].tolist() if apart[index]]
    rows = [{kind: names[index], "here": float(here[index]), "there": float(there[index])} for index in furthest]
    return {"l1": float(apart.sum()), "differ_most": rows}


def _picture(query: Query, metas: MetaCopy, *, with_links: bool) -> tuple[CrawlPicture, bool]:
    """Return a picture of the crawl, and whether it has the links: if they are asked for and kept."""
    try:
        return take_picture(query, metas, links=with_links), with_links
    except NotKept:
        return take_picture(query, metas, links=False), False


def _pages(picture: CrawlPicture, file: ScoreFile, *, with_links: bool) -> tuple[int, dict[str, float], list[str]]:
    """Return how many pages that are not gone there are, the importance of those that the file has, and notes on it."""
    ours, theirs, live = dict[str, float](), np.full(picture.pages, np.nan), np.zeros(picture.pages, np.bool_)
    row = 0
    for batch in picture.batches():
        for url, share, rank in zip(batch["url"], batch["importance"], batch["rank"], strict=True):
            if rank:
                live[row] = True
                if url in file.scores:
                    ours[url], theirs[row] = share, file.scores[url]
            row += 1
    missing = live & np.isnan(theirs)
    scores, damping = np.nan_to_num(theirs), 1 - picture.query.crawl.rules.q / MILLION
    total = float(scores.sum())
    if (scores < 0).any() or not 0 < total < np.inf:
        return int(live.sum()), ours, ["the scores are not PageRank: they have no positive sum"]
    step = one_step(picture, scores, damping) if with_links else None
    notes = missing_notes(missing, step)
    if not notes:
        notes += sum_notes(total, len(ours), step, damping) + (step_notes(step, damping) if step else [])
    return int(live.sum()), ours, notes


def _sites(picture: CrawlPicture, file: ScoreFile) -> tuple[int, dict[str, float], list[str]]:
    """Return how many hosts or domains there are, the importance of those that the file has, and a note on it.

    Common Crawl keeps a leading `www.` of hosts since its graph of November 2025, and stripped it before. Its domains
    are those below ICANN's suffixes; those below private suffixes too (github.io) count if more of the names are so.
    """
    hosts = picture.hosts()
    if file.kind == "hosts":
        www = any(name.endswith(".www") and name.count(".") > 1 for name in file.scores)
        sums = _summed(hosts, lambda host: reversed_host(host, www=www))
    else:
        by_icann = _summed(hosts, lambda host: reversed_host(icann_domain(host)))
        by_all = _summed(hosts, lambda host: reversed_host(registered_domain(host)))
        sums = max(by_icann, by_all, key=lambda sums: len(sums.keys() & file.scores.keys()))
    ours = {name: share for name, share in sums.items() if name in file.scores}
    return len(sums), ours, [OWN_GRAPH.format(file.kind)]


def _summed(hosts: Mapping[str, float], name_of: Callable[[str], str]) -> dict[str, float]:
    sums = dict[str, float]()
    for host, share in hosts.items():
        name = name_of(host)
        sums[name] = sums.get(name, 0.0) + share
    return sums
