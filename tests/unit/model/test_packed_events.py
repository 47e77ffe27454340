"""Arrays of events as the value of one record: what is in them takes effect as if each had come alone."""

import json
from dataclasses import replace
from itertools import pairwise

import msgpack
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, array_of, record
from packed_events import BAD_PACKED

from opic.model.event_checks import decode_events
from opic.model.events import (
    PACKED_EVENTS_MAX,
    CrawlEvent,
    EventLimits,
    Outcome,
    Record,
    encode_crawl_event,
    split_array,
)
from opic.model.ledger import Ledger
from opic.model.packed_events import BYTES_A_PACK, EVENTS_A_PACK, LINKS_A_PACK, is_array, links_of, packs

TOPIC = "crawl.events/3"
LIMITS = EventLimits()
URLS = [f"http://a.example/{number}" for number in range(5)]
EVENTS = [{"url": url, "links": URLS} for url in URLS]


def of(value: bytes, partition: str = TOPIC, limits: EventLimits = LIMITS, call: bytes = b"") -> list[tuple[str, str]]:
    """Return the outcomes of a record's events, each with its URL or why it is refused."""
    events = decode_events(partition, Record(7, NOW_US, value, call=call), limits)
    return [(event.outcome.value, event.url or event.reason) for event in events]


@pytest.mark.parametrize("encode", [msgpack.packb, lambda given: json.dumps(given, indent=1).encode()])
@pytest.mark.parametrize("partition", [TOPIC, PARTITION])
def test_events_of_an_array_are_taken_in_order_with_duplicates(encode: object, partition: str) -> None:
    assert callable(encode)
    assert of(encode([*EVENTS, EVENTS[0]]), partition) == [("read", url) for url in [*URLS, URLS[0]]]
    assert of(b" \r\n\t" + json.dumps(EVENTS[:1]).encode()) == [("read", URLS[0])]


@pytest.mark.parametrize("name", sorted(BAD_PACKED.keys() - {"an array", "nesting without end"}))
def test_bad_event_of_an_array_costs_the_others_nothing(name: str) -> None:
    good, bad = msgpack.packb(EVENTS[0]), BAD_PACKED[name]
    found = decode_events(TOPIC, Record(7, NOW_US, array_of([good, bad, good])), LIMITS)
    alone = decode_events(TOPIC, Record(7, NOW_US, bad), LIMITS)
    assert [event.outcome for event in found] == [Outcome.READ, alone[0].outcome, Outcome.READ]
    if alone[0].outcome is Outcome.DEAD:
        assert (found[1].value, found[1].reason) == (bad, alone[0].reason)


def test_unknown_fields_are_ignored_on_a_topic_and_named() -> None:
    value = msgpack.packb([EVENTS[0], {**EVENTS[1], "lnks": []}])
    first, second = decode_events(TOPIC, Record(0, NOW_US, value), LIMITS)
    assert (first.unknown, list(second.unknown), second.outcome) == ((), ["lnks"], Outcome.READ)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x90", "an empty array"),
        (b" [ ] ", "an empty array"),
        (b"\xdc\x00\x00", "an empty array"),
        (b"\xdd\xff\xff\xff\xff", "a record of 4,294,967,295 events is over the limit of 1,000"),
        (msgpack.packb([EVENTS[0]] * (PACKED_EVENTS_MAX + 1)), "a record of 1,001 events is over the limit of 1,000"),
        (json.dumps([{"url": "u"}] * (PACKED_EVENTS_MAX + 1)).encode(), "a record of 1,001 events is over the limit"),
        (msgpack.packb(EVENTS)[:-1], "not a decodable array of events"),
        (json.dumps(EVENTS).encode() + b"x", "not a decodable array of events"),
        (b"[" * 100_000, "not a decodable array of events"),
        (b'[{"url":"http://a.example/"},{"url":"http://a.example/\xff"}]', "not a decodable array of events: 'utf-8'"),
        (b'[{"url":"http://a.example/"},{"url":"http://a.example/\\ud800"}]', "not a decodable array of events"),
        (b'[{"url":"http://a.example/"},{"url":"http://a.example/","x":NaN}]', "not a decodable array of events"),
        (array_of([msgpack.packb(EVENTS[0]), BAD_PACKED["nesting without end"]]), "nested too deeply"),
        (msgpack.packb([{"url": URLS[0], "links": [f"http://b/{i}" for i in range(9_000)]}] * 3), "27,000 links"),
    ],
    ids=range(14),
)
def test_array_that_can_not_be_taken_is_one_dead_letter(value: bytes, reason: str) -> None:
    (event,) = decode_events(TOPIC, Record(0, NOW_US, value), LIMITS)
    assert (event.outcome, event.value) == (Outcome.DEAD, None)
    assert reason in event.reason


