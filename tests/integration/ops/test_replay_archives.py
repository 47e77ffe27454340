"""A replay of archives feeds each record once, also where it was stopped, and says what it left out."""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
import zstandard
from archive_files import packed, page, record
from servers import Server
from serving import working

from opic.cli.replay import ArchiveLinks, ArchiveOptions, Nofollow
from opic.errors import BadInput
from opic.ops import feeder
from opic.ops.feeder import Progress
from opic.ops.replay import Plan, Summary, format_of, replay
from opic.service.backend import Backend
from opic.settings import Settings

numbers = count()
SITES = [f"http://h{i}.example/" for i in range(20)]
PAGES = packed(*(page(url, b'<a href="http://all.example/">') for url in SITES))


@pytest.fixture
def backend(valkey: Server) -> Iterator[Backend]:
    with ExitStack() as stack:
        settings = Settings(store=valkey.url, crawl=f"archives-{next(numbers)}", shards=1)
        found = Backend(settings, valkey.url)
        stack.callback(found.close)
        yield found


class Stop(Exception):
    pass


def run(backend: Backend, path: Path, *, stop_after: int | None = None, again: bool = False) -> Summary:
    def progress(at: Progress) -> None:
        if stop_after is not None and at.events >= stop_after:
            raise Stop

    with working(backend):
        return replay(backend, [path], Plan("warc", again=again), progress)


def reads(backend: Backend) -> list[int]:
    backend.crawl.follow()
    return [page.reads for page in backend.crawl.pages() if page.url in SITES]


def test_stopped_replay_goes_on_and_a_finished_one_feeds_nothing(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "VALUES_A_CALL", 3)
    monkeypatch.setattr(feeder, "PROGRESS_SECONDS", 0)
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(PAGES)
    with pytest.raises(Stop):  # After a batch was taken, and before that is noted.
        run(backend, path, stop_after=9)
    assert 0 < sum(reads(backend)) < len(SITES)
    path = path.rename(tmp_path / "moved.warc.gz")
    summary = run(backend, path)
    assert summary.archive is not None
    assert summary.archive["files_resumed"] == 1
    assert reads(backend) == [1] * len(SITES)
    assert run(backend, path).events == 0
    assert run(backend, path, again=True).events == len(SITES)
    assert reads(backend) == [2] * len(SITES)


def test_damaged_file_is_reported_and_the_next_one_is_fed(backend: Backend, tmp_path: Path) -> None:
    damaged, whole = tmp_path / "1.warc.gz", tmp_path / "2.warc.gz"
    damaged.write_bytes(PAGES[:-20])
    whole.write_bytes(
        packed(page("http://other.example/", b"<a href=/1>"), record("response", "http://x.example/", b"?"))
    )
    with working(backend):
        summary = replay(backend, [damaged, whole], Plan("warc"))
    assert (summary.events, summary.dead_letters) == (len(SITES), 0)
    assert summary.archive == {"records": len(SITES) + 2, "damaged": 1, "not_http": 1}
    assert str(damaged) in (summary.note or "")
    damaged.write_bytes(PAGES)  # It was still being written.
    assert run(backend, damaged).events == 1
    assert reads(backend) == [1] * len(SITES)
    assert backend.query.audit()["conserved"]


def test_file_counts_as_fed_once_it_was_read_to_its_end(backend: Backend, tmp_path: Path) -> None:
    members = [packed(page(url, b"")) for url in SITES]
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(members[0] + packed(b"") + members[1] + members[2][:-20] + packed(b"junk") + b"".join(members[3:]))
    summary = run(backend, path)
    assert (summary.events, summary.archive) == (len(SITES) - 1, {"records": len(SITES), "damaged": 1})
    assert (summary.note or "").startswith(f"{path}: damaged at ")
    assert run(backend, path).archive == {"records": 0, "files_resumed": 1}
    path.write_bytes(path.read_bytes() + members[2])
    summary = run(backend, path)
    assert (summary.events, summary.archive, summary.note) == (1, {"records": 1, "files_resumed": 1}, None)
    assert reads(backend) == [1] * len(SITES)


def test_many_kinds_of_damage_are_told_in_short(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "crawl.warc"
    path.write_bytes(b"".join(page(url, b"").replace(b"Content-Length", b"X") + page(url, b"") for url in SITES))
    summary = run(backend, path)
    assert (summary.events, summary.archive) == (len(SITES), {"records": 2 * len(SITES), "damaged": len(SITES)})
    assert (summary.note or "").endswith(f"; and {len(SITES) - 5} more damaged parts")


def test_files_with_one_dictionary_are_told_from_each_other(backend: Backend, tmp_path: Path) -> None:
    trained = zstandard.train_dictionary(2000, [page(url * 3, b"x" * 99) for url in SITES * 20])
    frame = struct.pack("<II", 0x184D2A5D, len(trained.as_bytes())) + trained.as_bytes()
    pack = zstandard.ZstdCompressor(dict_data=trained).compress
    paths = [tmp_path / f"{nth}.warc.zst" for nth in range(2)]
    for path, sites in zip(paths, (SITES[:10], SITES[10:]), strict=True):
        path.write_bytes(frame + b"".join(pack(page(url, b"")) for url in sites))
    with working(backend):
        assert replay(backend, paths, Plan(format_of(paths[0]))).events == len(SITES)
        assert replay(backend, paths, Plan("warc")).archive == {"records": 0, "files_resumed": 2}
    assert reads(backend) == [1] * len(SITES)


def test_wacz_and_wet_files_are_known_by_their_names(backend: Backend, tmp_path: Path) -> None:
    wacz, wet = tmp_path / "crawl.wacz", tmp_path / "crawl.warc.wet.gz"
    with zipfile.ZipFile(wacz, "w") as file:
        file.writestr("archive/1.warc.gz", PAGES)
    wet.write_bytes(packed(record("conversion", SITES[0], b"text", Content_Type="text/plain")))
    assert {format_of(wacz), format_of(wet)} == {"warc"}
    with working(backend):
        summary = replay(backend, [wacz, wet], Plan("warc"))
    assert (summary.events, summary.archive) == (len(SITES), {"records": len(SITES) + 1, "conversions": 1})


def test_invalid_event_is_a_dead_letter(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "crawl.warc"
    path.write_bytes(
        page("http://a.example/", b"").replace(b"2024-05-18", b"1024-05-18") + page(f"http://{'b' * 3000}/", b"")
    )
    assert (run(backend, path).dead_letters, run(backend, path).events) == (2, 0)


@pytest.mark.parametrize(
    ("format", "options", "why"),
    [
        ("jsonl", (None, None, True), "apply to warc, wat, arc only, and this is jsonl"),
        ("edges", (None, "drop", False), "apply to warc, wat, arc only"),
        ("wat", ("recorded", None, False), "--links applies to warc and arc"),
    ],
)
def test_option_that_does_not_apply_is_refused(
    format: str, options: tuple[ArchiveLinks | None, Nofollow | None, bool], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        ArchiveOptions(*options).added_to(Plan(format))
