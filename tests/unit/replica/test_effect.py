"""A record of the journal: what is packed is what is read, to the bit; what is damaged or unknown is refused."""

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US
from repository import ROOT

from opic.errors import StoreDamaged
from opic.model.books import BY_CLASS, SCALARS, Books
from opic.model.cash import CLASSES_MAX, CrawlRules
from opic.model.series import Entry
from opic.replica.effect import NO_DIGEST, VERSION, Effect, digest_of
from opic.replica.packed_lines import LINES_A_PIECE, unpack_urls
from opic.replica.page_columns import BY_NAME, NOTED_ARRAYS

INT64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-(1 << 63), (1 << 62) - 1, (1 << 63) - 1]))
NUMBERS = {
    "<u8": st.integers(0, (1 << 64) - 1),
    "<u4": st.integers(0, (1 << 32) - 1),
    "<u2": st.integers(0, (1 << 16) - 1),
    "<i8": INT64,
    "u1": st.integers(0, 255),
}
BESIDE = (
    "failing_host",
    "failing_times",
    "failing_first_us",
    "failing_last_us",
    "far_counts",
    "far_links",
    "far_shards",
    "compared",
    "near_new",
    "far_new",
    "other_links",
)
SECTIONS = [
    (one.name, one.default_factory().dtype.str.lstrip("|"))  # type: ignore[misc]
    for one in fields(Effect)
    if one.metadata and one.name not in (*BESIDE, "forgotten")
]
PACKING = ("packed_urls", "digest", "size")  # What packing and reading add.
digests = st.binary(min_size=8, max_size=8)
names = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), min_size=1, max_size=20)


@st.composite
def effects(draw: st.DrawFn) -> Effect:
    """Any numbers in all sections: a record does not ask whether they fit together."""
    books = replace(
        Books.genesis(CrawlRules()), clock=draw(INT64), pool=draw(INT64), credit=draw(INT64), net=draw(INT64)
    )
    arrays = {name: np.array(draw(st.lists(NUMBERS[dtype], max_size=5)), dtype) for name, dtype in SECTIONS}
    counts = st.integers(0, 1 << 40)
    kept_from = draw(st.integers(-1, 3))
    far = [draw(st.lists(NUMBERS[dtype], max_size=3)) if kept_from >= 0 else [] for dtype in ("<u4", "<u8", "<u2")]
    flags = st.lists(st.booleans(), min_size=1, max_size=20)
    new = [draw(flags) for _ in range(3)] if draw(st.booleans()) else [[], [], []]
    noted = {
        of.name: draw(st.lists(st.tuples(NUMBERS["<u4"], NUMBERS.get(f"<{of.dtype}", NUMBERS["u1"])), max_size=3))
        for of in draw(st.lists(st.sampled_from([of for of, _ in NOTED_ARRAYS]), unique=True))
    }
    return Effect(
        draw(st.integers(1, (1 << 63) - 1)),
        draw(digests),
        books,
        pages=draw(counts),
        host_count=draw(counts),
        first_page=draw(counts),
        **arrays,
        urls=draw(st.sampled_from([1, LINES_A_PIECE])) * draw(st.lists(names, max_size=4)),
        host_names=draw(st.lists(names, max_size=3)),
        entries=[Entry(draw(counts), draw(counts), draw(counts)) for _ in range(draw(st.integers(0, 2)))],
        classes=draw(st.none() | st.binary(min_size=1, max_size=9)),
        offsets=draw(st.dictionaries(names, counts, max_size=3)),
        sent=draw(st.dictionaries(st.integers(0, 255), st.tuples(counts, digests), max_size=3)),
        taken=draw(st.dictionaries(st.integers(0, 255), digests, max_size=3)),
        calls=draw(st.dictionaries(st.binary(min_size=16, max_size=16), INT64, max_size=3)),
        noted={
            name: (np.array([page for page, _ in pairs], "<u4"), np.array([n for _, n in pairs], BY_NAME[name].dtype))
            for name, pairs in noted.items()
        },
        metas=draw(st.dictionaries(counts, st.sampled_from([b"", b"one", b"other"]), max_size=4)),
        restored=draw(st.binary(max_size=8)),
        forgotten=np.array(draw(st.lists(NUMBERS["<u4"], max_size=3)), "<u4"),
        again=draw(st.dictionaries(NUMBERS["<u4"], names, max_size=3)),
        ends_links=draw(st.booleans()),
        by_setting=draw(st.booleans()),
        trusted=draw(st.none() | st.dictionaries(NUMBERS["<u4"], st.floats(0, 1e9), max_size=3)),
        kept_from=kept_from,
        far_counts=np.array(far[0], "<u4"),
        far_links=np.array(far[1], "<u8"),
        far_shards=np.array(far[2], "<u2"),
        **dict(zip(("compared", "near_new", "far_new"), (np.array(some, np.bool_) for some in new), strict=True)),
    )


def assert_read(found: Effect, effect: Effect) -> None:
    """Fail on the first difference of a record that was read from what was packed."""
    for one in fields(Effect):
        if one.name == "urls":
            assert unpack_urls(found.packed_urls) == list(effect.urls)
            continue
        if one.name in PACKING:
            continue
        here, there = getattr(effect, one.name), getattr(found, one.name)
        if isinstance(here, np.ndarray):
            assert here.tolist() == there.tolist(), one.name
            assert here.dtype == there.dtype
        elif one.name == "noted":
            assert here.keys() == there.keys()
            for name, columns in here.items():
                for column, other in zip(columns, there[name], strict=True):
                    assert (column.tolist(), column.dtype) == (other.tolist(), other.dtype), name
        elif isinstance(here, list):
            assert here == list(there), one.name
        else:
            assert here == there, one.name


