"""The entries of pages in answers: from rows of the replicas by cash, with the estimates of another policy on top."""

from collections.abc import Mapping, Sequence

import numpy as np

from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.model.classes import OTHERS
from opic.query.exact_view import ExactView
from opic.query.loaded import LoadedView
from opic.query.rankings import Ranking, View, percentile
from opic.query.snapshots import Snapshot
from opic.replica.crawl import Outdated, Place, Rows

EXACT = "exact"


def entries_of(
    places: Mapping[str, Place],
    rows: Rows,
    ranking: Ranking | None,
    *,
    total: int,
    terms: Mapping[str, object],
    names: Mapping[int, str],
) -> dict[str, dict[str, object]]:
    """Return the static entries of known pages by URL. `places` and `rows` are in the same order.

    Without a ranking, pages have no ranks, and no importance that means anything.

    Args:
        places: the pages, by URL.
        rows: theirs.
        ranking: of all pages.
        total: the history and cash that importance is a share of.
        terms: what all entries say alike: policy, window, teleport, and the bound on the error if there is one.
        names: of the classes, by slot.
    """
    entries: dict[str, dict[str, object]] = {}
    scores: dict[str, int] = {}
    measures = rows.measures
    columns = (rows.cash, rows.spent, rows.state, rows.reads, measures.starts[:-1], measures.starts[1:])
    for url, cash, spent, state, reads, start, end in zip(
        places, *(column.tolist() for column in columns), strict=True
    ):
        gone, score = bool(state & Flag.GONE), max(spent + cash, 0)
        entry = entries[url] = {
            "url": url,
            "importance": 0.0 if gone else min(score / total, 1.0),
            "cash": cash,
            "reads": reads,
            "last_read_clock": int(measures.clock[end - 1]) if end > start else None,
            "last_fetched_at": int(measures.at_us[end - 1]) / MILLION if end > start else None,
            **terms,
        }
        if slot := state & CLASS_BITS:
            entry["class"] = names.get(slot, OTHERS)
        if gone:
            entry["gone"] = True
        else:
            scores[url] = score
    if scores and ranking is not None:
        for url, rank in zip(scores, ranking.ranks(list(scores.values())), strict=True):
            entries[url] |= {"rank": rank, "percentile": percentile(rank, ranking.books.live)}
    return entries


def use_exact(entries: Mapping[Place, dict[str, object]], view: ExactView, loads: list[int]) -> None:
    """Replace static estimates by exact ones: importance, rank, and whether a page is gone are all those of the view.

    Args:
        entries: by the place of their page; changed.
        view: the exact importance.
        loads: the load counts of the replicas that the places are of.

    Raises:
        Outdated: those of the view are others.
    """
    if view.loads != loads:
        raise Outdated
    here: list[tuple[dict[str, object], float]] = []
    for shard_page, entry in entries.items():
        for name in ("gone", "rank", "percentile"):
            entry.pop(name, None)
        entry |= {"policy": EXACT, "error_bound": view.bound, "importance": 0.0}
        if (share := view.share(shard_page)) is None:
            entry["gone"] = True
        else:
            here.append((entry, share))
    ranks = view.ranks([share for _, share in here])
    for (entry, share), rank in zip(here, ranks, strict=True):
        entry |= {"importance": share, "rank": rank, "percentile": percentile(rank, len(view.ascending))}


def use_window(entries: Mapping[Place, dict[str, object]], snapshot: Snapshot, view: View) -> None:
    """Replace static estimates by those of a window policy, or loaded ones, which have no error bound of now."""
    for position, entry in zip(live_positions(list(entries), snapshot, view), entries.values(), strict=True):
        entry.pop("error_bound", None)
        entry.update(terms_of(view))
        # A page newer than the snapshot keeps its static estimate, as young pages have under every policy.
        if "gone" in entry or position is None:
            continue
        entry["importance"] = float(view.estimates[position])
        (rank,) = view.ranks([view.scores[position]])
        entry |= {"rank": rank, "percentile": percentile(rank, snapshot.books.live)}


def terms_of(view: View | None) -> dict[str, object]:
    """Return what answers by loaded importance say of it; nothing of other views."""
    return view.about.told() if isinstance(view, LoadedView) else {}


def live_positions(places: Sequence[Place], snapshot: Snapshot, view: View) -> list[int | None]:
    """Return the positions of pages in a snapshot; None for those that are newer, or not live there."""
    shards, ids = np.array(places, np.int64).reshape(-1, 2).T
    positions = snapshot.positions(shards, ids).tolist()
    return [position if position < len(snapshot) and view.scores[position] >= 0 else None for position in positions]


def times_of(rows: Rows, ranking: Ranking | None) -> tuple[float, float | None]:
    """Return a time (Unix seconds) that no value of pages is older than, and the time of their ranks if it is older."""
    if ranking is None or ranking.heads == rows.heads:
        return rows.as_of, None
    if ranking.books.cuts:  # The overdrawn total, which goes into each importance, is as old as the ranking.
        return min(rows.as_of, ranking.as_of), None
    return rows.as_of, ranking.as_of


def measures_of(rows: Rows) -> list[dict[str, object]]:
    """Return the measures of a single page, oldest first."""
    columns = (rows.measures.clock, rows.measures.cash, rows.measures.at_us)
    return [
        {"clock": clock, "cash": cash, "fetched_at": at_us / MILLION}
        for clock, cash, at_us in zip(*(column.tolist() for column in columns), strict=True)
    ]
