"""Files of scores: exports of pages, host and domain ranks as Common Crawl publishes them, lines URL SCORE."""

import csv
import gzip
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TextIO, cast

from opic.compressed import GZIP_MAGIC
from opic.errors import BadInput, BadUrl
from opic.ops.export import check_parquet
from opic.urls.canonical import shown

Canonical = Callable[[str], str]
Kind = Literal["pages", "hosts", "domains"]
RANK_HEADERS: Final = ("#harmonicc_pos", "#hc_pos")  # The second until 2018.
RANK, NAME, HOSTS_OF_DOMAIN = "#pr_val", "#host_rev", "#n_hosts"


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """What a file says. Attributes:

    kind      what has the scores
    scores    by canonical URL, or by the name of a host or domain with its labels reversed
    repeated  rows whose page an earlier row has too, by its canonical URL: the last one counts
    """

    kind: Kind
    scores: dict[str, float] = field(default_factory=dict)
    repeated: int = 0  # Rows that name a page which another row names.
    skipped: int = 0  # Empty lines, and comments.


def read_scores(path: Path, canonical: Canonical) -> ScoreFile:
    """Read a file of scores; text may be gzipped.

    Args:
        path: the file.
        canonical: returns the canonical URL of a page.

    Raises:
        BadInput: it can't be read, or has none of the known forms; it names the line.
    """
    with _reading(path):
        if not _is_parquet(path):
            with _text(path) as text:
                if text.readline().startswith(RANK_HEADERS):
                    text.seek(0)
                    rows = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
                    kind: Kind = "domains" if HOSTS_OF_DOMAIN in (rows.fieldnames or ()) else "hosts"
                    return ScoreFile(kind, {row[NAME]: float(row[RANK]) for row in rows})
    scores, count, skipped = dict[str, float](), 0, list[int]()
    for number, url, value in page_scores(path, skipped):
        try:
            scores[canonical(url)] = value
        except BadUrl as error:
            raise BadInput(f"{path}:{number}: {error}") from None
        count += 1
    return ScoreFile("pages", scores, count - len(scores), len(skipped))


def page_scores(path: Path, skipped: list[int] | None = None) -> Iterator[tuple[int, str, float]]:
    """Yield the number of each line or row of a file of pages, its URL and its score, which is finite.

    Args:
        path: an export of pages or another table with columns url and importance (Parquet, CSV, JSON Lines), or lines
            URL SCORE; text may be gzipped; or a directory of such files.
        skipped: gets the numbers of lines that are left out: empty ones, and comments.

    Raises:
        BadInput: it can't be read, or has none of these forms; it names the line.
    """
    if path.is_dir():  # As Spark writes a table: files, and marks of its own.
        for part in sorted(
            entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(("_", "."))
        ):
            yield from page_scores(part, skipped)
        return
    with _reading(path):
        for number, (url, score) in _page_rows(path, [] if skipped is None else skipped):
            value = float(score)
            if not math.isfinite(value):
                raise BadInput(f"{path}:{number}: the score {value} is no finite number")
            yield number, url, value


def _page_rows(path: Path, skipped: list[int]) -> Iterator[tuple[int, tuple[str, float | str]]]:
    if _is_parquet(path):
        number = 0
        with check_parquet().parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["url", "importance"]):
                table = batch.to_pydict()
                for row in zip(table["url"], table["importance"], strict=True):
                    number += 1
                    yield number, row
        return
    with _text(path) as text:
        first = text.readline()
        text.seek(0)
        if first.startswith("{"):
            for number, page in enumerate(map(json.loads, text), 1):
                yield number, (page["url"], page["importance"])
        elif "url" in (names := first.rstrip().split(",")) and "importance" in names:
            reader = csv.DictReader(text)
            for named in reader:
                yield reader.line_num, (named["url"], named["importance"])
        else:
            yield from _lines(path, text, skipped)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say of what goes wrong in the block that the file can't be read.

    Raises:
        BadInput: the message names the file.
    """
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: can't be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: neither an export, nor host ranks, nor lines URL SCORE: {error}") from None


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _text(path: Path) -> TextIO:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return cast("TextIO", gzip.open(path, "rt")) if packed else path.open()


def _lines(path: Path, text: TextIO, skipped: list[int]) -> Iterator[tuple[int, tuple[str, float]]]:
    """Yield the lines that have a score, by number; add the numbers of the others to `skipped`."""
    for number, line in enumerate(text, 1):
        if not line.strip() or line.startswith("#"):
            skipped.append(number)
        else:
            try:
                url, score = line.split("\t") if "\t" in line else line.rsplit(None, 1)
                yield number, (url.strip(), float(score))
            except ValueError:
                raise BadInput(f"{path}:{number}: {shown(line.rstrip())} is not URL SCORE") from None
