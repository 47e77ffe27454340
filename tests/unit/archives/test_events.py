"""Events of web archives: pages, redirects, revisits, recorded links, WAT; and that every record is counted."""

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from archive_files import DATE, DATE_SECONDS, answer, asked, envelope, packed, page, record
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from opic.archives import captures, http, originals
from opic.archives.events import ArchiveEvents
from opic.archives.files import ArchiveFile
from opic.archives.records import DamagedPart, Position, read_records
from opic.errors import BadInput
from opic.model.events import CrawlEvent

SAMPLES = ROOT / "tests/data/archives"
BEGIN = Position()
A, B, C = "http://a.example/", "http://b.example/", "http://c.example/"
NOTABLE = ("records", "revisits_repeated", "bodies_cut", "pages_unparsable", "without_recorded_links")
OK = {"Response-Message": {"Status": "200"}}


def read(
    path: Path, start: Position = BEGIN, *, recorded: bool = False, drop: bool = False
) -> tuple[list[CrawlEvent], dict[str, int], str]:
    """The events of a file, what was counted, and what is damaged. The sums of the counts are checked."""
    with closing(ArchiveEvents(recorded=recorded, drop_nofollow=drop)) as events:
        found = list(events.events_of(ArchiveFile(str(path), path), start))
        counts = {name: count for name, count in events.counts.items() if count}
    given = [one.event for one in found if not isinstance(one, DamagedPart)]
    reasons = {name: count for name, count in counts.items() if name not in NOTABLE}
    assert counts.get("records", 0) == len(given) + sum(reasons.values())
    return given, counts, "; ".join(one.reason for one in found if isinstance(one, DamagedPart))


def written(folder: Path, *records: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(packed(*records))
    return path


def test_warc_and_arc_give_pages_with_their_links() -> None:
    (first, again), counts, why = read(SAMPLES / "example.warc.gz")
    links = ["http://www.iana.org/domains/example"]
    assert (first.url, first.status, first.links) == ("http://example.com/", 200, links)
    assert (again.url, again.links) == (first.url, first.links)
    assert (counts, why) == ({"records": 6, "warcinfo": 2, "requests": 2, "revisits_repeated": 1}, "")
    (arc,), counts, _ = read(SAMPLES / "example.arc.gz")
    assert (arc.url, arc.links, arc.fetched_at) == (first.url, first.links, 1392526941.0)
    assert counts == {"records": 2, "warcinfo": 1}
    (chunked,), counts, _ = read(SAMPLES / "example-iana.org-chunked.warc")
    assert (len(chunked.links), counts) == (24, {"records": 3, "warcinfo": 1, "requests": 1})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((record("response", url, b"x"), "not_web") for url in ("dns:a.example", "whois:a.example", "urn:x", "")),
        (record("resource", "urn:pageinfo:x", b"{}", Content_Type="application/json"), "not_web"),
        (asked(A), "requests"),
        (record("metadata", A, b"fetchTimeMs: 3\r\n"), "metadata"),
        (record("metadata", A, b"{}", Content_Type="application/json"), "metadata"),
        (record("metadata", A, b"{", Content_Type="application/json"), "broken_json"),
        (record("conversion", A, b"text", Content_Type="text/plain"), "conversions"),
        (
            record("continuation", A, b"text", WARC_Segment_Origin_ID="<urn:none>", WARC_Segment_Number="2"),
            "continuations",
        ),
        (record("warcinfo", "", b""), "warcinfo"),
        (record("custom", A, b""), "other_types"),
        (record("response", A, b"garbage"), "not_http"),
        (record("response", A, b"HTTP/1.1 100 Continue\r\n\r\n"), "not_http"),
        (record("revisit", A, answer()), "revisits_skipped"),
        (record("response", A, answer(status=304)), "revisits_skipped"),
        (record("response", A, answer()).replace(b"Length", b"x"), "damaged"),
        (envelope(A, {}, WARC_Type="request"), "requests"),
        (envelope(A, {}), "not_http"),
        (envelope("dns:a.example", OK), "not_web"),
    ],
)
def test_record_without_an_event_is_counted_by_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    found, counts, _ = read(written(tmp_path, content))
    assert (found, counts) == ([], {"records": 1, reason: 1})


