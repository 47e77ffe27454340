"""The body of POST /v1/events: a bad element costs only itself, a body that is not well-formed is refused whole."""

import json
import random
import time

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_events import BAD_PACKED, DEEP_PACKED, PACKED, UNENDING_PACKED

from opic.api.event_bodies import ELEMENTS_MAX, REJECTED_MAX, Intake, read_events
from opic.api.problems import JSON, Problem
from opic.api.request_bodies import LINES, MSGPACK
from opic.errors import BadEvent
from opic.model.events import EventLimits, decode_crawl_event, raw_events

NOW_US = 1_790_000_000_000_000
GOOD = b'{"url":"http://a.example/"}'
DEEP = b"[" * 100_000 + b"]" * 100_000
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
BAD_ALONE = {
    "another type": b"1",
    "a list": b"[]",
    "null": b"null",
    "a field of a wrong type": b'{"url":7}',
    "no url": b'{"links":[]}',
    "a relative URL": b'{"url":"/about"}',
    "a number too large": b'{"url":"http://a.example/","fetched_at":1e999}',
    "a status of 10,000 digits": b'{"url":"http://a.example/","status":' + b"9" * 10_000 + b"}",
    "the last of two urls, no text": b'{"url":"http://a.example/","url":7}',
    "an unknown version": b'{"url":"http://a.example/","v":2}',
}
NOT_JSON = {
    "a lone surrogate": b'{"url":"http://a.example/\\ud800"}',
    "a lone surrogate in a link": b'{"url":"http://a.example/","links":["\\udfff"]}',
    "bytes that are no UTF-8": b'{"url":"http://a.example/\xff"}',
    "a NaN": b'{"url":"http://a.example/","fetched_at":NaN}',
    "no UTF-8 in an unknown field": b'{"url":"http://a.example/","x":"\xff"}',
    "no UTF-8 in a name": b'{"url":"http://a.example/","\xff":1}',
    "no such escape": b'{"url":"http://a.example/\\q"}',
    "nesting without end": b'{"url":"http://a.example/","x":' + DEEP + b"}",
    "objects without end": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number that is none": b'{"url":"http://a.example/","status":2,00}',
    "MessagePack": b"\x81\xa3url\xb1http://a.example/",
}


def taken(body: bytes, *, lines: bool = False, form: str = JSON, limits: EventLimits | None = None) -> Intake:
    return read_events(body, LINES[0] if lines else form, now_us=NOW_US, limits=limits or EventLimits())


def has_large(value: object) -> bool:
    """Whether an integer in a value is over what MessagePack has."""
    if isinstance(value, int):
        return not -(1 << 63) <= value < 1 << 64
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_large, inner))


def urls(found: Intake) -> list[str]:
    return [decode_crawl_event(value).url for value in found.values]


# Cutting an array.


@given(st.lists(JSON_VALUES), st.booleans())
def test_json_array_is_split_into_its_elements(values: list[object], spaced: bool) -> None:
    separators = (" ,\n", " : ") if spaced else (",", ":")
    body = json.dumps(values, separators=separators).encode()
    assert [json.loads(element) for element in raw_events(body, packed=False, array=True)] == values


@given(st.lists(JSON_VALUES))
def test_packed_array_is_split_into_its_elements(values: list[object]) -> None:
    packed = [msgpack.packb(value, use_bin_type=True) for value in values if not has_large(value)]
    array = msgpack.Packer().pack_array_header(len(packed)) + b"".join(packed)
    assert list(raw_events(array, packed=True, array=True)) == packed


@given(st.binary(max_size=40) | st.text('[]{},":\\\\ a1', max_size=40).map(str.encode))
def test_what_is_split_is_json_to_python(text: bytes) -> None:
    body = b"[" + text
    try:
        found = list(raw_events(body, packed=False, array=True))
    except BadEvent:
        return
    assert len(json.loads(body)) == len(found)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "url": st.sampled_from(["http://a.example/", "http://a.example/é", "/about", 7, None]),
        "links": st.lists(st.sampled_from(["http://b.example/", "mailto:x", 7]), max_size=3),
        "status": st.sampled_from([200, 404, 10**25, 200.5, "200", True]),
        "fetched_at": st.sampled_from([1.7e9, 1e300, "2024-01-01T00:00:00Z", "never"]),
        "lnks": JSON_VALUES,
    },
)


def one_by_one(elements: list[bytes], *, packed: bool) -> Intake:
    intake = Intake()
    for index, element in enumerate(elements):
        try:
            intake.add_event(element, NOW_US, EventLimits(), packed=packed)
        except BadEvent as error:
            intake.rejected.append({"index": index, "error": str(error)})
    return intake


@given(st.lists(FIELDS | JSON_VALUES, max_size=6))
def test_an_array_gives_what_its_elements_give_one_by_one(values: list[object]) -> None:
    elements = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    assert taken(b"[" + b" ,\n".join(elements) + b"] ") == one_by_one(elements, packed=False)
    elements = [bytes(msgpack.packb(value)) for value in values if not has_large(value)]
    array = bytes(msgpack.Packer().pack_array_header(len(elements))) + b"".join(elements)
    assert taken(array, form=MSGPACK[0]) == one_by_one(elements, packed=True)