def test_array_within_an_array_is_refused_alone() -> None:
    assert of(msgpack.packb([EVENTS[0], EVENTS[1:], EVENTS[1]])) == [
        ("read", URLS[0]),
        ("dead", "an array within an array: a record is an event or an array of events"),
        ("read", URLS[1]),
    ]


def test_limits_are_those_of_each_event() -> None:
    links = [f"http://b.example/{number}" for number in range(40)]
    value = msgpack.packb([{"url": URLS[0], "links": links}, {"url": "http://a.example/" + "x" * 3_000}, EVENTS[1]])
    first, second, third = decode_events(TOPIC, Record(0, NOW_US, value), EventLimits(links_max=10))
    assert (len(first.links), first.links_left_out) == (10, 30)
    assert (second.outcome, third.url) == (Outcome.DEAD, URLS[1])


def test_a_call_names_each_event() -> None:
    key = b"k" * 16
    numbers = b"".join(number.to_bytes(4, "big") for number in (3, 70_000))
    packed = Record(0, NOW_US, msgpack.packb(EVENTS[:2]), call=key + numbers)
    assert [packed.call_of(number) for number in range(2)] == [key + numbers[:4], key + numbers[4:]]
    assert Record(0, NOW_US, b"").call_of(0) == b""
    assert of(packed.value, call=packed.call) == [("read", URLS[0]), ("read", URLS[1])]
    ((outcome, reason),) = of(msgpack.packb(EVENTS[:3]), call=packed.call)
    assert (outcome, "opic-index" in reason) == ("dead", True)


def test_only_crawl_events_are_packed() -> None:
    seeds = Record(0, NOW_US, msgpack.packb(URLS), "seeds")
    assert not seeds.packed
    assert [event.outcome for event in decode_events(TOPIC, seeds, LIMITS)] == [Outcome.SEEDS]


sizes = st.lists(st.sampled_from([0, 1, 40, 40, 40, 3_999, 9_000]), max_size=250)


@examples(60)
@given(sizes)
def test_packs_have_all_events_in_order_within_the_limits(links: list[int]) -> None:
    events = [CrawlEvent(f"http://a.example/{at}", [f"b{at}"] * count) for at, count in enumerate(links)]
    values = list(map(encode_crawl_event, events))
    records = list(packs(values))
    unpacked = [split_array(one) if is_array(one) else [one] for one in records]
    assert [value for some in unpacked for value in some] == values
    for some in unpacked:
        total = sum(links_of(value) or 0 for value in some)
        assert len(some) <= EVENTS_A_PACK
        assert len(some) == 1 or (total <= LINKS_A_PACK and sum(map(len, some)) <= BYTES_A_PACK)
    for first, second in pairwise(unpacked):  # As few as can be.
        more = [*first, second[0]]
        total = sum(links_of(value) or 0 for value in more)
        assert len(more) > EVENTS_A_PACK or total > LINKS_A_PACK or sum(map(len, more)) > BYTES_A_PACK


def test_what_is_no_event_in_messagepack_is_not_packed() -> None:
    good, other = encode_crawl_event(CrawlEvent(URLS[0])), b'{"url": "http://a.example/"}'
    assert list(packs([good, good, other, b"\x80", good])) == [array_of([good, good]), other, b"\x80", good]


def test_packing_changes_nothing_but_the_offsets() -> None:
    log = [replace(record(at, url, URLS), time_us=NOW_US + at // 3) for at, url in enumerate(URLS * 6)]
    log[4] = replace(log[4], value=msgpack.packb({"url": "mailto:x"}))
    packed = [
        Record(at // 3, log[at].time_us, array_of([one.value for one in log[at : at + 3]]))
        for at in range(0, len(log), 3)
    ]
    single, arrays = Ledger(), Ledger()
    single.apply(PARTITION, log)
    arrays.apply(PARTITION, packed)
    assert single.pages == arrays.pages
    assert single.books == arrays.books
    assert list(single.series) == list(arrays.series)
    assert (single.next_offset(PARTITION), arrays.next_offset(PARTITION)) == (30, 10)
