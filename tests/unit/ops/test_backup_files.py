"""A damaged manifest, or a hostile one, is a clear error."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from opic.errors import SettingsError
from opic.ops.backup_files import MANIFEST, file_name, write_manifest
from opic.ops.restore import verify

BACKUP = ROOT / "tests" / "data" / "backup"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A backup of two shards."""
    shutil.copytree(BACKUP, tmp_path / "copy")
    return tmp_path / "copy"


def manifest_of(directory: Path) -> Any:
    return json.loads((directory / MANIFEST).read_text())


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no shards": lambda m: m.pop("shards"),
    "shards are text": lambda m: m.update(shards="2"),
    "more shards than a crawl may have": lambda m: m.update(shards=1 << 40),
    "fewer shards than it has files of": lambda m: m.update(shards=1),
    "a shard below 0": lambda m: m["files"][0].update(shard=-1),
    "rules are a list": lambda m: m.update(rules=[]),
    "a rule is missing": lambda m: m["rules"].pop("q") and m["rules"].update(unknown=1),
    "an unknown part": lambda m: m["files"][0].update(part="../../etc/passwd"),
    "a file is named twice": lambda m: m["files"].append(m["files"][0]),
    "a file is not named": lambda m: m["files"].pop(),
    "files are an object": lambda m: m.update(files={}),
    "a file of a negative size": lambda m: m["files"][0].update(bytes=-1),
    "a file of a size that is none": lambda m: m["files"][0].update(bytes=1e400),
    "a file of another size": lambda m: m["files"][0].update(bytes=1 << 62),
    "a checksum that is none": lambda m: m["files"][0].update(sha256=None),
    "another checksum": lambda m: m["files"][0].update(sha256="0" * 64),
    "no audit": lambda m: m.update(audit=None),
    "an audit of another state": lambda m: m["audit"].update(pages=1),
    "heads of one shard": lambda m: m["heads"].pop(),
    "heads of another state": lambda m: m["heads"][0].__setitem__(0, 1),
    "offsets of another state": lambda m: m["offsets"][0].update({"log/0": 1}),
    "counts of one shard": lambda m: m.update(counts=[{}]),
    "counts without names": lambda m: m.update(counts=[{}, {}]),
    "more metadata than it has": lambda m: m.update(counts=[{"pagemeta": 1 << 40, "seen": 0, "seen_from": 0}] * 2),
    "no counts": lambda m: m.pop("counts"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_manifest_with_a_wrong_field_is_refused(copy: Path, damage: str) -> None:
    manifest = manifest_of(copy)
    DAMAGES[damage](manifest)
    write_manifest(copy, manifest)  # With a checksum that fits.
    with pytest.raises(SettingsError, match=r"manifest|damaged|another backup"):
        verify(copy)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_malformed_manifest_is_refused(copy: Path, text: bytes) -> None:
    (copy / MANIFEST).write_bytes(text)
    with pytest.raises(SettingsError, match="is not the manifest of a backup"):
        verify(copy)


def test_manifest_that_is_too_large_or_no_file_is_refused(copy: Path) -> None:
    os.truncate(copy / MANIFEST, 1 << 40)
    with pytest.raises(SettingsError, match="more than any manifest"):
        verify(copy)
    (copy / MANIFEST).unlink()
    with pytest.raises(SettingsError, match=r"manifest\.json can't be read"):
        verify(copy)
    os.mkfifo(copy / MANIFEST)
    with pytest.raises(SettingsError, match="is not a file"):
        verify(copy)


def test_part_that_is_missing_or_no_file_is_refused(copy: Path) -> None:
    part = copy / file_name(1, "blocks")
    part.unlink()
    with pytest.raises(SettingsError, match=r"blocks\.zst can't be read"):
        verify(copy)
    os.mkfifo(part)
    with pytest.raises(SettingsError, match="is not a file"):
        verify(copy)


def test_every_flipped_bit_and_every_cut_of_a_manifest_is_noticed(copy: Path) -> None:
    """Those of its text; a line that is indented otherwise says the same."""
    write_manifest(copy, manifest_of(copy))
    whole, draw = (copy / MANIFEST).read_bytes(), random.Random(1)
    verify(copy)
    for _ in range(300):
        damaged, at = bytearray(whole), draw.randrange(len(whole))
        damaged[at] ^= 1 << draw.randrange(8)
        (copy / MANIFEST).write_bytes(damaged if draw.random() < 0.8 else whole[:at])
        try:
            verify(copy)
        except SettingsError:
            continue
        assert json.loads((copy / MANIFEST).read_text()) == json.loads(whole)


def test_backup_that_was_kept_is_read(copy: Path) -> None:
    assert verify(copy)[0]["audit"] == manifest_of(copy)["audit"]