def test_status_redirect_and_time_come_from_the_record(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        record("response", f"<{A}>", answer(status=301, Location="/there")),
        record("response", B, answer(status=404)),
        record("response", C, answer(b"<a href=/1>", kind="image/png")),
        record("resource", C, b"<a href=/2>", Content_Type="text/html"),
        record("resource", C, b"<p><a href=/3>"),
        record("response", A, answer(b"<a href=/4>", kind="TEXT/HTML; a=b")),
    )
    (moved, gone, picture, resource, sniffed, page), counts, _ = read(path)
    assert (moved.url, moved.status, moved.redirect, moved.fetched_at) == (A, 301, f"{A}there", DATE_SECONDS)
    assert (gone.status, picture.links, resource.links) == (404, [], [f"{C}2"])
    assert (sniffed.links, page.links, counts) == ([f"{C}3"], [f"{A}4"], {"records": 6})


def test_a_date_that_is_none_is_left_to_the_check_of_events(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        *(page(A, b"").replace(DATE.encode(), date) for date in (b"yesterday", b"2016-12-31T23:59:60Z", b"2024")),
    )
    assert [event.fetched_at for event in read(path)[0]] == ["yesterday", 1483228800.0, 1704067200.0]
    assert read(written(tmp_path, page(A, b"").replace(b"WARC-Date", b"X")))[0][0].fetched_at is None


def test_nofollow_links_count_unless_they_are_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, page(A, b"<a href=/1 rel=nofollow><a href=/2>"))
    assert [len(read(path, drop=drop)[0][0].links) for drop in (False, True)] == [2, 1]


# Requests.


def test_answers_to_other_methods_than_get_are_no_reads(tmp_path: Path) -> None:
    def one(number: int, **headers: str) -> bytes:
        return record("response", f"{A}{number}", answer(b"<a href=/>"), WARC_Record_ID=f"<urn:{number}>", **headers)

    path = written(
        tmp_path,
        # The request names the answer, in either order; the answer names the request; neither names the other.
        one(1),
        asked(f"{A}1", "POST", WARC_Concurrent_To="<urn:1>"),
        asked(f"{A}2", "HEAD", WARC_Concurrent_To="<urn:2>"),
        one(2),
        asked(f"{A}3", "OPTIONS", WARC_Record_ID="<urn:q3>"),
        one(3, WARC_Concurrent_To="<urn:q3>"),
        one(4, WARC_Concurrent_To="<urn:q4>"),
        asked(f"{A}4", "put", WARC_Record_ID="<urn:q4>"),
        asked(f"{A}5", "HEAD"),
        one(5),
        asked(f"{A}5", "GET"),
        one(5),
        one(6),
        asked(f"{A}6", "HEAD"),
        one(6),
        asked(f"{A}6", "GET"),
        asked(f"{A}7", "POST", WARC_Concurrent_To="<urn:else>"),
        one(7),
        one(8),
        record("request", f"{A}8", b"", WARC_Concurrent_To="<urn:8>"),
        asked(f"{A}9", "POST", WARC_Concurrent_To="<urn:9>"),
        record("revisit", f"{A}9", answer(status=404), WARC_Record_ID="<urn:9>"),
    )
    found, counts, _ = read(path)
    assert [event.url.removeprefix(A) for event in found] == ["5", "6", "7", "8"]
    assert counts == {"records": 22, "requests": 11, "not_get": 7}


def test_a_method_is_known_however_many_answers_come_at_once(tmp_path: Path) -> None:
    count = captures.WAITING_MAX
    answers = [record("response", f"{A}{n}", answer(), WARC_Record_ID=f"<urn:{n}>") for n in range(count)]
    requests = [asked(A, "POST" if n % 2 else "GET", WARC_Concurrent_To=f"<urn:{n}>") for n in range(count)]
    for records in (answers + requests, requests + answers):
        assert [event.url for event in read(written(tmp_path, *records))[0]] == [f"{A}{n}" for n in range(0, count, 2)]