@given(effects())
def test_record_is_read_as_it_was_packed(effect: Effect) -> None:
    record = effect.pack()
    found = Effect.unpack(record)
    assert_read(found, effect)
    for name in PACKING:
        assert getattr(found, name) == getattr(effect, name)
    assert (found.digest, found.size) == (digest_of(record), len(record))
    assert found.head == effect.head


@given(effects(), st.data())
def test_truncated_or_extended_record_is_refused(effect: Effect, data: st.DataObject) -> None:
    record = effect.pack()
    with pytest.raises(StoreDamaged):
        Effect.unpack(record[: data.draw(st.integers(0, len(record) - 1))])
    with pytest.raises(StoreDamaged):
        Effect.unpack(record + data.draw(st.binary(min_size=1, max_size=9)))


@given(effects(), st.data())
def test_record_whose_bytes_changed_has_another_digest_or_is_refused(effect: Effect, data: st.DataObject) -> None:
    record = bytearray(effect.pack())
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    with suppress(StoreDamaged):
        assert Effect.unpack(bytes(record)).digest != effect.digest


@given(st.binary(max_size=600))
def test_bytes_that_are_not_a_record_are_refused(some: bytes) -> None:
    with pytest.raises(StoreDamaged):
        Effect.unpack(some)


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, 65_535])
def test_unknown_version_is_refused_with_a_remedy(version: int) -> None:
    record = Effect(1, NO_DIGEST, Books.genesis(CrawlRules()), 0, 0).pack()
    other = record[:4] + version.to_bytes(2, "little") + record[6:]
    said = f"version {version}, but this program reads version {VERSION}: use the program"
    with pytest.raises(StoreDamaged, match=said):
        Effect.unpack(other)


def kept() -> Effect:
    """What is in the record in tests/data: other numbers in each section, the least and the largest among them."""
    arrays = {}
    for number, (name, dtype) in enumerate(SECTIONS):
        limits = np.iinfo(dtype)
        arrays[name] = np.array([limits.min, number, 100 + number, limits.max][: 1 + number % 4], dtype)
    scalars = {name: (1 << 62) - number for number, name in enumerate(SCALARS) if name != "elsewhere"}
    by_class = {name: tuple(range(10 * at, 10 * at + CLASSES_MAX)) for at, name in enumerate(BY_CLASS)}
    notes: dict[str, Any] = {
        "noted": {
            "nearness": (np.array([0, 7, 4_294_967_295], "<u4"), np.array([65_535, 1, 65_530], "<u2")),
            "failures": (np.array([0, 9, 4_294_967_295], "<u4"), np.array([1, 255, 0], "u1")),
            "not_before_us": (np.array([9, 4_294_967_295], "<u4"), np.array([NOW_US, (1 << 63) - 1], "<i8")),
            "priority": (np.array([0, 9, 4_294_967_295], "<u4"), np.array([1.0, 1e-9, 1e9])),
            "status": (np.array([8], "<u4"), np.array([1_000], "<u2")),
        },
        "metas": {7: b"\x81\xa1a\xa1b", 4_294_967_295: b"\x81\xa1a\xa1b", 9: b""},
    }
    trust: dict[str, Any] = {
        "trusted": {7: 0.25, 4_294_967_295: 1e9, 9: 0.0},
        "kept_from": 2,
        "far_counts": np.array([1, 0, 2], "<u4"),
        "far_links": np.array([1, 2, (1 << 64) - 1], "<u8"),
        "far_shards": np.array([1, 0, 65_535], "<u2"),
    }
    new: dict[str, Any] = {
        "compared": np.array([True, False, True]),
        "near_new": np.array([False] * 8 + [True, False]),
        "far_new": np.array([True, False, True]),
    }
    forgotten: dict[str, Any] = {
        "forgotten": np.array([0, 4_294_967_295], "<u4"),
        "again": {7: "http://a.example/", 4_294_967_295: "http://b.example/%C3%BC?x=1"},
    }
    urls = ["http://a.example/", "http://b.example/\u00fc?x=1", "https://c.example:8443/" + "long/" * 50]
    return Effect(
        lsn=123_456_789_012,
        previous=bytes(range(8)),
        books=Books(**scalars, **by_class),  # type: ignore[arg-type]
        pages=4_294_967_295,
        host_count=77,
        first_page=4_294_967_290,
        **arrays,
        urls=urls * 30,
        host_names=["b.example", "xn--bcher-kva.example"],
        entries=[Entry(NOW_US, 5 << 32, (1 << 62) - 1)],
        classes=b"\x93classes",
        offsets={"log/0": 1 << 40, "shard:3": 7},
        sent={1: (12, b"12345678"), 200: (1 << 40, b"abcdefgh")},
        taken={3: b"ABCDEFGH"},
        calls={bytes(range(16)): NOW_US},
        restored=b"token",
        ends_links=True,
        by_setting=True,
        **notes,
        **trust,
        **new,
        **forgotten,
    )


def test_record_keeps_its_form() -> None:
    """One that is in a journal somewhere has to be read, and have its digest.

    If the form changes, raise VERSION and write the record again, by `kept().pack().hex()`.
    """
    *parts, digest = (ROOT / f"tests/data/journal/record-{VERSION}.hex").read_text().split()
    record = bytes.fromhex("".join(parts))
    found = Effect.unpack(record)
    assert_read(found, kept())
    assert found.digest.hex() == digest
    assert kept().pack() == record


def test_digest_covers_the_whole_history() -> None:
    """The same effect after another record is another one."""
    one, other = (Effect(2, digest, Books.genesis(CrawlRules()), 0, 0) for digest in (b"a" * 8, b"b" * 8))
    assert one.pack().replace(b"a" * 8, b"b" * 8) == other.pack()
    assert one.digest != other.digest
