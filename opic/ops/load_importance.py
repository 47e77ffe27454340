"""Takes importance that an engine outside computed from an export into the store, checked: policy loaded."""

import secrets
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from opic.arrays import Bools, Float32s
from opic.errors import BadInput, BadUrl, NotKept, StoreUnavailable
from opic.model.cash import MILLION
from opic.ops.export_pages import MetaCopy, take_picture
from opic.ops.pagerank_check import SUM_ERROR, one_step
from opic.ops.score_files import page_scores
from opic.query.loaded import estimates_of
from opic.query.queries import Query
from opic.query.saved_visits import page_prints
from opic.store.loaded_importance import LoadedAbout, drop_others, publish, read_about, write_column

ROWS_A_CALL: Final = 10_000
UNKNOWN_MAX: Final = 0.01  # Of the sum of the file, what pages may have that the crawl does not know,
MISSING_MAX: Final = 0.5  # and of the crawl's pages, how many the file may lack, without `force`.
NAMED: Final = 3  # URLs in a message.
FORCE: Final = "; to load it all the same, say --force"
OnProgress = Callable[[int, int | None, str], None]


class _Scores:
    """The scores of a file by shard and id, NaN for pages without one. Of 8 bytes a page."""

    def __init__(self, query: Query) -> None:
        crawl = query.crawl
        crawl.follow()
        self._query, self.loads = query, crawl.loads
        self.columns = [np.full(len(replica), np.nan) for replica in crawl.replicas]
        self.rows = self.unknown = 0
        self.unknown_sum, self.sum = 0.0, 0.0
        self.unknown_urls = list[str]()

    def add_rows(self, path: Path, rows: Sequence[tuple[int, str, float]]) -> None:
        """Take rows of the file.

        Raises:
            BadInput: a URL or a score is invalid, or a page has one already.
        """
        urls = []
        for number, url, score in rows:
            if score < 0:
                raise BadInput(f"{path}:{number}: the importance {score} is below 0")
            try:
                urls.append(self._query.canonical(url))
            except BadUrl as error:
                raise BadInput(f"{path}:{number}: {error}") from None
        for (number, _, score), url, page in zip(rows, urls, self._query.crawl.find(urls), strict=True):
            self.rows += 1
            self.sum += score
            if page is None or page[1] >= len(self.columns[page[0]]):
                self.unknown += 1
                self.unknown_sum += score
                self.unknown_urls += [url] if len(self.unknown_urls) < NAMED else []
            elif np.isnan(self.columns[page[0]][page[1]]):
                self.columns[page[0]][page[1]] = score
            else:
                raise BadInput(f"{path}:{number}: an earlier row has {url} too: give each page once")


def load_importance(
    query: Query,
    path: Path,
    *,
    as_of: float | None = None,
    error_bound: float | None = None,
    force: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, object]:
    """Replace the loaded importance of a crawl by that of a file, whole or not at all.

    Args:
        query: the crawl, which nobody else in this process follows.
        path: a table with columns url and importance (Parquet, CSV, JSON Lines), or lines URL SCORE; text may be
            gzipped. Scores that sum to the number of pages, as GraphX and GraphFrames give them, are divided by it.
        as_of: of when the graph is that they were computed from, Unix seconds.
        error_bound: a bound on their L1 distance from exact PageRank of that graph. If None, and links are kept, it is
            computed from one step of PageRank on the present links, so what changed since the export is in it.
        force: take a file whose sum, unknown or missing pages show that it is of something else.
        on_progress: called with the rows read, their number, and a text.

    Returns:
        "rows" of the file, "loaded_pages", "missing_pages" of the crawl, "unknown_pages" of the file, and what the
        store keeps of it.

    Raises:
        BadInput: the file is invalid; nothing has changed.
        ChangedMeanwhile: another load ended first.
        StoreUnavailable: the store is unavailable, and nothing has changed.
    """
    loaded = _Scores(query)
    scores = page_scores(path)
    while rows := list(islice(scores, ROWS_A_CALL)):
        loaded.add_rows(path, rows)
        on_progress(loaded.rows, None, f"{loaded.rows:,} rows read")
    live, given = _pages(query, loaded)
    scale = _checked(path, loaded, live=int(live.sum()), missing=int((live & ~given).sum()), force=force)
    on_progress(loaded.rows, loaded.rows, "checking, and writing to the store")
    columns = [(column * scale).astype(np.float32) for column in loaded.columns]
    if error_bound is None:
        error_bound = _bound(query, columns)
    about = _written(query, loaded, columns, as_of, error_bound, int(given.sum()))
    return {
        "rows": loaded.rows,
        "loaded_pages": about.given,
        "missing_pages": int((live & ~given).sum()),
        "unknown_pages": loaded.unknown,
        **about.told(),
    }


