"""Crawl events and records of the log: their form, before and after `opic.model.event_checks`, and limits.

An event is JSON or MessagePack; the first byte tells which. An unknown field makes an event invalid, since it may be a
mistyped `links`. Only on a topic, where newer producers may be, is it ignored and counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from opic.errors import BadEvent, BadInput, BadUrl, instead_of
from opic.messages.events import Event
from opic.messages.terms import DEPTH_MAX, OrNull
from opic.model.cash import MILLION, CrawlRules
from opic.model.classes import NO_CHANGE, ClassesChange, WeightClasses
from opic.model.packed_events import array_length, is_array
from opic.model.page_notes import GIVEN_UP
from opic.model.rounds import RoundCount
from opic.model.transfer import Transfer
from opic.urls.canonical import URL_BYTES_MAX, canonical_or_none, canonical_url, rules_applied, shown
from opic.urls.normalization import PLAIN, Normalization

SCHEMA_VERSION: Final = 1
LINKS_MAX: Final = 10_000
LINK_BYTES_MAX: Final = 1 << 16  # No setting allows longer URLs of pages.
TIME_MIN_US = int(datetime(1990, 1, 1, tzinfo=UTC).timestamp()) * MILLION  # There was no web before.
TIME_MAX_US = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * MILLION  # Under 2^52, which doubles hold exactly.
RECORD_KINDS: Final = ("event", "seeds", "classes", "classify", "forget", "expire")
LOG_PARTITION: Final = "log/0"  # The log in the store: what it gets was checked, and has no unknown fields.
UNKNOWN: Final = "Object contains unknown field"  # How msgspec's message begins.
UNKNOWN_NAMED_MAX: Final = 3  # Unknown fields of one event that are named.
UNKNOWN_CHARS_MAX: Final = 80
CRAWLER_DIGEST_BYTES: Final = 6
CLASSIFIED_MAX = 2_000  # Pages that one record has classified anew: as many as a step may touch.
FORGOTTEN_MAX = 1_000  # Pages that one record forgets: the server needs about a millisecond for a step.
# Of one record that packs many events, which take effect in one step. A setting that allows more links of one event
# allows them here as well.
PACKED_EVENTS_MAX: Final = 1_000
PACKED_LINKS_MAX: Final = 20_000
CALL_KEY_BYTES: Final = 16
CALL_INDEX_BYTES: Final = 4
TRACE_HEADERS: Final = ("traceparent", "tracestate")
TRACE_HEADER_BYTES_MAX: Final = 512  # As much as W3C Trace Context wants to be kept at least; a longer one is left out.
TraceContext = Mapping[str, str]  # The headers of W3C Trace Context, by name.


class Outcome(StrEnum):
    """The kind of effect that a record of the log has."""

    READ = "read"
    FAILED = "failed"
    ALIAS = "alias"  # A redirect to another name of the same page, by the normalization rules of the crawl.
    GONE = "gone"
    EXCLUDED = "excluded"
    SEEDS = "seeds"
    CLASSES = "classes"
    CLASSIFY = "classify"
    TRANSFER = "transfer"
    GRANT = "grant"
    COUNT = "count"
    FORGET = "forget"
    DEAD = "dead"


# Each has a journal record of its own: it is about classes or rounds, or forgets pages.
ALONE: Final = (Outcome.CLASSES, Outcome.CLASSIFY, Outcome.COUNT, Outcome.FORGET)


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits of one event; they are settings, which a message names."""

    links_max: int = LINKS_MAX
    url_bytes_max: int = URL_BYTES_MAX
    normalization: Normalization = PLAIN  # Of the crawl.
    host_pages_max: int = 0  # Known pages of a host, beyond which links make no page known; 0: no limit.

    def under(self, rules: CrawlRules) -> "EventLimits":
        """Return the limits for a crawl, whose rules decide what the canonical form of a URL is."""
        return replace(self, normalization=rules.normalization)

    def canonical(self, url: str) -> str:
        """Return the canonical form of a URL; see `canonical_url`."""
        return canonical_url(url, self.url_bytes_max, self.normalization)

    def name_of(self, url: str, page: str) -> str:
        """Return the name of a page that a URL of it has without normalization rules; "" if it is the page's own.

        >>> limits = EventLimits(normalization=Normalization.of("www"))
        >>> limits.name_of("http://www.a.example#x", "http://a.example/"), limits.name_of("http://a.example", "http://a.example/")
        ('http://www.a.example/', '')
        """
        name = canonical_url(url, LINK_BYTES_MAX)
        return name if name != page and len(name) <= self.url_bytes_max else ""


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """How many bytes of what events bring a crawl keeps in the store's memory, in all its shards; these are settings.

    Beyond them the oldest dead letters are dropped, and metadata that is new.
    """

    letter_bytes_max: int = 256 << 20
    meta_bytes_max: int = 1 << 30


