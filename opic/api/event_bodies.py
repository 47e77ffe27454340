"""Parse the body of `POST /v1/events`: an event or an array of events in JSON or MessagePack, or JSON Lines.

Each invalid element is refused by itself, with its reason, for any kind of error: a field, a lone surrogate, bytes that
are not UTF-8, a NaN, unlimited nesting. So an array is first split into the raw text of its elements, without decoding
them, and each element is decoded separately. `opic.ingest.msgpack_values` splits MessagePack.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from opic.api.problems import JSON, Problem
from opic.api.request_bodies import LINES, MSGPACK
from opic.errors import BadEvent, BadFraming
from opic.ingest import msgpack_values as packed
from opic.model.event_checks import LINKS_SEEN_MAX, check_event
from opic.model.events import EventLimits, decode_crawl_event, encode_without_passwords, page_of

REFUSED_NOTED_MAX: Final = 100  # Pages of a body that `explain` can tell about: a round trip for each is too much.
REJECTED_MAX: Final = 10_000  # A longer list in the answer is of no use, and larger than the request.
# The fast split creates an object of 70 bytes per element. Bodies with more commas are split by the slow one, which
# creates one element at a time. A full body of 16 MiB of real events has about 280,000 commas.
FAST_COMMAS_MAX: Final = 500_000
SECOND_OPINION_BYTES_MAX: Final = 1 << 20  # json.loads may use 20 bytes of memory per byte of text.

_cut_fast = msgspec.json.Decoder(list[msgspec.Raw]).decode
_outline = msgspec.json.Decoder(msgspec.Raw).decode
# A complete string, a run of brackets, a comma, or the quote of an unterminated string.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]}]++|[",]', re.DOTALL)
_LINE = re.compile(rb"\S[^\n]*")  # One that is not blank.


@dataclass(slots=True)
class Intake:
    """The result of parsing a body: encoded events for the log, and the rejected elements."""

    values: list[bytes] = field(default_factory=list)
    rejected: list[dict[str, int | str]] = field(default_factory=list)
    links_left_out: int = 0  # Links over the limit of their event, which take no effect.
    refused: dict[str, str] = field(default_factory=dict)  # Pages of rejected elements, the first ones -> reason.

    def take(self, element: bytes, now_us: int, limits: EventLimits, form: str = JSON) -> None:
        """Check an event and encode it for the log.

        Raises:
            BadEvent: it is invalid.
        """
        # The decoder tells JSON from MessagePack by the first byte; it must be of the form that the request declares.
        if form == MSGPACK[0]:
            if not packed.is_map(element):
                raise BadEvent("not a MessagePack map")
        elif element.lstrip()[:1] != b"{":
            raise BadEvent("not a JSON object")
        try:
            event = decode_crawl_event(element)
            self.links_left_out += check_event(event, now_us, limits).links_left_out
        except BadEvent as error:
            if len(self.refused) < REFUSED_NOTED_MAX and (page := page_of(element, limits)) is not None:
                self.refused[page] = str(error)
            raise
        # The worker applies the limit of links again, and counts the links left out in its metrics.
        if len(event.links) > LINKS_SEEN_MAX:
            event.links = event.links[:LINKS_SEEN_MAX]  # Not `del`: that copies what it deletes.
        self.values.append(encode_without_passwords(event))


def take(body: bytes, form: str, *, now_us: int, limits: EventLimits) -> Intake:
    """Check all events of a body and encode the valid ones for the log.

    Args:
        body: the body; not blank.
        form: its media type: LINES[0], or JSON or MSGPACK[0], where the first byte tells an array from one event.
        now_us: the current time, against which event times are checked.
        limits: the limits of one event.

    Raises:
        Problem: the body does not have that form; or more than REJECTED_MAX elements are invalid; none is accepted.
        BadEvent: the body is one event, and it is invalid.
    """
    if form == MSGPACK[0]:
        return _take_packed(body, now_us, limits)
    if form == LINES[0]:
        return _take_each((line[0] for line in _LINE.finditer(body)), now_us, limits)
    if body.lstrip()[:1] == b"[":
        return _take_each(cut_array(body), now_us, limits)
    try:
        return _take_single(body, now_us, limits)
    except BadEvent as error:
        if not _is_json(body):
            raise Problem("not-json", f"the body is not JSON: {error}") from None
        raise


def _take_packed(body: bytes, now_us: int, limits: EventLimits) -> Intake:
    try:
        if packed.is_array(body):
            return _take_each(packed.cut_array(body), now_us, limits, MSGPACK[0])
        try:
            return _take_single(body, now_us, limits, MSGPACK[0])
        except BadEvent:
            if (end := packed.end_of(body)) < len(body):
                raise BadFraming(f"too much after the value, at byte {end}") from None
            raise
    except BadFraming as error:
        raise Problem("not-msgpack", f"the body is not MessagePack: {error}") from None


def cut_array(body: bytes) -> Iterable[bytes]:
    """Split a JSON array into the text of its elements.

    Raises:
        Problem: the body is not an array; the elements are not checked.

    >>> [bytes(element) for element in cut_array(b'[{"a": [1, 2]}, NaN]')]
    [b'{"a": [1, 2]}', b' NaN']
    """
    if body.count(b",") <= FAST_COMMAS_MAX:
        try:
            return map(bytes, _cut_fast(body))
        except (msgspec.DecodeError, RecursionError):
            pass  # An element is invalid: split slowly to find it and to accept the others.
    return cut_array_slowly(body)


def cut_array_slowly(body: bytes) -> Iterator[bytes]:
    """Split like `cut_array`, but one element at a time, any text with terminated strings and balanced brackets.

    It decodes nothing and does not recurse. It takes a third of a microsecond per token, 25 times as long as the fast
    split.
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
                end = token.start() + depth  # Just after the bracket that closes the array.
                if body[end - 1 : end] != b"]" or body[end:].strip():
                    raise Problem("not-json", f"the body is not JSON: too much after the array, at byte {end - 1}")
                last = body[start : end - 1]
                if last.strip():
                    yield last
                elif found:
                    raise Problem("not-json", "the body is not JSON: a comma before the end of the array")
                return
    raise Problem("not-json", "the body is not JSON: the array never ends")


def _take_each(elements: Iterable[bytes], now_us: int, limits: EventLimits, form: str = JSON) -> Intake:
    intake = Intake()
    for index, element in enumerate(elements):
        try:
            intake.take(element, now_us, limits, form)
        except BadEvent as error:
            if len(intake.rejected) == REJECTED_MAX:
                first = intake.rejected[0]
                raise Problem(
                    "bad-event",
                    f"more than {REJECTED_MAX:,} of the events are invalid, so none was accepted; "
                    f"the first is number {first['index']}: {first['error']}",
                ) from None
            intake.rejected.append({"index": index, "error": str(error)})
    return intake


def _take_single(body: bytes, now_us: int, limits: EventLimits, form: str = JSON) -> Intake:
    intake = Intake()
    intake.take(body, now_us, limits, form)
    return intake


def _is_json(body: bytes) -> bool:
    """Return whether an invalid event is at least JSON in the lenient sense, which allows NaN and lone surrogates."""
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
