"""Events of web archives: pages, redirects and revisits of WARC, ARC and WAT, and files that are damaged."""

import gzip
import random
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from archive_files import DATE, DATE_SECONDS, answer, envelope, packed, page, record
from repository import ROOT

from opic.errors import BadInput
from opic.model.events import CrawlEvent
from opic.ops import archive_records
from opic.ops.archive_events import ArchiveEvents
from opic.ops.archive_records import ArchiveDamaged, Position, parse_answer

SAMPLES = ROOT / "tests/data/archives"
BEGIN = Position()
A, B, C = "http://a.example/", "http://b.example/", "http://c.example/"


def read(
    path: Path, format: str = "warc", start: Position = BEGIN, *, recorded: bool = False, drop: bool = False
) -> tuple[list[CrawlEvent], dict[str, int], str]:
    """The events of a file, what was counted, and why it ended early."""
    with closing(ArchiveEvents(recorded=recorded, drop_nofollow=drop)) as events:
        found, why = list[CrawlEvent](), ""
        try:
            found.extend(one.event for one in events.of(path, format, start))
        except ArchiveDamaged as error:
            why = str(error)
    return found, {name: count for name, count in events.counts.items() if count}, why


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


def test_warc_and_arc_give_pages_with_their_links() -> None:
    (first, again), counts, why = read(SAMPLES / "example.warc.gz")
    assert (first.url, first.status, first.links) == (
        "http://example.com/",
        200,
        ["http://www.iana.org/domains/example"],
    )
    assert (again.url, again.links) == (first.url, first.links)
    assert (counts, why) == ({"records": 2, "revisits_repeated": 1}, "")
    (arc,), _, _ = read(SAMPLES / "example.arc.gz", "arc")
    assert (arc.url, arc.links, arc.fetched_at) == (first.url, first.links, 1392526941.0)
    (chunked,), counts, _ = read(SAMPLES / "example-iana.org-chunked.warc")
    assert (len(chunked.links), counts) == (24, {"records": 1})


@pytest.mark.parametrize("url", ["dns:a.example", "whois:a.example", "urn:x", ""])
def test_record_without_a_page_gives_no_event(tmp_path: Path, url: str) -> None:
    path = written(tmp_path, packed(record("response", url, b"x"), record("request", A, b"GET / HTTP/1.0\r\n\r\n")))
    assert read(path) == ([], {}, "")


def test_status_redirect_and_time_come_from_the_record(tmp_path: Path) -> None:
    path = written(tmp_path, packed(
        record("response", f"<{A}>", answer(status=301, Location="/there")),
        record("response", B, answer(status=404)),
        record("response", C, answer(b"<a href=/1>", kind="image/png")),
        record("resource", C, b"<a href=/2>", Content_Type="text/html"),
        record("response", A, b"garbage"),
    ))  # fmt: skip
    moved, gone, picture, resource = (found := read(path))[0]
    assert (moved.url, moved.status, moved.redirect, moved.fetched_at) == (A, 301, f"{A}there", DATE_SECONDS)
    assert (gone.status, picture.links, resource.links) == (404, [], [f"{C}2"])
    assert found[1] == {"records": 5, "not_http": 1}


def test_nofollow_links_count_unless_they_are_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, packed(page(A, b"<a href=/1 rel=nofollow><a href=/2>")))
    assert [len(read(path, drop=drop)[0][0].links) for drop in (False, True)] == [2, 1]


