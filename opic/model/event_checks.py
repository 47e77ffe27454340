"""What events and records may ask for: fields in their ranges, URLs in their canonical forms, links within limits.

An invalid event is refused as a whole, with a reason. Of a good event, only bad links and links over the
limit are dropped, and counted.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from opic.errors import BadEvent, BadInput, BadUrl
from opic.model.cash import DAY_US, MILLION
from opic.model.classes import decode_change
from opic.model.events import (
    CALL_INDEX_BYTES,
    CALL_KEY_BYTES,
    CLASSIFIED_MAX,
    FORGOTTEN_MAX,
    LOG_PARTITION,
    PACKED_EVENTS_MAX,
    PACKED_LINKS_MAX,
    RECORD_KINDS,
    SCHEMA_VERSION,
    TIME_MAX_US,
    TIME_MIN_US,
    CheckedEvent,
    CrawlEvent,
    EventLimits,
    Outcome,
    Record,
    SeedList,
    crawler_digest,
    decode_any_event,
    decode_array,
    decode_crawl_event,
    decode_seeds,
    split_array,
)
from opic.model.packed_events import array_length, is_array
from opic.model.page_notes import check_priority, nearness_of, noted_status, pack_meta
from opic.model.rounds import RoundCount
from opic.model.transfer import Transfer, is_own
from opic.model.trust import check_trust
from opic.urls.canonical import canonical_address, is_serialized, shown

LINKS_SEEN_MAX: Final = 200_000  # Strings in `links` that are looked at, fragments and all; it takes a second at most.
STATUS_MAX: Final = 999
TAGS_MAX = 1_000
ADDRESSES_MAX: Final = 16
RETRY_AFTER_SECONDS_MAX: Final = 365 * 86_400.0
LEAP_SECOND = re.compile(r"T\d\d:[0-5]\d:60", re.IGNORECASE | re.ASCII)  # RFC 3339, section 5.6.
TIME_AHEAD_MAX_US = DAY_US  # Clocks of crawlers are wrong, but not by more than time zones.

_ids_from_msgpack = msgspec.msgpack.Decoder(tuple[int, int]).decode
_urls_from_msgpack = msgspec.msgpack.Decoder(list[str]).decode


def time_us(value: float | str | None, now_us: int) -> int:
    """Check a fetch time and turn it into whole microseconds; None is `now_us`.

    Raises:
        BadEvent: not RFC 3339, without a zone, before 1990 or more than a day ahead of `now_us`.
    """
    if value is None:
        return now_us
    seconds = _unix_seconds("fetched_at", value)
    if not TIME_MIN_US <= seconds * MILLION <= now_us + TIME_AHEAD_MAX_US:  # NaN fails every comparison.
        raise BadEvent(f"fetched_at {value} is not between 1990 and a day ahead of now")
    return round(seconds * MILLION)


def not_before_us(value: float | str | None) -> int | None:
    """Check the time before which pages are not offered, and turn it into whole microseconds; None is None.

    Raises:
        BadEvent: not RFC 3339, without a zone, before 1970 or after 2099.
    """
    if value is None:
        return None
    seconds = _unix_seconds("not_before", value)
    if not 0 <= seconds * MILLION < TIME_MAX_US:
        raise BadEvent(f"not_before {value} is not between 1970 and 2099; 0 is at any time")
    return round(seconds * MILLION)


def _unix_seconds(name: str, value: float | str) -> float:
    if not isinstance(value, str):
        return value
    leap = LEAP_SECOND.search(value)  # Unix time counts it as the second after it.
    try:
        moment = msgspec.convert(value.replace(leap[0], leap[0][:-2] + "59") if leap else value, datetime)
    except msgspec.ValidationError:
        raise BadEvent(f"{name} {value[:40]!r} is not an RFC 3339 time") from None
    if moment.tzinfo is None:
        raise BadEvent(f"{name} {value[:40]!r} has no time zone: end it with Z or +hh:mm")
    return moment.timestamp() + (leap is not None)


def _shown(number: int) -> str:
    # Python refuses to print an integer of 4,301 digits, and nobody wants to read it.
    return str(number) if abs(number) < 10**18 else "of over 18 digits"


def _outcome(event: CrawlEvent) -> Outcome:
    status = event.status
    if event.excluded or status in (401, 403, 451):
        return Outcome.EXCLUDED
    if 200 <= status <= 399:
        return Outcome.READ
    if status in (404, 410):
        return Outcome.GONE
    return Outcome.FAILED


def check_event(event: CrawlEvent, now_us: int, limits: EventLimits) -> CheckedEvent:
    """Check a decoded event against the limits and say what it asks for.

    Raises:
        BadEvent: with the reason that goes with its dead letter.
    """
    if event.v != SCHEMA_VERSION:
        raise BadEvent(f"schema version v={_shown(event.v)} is unknown: this service takes v={SCHEMA_VERSION}")
    if not 0 <= event.status <= STATUS_MAX:
        raise BadEvent(f"status {_shown(event.status)} is no HTTP status (0 means no answer)")
    if len(event.tags) > TAGS_MAX:
        raise BadEvent(f"{len(event.tags):,} tags is over the limit of {TAGS_MAX}")
    try:
        url = limits.canonical(event.url)
    except BadUrl as error:
        raise BadEvent(f"url {error}") from None
    meta, priority = None if event.meta is None else pack_meta(event.meta), check_priority(event.priority)
    if event.retry_after is not None and not 0 <= event.retry_after <= RETRY_AFTER_SECONDS_MAX:
        raise BadEvent(f"retry_after {event.retry_after} is not a number of seconds from 0 to a year, 31,536,000")
    at_us, held_us = time_us(event.fetched_at, now_us), not_before_us(event.not_before)
    outcome, name = _outcome(event), None
    links: Sequence[str] = ()
    left_out = 0
    if outcome is Outcome.READ and limits.normalization.rules:
        name = limits.name_of(event.url, url)
        if event.status >= 300 and event.redirect:
            outcome, name = _redirected(event.redirect, url, name, limits)
    if outcome is Outcome.READ:
        links = event.links if event.status <= 299 else [event.redirect] if event.redirect else ()
        if len(links) > limits.links_max:
            links, left_out = first_links(url, links, limits)
    nearness = nearness_of(event.depth)
    return CheckedEvent(
        outcome, url, links, at_us, tags=event.tags or (), links_left_out=left_out, nearness=nearness, meta=meta,
        give_up=event.give_up, retry_after=event.retry_after, not_before_us=held_us, priority=priority,
        crawler=crawler_digest(event.crawler), crawler_name=event.crawler or "",
        status=noted_status(event.status, read=outcome is Outcome.READ),
        name=name, address=_first_address(event.addresses) if event.addresses else "",
    )  # fmt: skip


def _first_address(addresses: Sequence[str]) -> str:
    """Return the first of a host's addresses, canonical, if all are such."""
    if len(addresses) > ADDRESSES_MAX:
        raise BadEvent(f"{len(addresses):,} addresses is over the limit of {ADDRESSES_MAX}")
    try:
        first, *_ = map(canonical_address, addresses)
    except BadInput as error:
        raise BadEvent(f"addresses: {error}") from None
    return first