def trace_of(headers: Mapping[str, bytes]) -> TraceContext | None:
    """Return the trace context among the headers of a record, or of a request; None where there is none.

    >>> trace_of({"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "accept": b"*/*"})
    {'traceparent': '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'}
    """
    if "traceparent" not in headers:
        return None
    named = {name: headers[name] for name in TRACE_HEADERS if name in headers}
    return {name: value.decode("latin-1") for name, value in named.items() if len(value) <= TRACE_HEADER_BYTES_MAX}


@dataclass(slots=True)  # Not frozen: one is made for each record, and that costs three times as much.
class Record:
    """One entry of a log partition: one event, or an array of events. `time_us` is the log's: the only 'now' they see.

    `call` names the events of a call with an Idempotency-Key: the key's digest, and the number in the call of each of
    the record's events, four bytes each; b"" is none. `problem` is why the record is refused, no matter what its value
    says; "" if it can. `trace` is the trace in which who sent it made it, for `opic.ingest.traces`.
    """

    offset: int
    time_us: int
    value: bytes
    kind: str = "event"
    call: bytes = b""
    problem: str = ""
    value_bytes: int = 0  # Of the whole value, where only its beginning was kept; else 0.
    trace: TraceContext | None = None

    @property
    def packed(self) -> bool:
        """Whether its value is an array of crawl events."""
        return self.kind == "event" and not self.problem and is_array(self.value)

    def rough_events(self) -> int:
        """Return how many events it has, without decoding them; of an array in JSON, an estimate."""
        return array_length(self.value) if self.packed else 1

    def call_of(self, index: int) -> bytes:
        """Return the name of one of its events; b"" if the call had no Idempotency-Key."""
        begin = CALL_KEY_BYTES + CALL_INDEX_BYTES * index
        return self.call and self.call[:CALL_KEY_BYTES] + self.call[begin : begin + CALL_INDEX_BYTES]


@dataclass(slots=True)  # Not frozen, as Record.
class CheckedEvent:
    """A checked record: the pages it names, canonical, in order of first sight, and its outcome.

    `links` are still as they came: they are canonicalized by whoever resolves them, who may know them already.
    `links_left_out` counts those over the limit, and `unknown` names some of the fields that were ignored.
    """

    outcome: Outcome
    url: str = ""
    links: Sequence[str] = ()
    at_us: int = 0
    seeds: Sequence[str] = ()  # Or the pages to forget,
    expires: bool = False  # only those of them that were never read, nor seeded or trusted.
    reason: str = ""
    tags: Sequence[str] = ()
    classes: ClassesChange = NO_CHANGE
    placed: WeightClasses | None = None  # The same as decided for all of many shards.
    ids: tuple[int, int] = (0, 0)  # First, and the one after the last.
    transfer: Transfer | None = None
    grant: int = 0
    count: RoundCount | None = None  # Of rounds.
    links_left_out: int = 0
    unknown: Sequence[str] = ()
    nearness: int = 0  # Of the page or the seeds, if a depth is given; see `opic.model.page_notes`.
    meta: bytes | None = None  # Of the page or the seeds, packed; None if not given.
    give_up: bool = False  # Of a failed fetch: the page is not to be tried again.
    retry_after: float | None = None  # Of a failed fetch: the seconds that the page waits; None if not given.
    not_before_us: int | None = None  # Of the page or the seeds: when they may be offered; None if not given.
    priority: float | None = None  # Of the page or the seeds; None if not given.
    trust: float | None = None  # Of the seeds; None if not given.
    crawler: bytes = b""  # Digest of the name of the crawler that reports it; b"" without one.
    crawler_name: str = ""  # That name, for the metrics.
    status: int | None = None  # Of a crawl event, as `opic.model.page_notes.noted_status` keeps it.
    # Of the page, under which it answered; "" if that is its URL. None if it did not answer, or there are no rules.
    name: str | None = None
    address: str = ""  # Of the page's host, canonical; "" if none is reported.
    value: bytes | None = None  # Of a dead letter, where the record has others; None: the record's.

    @property
    def failed(self) -> bool:
        """Tell whether it reports a failed fetch, after which the page waits."""
        return self.outcome is Outcome.FAILED

    @property
    def failures(self) -> int:
        """What it says of the failures in a row of a page; see `opic.model.page_notes.failures_after`.

        An alias counts among them: names of a page may redirect to each other for ever.
        """
        return (GIVEN_UP if self.give_up else 1) if self.outcome in (Outcome.FAILED, Outcome.ALIAS) else 0


