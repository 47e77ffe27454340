"""Records of archives: each format and packing, damage that costs one record, and bounds of time and memory."""

import gzip
import io
import random
import struct
import time
from collections.abc import Callable, Sequence
from itertools import count

import pytest
import warcio
import zstandard
from archive_files import answer, packed, record
from hypothesis import given
from hypothesis import strategies as st

from opic.archives import stream
from opic.archives.records import BLOCK_BYTES_MAX, ArchiveRecord, DamagedPart, Position, read_records
from opic.archives.stream import shared_beginning

BEGIN = Position()
URLS = [f"http://h{i}.example/" for i in range(4)]


def page(number: int, **headers: str) -> bytes:
    return record("response", URLS[number], answer(b"<a href=/1>" * (number + 1)), **headers)


PAGES = [page(i) for i in range(4)]


def read(content: bytes, start: Position = BEGIN) -> list[ArchiveRecord | DamagedPart]:
    return list(read_records(io.BytesIO(content), start))


def told(content: bytes) -> list[str]:
    """The hosts of the records, and ! for damage."""
    found = read(content)
    names = {"filedesc://x.arc": "arc"} | {url: f"h{nth}" for nth, url in enumerate(URLS)}
    return ["!" if isinstance(one, DamagedPart) else names[one.fields.first("warc-target-uri")] for one in found]


def of_members(members: Sequence[bytes]) -> bytes:
    return packed(*members)


def of_frames(members: Sequence[bytes]) -> bytes:
    return b"".join(map(zstandard.ZstdCompressor(write_checksum=True).compress, members))


def in_blocks(members: Sequence[bytes]) -> bytes:
    """As bgzip packs: members that end anywhere."""
    whole = b"".join(members)
    return packed(*(whole[at : at + 100] for at in range(0, len(whole), 100)))


PACKINGS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "plain": b"".join,
    "gzip": of_members,
    "one member": lambda members: gzip.compress(b"".join(members), mtime=0),
    "blocks": in_blocks,
    "zstd": of_frames,
}
packing = pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)