def _redirected(target: str, page: str, name: str, limits: EventLimits) -> tuple[Outcome, str]:
    """Return what a redirect of a page asks for in a crawl with normalization rules, and the page's name after it."""
    try:
        other = limits.name_of(target, page) if limits.canonical(target) == page else name
    except BadUrl:
        other = name
    return (Outcome.READ, name) if other == name else (Outcome.ALIAS, other)


def first_links(page: str, links: Sequence[str], limits: EventLimits) -> tuple[list[str], int]:
    """Return the first `links_max` distinct links to other pages, as they came, and how many more there are.

    Whoever resolves links counts the bad ones, so these are returned as well. What comes after LINKS_SEEN_MAX is not
    looked at, and counts as left out.

    >>> first_links("http://a/", ["#top", "http://a/#b", "http://b/", "http://B/#c", "http://d/"], EventLimits(1))
    (['#top', 'http://b/'], 1)
    """
    first: list[str] = []
    targets = {page}
    for link in islice(links, LINKS_SEEN_MAX):
        try:
            target = limits.canonical(link)
        except BadUrl:
            first.append(link)
            continue
        if target not in targets:
            targets.add(target)
            if len(targets) <= limits.links_max + 1:
                first.append(link)
    return first, max(0, len(targets) - 1 - limits.links_max) + max(0, len(links) - LINKS_SEEN_MAX)


