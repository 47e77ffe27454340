"""Tables of rows written to files: Parquet, CSV, JSON Lines."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, BinaryIO, Final, TextIO

import msgspec

from opic.errors import MissingExtra
from opic.model.cash import MILLION

PAGE_COLUMNS: Final = (
    "url", "host", "importance", "rank", "cash", "reads", "state", "status", "last_fetched_at", "depth", "meta", "class"
)  # fmt: skip
LINK_COLUMNS: Final = ("from", "to")
Columns = Mapping[str, Any]  # By name, a value a row: lists, with None where there is none, or arrays.
Put = Callable[[Columns], object]  # Adds rows to a file. Times are in microseconds.


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
        "importance": pa.float64(), "rank": pa.int64(), "cash": pa.int64(), "reads": pa.int64(), "status": pa.int32(),
        "last_fetched_at": pa.timestamp("us", tz="UTC"), "depth": pa.int32(),
        "meta": pa.map_(pa.string(), pa.string()), "from": pa.int64(), "to": pa.int64(),
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
    """Add rows to a file of JSON Lines."""
    rows = zip(*_readable(columns, batch), strict=True)
    lines = msgspec.json.Encoder().encode_lines([dict(zip(columns, row, strict=True)) for row in rows])
    text.write(lines.decode())