def lf(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def lf_page(number: int, version: str = "0.18") -> bytes:
    block = lf(answer(b"x"))
    head = f"WARC/{version}\nWARC-TYPE: response\nwarc-target-uri: {URLS[number]}\nContent-length: {len(block)}\n\n"
    return head.encode() + block + b"\n\n"


@packing
@pytest.mark.parametrize("version", ["0.17", "0.18", "1.0", "1.1"])
def test_lines_end_in_either_way_and_names_have_any_case(
    pack: Callable[[Sequence[bytes]], bytes], version: str
) -> None:
    content = pack([PAGES[0], lf_page(1, version), PAGES[2], lf_page(3, version)])
    assert told(content) == ["h0", "h1", "h2", "h3"]


@packing
def test_records_are_read_from_every_position(pack: Callable[[Sequence[bytes]], bytes]) -> None:
    content = pack(PAGES)
    found = read(content)
    assert len(found) == len(PAGES)
    for nth, one in enumerate(found):
        assert isinstance(one, ArchiveRecord)
        after = Position(one.position.offset, one.position.number + 1)
        assert read(content, one.position) == found[nth:]
        assert read(content, after) == found[nth + 1 :]


def arc(*records: bytes, version: int = 1, end: str = "\n") -> bytes:
    names = "URL IP-address Archive-date Content-type Archive-length"
    if version == 2:
        names = names.replace("Archive-length", "Result-code Checksum Location Offset Filename Archive-length")
    block = f"{version} 0 Example{end}{names}{end}".encode()
    more = " 200 - - 0 x.arc" if version == 2 else ""
    first = f"filedesc://x.arc 0.0.0.0 20200102030405 text/plain{more} {len(block)}{end}".encode() + block
    return first + end.encode() + b"".join(records)


def arc_record(
    url: str, block: bytes = b"HTTP/1.0 200 OK\r\n\r\nx", *, more: str = "", kind: str = "text/html"
) -> bytes:
    return f"{url} 192.0.2.1 20200102030405 {kind}{more} {len(block)}\n".encode() + block + b"\n"


@pytest.mark.parametrize(
    ("content", "urls"),
    [
        (arc(arc_record("http://a.example/1"), arc_record("dns:a.example")), ["http://a.example/1", "dns:a.example"]),
        (
            arc(arc_record("http://a.example/1", more=" 404 AB http://b.example/ 7 x.arc"), version=2),
            ["http://a.example/1"],
        ),
        (arc(arc_record("http://a.example/b c d")), ["http://a.example/b c d"]),
        (arc(arc_record("http://a.example/", kind="text/html; charset=x")), ["http://a.example/"]),
        (
            arc(arc_record("http://a.example/", kind="no-type").rstrip(b"\n"), arc_record("ftp://b.example/")),
            ["http://a.example/", "ftp://b.example/"],
        ),
        (arc(arc_record("http://a.example/"), end="\r\n"), ["http://a.example/"]),
        (packed(arc(), arc_record("http://a.example/")), ["http://a.example/"]),
        (arc(arc_record("http://a.example/")) + PAGES[0], ["http://a.example/"]),
        (packed(arc(), arc_record("http://a.example/"), PAGES[0]), ["http://a.example/", URLS[0]]),
    ],
    ids=["1", "2", "spaces", "type", "no line end", "crlf", "members", "warc behind", "warc member"],
)
def test_arc_of_both_versions_is_read(content: bytes, urls: list[str]) -> None:
    first, *found = (one for one in read(content) if isinstance(one, ArchiveRecord))
    assert first.kind == "warcinfo"
    assert [(one.kind, one.fields.first("warc-target-uri")) for one in found] == [("response", url) for url in urls]


def test_lines_within_a_page_that_look_like_records_are_none() -> None:
    line = b"http://b.example/ 192.0.2.1 20200102030405 text/html 4\nWARC/1.0\r\n"
    assert told(record("response", URLS[0], line * 3) + PAGES[1]) == ["h0", "h1"]


# Damage.


def flipped(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def longer(content: bytes, digits: bytes = b"9") -> bytes:
    return content.replace(b"Content-Length: ", b"Content-Length: " + digits)


ONE, TWO, THREE, FOUR = PAGES
JUNK = b"junk\r\n" * 9


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", ""),
        (gzip.compress(b"", mtime=0), ""),
        (of_members([ONE, b"", b"", TWO, b""]), "h0 h1"),
        (of_members([ONE]) + bytes(5000), "h0"),
        (of_frames([ONE, b"", TWO]), "h0 h1"),
        (b"<html>no archive</html>" * 99, "!"),
        (random.Random(0).randbytes(3000), "!"),
        (b"\x1f\x8b" + random.Random(0).randbytes(3000), "!"),
        (ONE + JUNK + TWO, "h0 ! h1"),
        (of_members([ONE]) + JUNK + of_members([TWO]), "h0 ! h1"),
        (of_members([ONE, JUNK, TWO]), "h0 ! h1"),
        (of_members([ONE, ONE + JUNK, TWO]), "h0 h0 ! h1"),
        (of_members([ONE]) + flipped(of_members([TWO])) + of_members([THREE, FOUR]), "h0 ! h2 h3"),
        (of_members([ONE]) + of_members([TWO])[:-4] + b"\0\0\0\0" + of_members([THREE]), "h0 ! h2"),
        (of_members([ONE]) + of_members([TWO])[:-30] + of_members([THREE]), "h0 ! h2"),
        (of_members([ONE]) + of_members([TWO])[7:] + of_members([THREE]), "h0 ! h2"),
        (of_frames([ONE]) + flipped(of_frames([TWO])) + of_frames([THREE, FOUR]), "h0 ! h2 h3"),
        (ONE + longer(TWO) + THREE + FOUR, "h0 ! h2 h3"),
        (ONE + longer(TWO, b"99999999999") + THREE + FOUR, "h0 ! h2 h3"),
        (of_members([ONE, longer(TWO), THREE, FOUR]), "h0 ! h2 h3"),
        (gzip.compress(ONE + longer(TWO) + THREE), "h0 ! h2"),
        (ONE + TWO.replace(b"Content-Length: 6", b"Content-Length: 2") + THREE, "h0 ! h2"),
        (ONE + longer(TWO, b"x") + longer(THREE, b"-") + FOUR, "h0 ! ! h3"),
        (ONE + TWO.replace(b"Content-Length", b"Length") + THREE, "h0 ! h2"),
        (ONE + TWO[:40] + THREE, "h0 ! h2"),
        (ONE + TWO[:150] + THREE, "h0 ! h2"),
        (ONE + TWO[:-9], "h0 !"),
        (of_members([ONE, TWO])[:-9], "h0 !"),
        (of_frames([ONE, TWO])[:-9], "h0 !"),
        (ONE + TWO.rstrip(), "h0 h1"),
        (ONE.rstrip() + TWO.rstrip() + b"\r\n" + THREE, "h0 h1 h2"),
        (
            arc(arc_record(URLS[0]), arc_record(URLS[1]).replace(b"html ", b"html 9"), arc_record(URLS[2])),
            "arc h0 ! h2",
        ),
    ],
    ids=map(str, count()),
)
def test_damage_costs_the_record_that_it_is_in(content: bytes, wanted: str) -> None:
    assert told(content) == wanted.split()