def decode_record(partition: str, record: Record, limits: EventLimits) -> CheckedEvent:
    """Decode and check a record; an invalid one becomes a dead letter, never an exception.

    Raises:
        StoreError: an entry of our own is damaged. It holds cash, which no dead letter may.
    """
    if is_own(partition):
        if record.kind == "grant":
            return CheckedEvent(Outcome.GRANT, grant=int(record.value), at_us=record.time_us)
        if record.kind == "count":
            count = RoundCount(*msgspec.msgpack.decode(record.value, type=tuple[int, int, int]))
            return CheckedEvent(Outcome.COUNT, count=count, at_us=record.time_us)
        if record.kind == "classify":
            return CheckedEvent(Outcome.CLASSIFY, ids=_ids_from_msgpack(record.value), at_us=record.time_us)
        return CheckedEvent(Outcome.TRANSFER, transfer=Transfer.unpack(record.value), at_us=record.time_us)
    try:
        if record.problem:
            raise BadEvent(record.problem)
        if record.kind not in RECORD_KINDS:
            raise BadEvent(f"a record is of kind {' or '.join(RECORD_KINDS)}, not {shown(record.kind)}")
        if record.kind == "seeds":
            return check_seeds(decode_seeds(record.value), record.time_us, limits)
        if record.kind == "classes":
            return CheckedEvent(Outcome.CLASSES, classes=decode_change(record.value), at_us=record.time_us)
        if record.kind == "classify":
            first, end = _ids_from_msgpack(record.value)
            if not 0 <= first < end <= first + CLASSIFIED_MAX:
                raise BadEvent(f"ids {first} to {end} to classify: up to {CLASSIFIED_MAX:,}, from 0 on")
            return CheckedEvent(Outcome.CLASSIFY, ids=(first, end), at_us=record.time_us)
        if record.kind in ("forget", "expire"):
            forgotten = _check_forgotten(_urls_from_msgpack(record.value), record.time_us, limits)
            return replace(forgotten, expires=record.kind == "expire")
        if partition == LOG_PARTITION:
            return check_event(decode_crawl_event(record.value), record.time_us, limits)
        event, unknown = decode_any_event(record.value)
        checked = check_event(event, record.time_us, limits)
        return replace(checked, unknown=unknown) if unknown else checked
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError) as error:
        return CheckedEvent(Outcome.DEAD, reason=str(error))


def decode_events(partition: str, record: Record, limits: EventLimits) -> Sequence[CheckedEvent]:
    """Decode and check the events of a record, one or an array; see `decode_record`.

    A bad event of an array becomes a dead letter, with its own value. An array as a whole does if it is not
    well-formed, is empty, or is over the limits of a record.
    """
    if not record.packed or is_own(partition):
        return (decode_record(partition, record, limits),)
    try:
        return _decode_array(partition, record, limits)
    except BadEvent as error:
        return (CheckedEvent(Outcome.DEAD, reason=str(error)),)


def _decode_array(partition: str, record: Record, limits: EventLimits) -> list[CheckedEvent]:
    value, now_us = record.value, record.time_us
    if value[0] & 0x80:  # MessagePack says the number first.
        _check_length(array_length(value))
    events, raw = decode_array(value), list[bytes]()
    checked = list[CheckedEvent]()
    if events is None:
        raw = split_array(value)
        checked = [_element(partition, Record(record.offset, now_us, element), limits) for element in raw]
    else:
        for index, event in enumerate(events):
            try:
                checked.append(check_event(event, now_us, limits))
            except BadInput as error:
                raw = raw or split_array(value)
                checked.append(CheckedEvent(Outcome.DEAD, reason=str(error), value=raw[index]))
    _check_length(len(checked))
    links, most = sum(len(event.links) for event in checked), max(PACKED_LINKS_MAX, limits.links_max)
    if links > most:
        raise BadEvent(f"a record whose events have {links:,} links is over the limit of {most:,}: send several")
    if record.call and len(record.call) != CALL_KEY_BYTES + CALL_INDEX_BYTES * len(checked):
        raise BadEvent(f"the header opic-index must have a number for each of the {len(checked):,} events")
    return checked


def _check_length(events: int) -> None:
    if not events:
        raise BadEvent("an empty array: a record is an event or an array of events")
    if events > PACKED_EVENTS_MAX:
        raise BadEvent(f"a record of {events:,} events is over the limit of {PACKED_EVENTS_MAX:,}: send several")


def _element(partition: str, record: Record, limits: EventLimits) -> CheckedEvent:
    if is_array(record.value):
        event = CheckedEvent(
            Outcome.DEAD, reason="an array within an array: a record is an event or an array of events"
        )
    else:
        event = decode_record(partition, record, limits)
    if event.outcome is Outcome.DEAD:
        event.value = record.value
    return event


def _check_forgotten(given: Sequence[str], now_us: int, limits: EventLimits) -> CheckedEvent:
    if len(given) > FORGOTTEN_MAX:
        raise BadEvent(f"{len(given):,} pages to forget: a record names up to {FORGOTTEN_MAX:,}")
    # A stored URL is taken as it is.
    urls = tuple(dict.fromkeys(url if is_serialized(url) else limits.canonical(url) for url in given))
    return CheckedEvent(Outcome.FORGET, seeds=urls, at_us=now_us)


def check_seeds(given: SeedList, now_us: int, limits: EventLimits) -> CheckedEvent:
    """Check a decoded record of seeds against the limits and say what it asks for.

    Raises:
        BadInput: one of the URLs, or what they get, is invalid.
    """
    urls = [limits.canonical(url) for url in given.urls]
    meta, priority = None if given.meta is None else pack_meta(given.meta), check_priority(given.priority)
    trust, held_us = check_trust(given.trust), not_before_us(given.not_before)
    return CheckedEvent(
        Outcome.SEEDS, seeds=tuple(dict.fromkeys(urls)), at_us=now_us, nearness=nearness_of(given.depth), meta=meta,
        trust=trust, not_before_us=held_us, priority=priority,
    )  # fmt: skip
