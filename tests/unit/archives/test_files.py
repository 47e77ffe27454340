"""Archive files in a WACZ file."""

import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from archive_files import packed, page

from opic.archives import files
from opic.archives.events import ArchivedEvent, ArchiveEvents
from opic.archives.files import archive_files
from opic.errors import BadInput

A, B, C = "http://a.example/", "http://b.example/", "http://c.example/"


def test_files_in_a_wacz_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "crawl.WACZ"
    with zipfile.ZipFile(path, "w") as wacz:
        wacz.writestr("datapackage.json", "{}")
        wacz.writestr("archive/1.warc.gz", packed(page(A, b"<a href=1>"), page(B, b"<a href=1>")))
        wacz.writestr("archive/2.warc", page(C, b"<a href=1>"), zipfile.ZIP_DEFLATED)
        wacz.writestr("indexes/index.cdx.gz", b"x")
        wacz.writestr("archive/3.arc", b"")
    found = list(archive_files(path, tmp_path))
    assert [one.name.rpartition("/")[2] for one in found] == ["1.warc.gz", "2.warc", "3.arc"]
    with closing(ArchiveEvents()) as events:
        told = [one for file in found for one in events.events_of(file) if isinstance(one, ArchivedEvent)]
        assert [one.event.links for one in told] == [[f"{A}1"], [f"{B}1"], [f"{C}1"]]
        assert list(events.events_of(found[0], told[1].position)) == [told[1]]
    monkeypatch.setattr(files, "FREE_BYTES", 10)
    with zipfile.ZipFile(path, "w") as wacz:
        wacz.writestr("archive/2.warc", bytes(1 << 20), zipfile.ZIP_DEFLATED)
    with pytest.raises(BadInput, match="times its size"):
        list(archive_files(path, tmp_path))


@pytest.mark.parametrize("content", [None, b"no zip", zipfile.ZipFile], ids=["missing", "no zip", "empty"])
def test_wacz_file_without_archives_is_bad_input(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "x.wacz"
    if content is zipfile.ZipFile:
        zipfile.ZipFile(path, "w").close()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"x\.wacz"):
        list(archive_files(path, tmp_path))