# Revisits.

SAME = "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"


def test_revisit_repeats_the_links_of_the_record_it_refers_to_or_is_skipped(tmp_path: Path) -> None:
    first = page(A, b"<a href=/1>", name="one")
    path = written(
        tmp_path,
        first,
        record("revisit", A, answer(), WARC_Refers_To="<urn:one>", WARC_Profile=SAME),
        record("revisit", A, answer(status=304), WARC_Refers_To_Target_URI=A, WARC_Refers_To_Date=DATE),
        record("revisit", A, answer(), WARC_Refers_To_Target_URI=A, WARC_Refers_To_Date="2024-05-18T02:01:22.000Z"),
        record("revisit", A, b"", WARC_Refers_To_Target_URI=A),
        record("revisit", A, b"", WARC_Profile="http://netpreserve.org/warc/1.1/revisit/server-not-modified"),
        record("revisit", A, b"", WARC_Profile="<http://netpreserve.org/warc/1.0/server-not-modified>"),
        record("revisit", A, b"", WARC_Profile=SAME),
        record("revisit", B, b"", WARC_Refers_To="<urn:elsewhere>"),
        record("revisit", C, answer(status=302, Location=A), WARC_Refers_To="<urn:elsewhere>"),
        record("response", C, answer(status=304)),
        record("response", A, answer(status=304)),
    )
    found, counts, _ = read(path)
    assert [(one.url, one.status, one.links) for one in found[:7]] == [(A, 200, [f"{A}1"])] * 7
    assert [(one.url, one.redirect, one.links) for one in found[7:]] == [(C, A, []), (A, None, [f"{A}1"])]
    assert counts == {"records": 12, "revisits_repeated": 7, "revisits_skipped": 3}
    again, counts, _ = read(path, start=Position(len(packed(first)), 0))
    assert ([one.url for one in again], counts["revisits_skipped"]) == ([C], 10)


@pytest.mark.parametrize(
    "pack", [packed, lambda *records: gzip.compress(b"".join(records)), lambda *records: b"".join(records)]
)
def test_links_of_a_revisit_are_relative_to_its_own_url(tmp_path: Path, pack: Any) -> None:
    digest = {"WARC_Payload_Digest": "sha1:AAAA"}
    body = answer(gzip.compress(b'<a href="next">x</a>'), Content_Encoding="gzip")
    path = tmp_path / "file"
    path.write_bytes(
        pack(
            record("response", f"{A}en/", body, WARC_Record_ID="<urn:1>", **digest),
            record("revisit", f"{B}fr/", answer(), WARC_Record_ID="<urn:2>", **digest),
            record("revisit", f"{C}x/", answer(), WARC_Refers_To="<urn:2>"),
            record("revisit", f"{C}y/", answer(kind="image/png"), **digest),
            record("response", f"{B}fr/", answer(status=304)),
        )
    )
    found, counts, _ = read(path)
    assert [one.links for one in found] == [[f"{A}en/next"], [f"{B}fr/next"], [f"{C}x/next"], [], [f"{B}fr/next"]]
    assert counts == {"records": 5, "revisits_repeated": 4}


def test_revisit_has_its_own_status(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        page(A, b"<a href=/1>", name="page"),
        record("response", B, answer(b"<a href=/2>", status=404), WARC_Record_ID="<urn:gone>"),
        record("revisit", f"{A}a", answer(status=410), WARC_Refers_To="<urn:page>"),
        record("revisit", f"{A}b", answer(), WARC_Refers_To="<urn:gone>"),
        record("revisit", f"{A}c", b"", WARC_Refers_To="<urn:gone>"),
        record("revisit", f"{A}d", answer(status=503), WARC_Refers_To="<urn:none>", WARC_Truncated="length"),
    )
    found, counts, _ = read(path)
    assert [(one.status, one.links) for one in found[2:]] == [(410, []), (200, [f"{A}2"]), (404, []), (503, [])]
    assert counts == {"records": 6, "revisits_repeated": 2}


