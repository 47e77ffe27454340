"""Tables of rows written to files: Parquet, CSV, JSON Lines."""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO, Final, Protocol, TextIO

import msgspec

from opic.errors import MissingExtra
from opic.model.cash import MILLION

PAGE_COLUMNS: Final = (
    "url", "host", "importance", "rank", "cash", "reads", "state", "status", "last_fetched_at", "depth", "meta", "class"
)  # fmt: skip
LINK_COLUMNS: Final = ("from", "to")
Columns = Mapping[str, Any]  # By name, a value a row: lists, with None where there is none, or arrays.


class Table(Protocol):
    """A file of rows that is being written."""

    def put(self, batch: Columns) -> None:
        """Add rows. Times are in microseconds."""


@contextmanager
def open_table(
    file: BinaryIO, format: str, columns: Sequence[str], about: Mapping[str, object], *, packed: bool
) -> Iterator[Table]:
    """Write a table with these columns; `about` goes into the footer of a Parquet file."""
    if format == "parquet":
        pa = check_parquet()
        footer = {"opic": json.dumps(about)}
        schema = pa.schema([(name, _parquet_type(pa, name)) for name in columns], metadata=footer)
        with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            yield _ParquetTable(pa, writer, schema)
    else:
        with open_text(file, packed=packed) as text:
            yield (_CsvTable if format == "csv" else _JsonTable)(text, columns)


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


class _ParquetTable:
    """A batch is a row group."""

    def __init__(self, pa: Any, writer: Any, schema: Any) -> None:
        self._pa, self._writer, self._schema = pa, writer, schema

    def put(self, batch: Columns) -> None:
        arrays = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            column = [list(meta.items()) for meta in batch[name]] if name == "meta" else batch[name]
            arrays.append(self._pa.array(column, kind))
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))


def _readable(batch: Columns) -> dict[str, list[Any]]:
    """Return a batch as lists, with times in Unix seconds."""
    found = {name: column if isinstance(column, list) else column.tolist() for name, column in batch.items()}
    if (times := found.get("last_fetched_at")) is not None:
        found["last_fetched_at"] = [None if us is None else us / MILLION for us in times]
    return found


class _CsvTable:
    """Rows of a CSV file with a header; what is not known is empty, and metadata is a JSON object."""

    def __init__(self, text: TextIO, columns: Sequence[str]) -> None:
        self._columns, self._writer = columns, csv.writer(text, lineterminator="\n")
        self._writer.writerow(columns)

    def put(self, batch: Columns) -> None:
        found = _readable(batch)
        if "meta" in found:
            found["meta"] = [json.dumps(meta, ensure_ascii=False) if meta else None for meta in found["meta"]]
        self._writer.writerows(zip(*(found[name] for name in self._columns), strict=True))


class _JsonTable:
    """A JSON object a line."""

    def __init__(self, text: TextIO, columns: Sequence[str]) -> None:
        self._columns, self._text = columns, text

    def put(self, batch: Columns) -> None:
        found, encode = _readable(batch), msgspec.json.Encoder().encode_lines
        rows = zip(*(found[name] for name in self._columns), strict=True)
        self._text.write(encode([dict(zip(self._columns, row, strict=True)) for row in rows]).decode())