def _written(  # noqa: PLR0917 - what is known of a load
    query: Query,
    loaded: _Scores,
    columns: Sequence[Float32s],
    as_of: float | None,
    error_bound: float | None,
    given: int,
) -> LoadedAbout:
    """Write the numbers to the store, and let them count."""
    crawl, load = query.crawl, secrets.token_hex(8)
    keys = [shard.keys for shard in crawl.shards]
    if crawl.loads != loaded.loads:
        raise StoreUnavailable("the store was restored or recreated in the meantime: load again")
    pages = list(map(len, loaded.columns))
    prints = [page_prints(crawl, shard, count) for shard, count in enumerate(pages)]
    digests = [write_column(crawl.client, *part) for part in zip(keys, [load] * len(keys), columns, strict=True)]
    about = LoadedAbout(load, time.time(), as_of, error_bound, given, pages, prints, digests)
    for shard in crawl.shards:
        shard.barrier()  # Else what names the numbers might outlive some of them.
    publish(crawl.client, keys, about)
    crawl.shards[0].barrier()
    return about


def remove_importance(query: Query) -> dict[str, object]:
    """Remove the loaded importance of a crawl, and what loads that were killed have left of theirs.

    Returns:
        "removed": whether there was one.
    """
    keys = [shard.keys for shard in query.crawl.shards]
    about = read_about(query.crawl.client, keys[0])
    drop_others(query.crawl.client, keys, None)
    return {"removed": about is not None}


def _pages(query: Query, loaded: _Scores) -> tuple[Bools, Bools]:
    """Return masks of the pages that are known and not gone, and of those among them that the file has."""
    snapshot = query.snapshots.fresh()
    live = np.concatenate([
        snapshot.live[first : first + len(column)]
        for first, column in zip(snapshot.starts[:-1].tolist(), loaded.columns, strict=True)
    ])  # fmt: skip
    return live, live & ~np.isnan(np.concatenate(loaded.columns))


def _checked(path: Path, loaded: _Scores, *, live: int, missing: int, force: bool) -> float:
    """Return what the scores are multiplied by.

    Raises:
        BadInput: they have no sum, or show that they are of something else.
    """
    if not 0 < loaded.sum < float("inf"):
        raise BadInput(
            f"{path}: the importance of its {loaded.rows:,} rows sums to {loaded.sum}: there is nothing to load"
        )
    if force:
        return 1 / loaded.sum
    if loaded.unknown_sum > UNKNOWN_MAX * loaded.sum:
        some = ", ".join(loaded.unknown_urls)
        raise BadInput(
            f"{path}: {loaded.unknown:,} of {loaded.rows:,} pages, with {loaded.unknown_sum / loaded.sum:.1%} of the "
            f"importance, are not known here, such as {some}: is it of another crawl?{FORCE}"
        )
    if missing > MISSING_MAX * live:
        raise BadInput(f"{path}: it lacks {missing:,} of {live:,} pages: is it a part of the result?{FORCE}")
    if min(abs(loaded.sum - 1), abs(loaded.sum / loaded.rows - 1)) > SUM_ERROR:
        raise BadInput(
            f"{path}: the importance sums to {loaded.sum:.6g}, not to 1 nor to {loaded.rows:,}, its number of pages: "
            f"the tool loses what pages without links have, or a part is missing{FORCE}"
        )
    return 1 / loaded.sum


def _bound(query: Query, columns: Sequence[Float32s]) -> float | None:
    """Return a bound on the L1 distance of the estimates from PageRank of the known graph; None without links."""
    by_cash = Query(query.crawl, query.snapshots, policy="static")  # Which needs no settling.
    try:
        with MetaCopy(query.crawl) as metas:
            picture = take_picture(by_cash, metas, links=True)
            shown = picture.snapshot
            estimates, _, _ = estimates_of(columns, shown.starts, shown.live, shown.shares(None))
            by_row, known = np.zeros(picture.pages), picture.rows >= 0
            by_row[picture.rows[known]] = estimates[known]
            damping = 1 - query.crawl.rules.q / MILLION
            return one_step(picture, by_row, damping).error(damping)[1]
    except NotKept:
        return None