def test_revisits_of_another_file_of_the_run(tmp_path: Path) -> None:
    paths = [tmp_path / "1", tmp_path / "2"]
    paths[0].write_bytes(packed(page(A, b"<a href=1>", name="one")))
    paths[1].write_bytes(
        packed(
            record("revisit", B, answer(), WARC_Refers_To="<urn:one>"),
            record("revisit", C, answer(), WARC_Refers_To="<urn:one>"),
        )
    )
    with closing(ArchiveEvents()) as events:
        *_, one = (found for path in paths for found in events.events_of(ArchiveFile(str(path), path)))
        assert not isinstance(one, DamagedPart)
        assert one.event.links == [f"{C}1"]
        paths[0].unlink()
        assert not list(events.events_of(ArchiveFile(str(paths[1]), paths[1])))
        assert events.counts["revisits_skipped"] == 2


def test_full_disk_of_the_temporary_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "TABLES", originals.TABLES + "PRAGMA max_page_count = 5;")
    path = written(tmp_path, *(page(f"{A}{number}/{'x' * 500}", b"") for number in range(99)))
    with pytest.raises(BadInput, match=r"can't be written \(database or disk is full\): make room where TMPDIR is"):
        read(path)


# Segments.


def segment(number: int, block: bytes, **headers: str) -> bytes:
    return record(
        "continuation", A, block, WARC_Segment_Origin_ID="<urn:one>", WARC_Segment_Number=str(number), **headers
    )


def test_segments_are_one_answer(tmp_path: Path) -> None:
    block = answer(b"<a href=/1>1</a><a href=/2>2</a><a href=/3>3</a>")
    first = record("response", A, block[:60], WARC_Record_ID="<urn:one>", WARC_Segment_Number="1")
    second, third = segment(2, block[60:75]), segment(3, block[75:], WARC_Segment_Total_Length=str(len(block)))
    for records in ((first, second, third), (first, third, page(B, b""), second)):
        found, counts, _ = read(written(tmp_path, *records))
        assert (found[0].links, counts) == (
            [f"{A}{n}" for n in (1, 2, 3)],
            {"records": len(records), "continuations": 2},
        )
    for records, links in (((first, second), 2), ((first,), 1), ((first, third), 1)):
        found, counts, _ = read(written(tmp_path, *records))
        assert (len(found[0].links), counts["bodies_cut"]) == (links, 1)
    found, counts, _ = read(
        written(tmp_path, first, second, third, record("revisit", B, answer(), WARC_Refers_To="<urn:one>"))
    )
    assert found[1].links == [f"{B}{n}" for n in (1, 2, 3)]


# Links that a crawler recorded.


def test_recorded_links_of_kinds_l_and_r_count(tmp_path: Path) -> None:
    outlinks = (
        "fetchTimeMs: 7\r\noutlink: http://a.example/?x=1&amp;y=2 L a/@href\r\n"
        "outlink: http://a.example/i E img/@src\r\noutlink: http://a.example/y/ L BASE/@href\r\n"
        "outlink: http://a.example/r R Location:\r\noutlink: http://a.example/s X =JS_MISC\r\noutlink: broken\r\n"
    )
    path = written(
        tmp_path,
        page(A, b"<a href=/html>", name="one"),
        page(B, b"<a href=/html>", name="two"),
        page(C, b"", name="three"),
        record("metadata", B, b"fetchTimeMs: 3\r\n", WARC_Concurrent_To="<urn:two>"),
        record(
            "metadata", A, outlinks.encode(), WARC_Concurrent_To="<urn:one>", Content_Type="application/warc-fields"
        ),
        record("metadata", C, b"outlink: http://c.example/x L a/@href", Content_Type="text/plain"),
        record("revisit", A, b"", WARC_Refers_To="<urn:one>"),
        record("revisit", B, b"", WARC_Refers_To="<urn:one>"),
        record("revisit", C, answer(), WARC_Refers_To="<urn:none>", WARC_Record_ID="<urn:own>"),
        record("metadata", C, b"outlink: http://c.example/own L a/@href\n", WARC_Concurrent_To="<urn:own>"),
    )
    found, counts, _ = read(path, recorded=True)
    links = [f"{A}?x=1&y=2", f"{A}r"]
    assert [(one.url, one.links) for one in found] == [(A, links), (B, []), (C, []), (A, links), (C, [f"{C}own"])]
    assert counts == {
        "records": 10,
        "metadata": 4,
        "without_recorded_links": 1,
        "revisits_repeated": 1,
        "revisits_skipped": 1,
    }


