"""Backup file format: writes, reads and checks the files of a backup.

A backup is a directory: `manifest.json`, and for each shard these, each a zstd-compressed stream of MessagePack values:

    journal     records in order: from the oldest one that is not in all blocks, to the shard's head
    blocks      [number, fields] of each block of the checkpoint; ["names", fields]; ["seen", [name, time, ..]];
                ["pagemeta", [page, metadata, ..]];
                ["urls", [page that was forgotten and is known again, its URL, ..]];
                ["segment", number, its fields p and l]; ["linkseg", the other fields of that hash]
    keys        [name, kind, part of its value] of each other key, as of the head or earlier; see `opic.ops.backup`
    log         entries of the log of accepted events; only for shard 0

The first value identifies the file; the last one is the number of values between them.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import msgpack
import msgspec
import zstandard

from opic.errors import SettingsError
from opic.model.cash import CrawlRules
from opic.store.keys import FORMAT
from opic.whole_files import whole_files

BACKUP_FORMAT: Final = 3
SEGMENT: Final = "segment"
SEGMENTS: Final = "linkseg"
MANIFEST: Final = "manifest.json"
PARTS: Final = ("journal", "blocks", "keys", "log")
LOG_SHARD: Final = 0
READ_BYTES: Final = 1 << 20
MANIFEST_BYTES_MAX: Final = 64 << 20  # That of 4,096 shards has 4 MB.
HEADER_BYTES_MAX: Final = 1 << 10
ELEMENTS_MAX: Final = 1 << 26  # Elements of one list or map: what a damaged file may make us reserve memory for.
ZSTD_LEVEL: Final = 1  # Most of the data is compact already, or random.


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Formats(msgspec.Struct):
    """The part of a manifest that every format has."""

    format: int
    store_format: str


class _Audit(msgspec.Struct, forbid_unknown_fields=True):
    minted: int
    pages: int
    virtual: int
    in_flight: int
    conserved: bool


class _FileLine(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    shard: Count
    part: Literal["journal", "blocks", "keys", "log"]
    values: Count
    bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Manifest(_Formats, forbid_unknown_fields=True):
    """A manifest, as `backup` writes it."""

    id: str
    crawl: str
    shards: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    made_at: float
    server: str
    rules: dict[str, int | str | bool]
    audit: _Audit
    offsets: list[dict[str, Count]]
    heads: list[tuple[Count, str]]
    pages: Count
    records: Count
    files: list[_FileLine]
    counts: list[dict[str, Count]]
    checksum: str


def parts_of(shard: int) -> tuple[str, ...]:
    return PARTS if shard == LOG_SHARD else PARTS[:-1]


def file_name(shard: int, part: str) -> str:
    return f"shard-{shard:04d}.{part}.zst"


class PartFile:
    """A file that is being written. Closing it syncs it to disk and completes its checksum."""

    def __init__(self, directory: Path, backup_id: str, shard: int, part: str) -> None:
        self.path, self.shard, self.part = directory / file_name(shard, part), shard, part
        self.values = 0
        self._hash = hashlib.sha256()
        self._packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
        self._file: BinaryIO = self.path.open("wb")
        self._put({"format": BACKUP_FORMAT, "id": backup_id, "shard": shard, "part": part})

    def put(self, value: object) -> None:
        self._put(value)
        self.values += 1

    def close(self) -> dict[str, Any]:
        """Complete the file; return its entry in the manifest."""
        self._put({"values": self.values})
        self._out(self._packer.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {
            "name": self.path.name,
            "shard": self.shard,
            "part": self.part,
            "values": self.values,
            "bytes": self.path.stat().st_size,
            "sha256": self._hash.hexdigest(),
        }

    def abandon(self) -> None:
        """Close the file without completing it."""
        self._file.close()

    def _put(self, value: object) -> None:
        self._out(self._packer.compress(msgpack.packb(value)))

    def _out(self, packed: bytes) -> None:
        self._hash.update(packed)
        self._file.write(packed)


def read_values(path: Path) -> Iterator[Any]:
    """Yield the values of a file, without the first and the last one, which describe the file.

    Raises:
        SettingsError: the file is damaged.
    """
    limits = {"max_buffer_size": 0, "max_array_len": ELEMENTS_MAX, "max_map_len": ELEMENTS_MAX}
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
        try:
            values = iter(msgpack.Unpacker(packed, **limits))
            next(values, None)
            yield from (value for value in values if not isinstance(value, dict))
        except (zstandard.ZstdError, msgpack.UnpackException, ValueError) as error:
            raise SettingsError(f"{path} is damaged ({error}): use another backup") from None


def _header(path: Path) -> Any:
    """Return the first value of a file, whose checksum is still to be checked; None if it can't be read."""
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
            return msgpack.unpackb(packed.read(HEADER_BYTES_MAX))
    except msgpack.ExtraData as more:
        return more.unpacked
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError):
        return None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a backup, and check that its files belong to this backup and are complete.

    Raises:
        SettingsError: a file is missing, damaged, or of another backup or format.
    """
    try:
        manifest = _parsed(directory)
        wanted = [(shard, part) for shard in range(manifest["shards"]) for part in parts_of(shard)]
        if sorted((file["shard"], file["part"]) for file in manifest["files"]) != sorted(wanted):
            raise SettingsError(f"the manifest of {directory} does not name all files of {manifest['shards']} shards")
        for file in manifest["files"]:
            _check_file(directory / file_name(file["shard"], file["part"]), file, manifest)
    except OSError as error:
        raise SettingsError(f"{error.filename} can't be read ({error.strerror}): is {directory} a backup?") from None
    return manifest


def _parsed(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if (size := _regular(path).stat().st_size) > MANIFEST_BYTES_MAX:
        raise SettingsError(f"{path} has {size:,} bytes, more than any manifest: is {directory} a backup?")
    text = path.read_bytes()
    try:
        formats = msgspec.json.decode(text, type=_Formats)
        if (formats.format, formats.store_format) != (BACKUP_FORMAT, FORMAT):
            raise SettingsError(
                f"{directory} is a backup of format {formats.format}/{formats.store_format}, this program reads "
                f"{BACKUP_FORMAT}/{FORMAT}: use the one that made it"
            )
        shape = msgspec.json.decode(text, type=_Manifest)
        CrawlRules(**{name: value for name, value in shape.rules.items() if name != "shards"})  # type: ignore[arg-type]
        manifest: dict[str, Any] = json.loads(text)
        if shape.checksum != _checksum(manifest):
            raise ValueError("its checksum differs from its content")
        for name in ("offsets", "heads", "counts"):
            if len(manifest[name]) != shape.shards:
                raise ValueError(f"its {name} are not those of {shape.shards} shards")
    except (ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path} is not the manifest of a backup, or damaged ({error}): use another") from None
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of everything else in a manifest."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _regular(path: Path) -> Path:
    if not stat.S_ISREG(path.stat().st_mode):
        raise SettingsError(f"{path} is not a file: is {path.parent} a backup?")
    return path


def _check_file(path: Path, file: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    size, about = path.stat().st_size, _header(_regular(path))
    expected = {"format": manifest["format"], "id": manifest["id"], "shard": file["shard"], "part": file["part"]}
    if about is not None and about != expected:
        raise SettingsError(
            f"{path} is not shard {file['shard']} of backup {manifest['id']}: files of several backups can't be mixed; "
            "restore one backup as a whole"
        )
    if size != file["bytes"]:
        raise SettingsError(f"{path} is damaged: it has {size:,} bytes, not {file['bytes']:,}; use another backup")
    digest = hashlib.sha256()
    with path.open("rb") as read:
        while part := read.read(READ_BYTES):
            digest.update(part)
    if digest.hexdigest() != file["sha256"]:
        raise SettingsError(f"{path} is damaged: its checksum differs from the manifest's; use another backup")


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Lend an empty directory, made if it is missing; nothing is left in it if the block ends with an exception.

    Raises:
        SettingsError: the directory is not empty, or can't be written, for instance because the disk is full.
    """
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken = next(directory.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{directory} can't be written ({error.strerror}): choose another directory") from None
    if taken is not None:
        raise SettingsError(f"{directory} is not empty: choose an empty or a new directory for this backup")
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            for path in directory.iterdir():
                path.unlink()
            if made:
                directory.rmdir()
        if isinstance(error, OSError):
            raise SettingsError(f"{directory} can't be written ({error.strerror}): nothing of it was kept") from error
        raise


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest with its checksum, atomically, after all other files: without it there is no backup."""
    manifest["checksum"] = _checksum(manifest)
    with whole_files([directory / MANIFEST]) as (file,):
        file.write(json.dumps(manifest, indent=1).encode() + b"\n")
