"""A backup whose files are not whole, or not of one backup, is refused before anything is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from backup_crawls import backup_of_four, filled
from servers import Server

from opic.errors import SettingsError, StoreError, StoreMismatch
from opic.ops.backup import backup
from opic.ops.backup_files import MANIFEST, PartFile, file_name, read_values, write_manifest
from opic.ops.restore import restore, verify
from opic.replica import Crawl
from opic.replica.effect import Effect

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(valkey: Server, tmp_path: Path) -> Path:
    """A backup of four shards."""
    return backup_of_four(valkey, tmp_path / "copy")


def test_mixture_of_backups_is_refused_and_nothing_is_written(valkey: Server, copy: Path, tmp_path: Path) -> None:
    backup(Crawl.open(valkey.client()), tmp_path / "later")
    name = file_name(2, "blocks")
    (tmp_path / "later" / name).replace(copy / name)
    with pytest.raises(SettingsError, match=r"shard-0002\.blocks\.zst is not shard 2 of backup"):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().keys("opic:{other:*")


@pytest.mark.parametrize("part", ["journal", "blocks", "keys", "log", "manifest"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_damaged_backup_is_refused_and_nothing_is_written(valkey: Server, copy: Path, part: str, damage: str) -> None:
    path = copy / (MANIFEST if part == "manifest" else file_name(0, part))
    held = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        held[0 if part == "manifest" else len(held) // 2] ^= 1
        path.write_bytes(held[: len(held) // 2] if damage == "cut" else held)
    with pytest.raises(SettingsError, match=path.name):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().keys("opic:{other:*")


def rewritten(copy: Path, shard: int, part: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Write a file with other values, and its checksum into the manifest: as a faulty program would."""
    manifest = json.loads((copy / MANIFEST).read_text())
    values = change(list(read_values(copy / file_name(shard, part))))
    file = PartFile(copy, manifest["id"], shard, part)
    for value in values:
        file.put(value)
    line = file.close()
    manifest["files"] = [line if old["name"] == line["name"] else old for old in manifest["files"]]
    write_manifest(copy, manifest)


def flipped(record: bytes) -> bytes:
    return record[:-40] + bytes([record[-40] ^ 1]) + record[-39:]


@pytest.mark.parametrize(
    ("shard", "part", "change", "complaint"),
    [
        (3, "journal", lambda records: [flipped(records[0]), *records[1:]], "shard 3: "),
        (3, "journal", lambda records: [*records[:-1], flipped(records[-1])], "shard 3: "),
        (3, "journal", lambda records: records[:-1], "the journal ends at record"),
        (3, "journal", lambda records: [*records[:1], *records[2:]], "does not follow"),
        (3, "journal", lambda records: [records[0][:100], *records[1:]], "a record of the journal is damaged"),
        (1, "blocks", lambda values: [v for v in values if v[0] != 0], "block 0 of the checkpoint is missing"),
        (1, "blocks", lambda values: [v for v in values if v[0] != "names"], "host names: restore a backup"),
        (1, "keys", lambda values: [v for v in values if v[0] != "head"], "the shard was at 0"),
        (1, "keys", lambda values: [v for v in values if v[0] != "books"], "its totals differ from those"),
    ],
)
def test_backup_with_inconsistent_parts_is_refused_and_nothing_is_written(
    valkey: Server, copy: Path, shard: int, part: str, change: Callable[[list[Any]], list[Any]], complaint: str
) -> None:
    rewritten(copy, shard, part, change)
    with pytest.raises(SettingsError, match=complaint):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().keys("opic:{other:*")


def test_backup_without_its_cash_in_flight_is_refused(valkey: Server, copy: Path) -> None:
    for shard in range(4):
        rewritten(copy, shard, "keys", lambda values: [v for v in values if not v[0].startswith("out:")])
    with pytest.raises(StoreError, match="the books don't balance"):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().keys("opic:{other:*")


@pytest.mark.parametrize(("name", "format_"), [("format", 1), ("store_format", "2")])
def test_backup_of_another_format_is_refused(valkey: Server, copy: Path, name: str, format_: object) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, name: format_}))
    with pytest.raises(SettingsError, match=r"is a backup of format .*, this program reads 3/5: use the one that made"):
        restore(valkey.client(), copy, "other")


@pytest.mark.parametrize("format_", ["4", "4n", "6"])
def test_store_of_another_format_is_refused(valkey: Server, tmp_path: Path, format_: str) -> None:
    crawl = filled(valkey, 10)
    valkey.client().hset(crawl.shards[0].keys.meta, "format", format_)
    with pytest.raises(StoreMismatch, match=f"format version {format_}, this program reads version 5: use the program"):
        Crawl.open(valkey.client())


def test_directory_that_is_not_empty_is_left_alone(valkey: Server, copy: Path) -> None:
    with pytest.raises(SettingsError, match="is not empty"):
        backup(Crawl.open(valkey.client()), copy)


def test_file_begins_with_what_it_is_and_ends_with_its_count(copy: Path) -> None:
    made, _ = verify(copy)
    with (
        (copy / "shard-0001.journal.zst").open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as packed,
    ):
        first, *records, last = msgpack.Unpacker(packed)
    assert first == {"id": made["id"], "shard": 1, "part": "journal", "format": 3}
    assert last == {"values": len(records)}
    assert Effect.unpack(records[-1]).lsn == made["heads"][1][0]