# WAT.


def test_wat_gives_the_links_of_anchors_and_areas(tmp_path: Path) -> None:
    links = [
        {"path": "A@/href", "url": "?x=1&amp;y=2", "text": "t"},
        {"path": "AREA@/href", "url": "z", "rel": "nofollow"},
        {"path": "IMG@/src", "url": "/i.png"},
        {"path": "A@/href"},
        "broken",
    ]
    html = {"Head": {"Base": "/b/", "Metas": [{"name": "author", "content": "x"}]}, "Links": links}
    path = written(
        tmp_path,
        envelope(A, {**OK, "HTML-Metadata": html}),
        envelope(B, {"Response-Message": {"Status": "302"}, "Headers": {"location": "/c\n/d"}}),
        envelope(
            B, {"Response-Message": {"Status": 301}, "Headers": {"Location": ["/new", "/other"], "Vary": ["a", "b"]}}
        ),
        envelope(C, {**OK, "HTML-Metadata": {}}),
        envelope(C, {**OK, "HTML-Metadata": {"Links": 5, "Head": []}}),
        envelope(
            A, {**OK, "HTML-Metadata": html}, WARC_Type="revisit", WARC_Refers_To_Target_URI=A, WARC_Refers_To_Date=DATE
        ),
        *(
            record("metadata", A, block, Content_Type="application/json")
            for block in (b'{"Envelope": {', b"[" * 100_000)
        ),
        *(record("metadata", A, block, Content_Type="application/json") for block in (b"[]", b'{"Envelope": 1}')),
    )
    found, counts, _ = read(path)
    assert [(one.url, one.status, one.links, one.redirect) for one in found] == [
        (A, 200, [f"{A}b/?x=1&y=2", f"{A}b/z"], None),
        (B, 302, [], f"{B}c%20/d"),
        (B, 301, [], f"{B}new"),
        (C, 200, [], None),
        (C, 200, [], None),
        (A, 200, [f"{A}b/?x=1&y=2", f"{A}b/z"], None),
    ]
    assert (found[0].fetched_at, counts) == (
        DATE_SECONDS,
        {"records": 10, "broken_json": 2, "metadata": 2, "revisits_repeated": 1},
    )
    assert read(path, drop=True)[0][0].links == [f"{A}b/?x=1&y=2"]


def test_wat_of_an_arc_file_and_methods_of_wat(tmp_path: Path) -> None:
    def told(headers: dict[str, Any], payload: dict[str, Any]) -> bytes:
        block = json.dumps({"Envelope": headers | {"Payload-Metadata": payload}}).encode()
        return record("metadata", B, block, Content_Type="application/json")

    def warc(kind: str, name: str, **more: object) -> dict[str, Any]:
        return {"WARC-Header-Metadata": {"WARC-Type": kind, "WARC-Target-URI": A, "WARC-Record-ID": name, **more}}

    html = {"HTML-Metadata": {"Links": [{"path": "A@/href", "url": "1"}]}}
    arc = {
        "Format": "ARC",
        "ARC-Header-Metadata": {"Target-URI": A, "Date": "20240518020122", "Content-Type": "text/html"},
    }
    first = {"Format": "ARC", "ARC-Header-Metadata": {"Target-URI": "filedesc://x.arc", "Date": "20240518020122"}}
    path = written(
        tmp_path,
        told(first, {}),
        told(arc, {"HTTP-Response-Metadata": OK | html}),
        told(warc("request", "<urn:q>"), {"HTTP-Request-Metadata": {"Request-Message": {"Method": "POST"}}}),
        told(
            warc("response", "<urn:a>", **{"WARC-Concurrent-To": ["<urn:x>", "<urn:q>"]}),
            {"HTTP-Response-Metadata": OK},
        ),
    )
    (event,), counts, _ = read(path)
    assert (event.url, event.status, event.links, event.fetched_at) == (A, 200, [f"{A}1"], DATE_SECONDS)
    assert counts == {"records": 4, "warcinfo": 1, "requests": 1, "not_get": 1}


