"""Files of scores: exports of pages, host and domain ranks as Common Crawl publishes them, lines URL SCORE."""

import csv
import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TextIO

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

    of        what has the scores
    scores    by canonical URL, or by the name of a host or domain with its labels reversed
    repeated  rows whose page an earlier row has too, by its canonical URL: the last one counts
    """

    of: Kind
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
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"PAR1":
            table = check_parquet().parquet.read_table(path, columns=["url", "importance"])
            columns = (column.to_pylist() for column in table.columns)
            return _of_pages(path, enumerate(zip(*columns, strict=True), 1), canonical)
        with gzip.open(path, "rt") if magic.startswith(b"\x1f\x8b") else path.open() as text:
            return _read_text(path, text, canonical)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: can't be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: neither an export, nor host ranks, nor lines URL SCORE: {error}") from None


def _read_text(path: Path, text: TextIO, canonical: Canonical) -> ScoreFile:
    first = text.readline()
    text.seek(0)
    if first.startswith(RANK_HEADERS):
        rows = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        of: Kind = "domains" if HOSTS_OF_DOMAIN in (rows.fieldnames or ()) else "hosts"
        return ScoreFile(of, {row[NAME]: float(row[RANK]) for row in rows})
    if first.startswith("{"):
        pages = enumerate(map(json.loads, text), 1)
        return _of_pages(path, ((n, (page["url"], page["importance"])) for n, page in pages), canonical)
    if "url" in (names := first.rstrip().split(",")) and "importance" in names:
        reader = csv.DictReader(text)
        return _of_pages(path, ((reader.line_num, (row["url"], row["importance"])) for row in reader), canonical)
    skipped = list[int]()
    found = _of_pages(path, _lines(path, text, skipped), canonical)
    return replace(found, skipped=len(skipped))


def _of_pages(path: Path, rows: Iterable[tuple[int, tuple[str, float | str]]], canonical: Canonical) -> ScoreFile:
    scores, count = dict[str, float](), 0
    for number, (url, score) in rows:
        try:
            page, value = canonical(url), float(score)
        except BadUrl as error:
            raise BadInput(f"{path}:{number}: {error}") from None
        if not math.isfinite(value):
            raise BadInput(f"{path}:{number}: the score {value} is no finite number")
        scores[page] = value
        count += 1
    return ScoreFile("pages", scores, count - len(scores))


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
