"""The body of `POST /v1/events`: one event, an array of them, or JSON Lines; or MessagePack, an event or an array.

An element that can't be taken is refused alone, with its reason, whatever is wrong with it: a field, a lone surrogate,
bytes that are not UTF-8, a NaN, nesting without end. So an array is first cut into the raw text of its elements, which
needs nobody to understand them, and each is decoded by itself. `opic.ingest.msgpack_values` cuts MessagePack.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from opic.api.problems import Problem
from opic.api.request_bodies import JSON, LINES, MSGPACK
from opic.errors import BadEvent, BadFraming
from opic.ingest import msgpack_values as packed
from opic.model.events import EventLimits, check_event, decode_crawl_event, encode_crawl_event

REJECTED_MAX: Final = 10_000  # An answer that lists more is of no use, and larger than what was sent.
FAST_COMMAS_MAX: Final = 500_000  # The fast cut makes an object of 70 bytes an element; past this the slow one, which
# makes one at a time. A full body of 16 MiB of real events has about 280,000.
SECOND_OPINION_BYTES_MAX: Final = 1 << 20  # json.loads may make 20 bytes of memory of one of text.

_cut_fast = msgspec.json.Decoder(list[msgspec.Raw]).decode
_outline = msgspec.json.Decoder(msgspec.Raw).decode
# A whole string, a run of brackets, or a mark that matters: a comma, or the quote of a string that never ends.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]}]++|[",]', re.DOTALL)
_LINE = re.compile(rb"\S[^\n]*")


@dataclass(slots=True)
class Intake:
    """What a call brought: encoded events for the log, and what can't be taken."""

    values: list[bytes] = field(default_factory=list)
    rejected: list[dict[str, int | str]] = field(default_factory=list)


def take(body: bytes, form: str, *, now_us: int, limits: EventLimits) -> Intake:
    """Check all events of a body and encode the good ones for the log.

    Args:
        body: not blank.
        form: its media type: LINES[0], or JSON or MSGPACK[0], where the first byte tells an array from one event.
        now_us: what an event's time is checked against.
        limits: of one event.

    Raises:
        Problem: not of that form at all; or more than REJECTED_MAX elements are bad, and nothing is taken.
        BadEvent: the body is one event, and it can't be taken.
    """
    if form == MSGPACK[0]:
        return _take_packed(body, now_us, limits)
    if form == LINES[0]:
        return _take_each(_cut_lines(body), now_us, limits)
    if body.lstrip()[:1] == b"[":
        return _take_each(cut_array(body), now_us, limits)
    try:
        return Intake([_take_one(body, now_us, limits)])
    except BadEvent as error:
        if not _is_json(body):
            raise Problem("not-json", f"the body is not JSON: {error}") from None
        raise


def _take_packed(body: bytes, now_us: int, limits: EventLimits) -> Intake:
    try:
        if packed.is_array(body):
            return _take_each(packed.cut_array(body), now_us, limits, MSGPACK[0])
        try:
            return Intake([_take_one(body, now_us, limits, MSGPACK[0])])
        except BadEvent:
            if (end := packed.end_of(body)) < len(body):
                raise BadFraming(f"too much after the value, at byte {end}") from None
            raise
    except BadFraming as error:
        raise Problem("not-msgpack", f"the body is not MessagePack: {error}") from None


def cut_array(body: bytes) -> Iterable[bytes]:
    """Cut a JSON array into the text of its elements.

    Raises:
        Problem: it is no array, whatever its elements may be.

    >>> [bytes(element) for element in cut_array(b'[{"a": [1, 2]}, NaN]')]
    [b'{"a": [1, 2]}', b' NaN']
    """
    if body.count(b",") <= FAST_COMMAS_MAX:
        try:
            return map(bytes, _cut_fast(body))
        except (msgspec.DecodeError, RecursionError):
            pass  # Something in it is not as it should be: find out what, and take the rest.
    return cut_array_slowly(body)


def cut_array_slowly(body: bytes) -> Iterator[bytes]:
    """Do as `cut_array` does, of any text whose strings end and whose brackets come in pairs, one at a time.

    Nothing is decoded and nothing recurses. A third of a microsecond a token: 25 times as slow as the fast cut.
    """
    start = body.index(b"[") + 1
    depth, found = 1, False
    for token in _TOKEN.finditer(body, start):
        text = token[0]
        match text[:1]:
            case b'"':
                if len(text) == 1:
                    raise Problem("not-json", f"the body is not JSON: the string at byte {token.start()} never ends")
            case b"[" | b"{":
                depth += len(text)
            case b",":
                if depth == 1:
                    yield body[start : token.start()]
                    start, found = token.end(), True
            case _:
                if len(text) < depth:
                    depth -= len(text)
                    continue
                end = token.start() + depth  # Just behind the bracket that closes the array.
                if body[end - 1 : end] != b"]" or body[end:].strip():
                    raise Problem("not-json", f"the body is not JSON: too much after the array, at byte {end - 1}")
                last = body[start : end - 1]
                if last.strip():
                    yield last
                elif found:
                    raise Problem("not-json", "the body is not JSON: a comma before the end of the array")
                return
    raise Problem("not-json", "the body is not JSON: the array never ends")


def _cut_lines(body: bytes) -> Iterator[bytes]:
    """Yield the lines that hold anything."""
    return (line[0] for line in _LINE.finditer(body))


def _take_each(elements: Iterable[bytes], now_us: int, limits: EventLimits, form: str = JSON) -> Intake:
    intake = Intake()
    for index, element in enumerate(elements):
        try:
            intake.values.append(_take_one(element, now_us, limits, form))
        except BadEvent as error:
            if len(intake.rejected) == REJECTED_MAX:
                first = intake.rejected[0]
                raise Problem(
                    "bad-event",
                    f"more than {REJECTED_MAX:,} of the events can't be taken, so none was; "
                    f"the first is number {first['index']}: {first['error']}",
                ) from None
            intake.rejected.append({"index": index, "error": str(error)})
    return intake


def _take_one(element: bytes, now_us: int, limits: EventLimits, form: str = JSON) -> bytes:
    # The first byte tells JSON from MessagePack, and what came as the one must not be taken for the other.
    if form == MSGPACK[0]:
        if not packed.is_map(element):
            raise BadEvent("not a MessagePack map")
    elif element.lstrip()[:1] != b"{":
        raise BadEvent("not a JSON object")
    event = decode_crawl_event(element)
    check_event(event, now_us, limits)
    return encode_crawl_event(event)


def _is_json(body: bytes) -> bool:
    """Tell whether a bad event is at least JSON in the common sense of the word, with NaN and lone surrogates."""
    try:
        _outline(body)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        if len(body) > SECOND_OPINION_BYTES_MAX:
            return False
        try:
            json.loads(body.decode())
        except RecursionError:
            return True
        except ValueError:
            return False
    return True