class CrawlEvent(Event, omit_defaults=True, forbid_unknown_fields=True):
    """One fetched page. A field that is not named here is refused."""

    v: Annotated[OrNull[int], msgspec.Meta(description="Schema version.")] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Put the default in the place of null."""
        super().__post_init__()
        if self.v is None:
            self.v = SCHEMA_VERSION


class SeedList(msgspec.Struct, omit_defaults=True):
    """The value of a record of seeds that has more than their URLs; one that has not is a list of the URLs."""

    urls: list[str]
    depth: Annotated[int, msgspec.Meta(ge=0, le=DEPTH_MAX)] | None = None
    meta: dict[str, str] | None = None
    trust: float | None = None
    not_before: float | str | None = None
    priority: float | None = None


class _AnyEvent(CrawlEvent, forbid_unknown_fields=False):
    """The same, of any producer: unknown fields are ignored."""


class _Named(msgspec.Struct):
    """Of any event, also of an invalid one: which page it is about."""

    url: str


class NotWellFormed(BadEvent):
    """A value is not well-formed JSON or MessagePack."""


class _UnknownField(BadEvent):
    """A field of an event is none that this version knows."""


EVENT_FIELDS: Final = CrawlEvent.__struct_fields__
_Decoders = tuple[Callable[[bytes], Any], Callable[[bytes], Any]]  # Of JSON and of MessagePack.


def _decoders(kind: Any) -> _Decoders:
    return msgspec.json.Decoder(kind).decode, msgspec.msgpack.Decoder(kind).decode


_event, _any_event, _names, _page = map(_decoders, (CrawlEvent, _AnyEvent, dict[str, msgspec.Raw], _Named))
_seeds_from_msgpack = msgspec.msgpack.Decoder(list[str] | SeedList).decode
_utf_8: _Decoders = (bytes.decode, bytes.decode)
_array, _raw, _raw_array = map(_decoders, (list[CrawlEvent], msgspec.Raw, list[msgspec.Raw]))
# One encoder, by the names of what it encodes.
_encode = encode_crawl_event = encode_ids = encode_forgotten = msgspec.msgpack.Encoder().encode


def encode_seeds(  # noqa: PLR0917 - the fields of the record
    urls: Sequence[str],
    depth: int | None = None,
    meta: Mapping[str, str] | None = None,
    trust: float | None = None,
    not_before: float | str | None = None,
    priority: float | None = None,
) -> bytes:
    """Encode a record of seeds: URLs, and optionally what each of them gets."""
    given = depth, None if meta is None else dict(meta), trust, not_before, priority
    return _encode(urls if given == (None,) * len(given) else SeedList(list(urls), *given))


def encode_without_passwords(event: CrawlEvent) -> bytes:
    """Encode a checked event for a log, which is not to keep passwords that its URLs may have.

    A link with an @ that is no URL of a page becomes "", which is none either.
    """
    value = encode_crawl_event(event)
    if b"@" not in value:
        return value
    event.url = canonical_url(event.url, LINK_BYTES_MAX) if "@" in event.url else event.url
    event.links = [_without_password(link) if "@" in link else link for link in event.links]
    if event.redirect is not None and "@" in event.redirect:
        event.redirect = _without_password(event.redirect)
    return encode_crawl_event(event)


def _without_password(link: str) -> str:
    return canonical_or_none(link, LINK_BYTES_MAX) or ""


def shown_canonical(url: str, limits: EventLimits) -> dict[str, object]:
    """Return a URL's canonical form in a crawl and without normalization rules; the rules, and those that change it.

    Raises:
        BadUrl: it has none.
    """
    rules, applied = limits.normalization.rules, rules_applied(url, limits.normalization)
    plain = canonical_url(url, LINK_BYTES_MAX)
    return {"url": limits.canonical(url), "plain": plain, "rules": list(rules), "applied": list(applied)}


def decode_seeds(value: bytes) -> SeedList:
    """Decode a record of seeds.

    Raises:
        msgspec.DecodeError: not decodable, or a field is of the wrong type.
    """
    seeds = _seeds_from_msgpack(value)
    return SeedList(seeds) if isinstance(seeds, list) else seeds


def decode_crawl_event(value: bytes) -> CrawlEvent:
    """Decode the wire form.

    Raises:
        BadEvent: not decodable, or a field is missing, unknown or of the wrong type.
    """
    try:
        event: CrawlEvent = _decode(value, _event)
    except _UnknownField:
        event, unknown = decode_any_event(value)
        if unknown:
            raise BadEvent(f"unknown field {shown(unknown[0])}: {instead_of(unknown[0], EVENT_FIELDS)}") from None
    return event


def decode_any_event(value: bytes) -> tuple[CrawlEvent, Sequence[str]]:
    """Decode the wire form and ignore unknown fields; return the names of the first of these as well.

    Raises:
        BadEvent: not decodable, or a field is missing or of the wrong type.
    """
    try:
        return _decode(value, _event), ()
    except _UnknownField:
        event, fields = _decode(value, _any_event), _decode(value, _names)
    unknown = (name[:UNKNOWN_CHARS_MAX] for name in fields if name not in EVENT_FIELDS)
    return event, tuple(islice(unknown, UNKNOWN_NAMED_MAX))


def decode_array(value: bytes) -> list[CrawlEvent] | None:
    """Decode an array of crawl events in one pass; return None if it or one of its events is invalid."""
    try:
        events: list[CrawlEvent] = _decode(value, _array)
    except BadEvent:
        return None
    return events


def split_array(value: bytes) -> list[bytes]:
    """Return the elements of an array of events, as they came; see `raw_events`."""
    return list(raw_events(value, packed=_is_packed(value), array=True))


def raw_events(value: bytes, *, packed: bool, array: bool) -> Iterable[bytes]:
    """Return the elements of an array of events, or one event, undecoded.

    JSON is that of RFC 8259, in UTF-8, without NaN and halves of surrogate pairs. In MessagePack, a string that is not
    UTF-8 is well-formed; the event that has it is bad.

    Raises:
        NotWellFormed: the value is not well-formed JSON or MessagePack.
        BadEvent: it is nested too deeply.

    >>> list(raw_events(b'[{"a": [1, 2]}, 3]', packed=False, array=True))
    [b'{"a": [1, 2]}', b'3']
    """
    wanted = "array of events" if array else "event"
    if not packed and not value.isascii():
        _decode(value, _utf_8, wanted)
    raw = _decode(value, _raw_array if array else _raw, wanted, packed=packed)
    return map(bytes, raw if array else (raw,))


def _is_packed(value: bytes) -> bool:
    # MessagePack starts with a byte of a map or an array, JSON with a brace, a bracket or white space.
    return bool(value) and (0x80 <= value[0] <= 0x9F or 0xDC <= value[0] <= 0xDF)


def _decode(value: bytes, decoders: _Decoders, wanted: str = "event", *, packed: bool | None = None) -> Any:
    try:
        return decoders[_is_packed(value) if packed is None else packed](value)
    except msgspec.ValidationError as error:
        if str(error).startswith(UNKNOWN):
            raise _UnknownField from None
        raise BadEvent(f"invalid field: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotWellFormed(f"not a decodable {wanted}: {error}") from None
    except RecursionError:
        raise BadEvent(f"not a decodable {wanted}: nested too deeply") from None


def crawler_digest(name: str | None) -> bytes:
    """Return what the store keeps of a crawler's name, to tell whose lease an event ends; b"" without a name."""
    return blake2b(name.encode(), digest_size=CRAWLER_DIGEST_BYTES).digest() if name else b""


def page_of(value: bytes, limits: EventLimits = EventLimits()) -> str | None:
    """Return the canonical URL of an event's page, also of an invalid event; None if it names none."""
    try:
        return limits.canonical(_decode(value, _page).url)
    except BadInput:
        return None


def good_urls(urls: Sequence[str], limits: EventLimits) -> tuple[list[str], list[dict[str, int | str]]]:
    """Return the URLs that can be taken, canonical, and of the others the index and what is wrong.

    >>> good_urls(["http://a.example", "/about"], EventLimits())[0]
    ['http://a.example/']
    """
    good, rejected = list[str](), list[dict[str, int | str]]()
    for index, url in enumerate(urls):
        try:
            good.append(limits.canonical(url))
        except BadUrl as error:
            rejected.append({"index": index, "error": str(error)})
    return good, rejected