def test_revisit_repeats_the_links_of_the_record_it_refers_to_or_is_skipped(tmp_path: Path) -> None:
    same = "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"
    first = page(A, b"<a href=/1>", name="one")
    path = written(tmp_path, packed(
        first,
        record("revisit", A, answer(), WARC_Refers_To="<urn:one>", WARC_Profile=same),
        record("revisit", A, answer(status=304), WARC_Refers_To_Target_URI=A, WARC_Refers_To_Date=DATE),
        record("revisit", B, b"", WARC_Refers_To="<urn:elsewhere>"),
        record("revisit", C, answer(status=302, Location=A), WARC_Refers_To="<urn:elsewhere>"),
        record("response", C, answer(status=304)),
    ))  # fmt: skip
    found, counts, _ = read(path)
    assert [(one.url, one.status, one.links) for one in found[:3]] == [(A, 200, [f"{A}1"])] * 3
    assert [(one.url, one.redirect) for one in found[3:]] == [(C, A)]
    assert counts == {"records": 6, "revisits_repeated": 2, "revisits_skipped": 2}
    again, counts, _ = read(path, start=Position(len(packed(first)), 0))
    assert ([one.url for one in again], counts["revisits_skipped"]) == ([C], 4)


def test_recorded_links_of_kinds_l_and_r_count(tmp_path: Path) -> None:
    outlinks = (
        "fetchTimeMs: 7\r\noutlink: http://a.example/?x=1&amp;y=2 L a/@href\r\n"
        "outlink: http://a.example/i E img/@src\r\n"
        "outlink: http://a.example/r R Location:\r\noutlink: http://a.example/s X =JS_MISC\r\noutlink: broken\r\n"
    )
    path = written(tmp_path, packed(
        page(A, b"<a href=/html>", name="one"), page(B, b"<a href=/html>", name="two"), page(C, b"", name="three"),
        record("metadata", B, b"fetchTimeMs: 3\r\n", WARC_Concurrent_To="<urn:two>"),
        record("metadata", A, outlinks.encode(), WARC_Concurrent_To="<urn:one>"),
        record("revisit", B, b"", WARC_Refers_To="<urn:one>"),
    ))  # fmt: skip
    found, counts, _ = read(path, recorded=True)
    links = [f"{A}?x=1&y=2", f"{A}r"]
    assert [(one.url, one.links) for one in found] == [(A, links), (B, []), (C, []), (B, links)]
    assert counts == {"records": 4, "without_recorded_links": 1, "revisits_repeated": 1}


def test_wat_gives_the_links_of_anchors_and_areas(tmp_path: Path) -> None:
    links = [
        {"path": "A@/href", "url": "?x=1&amp;y=2", "text": "t"},
        {"path": "AREA@/href", "url": "z", "rel": "nofollow"},
        {"path": "IMG@/src", "url": "/i.png"},
        {"path": "A@/href"},
        "broken",
    ]
    html = {"Head": {"Base": "/b/", "Metas": [{"name": "author", "content": "x"}]}, "Links": links}
    ok = {"Response-Message": {"Status": "200"}}
    path = written(tmp_path, packed(
        envelope(A, {**ok, "HTML-Metadata": html}),
        envelope(B, {"Response-Message": {"Status": "302"}, "Headers": {"Location": "/c"}}),
        envelope(C, {**ok, "HTML-Metadata": {}}),
        envelope(C, {**ok, "HTML-Metadata": {"Links": 5, "Head": []}}),
        envelope(A, {}, WARC_Type="request"),
        *(record("metadata", A, block) for block in (b'{"Envelope": {', b"[]", b'{"Envelope": 1}', b"[" * 100_000)),
    ))  # fmt: skip
    found, counts, _ = read(path, "wat")
    assert [(one.url, one.status, one.links, one.redirect) for one in found] == [
        (A, 200, [f"{A}b/?x=1&y=2", f"{A}b/z"], None),
        (B, 302, [], f"{B}c"),
        (C, 200, [], None),
        (C, 200, [], None),
    ]
    assert (found[0].fetched_at, counts) == (DATE_SECONDS, {"records": 4, "broken_json": 4})
    assert read(path, "wat", drop=True)[0][0].links == [f"{A}b/?x=1&y=2"]


PAGES = [page(f"http://h{i}.example/", b"<a href=/1>" * (i + 1)) for i in range(4)]


@pytest.mark.parametrize("pack", [True, False], ids=["gzip", "plain"])
def test_truncated_file_gives_its_whole_records(tmp_path: Path, pack: bool) -> None:
    content = packed(*PAGES) if pack else b"".join(PAGES)
    path = written(tmp_path, content[: len(content) - 40])
    found, _, why = read(path)
    assert len(found) == 3
    assert "cut off, or damaged" in why