def test_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="can't be read: No such file"):
        read(tmp_path / "none")


# Invariants.

KINDS = ("response", "request", "revisit", "metadata", "resource", "continuation", "conversion", "warcinfo", "x")
RECORDS = st.builds(
    lambda kind, url, block, name, of: record(kind, url, block, WARC_Record_ID=f"<urn:{name}>", **of),
    st.sampled_from(KINDS),
    st.sampled_from([A, B, "dns:x", ""]),
    st.sampled_from(
        [
            b"",
            b"x",
            answer(b"<a href=1>"),
            answer(status=304),
            answer(status=404),
            answer(status=302, Location="/x"),
            b"POST / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"outlink: http://a.example/1 L a/@href\r\n",
            b"HTTP/1.1 100 x\r\n\r\n",
            json.dumps({"Envelope": {"Format": "x"}}).encode(),
        ]
    ),
    st.integers(0, 3),
    st.dictionaries(
        st.sampled_from(
            ["WARC_Concurrent_To", "WARC_Refers_To", "WARC_Segment_Origin_ID", "WARC_Refers_To_Target_URI"]
        ),
        st.sampled_from(["<urn:0>", "<urn:1>", A]),
        max_size=2,
    ).flatmap(
        lambda of: st.sampled_from([of, of | {"Content_Type": "application/json"}, of | {"WARC_Segment_Number": "1"}])
    ),
)


@given(records=st.lists(RECORDS | st.just(b"junk\r\n\r\n"), max_size=12), recorded=st.booleans())
def test_records_are_events_and_reasons(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], recorded: bool
) -> None:
    path = written(tmp_path_factory.mktemp("sums"), *records)
    _, counts, _ = read(path, recorded=recorded)  # It checks the sums.
    with path.open("rb") as file:
        assert counts.get("records", 0) == len(list(read_records(file, BEGIN)))


def _unambiguous(records: Iterable[bytes]) -> Iterator[bytes]:
    """Give three records after each other URLs of their own, and leave out a second answer under one of these.

    All are of one second. Nothing tells which of two answers of one URL and one second a request belongs to, unless
    the request names it.
    """
    answered: set[bytes] = set()
    for number, one in enumerate(records):
        uri, has_host, rest = one.partition(b".example/\r\n")
        if has_host and b"-Type: request" not in one:
            name = uri.rpartition(b"//")[2] + b"%d" % (number // 3)
            if name in answered:
                continue
            answered.add(name)
        yield uri + b".example/%d\r\n" % (number // 3) + rest if has_host else one


@given(records=st.lists(RECORDS, max_size=12), data=st.data())
def test_reading_from_a_position_gives_the_events_behind_it(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("resume"), *_unambiguous(one for one in records if b"-Type: re" in one))
    with closing(ArchiveEvents()) as events:
        found = [one for one in events.events_of(ArchiveFile("x", path)) if not isinstance(one, DamagedPart)]
        if found:
            nth = data.draw(st.integers(0, len(found) - 1))
            after = Position(found[nth].position.offset, found[nth].position.number + 1)
            rest = [one for one in events.events_of(ArchiveFile("x", path), after) if not isinstance(one, DamagedPart)]
            assert {one.position for one in found[nth + 1 :]} <= {one.position for one in rest}


def test_long_body_is_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 60)
    body = b"<a href=/1>" + b" " * 60 + b"<a href=/2>"
    short = record("response", C, answer(b"<a href=/1>"), WARC_Truncated="time")
    path = written(tmp_path, page(A, body), page(B, gzip.compress(body), Content_Encoding="gzip"), short)
    found, counts, _ = read(path)
    assert [one.links for one in found] == [[f"{A}1"], [f"{B}1"], [f"{C}1"]]
    assert counts["bodies_cut"] == 3
