"""Comparison of importance with the scores of a file: rank correlations, and how much of the tops is the same."""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from opic.errors import BadInput, BadUrl
from opic.ops.export import CC_COLUMNS, check_parquet, reversed_hosts
from opic.ops.export_pages import CrawlPicture, MetaCopy, take_picture
from opic.query.queries import Query
from opic.urls.canonical import shown

Canonical = Callable[[str], str]
TOPS: Final = (100, 1_000)
COMPARED_MIN: Final = 2


def compare(query: Query, path: Path) -> dict[str, object]:
    """Compare the importance of pages with the scores that a file gives them; larger is better.

    Args:
        query: the crawl.
        path: an export of pages (Parquet, CSV, JSON Lines), Common Crawl's host ranks (their `#pr_val`), or lines
            `URL SCORE`, split at a tab or at white space; text may be gzipped.

    Returns:
        "compared", how many pages or hosts both have; "only_here", "only_there"; "tau_b", "spearman"; "overlap_100",
        "overlap_1000": the share of the best ones of either that the other has too, among those compared.

    Raises:
        BadInput: the file can't be read, or has less than two pages in common with the crawl.
    """
    hosts, theirs = _read(path, query.canonical)
    with MetaCopy(query.crawl) as metas:
        picture = take_picture(query, metas, links=False)
        if hosts:
            all_hosts = reversed_hosts(picture)
            here, ours = len(all_hosts), {name: share for name, share in all_hosts.items() if name in theirs}
        else:
            here, ours = _pages(picture, theirs)
    if len(ours) < COMPARED_MIN:
        raise BadInput(f"{path}: {len(theirs):,} {'hosts' if hosts else 'pages'}, {len(ours)} of them of this crawl")
    a, b = np.array(list(ours.values())), np.array([theirs[name] for name in ours])
    return {
        "of": "hosts" if hosts else "pages",
        "compared": len(ours),
        "only_here": here - len(ours),
        "only_there": len(theirs) - len(ours),
        **agreement(a, b),
        "policy": picture.policy,
        "as_of": picture.snapshot.as_of,
    }


def _pages(picture: CrawlPicture, theirs: Mapping[str, float]) -> tuple[int, dict[str, float]]:
    """Return how many pages that are not gone there are, and the importance of those that a file has too."""
    here, ours = 0, dict[str, float]()
    for batch in picture.batches():
        live = [pair for *pair, rank in zip(batch["url"], batch["importance"], batch["rank"], strict=True) if rank]
        here += len(live)
        ours |= {url: share for url, share in live if url in theirs}
    return here, ours


def agreement(a: "np.ndarray", b: "np.ndarray") -> dict[str, float | None]:
    """Return how far two scores of the same things, (n,) each, agree; None where all scores are equal.

    >>> agreement(np.array([3.0, 2.0, 1.0]), np.array([9.0, 5.0, 7.0]))["spearman"]
    0.5
    """
    from scipy.stats import kendalltau, rankdata

    varied = len(np.unique(a)) > 1 and len(np.unique(b)) > 1
    spearman = float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]) if varied else None
    found: dict[str, float | None] = {"tau_b": float(kendalltau(a, b).statistic) if varied else None}
    found["spearman"] = None if spearman is None else round(spearman, 12)
    for top in TOPS:
        best = [set(np.argsort(-scores, kind="stable")[:top].tolist()) for scores in (a, b)]
        found[f"overlap_{top}"] = len(best[0] & best[1]) / len(best[0])
    return found


def _read(path: Path, canonical: Canonical) -> tuple[bool, dict[str, float]]:
    """Return whether a file is of hosts, and its scores."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"PAR1":
            table = check_parquet().parquet.read_table(path, columns=["url", "importance"])
            return False, dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
        with gzip.open(path, "rt") if magic.startswith(b"\x1f\x8b") else path.open() as text:
            return _read_text(path, text, canonical)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: can't be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: neither an export, nor host ranks, nor lines URL SCORE: {error}") from None


def _read_text(path: Path, text: TextIO, canonical: Canonical) -> tuple[bool, dict[str, float]]:
    first = text.readline()
    text.seek(0)
    if first.startswith(CC_COLUMNS[0]):
        rows = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        return True, {row[CC_COLUMNS[-1]]: float(row[CC_COLUMNS[3]]) for row in rows}
    if first.startswith("{"):
        pages = ((page["url"], page["importance"]) for page in map(json.loads, text))
        return False, {url: float(share) for url, share in pages}
    if "url" in (names := first.rstrip().split(",")) and "importance" in names:
        return False, {row["url"]: float(row["importance"]) for row in csv.DictReader(text)}
    return False, dict(_pairs(path, text, canonical))


def _pairs(path: Path, text: TextIO, canonical: Canonical) -> Iterator[tuple[str, float]]:
    for number, line in enumerate(text, 1):
        if line.strip() and not line.startswith("#"):
            try:
                url, score = line.split("\t") if "\t" in line else line.rsplit(None, 1)
                yield canonical(url.strip()), float(score)
            except (ValueError, BadUrl):
                raise BadInput(f"{path}:{number}: {shown(line.rstrip())} is not URL SCORE") from None
