"""Backup file format: writes, reads and checks the files of a backup.

A backup is a directory: `manifest.json`, and for each shard these, each a zstd-compressed stream of MessagePack values:

    journal     records in order: from the oldest one that is not in all blocks, to the shard's head
    blocks      [number, fields] of each block of the checkpoint; ["names", fields]; ["seen", [name, time, ..]];
                ["pagemeta", [page, metadata, ..]]; ["links", [page, its links, ..]]
    keys        [name, kind, part of its value] of each other key, as of the head or earlier; see `opic.ops.backup`
    log         entries of the log of accepted events; only for shard 0

The first value identifies the file; the last one is the number of values between them.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import zstandard

from opic.errors import SettingsError
from opic.store.keys import FORMAT

BACKUP_FORMAT: Final = 2
MANIFEST: Final = "manifest.json"
PARTS: Final = ("journal", "blocks", "keys", "log")
LOG_SHARD: Final = 0
READ_BYTES: Final = 1 << 20
ZSTD_LEVEL: Final = 1  # Most of the data is compact already, or random.


def parts_of(shard: int) -> tuple[str, ...]:
    """Return the parts of a shard's backup."""
    return PARTS if shard == LOG_SHARD else PARTS[:-1]


def file_name(shard: int, part: str) -> str:
    """Return the file name of a part."""
    return f"shard-{shard:04d}.{part}.zst"


class PartFile:
    """A file that is being written. Closing it syncs it to disk and completes its checksum."""

    def __init__(self, directory: Path, backup_id: str, shard: int, part: str) -> None:
        """Create the file, replacing an existing one."""
        self.path, self.shard, self.part = directory / file_name(shard, part), shard, part
        self.values = 0
        self._hash = hashlib.sha256()
        self._packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
        self._file: BinaryIO = self.path.open("wb")
        self._put({"format": BACKUP_FORMAT, "id": backup_id, "shard": shard, "part": part})

    def put(self, value: object) -> None:
        """Add a value."""
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
    values = _all_values(path)
    next(values, None)
    for value in values:
        if not isinstance(value, dict):
            yield value


def _all_values(path: Path) -> Iterator[Any]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
        try:
            yield from msgpack.Unpacker(packed, max_buffer_size=0)
        except (zstandard.ZstdError, msgpack.UnpackException, ValueError) as error:
            raise SettingsError(f"{path} is damaged ({error}): use another backup") from None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a backup, and check that its files belong to this backup and are complete.

    Raises:
        SettingsError: a file is missing, damaged, or of another backup or format.
    """
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        if manifest["format"] != BACKUP_FORMAT or manifest["store_format"] != FORMAT:
            raise SettingsError(
                f"{directory} is a backup of format {manifest['format']}/{manifest['store_format']}, this program "
                f"reads {BACKUP_FORMAT}/{FORMAT}: use the one that made it"
            )
        wanted = [(shard, part) for shard in range(manifest["shards"]) for part in parts_of(shard)]
        if sorted((file["shard"], file["part"]) for file in manifest["files"]) != sorted(wanted):
            raise SettingsError(f"the manifest of {directory} does not name all files of {manifest['shards']} shards")
        for file in manifest["files"]:
            _check_file(directory / file_name(file["shard"], file["part"]), file, manifest)
    except OSError as error:
        raise SettingsError(f"{error.filename} can't be read ({error.strerror}): is {directory} a backup?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{directory / MANIFEST} is not the manifest of a backup ({error})") from None
    return manifest


def _check_file(path: Path, file: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    size, about = path.stat().st_size, next(_all_values(path), None)
    expected = {"format": BACKUP_FORMAT, "id": manifest["id"], "shard": file["shard"], "part": file["part"]}
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


def make_empty(directory: Path) -> None:
    """Create a directory for a backup.

    Raises:
        SettingsError: the directory is not empty, or can't be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken = next(directory.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{directory} can't be written ({error.strerror}): choose another directory") from None
    if taken is not None:
        raise SettingsError(f"{directory} is not empty: choose an empty or a new directory for this backup")


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, atomically and after all other files: a directory without it is not a backup."""
    scratch = directory / f"{MANIFEST}.new"
    with scratch.open("w") as file:
        file.write(json.dumps(manifest, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(directory / MANIFEST)
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)  # Without this, a power loss may lose the file's name.
    finally:
        os.close(handle)