def refuse_constant(name: str) -> None:
    raise ValueError(name)


@given(
    st.lists(FIELDS | JSON_VALUES, max_size=3) | FIELDS,
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([*b'"\\[]{},:0e.-NuU \x00', 0xC3, 0xED, 0xFF])), max_size=2),
)
def test_a_body_is_refused_whole_where_python_calls_it_no_json(value: object, changes: list[tuple[float, int]]) -> None:
    body = bytearray(json.dumps(value, ensure_ascii=False).encode())
    for place, byte in changes:
        body[int(place * (len(body) - 1))] = byte
    try:
        json.dumps(json.loads(body.decode(), parse_constant=refuse_constant), ensure_ascii=False).encode()
    except ValueError:
        with pytest.raises(Problem, match="none of it was taken"):
            taken(bytes(body))
        return
    try:
        taken(bytes(body))
    except BadEvent:
        assert not body.lstrip().startswith(b"[")


@pytest.mark.parametrize(
    "body",
    [b"[", b"[1", b"[1,", b"[1}", b"[[1]", b'["a', b'["a\\"]', b"[1] 2", b"[1]]", b"[1,]", b"[{]}", b"[" * 100_000],
)
def test_a_malformed_array_is_refused_as_not_json(body: bytes) -> None:
    with pytest.raises(Problem) as raised:
        taken(body)
    assert raised.value.kind == "not-json"


def test_an_array_with_too_many_commas_is_refused_early() -> None:
    body = b"[" + b"1," * ELEMENTS_MAX + b"1,1]"
    started = time.process_time()
    with pytest.raises(Problem, match=r"over 500,000 elements, and one is no event: Expected `object`, got `int`"):
        taken(body)
    assert time.process_time() - started < 2


def test_a_large_array_of_events_is_taken() -> None:
    event = b'{"url":"http://a.example/","links":[' + b",".join([b'"/"'] * 30_000) + b"]}"
    assert len(taken(b"[" + b",".join([event] * 20) + b"]").values) == 20


# Taking elements.


@pytest.mark.parametrize("bad", BAD_ALONE.values(), ids=BAD_ALONE)
def test_a_bad_element_is_refused_alone(bad: bytes) -> None:
    found = taken(b"[" + GOOD + b"," + bad + b" , " + GOOD + b"]")
    assert urls(found) == ["http://a.example/"] * 2
    assert [r["index"] for r in found.rejected] == [1]
    assert found.rejected[0]["error"]


@pytest.mark.parametrize("bad", NOT_JSON.values(), ids=NOT_JSON)
def test_an_array_with_an_element_that_is_not_json_is_refused_whole(bad: bytes) -> None:
    with pytest.raises(Problem) as raised:
        taken(b"[" + GOOD + b"," + bad + b" , " + GOOD + b"]")
    assert raised.value.kind == "not-json"


@pytest.mark.parametrize("bad", [*BAD_ALONE.values(), *NOT_JSON.values()], ids=[*BAD_ALONE, *NOT_JSON])
def test_a_bad_line_is_refused_alone(bad: bytes) -> None:
    found = taken(b"\n\r\n" + GOOD + b"\r\n  \n" + bad + b"\n" + GOOD, lines=True)
    assert urls(found) == ["http://a.example/"] * 2
    assert [r["index"] for r in found.rejected] == [1]


@pytest.mark.parametrize("bad", BAD_ALONE.values(), ids=BAD_ALONE)
def test_a_bad_event_alone_is_refused_with_its_reason(bad: bytes) -> None:
    if bad[:1] == b"[":
        assert taken(bad) == Intake()
        return
    with pytest.raises((BadEvent, Problem)):
        taken(bad)


@pytest.mark.parametrize("body", [b"hello", b"{", b'{"url":', b"{url}", b"<xml/>", GOOD + GOOD, b"\x81\xa3url\xa1a"])
def test_a_body_that_is_not_json_is_distinguished_from_a_bad_event(body: bytes) -> None:
    with pytest.raises(Problem) as raised:
        taken(body)
    assert raised.value.kind == "not-json"


@pytest.mark.parametrize(
    "body",
    [b"{}", b"7", b'"a"', b"null", b'{"url":"http://a.example/","x":' + DEEP + b"}"],
)
def test_json_that_is_no_event_is_a_bad_event(body: bytes) -> None:
    with pytest.raises(BadEvent):
        taken(body)


def test_a_line_gives_the_same_event_as_an_array_element() -> None:
    rng = random.Random(7)
    events = [json.dumps({"url": f"http://{n}.example/", "links": ["http://b.example/"] * n}) for n in range(9)]
    rng.shuffle(events)
    array, lines = f"[{','.join(events)}]".encode(), "\n".join(events).encode()
    assert taken(array).values == taken(lines, lines=True).values
    assert taken(array).values == [taken(event.encode()).values[0] for event in events]


def test_bad_elements_are_listed_up_to_a_limit() -> None:
    found = taken(b"[" + b"1," * REJECTED_MAX + GOOD + b"]")
    assert (len(found.values), len(found.rejected)) == (1, REJECTED_MAX)


