"""Export of a crawl to a file: its pages as Parquet, CSV or JSON Lines, its hosts as Common Crawl ranks them.

A file is there whole or not at all. Batches keep the memory beside the replicas constant.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import msgspec

from opic.errors import BadInput, MissingExtra
from opic.model.cash import MILLION
from opic.model.host_failures import NEVER, Patience
from opic.ops.export_pages import EXPORTED, CrawlPicture, MetaCopy, take_picture
from opic.query.queries import Query
from opic.replica.page_columns import BY_NAME
from opic.temporary_files import temporary_file
from opic.whole_files import whole_files

METADATA: Final = (
    "the temporary copy of all metadata",
    "make room in the directory of temporary files, or name another one by SQLITE_TMPDIR",
)
FORMATS: Final = ("parquet", "csv", "jsonl", "cc-ranks")
CC_COLUMNS: Final = ("#harmonicc_pos", "#harmonicc_val", "#pr_pos", "#pr_val", "#host_rev")
CC_NONE: Final = "---"
OnProgress = Callable[[int, int | None, str], None]
PAGE_COLUMNS: Final = (
    "url", "host", "importance", "rank", "cash", "reads", "state", "last_fetched_at",
    *(name for _, name, _ in EXPORTED), "meta", "class",
)  # fmt: skip
LINK_COLUMNS: Final = ("from", "to")
Columns = Mapping[str, Any]  # By name, a value a row: lists, with None where there is none, or arrays.
Put = Callable[[Columns], object]  # Adds rows to a file. Times are in microseconds.


def format_of(path: Path) -> str:
    """Return the format that a file's name stands for.

    Raises:
        BadInput: it stands for none.

    >>> format_of(Path("pages.parquet")), format_of(Path("pages.csv.gz"))
    ('parquet', 'csv')
    """
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in FORMATS:
        raise BadInput(f"{path.name} does not say its format: give --format {', '.join(FORMATS)}")
    return ending


def links_path(path: Path) -> Path:
    """Return the file of the links beside a file of pages.

    >>> links_path(Path("out/pages.csv.gz")).as_posix(), links_path(Path("pages")).as_posix()
    ('out/pages.links.csv.gz', 'pages.links')
    """
    endings = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    ending = "".join(endings)
    return path.with_name(f"{path.name.removesuffix(ending)}.links{ending}")


def export(
    query: Query,
    path: Path,
    format: str,
    *,
    links: bool = False,
    patience: Patience = NEVER,
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, object]:
    """Export all pages of a crawl as of one position of its journals, while events go on.

    Args:
        query: the crawl, which nobody else in this process follows.
        path: the file. What it is of (policy, error bound, position, settings) is in the footer of a Parquet file, and
            in a file of the same name and `.meta.json` otherwise.
        format: one of FORMATS. A name that ends in .gz makes a text format compressed.
        links: also write the links between these pages to `links_path`, as pairs of row numbers from 0.
        patience: after how many failures in a row a page or a host is given up.
        on_progress: called with the rows written, their number, and a text.

    Returns:
        "files", "pages" or "hosts", "links" if asked for, "bytes" of all files, and what they are of.

    Raises:
        BadInput: the file can't be written, or the format has no links.
        NotKept: no links are kept.
        StoreUnavailable: the store is unavailable, or was recreated in the meantime.
    """
    packed = path.suffix == ".gz"
    _check(path, format, links=links, packed=packed)
    own = [] if format == "parquet" else [path.with_name(f"{path.name}.meta.json")]
    paths = [path, *own, *([links_path(path)] if links else [])]
    with temporary_file(*METADATA), MetaCopy(query.crawl) as metas, whole_files(paths) as files:
        on_progress(0, None, "reading the crawl")
        picture = replace(take_picture(query, metas, links=links), patience=patience)
        about = about_of(picture)
        if format == "cc-ranks":
            counts = _write_hosts(picture, files[0], packed=packed)
        else:
            counts = _write_pages(picture, files[0], format, about, on_progress, packed=packed)
            if links:
                counts |= _write_links(picture, files[-1], format, about, on_progress, packed=packed)
        if own:
            files[1].write(json.dumps(about, indent=1).encode() + b"\n")
    size = sum(written.stat().st_size for written in paths)
    return {"files": [str(written) for written in paths], **counts, "bytes": size, **about}


def _check(path: Path, format: str, *, links: bool, packed: bool) -> None:
    if links and format == "cc-ranks":
        raise BadInput("--links are between pages, and cc-ranks has hosts: use parquet, csv or jsonl")
    if packed and format == "parquet":
        raise BadInput(f"{path.name}: Parquet compresses by itself: leave .gz out")
    if format == "parquet":
        check_parquet()
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no directory: make it first")


def about_of(picture: CrawlPicture) -> dict[str, object]:
    """Return what an export is of."""
    crawl, rules = picture.query.crawl, picture.query.crawl.rules
    return {
        "crawl": crawl.shards[0].keys.crawl,
        "as_of": picture.snapshot.as_of,
        "policy": picture.policy,
        "window": picture.window,
        "error_bound": picture.query.bound_of(picture.snapshot, picture.view),
        "position": [{"lsn": head.lsn, "digest": head.digest.hex()} for head in picture.snapshot.heads],
        "settings": {
            "damping": 1 - rules.q / MILLION,
            "virtual": rules.virtual,
            "regrant": rules.regrant_ppm / MILLION,
            "history_measures": rules.measures_max,
            "inflow": rules.inflow,
            "shards": len(crawl),
            "classes": {
                name: 1 + picture.snapshot.books.extra[slot] / MILLION
                for slot, name in picture.query.class_names().items()
            },
        },
    }


def _write_pages(
    picture: CrawlPicture, file: BinaryIO, format: str, about: Mapping[str, object], tell: OnProgress, *, packed: bool
) -> dict[str, object]:
    done, pages = 0, picture.pages
    with open_table(file, format, PAGE_COLUMNS, about, packed=packed) as put:
        for batch in picture.batches():
            put(batch)
            done += len(batch["url"])
            tell(done, pages, f"{done:,} of {pages:,} pages")
    return {"pages": done}


def _write_links(
    picture: CrawlPicture, file: BinaryIO, format: str, about: Mapping[str, object], tell: OnProgress, *, packed: bool
) -> dict[str, object]:
    done = 0
    with open_table(file, format, LINK_COLUMNS, about, packed=packed) as put:
        for sources, targets in picture.link_batches():
            put({"from": sources, "to": targets})
            done += len(sources)
            tell(done, None, f"{done:,} links")
    return {"links": done}


def _write_hosts(picture: CrawlPicture, file: BinaryIO, *, packed: bool) -> dict[str, object]:
    """Write hosts as Common Crawl publishes their ranks, by PageRank; harmonic centrality is not computed."""
    sums = {reversed_host(host): share for host, share in picture.hosts().items()}
    with open_text(file, packed=packed) as text:
        text.write("\t".join(CC_COLUMNS) + "\n")
        for position, (name, share) in enumerate(sorted(sums.items(), key=lambda item: (-item[1], item[0])), 1):
            text.write(f"{CC_NONE}\t{CC_NONE}\t{position}\t{share!r}\t{name}\n")
    return {"hosts": len(sums)}


def reversed_host(host: str, *, www: bool = True) -> str:
    """Return a host with its labels reversed, as in Common Crawl's web graphs.

    Args:
        host: as in canonical URLs.
        www: whether a leading `www.` is kept, as in graphs since that of November 2025; older ones leave it out.

    >>> reversed_host("www.example.co.uk"), reversed_host("www.example.co.uk", www=False)
    ('uk.co.example.www', 'uk.co.example')
    >>> reversed_host("127.0.0.1"), reversed_host("[::1]"), reversed_host("www.com", www=False)
    ('127.0.0.1', '[::1]', 'com.www')
    """
    if host.endswith("]") or host.rpartition(".")[2].isdigit():
        return host
    labels = host.rstrip(".").split(".")
    if labels[0] == "www" and len(labels) > 2 and not www:
        labels = labels[1:]
    return ".".join(reversed(labels))


# Tables of rows.


@contextmanager
def open_table(
    file: BinaryIO, format: str, columns: Sequence[str], about: Mapping[str, object], *, packed: bool
) -> Iterator[Put]:
    """Write a table with these columns; `about` goes into the footer of a Parquet file."""
    if format == "parquet":
        pa = check_parquet()
        footer = {"opic": json.dumps(about)}
        schema = pa.schema([(name, _parquet_type(pa, name)) for name in columns], metadata=footer)
        with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            yield lambda batch: writer.write_batch(_record_batch(pa, schema, batch))
    else:
        with open_text(file, packed=packed) as text:
            if format == "csv":
                csv.writer(text, lineterminator="\n").writerow(columns)
            yield partial(_put_csv if format == "csv" else _put_json, text, columns)


@contextmanager
def open_text(file: BinaryIO, *, packed: bool) -> Iterator[TextIO]:
    """Write text to a file; `packed` compresses it by gzip."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if packed else nullcontext(file) as inner:
        text = io.TextIOWrapper(inner, encoding="utf-8", newline="")
        try:
            yield text
            text.flush()
        finally:
            text.detach()