@given(
    numbers=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    pack=st.sampled_from([of_members, of_frames]),
    data=st.data(),
)
def test_a_byte_that_is_wrong_costs_one_record_of_its_member(
    numbers: list[int], pack: Callable[[Sequence[bytes]], bytes], data: st.DataObject
) -> None:
    members = [pack([PAGES[number]]) for number in numbers]
    struck = data.draw(st.integers(0, len(numbers) - 1))
    at = data.draw(st.integers(0, len(members[struck]) - 1))
    members[struck] = (
        members[struck][:at] + bytes([members[struck][at] ^ data.draw(st.integers(1, 255))]) + members[struck][at + 1 :]
    )
    content = b"".join(members)
    hosts = [host for host in told(content) if host != "!"]
    others = [f"h{number}" for nth, number in enumerate(numbers) if nth != struck]
    # A flag in the header of a member need not change what it holds; the first bytes tell how the file is packed.
    if (struck, at < 4) != (0, True):
        assert hosts in (others, [f"h{number}" for number in numbers])


@packing
@given(data=st.data())
def test_a_file_that_is_cut_gives_its_whole_records(
    pack: Callable[[Sequence[bytes]], bytes], data: st.DataObject
) -> None:
    content = pack(PAGES)
    cut = data.draw(st.integers(0, len(content) - 1))
    found = told(content[:cut])
    whole = [host for host in found if host != "!"]
    assert whole == ["h0", "h1", "h2", "h3"][: len(whole)]
    assert found.count("!") <= 1
    if "!" in found:
        assert found[-1] == "!"


# Bounds.


def test_member_that_unpacks_to_many_times_its_size_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FREE_BYTES", 1 << 16)
    bomb = record("response", URLS[1], bytes(1 << 23))
    for pack in (of_members, of_frames):
        assert told(pack([ONE, bomb, TWO])) == ["h0", "!", "h1"]
    assert told(of_members([ONE, record("response", URLS[1], random.Random(1).randbytes(1 << 22)), TWO])) == [
        "h0",
        "h1",
        "h1",
    ]


def test_only_the_beginning_of_a_long_block_is_kept() -> None:
    long, _ = read(of_members([record("response", URLS[0], bytes(BLOCK_BYTES_MAX + 5)), TWO]))
    assert isinstance(long, ArchiveRecord)
    assert (len(long.block), long.cut) == (BLOCK_BYTES_MAX, True)


@pytest.mark.parametrize(
    "content",
    [
        b"WARC/1.0\r\nContent-Length: 99999999\r\n\r\n" * 20_000,
        gzip.compress(b"WARC/1.0\r\nContent-Length: 99999999\r\n\r\n" * 20_000),
        of_members([b""]) * 50_000,
        b"\x1f\x8b\x08\0" * 200_000,
        gzip.compress(b"\r\n" * 3_000_000, 1),
        b"WARC/1.0\r\n" + b"A: b\r\n" * 1_000_000,
        of_members([ONE]) + b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\xff\xff\0\0" * 50_000,
    ],
    ids=["lengths", "lengths in gzip", "members", "magic", "blank lines", "header", "stored"],
)
def test_time_is_bounded_by_the_size_of_the_file(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REREAD_BYTES", 1 << 20)
    began = time.thread_time()
    found = sum(isinstance(one, ArchiveRecord) for one in read(content))
    assert found <= 1
    assert time.thread_time() - began < 10


# zstd.


def with_dictionary(members: Sequence[bytes], *, pack: bool) -> tuple[bytes, bytes]:
    trained = zstandard.train_dictionary(2000, [page(i % 4, X=str(i) * 9) for i in range(400)])
    compressor = zstandard.ZstdCompressor(dict_data=trained)
    raw = trained.as_bytes()
    told = zstandard.compress(raw) if pack else raw
    frame = struct.pack("<II", 0x184D2A5D, len(told)) + told
    return frame, frame + b"".join(map(compressor.compress, members))


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "raw"])
def test_a_dictionary_at_the_beginning_is_used(pack: bool) -> None:
    frame, content = with_dictionary(PAGES, pack=pack)
    assert told(content) == ["h0", "h1", "h2", "h3"]
    *_, last = read(content)
    assert isinstance(last, ArchiveRecord)
    assert read(content, last.position) == [last]
    # Many files begin with the same dictionary: what tells them from each other comes behind it.
    assert shared_beginning(io.BytesIO(content)) == len(frame)
    assert told(content[: len(frame) // 2]) == ["!"]


def test_skippable_frames_are_skipped() -> None:
    frame = struct.pack("<II", 0x184D2A50, 5) + b"12345"
    assert told(frame + of_frames([ONE]) + frame + of_frames([TWO]) + frame) == ["h0", "h1"]


def test_warcio_reads_the_same_records() -> None:
    for content in (of_members(PAGES), b"".join(PAGES), of_members([lf_page(0), lf_page(1)])):
        theirs = [
            (one.rec_headers.get_header("WARC-Target-URI"), one.raw_stream.read())
            for one in warcio.ArchiveIterator(io.BytesIO(content), no_record_parse=True)
        ]
        ours = [
            (one.fields.first("warc-target-uri"), one.block) for one in read(content) if isinstance(one, ArchiveRecord)
        ]
        assert ours == theirs