def test_event_limits_come_from_the_settings() -> None:
    body = b'{"url":"http://a.example/","links":["http://b.example/","http://c.example/"]}'
    assert urls(taken(body, limits=EventLimits(links_max=2))) == ["http://a.example/"]
    found = taken(body, limits=EventLimits(links_max=1))
    assert (urls(found), found.links_left_out) == (["http://a.example/"], 1)
    with pytest.raises(BadEvent, match="OPIC_MAX_URL_BYTES 5"):
        taken(body, limits=EventLimits(url_bytes_max=5))


def test_a_bracket_alone_is_a_number_in_messagepack() -> None:
    with pytest.raises(BadEvent, match="not a MessagePack map"):
        taken(b"[", form=MSGPACK[0])


def test_an_unknown_field_is_refused_in_every_form() -> None:
    event, said = {"url": "http://a.example/", "outlinks": []}, "unknown field 'outlinks': did you mean links?"
    for body, form in ((json.dumps(event).encode(), JSON), (msgspec.msgpack.encode(event), MSGPACK[0])):
        with pytest.raises(BadEvent, match=said.replace("?", r"\?")):
            taken(body, form=form)
    for array, form in ((json.dumps([event]).encode(), JSON), (msgspec.msgpack.encode([event]), MSGPACK[0])):
        found = taken(array, form=form)
        assert (found.values, found.rejected) == ([], [{"index": 0, "error": said}])
        assert found.refused == {"http://a.example/": said}


def test_an_event_is_stored_with_its_own_fields_and_no_added_time() -> None:
    (value,) = taken(b'{"url":"http://a.example/#x","status":301,"redirect":"http://b.example/"}').values
    assert msgspec.msgpack.decode(value) == {
        "url": "http://a.example/#x",
        "status": 301,
        "redirect": "http://b.example/",
    }


# MessagePack.


@pytest.mark.parametrize("bad", BAD_PACKED.values(), ids=BAD_PACKED)
@pytest.mark.parametrize("head", [b"\x93", b"\xdc\x00\x03", b"\xdd\x00\x00\x00\x03"])
def test_a_bad_packed_element_is_refused_alone(bad: bytes, head: bytes) -> None:
    if bad == DEEP_PACKED:
        with pytest.raises(Problem, match="not a decodable array of events: nested too deeply; none of it was taken"):
            taken(head + PACKED + bad + PACKED, form=MSGPACK[0])
        return
    found = taken(head + PACKED + bad + PACKED, form=MSGPACK[0])
    assert urls(found) == ["http://a.example/"] * 2
    assert [r["index"] for r in found.rejected] == [1]


@pytest.mark.parametrize("bad", BAD_PACKED.values(), ids=BAD_PACKED)
def test_a_bad_packed_event_alone_is_refused_with_its_reason(bad: bytes) -> None:
    if bad == BAD_PACKED["an array"]:
        assert len(taken(bad, form=MSGPACK[0]).values) == 1
        return
    with pytest.raises(BadEvent):
        taken(bad, form=MSGPACK[0])


NOT_PACKED = UNENDING_PACKED | {
    "a truncated array": b"\x92" + PACKED,
    "more after an event": PACKED + b"\xc0",
    "more after an array": b"\x91" + PACKED + b"\xc0",
    "two events": PACKED + PACKED,
    "such a byte behind deep nesting": b"\x93" + DEEP_PACKED + b"\xc1" + PACKED,
    "truncated behind deep nesting": b"\x93" + DEEP_PACKED + PACKED,
    "nesting past all patience": b"\x91" * 3_000_000 + b"\xc0",
    "JSON": GOOD,
    "a JSON array": b"[" + GOOD + b"]",
    "white space": b" \n",
    **{f"{name}, in an array": b"\x93" + PACKED + body + PACKED for name, body in UNENDING_PACKED.items()},
}


@pytest.mark.parametrize("body", NOT_PACKED.values(), ids=NOT_PACKED)
def test_a_body_of_broken_messagepack_is_refused_whole(body: bytes) -> None:
    started = time.process_time()
    with pytest.raises(Problem) as raised:
        taken(body, form=MSGPACK[0])
    assert raised.value.kind == "not-msgpack"
    assert time.process_time() - started < 3


def test_a_packed_event_equals_the_same_event_in_json() -> None:
    events = [
        {"url": "http://a.example/", "links": ["http://b.example/é"] * n, "fetched_at": 1_700_000_000.5}
        for n in range(40)
    ]
    packed = taken(msgspec.msgpack.encode(events), form=MSGPACK[0]).values
    assert packed == taken(json.dumps(events).encode()).values
    assert packed[3] == taken(msgspec.msgpack.encode(events[3]), form=MSGPACK[0]).values[0]
    assert taken(b"\x90", form=MSGPACK[0]) == Intake()


def test_too_many_small_packed_elements_are_refused_early() -> None:
    with pytest.raises(Problem, match="over 500,000 elements, and one is no event"):
        taken(b"\xdd\x00\xff\xff\xff" + b"\xc0" * 0xFFFFFF, form=MSGPACK[0])