@pytest.mark.parametrize(
    ("content", "events", "why"),
    [
        (b"", 0, ""),
        (gzip.compress(b""), 0, ""),
        (b"<html>no archive</html>" * 99, 0, "damaged"),
        (random.Random(0).randbytes(3000), 0, "damaged"),
        (packed(*PAGES) + b"garbage" * 99, 4, "damaged"),
        (packed(*PAGES[:2]) + packed(PAGES[2])[:-4] + b"\0\0\0\0" + packed(PAGES[3]), 2, "damaged"),
        (packed(PAGES[0], PAGES[1].replace(b"Content-Length: ", b"Content-Length: 9"), PAGES[2]), 1, "cut off"),
        (packed(PAGES[0], PAGES[1].replace(b"Content-Length: ", b"Content-Length: x"), PAGES[2]), 1, "damaged"),
        (gzip.compress(b"".join(PAGES)), 4, ""),
    ],
    ids=["empty", "empty gzip", "no archive", "noise", "tail", "member", "long length", "no length", "one member"],
)
def test_damaged_file_gives_the_records_before_the_damage(
    tmp_path: Path, content: bytes, events: int, why: str
) -> None:
    found, _, told = read(written(tmp_path, content))
    assert len(found) == events
    assert (why in told) if why else not told


def test_reading_resumes_at_every_position(tmp_path: Path) -> None:
    for content in (packed(*PAGES), b"".join(PAGES), gzip.compress(b"".join(PAGES))):
        path = written(tmp_path, content)
        with closing(ArchiveEvents()) as events:
            found = list(events.of(path, "warc", Position()))
            for nth, (_, position) in enumerate(found):
                after = Position(position.offset, position.number + 1)
                assert list(events.of(path, "warc", after)) == found[nth + 1 :]


def test_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read: No such file"):
        read(tmp_path / "none")


@pytest.mark.parametrize(
    ("block", "body", "cut"),
    [
        (answer(b"4\r\nabcd\r\n1;x\r\ne\r\n0\r\n\r\n", Transfer_Encoding="chunked"), b"abcde", False),
        (answer(b"4\r\nabcd\r\nzz\r\ne", Transfer_Encoding="chunked"), b"abcd", True),
        (answer(b"ff\r\nabcd", Transfer_Encoding="chunked"), b"abcd", True),
        (answer(b"<p>not in chunks", Transfer_Encoding="chunked"), b"<p>not in chunks", False),
        (answer(gzip.compress(b"abc", mtime=0), Content_Encoding="gzip"), b"abc", False),
        (answer(gzip.compress(b"abc" * 99, mtime=0)[:-9], Content_Encoding="gzip"), b"abc" * 99, True),
        (answer(zlib.compress(b"abc"), Content_Encoding="deflate"), b"abc", False),
        (answer(b"plain", Content_Encoding="gzip"), b"plain", False),
        (answer(b"plain", Content_Encoding="br"), b"plain", False),
        (b"HTTP/1.0 200 OK\nContent-Type: text/html\n\nabc", b"abc", False),
        (b"HTTP/1.0 200 OK\r\nno colon\r\n\r\na\n\nb", b"a\n\nb", False),
    ],
)
def test_body_is_decoded_up_to_the_damage(block: bytes, body: bytes, cut: bool) -> None:
    found = parse_answer(block)
    assert found is not None
    assert (found.body, found.cut) == (body, cut)


def test_long_body_is_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_records, "BODY_BYTES_MAX", 60)
    body = b"<a href=/1>" + b" " * 60 + b"<a href=/2>"
    packed_body = page(B, gzip.compress(body), Content_Encoding="gzip")
    found, counts, _ = read(written(tmp_path, packed(page(A, body), packed_body)))
    assert [one.links for one in found] == [[f"{A}1"], [f"{B}1"]]
    assert counts["bodies_cut"] == 2
