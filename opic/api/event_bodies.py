"""Parse the body of `POST /v1/events`: an event or an array of events in JSON or MessagePack, or JSON Lines.

A body that is not well-formed is refused whole; of JSON Lines, each line by itself. In a well-formed array each element
is decoded separately, so that an invalid one costs only itself.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from opic.api.problems import Problem
from opic.api.request_bodies import LINES, MSGPACK
from opic.errors import BadEvent
from opic.model.event_checks import LINKS_SEEN_MAX, check_event
from opic.model.events import (
    EventLimits,
    NotWellFormed,
    decode_crawl_event,
    encode_without_passwords,
    page_of,
    raw_events,
)
from opic.model.packed_events import MSGPACK as FIRST_PACKED
from opic.model.packed_events import array_length, is_array, is_map

REFUSED_NOTED_MAX: Final = 100  # Pages of a body that `explain` can tell about: a round trip for each is too much.
REJECTED_MAX: Final = 10_000  # A longer list in the answer is of no use, and larger than the request.
# Splitting makes an object of 70 bytes for each element. Of arrays that may have more than this, each element has to
# name a URL. A full body of 16 MiB of real events has about 280,000 commas.
ELEMENTS_MAX: Final = 500_000


class _WithUrl(msgspec.Struct):
    url: msgspec.Raw


_LINE = re.compile(rb"\S[^\n]*")  # One that is not blank.
_named = msgspec.json.Decoder(list[_WithUrl]).decode, msgspec.msgpack.Decoder(list[_WithUrl]).decode


@dataclass(slots=True)
class Intake:
    """The result of parsing a body: encoded events for the log, and the rejected elements."""

    values: list[bytes] = field(default_factory=list)
    rejected: list[dict[str, int | str]] = field(default_factory=list)
    links_left_out: int = 0  # Links over the limit of their event, which take no effect.
    refused: dict[str, str] = field(default_factory=dict)  # Pages of rejected elements, the first ones -> reason.

    def add_event(self, element: bytes, now_us: int, limits: EventLimits, *, packed: bool = False) -> None:
        """Check an event and encode it for the log.

        Raises:
            BadEvent: it is invalid.
        """
        # The decoder tells JSON from MessagePack by the first byte; it must be of the form that the request declares.
        if packed and not is_map(element):
            raise BadEvent("not a MessagePack map")
        if not packed and element[:1] != b"{":
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


def read_events(body: bytes, form: str, *, now_us: int, limits: EventLimits) -> Intake:
    """Check all events of a body and encode the valid ones for the log.

    Args:
        body: the body; not blank.
        form: its media type: LINES[0], or JSON or MSGPACK[0], where the first byte tells an array from one event.
        now_us: the current time, against which event times are checked.
        limits: the limits of one event.

    Raises:
        Problem: the body is not well-formed; or it has over ELEMENTS_MAX elements, or in JSON as many commas, and one
            of its elements names no URL; or more than REJECTED_MAX elements are invalid. Nothing is taken then.
        BadEvent: the body is one event, and it is invalid.
    """
    if form == LINES[0]:
        return _take_each((line[0] for line in _LINE.finditer(body)), now_us, limits)
    packed = form == MSGPACK[0]
    array = is_array(body) and packed == (body[0] >= FIRST_PACKED)
    if array and (array_length(body) if packed else body.count(b",")) > ELEMENTS_MAX:
        _check_named(body, packed=packed)
    try:
        events = raw_events(body, packed=packed, array=array)
    except BadEvent as error:
        if not array and not isinstance(error, NotWellFormed):
            raise
        raise Problem("not-msgpack" if packed else "not-json", f"the body is {error}; none of it was taken") from None
    if array:
        return _take_each(events, now_us, limits, packed=packed)
    (event,), intake = events, Intake()
    intake.add_event(event, now_us, limits, packed=packed)
    return intake


def _check_named(body: bytes, *, packed: bool) -> None:
    try:
        _named[packed](body)
    except msgspec.ValidationError as error:
        text = f"an array that may have over {ELEMENTS_MAX:,} elements, and one is no event: {error}"
        raise Problem("bad-event", text) from None
    except (msgspec.DecodeError, RecursionError):
        pass  # It is not well-formed, as splitting it finds.


def _take_each(elements: Iterable[bytes], now_us: int, limits: EventLimits, *, packed: bool = False) -> Intake:
    intake = Intake()
    for index, element in enumerate(elements):
        try:
            intake.add_event(element, now_us, limits, packed=packed)
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