def check_parquet() -> Any:
    """Return pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtra("the Parquet writer", "parquet") from None
    return pyarrow


def _parquet_type(pa: Any, column: str) -> Any:
    return {
        "importance": pa.float64(), "rank": pa.int64(), "cash": pa.int64(), "reads": pa.int64(),
        "last_fetched_at": pa.timestamp("us", tz="UTC"),
        "meta": pa.map_(pa.string(), pa.string()), "from": pa.int64(), "to": pa.int64(),
        **{name: {"f8": pa.float64(), "i8": pa.int64()}.get(BY_NAME[stored].dtype, pa.int32())
           for stored, name, _ in EXPORTED},
    }.get(column, pa.string())  # fmt: skip


def _record_batch(pa: Any, schema: Any, batch: Columns) -> Any:
    """Return rows as a row group of Parquet."""
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = [list(meta.items()) for meta in batch[name]] if name == "meta" else batch[name]
        arrays.append(pa.array(column, kind))
    return pa.record_batch(arrays, schema=schema)


def _readable(columns: Sequence[str], batch: Columns) -> Iterator[list[Any]]:
    """Yield columns as lists, with times in Unix seconds."""
    for name in columns:
        column = batch[name] if isinstance(batch[name], list) else batch[name].tolist()
        yield [None if us is None else us / MILLION for us in column] if name == "last_fetched_at" else column


def _put_csv(text: TextIO, columns: Sequence[str], batch: Columns) -> None:
    """Add rows to a CSV file: what is not known is empty, and metadata is a JSON object."""
    if "meta" in batch:
        metas = [json.dumps(meta, ensure_ascii=False) if meta else None for meta in batch["meta"]]
        batch = {**batch, "meta": metas}
    csv.writer(text, lineterminator="\n").writerows(zip(*_readable(columns, batch), strict=True))


def _put_json(text: TextIO, columns: Sequence[str], batch: Columns) -> None:
    rows = zip(*_readable(columns, batch), strict=True)
    lines = msgspec.json.Encoder().encode_lines([dict(zip(columns, row, strict=True)) for row in rows])
    text.write(lines.decode())
