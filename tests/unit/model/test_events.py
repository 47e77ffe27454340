"""A record is taken whole, or it is a dead letter that says why; never an exception, and never cut short."""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_events import BAD_PACKED, UNENDING_PACKED

from opic.model.cash import DAY_US, MILLION, CrawlRules
from opic.model.event_checks import LINKS_SEEN_MAX, TAGS_MAX, decode_record, time_us
from opic.model.events import (
    LOG_PARTITION,
    TIME_MIN_US,
    CheckedEvent,
    CrawlEvent,
    EventLimits,
    Outcome,
    Record,
    decode_crawl_event,
    encode_crawl_event,
    encode_seeds,
    page_of,
)
from opic.model.ledger import Ledger
from opic.model.transfer import GRANTS, Transfer
from opic.urls.normalization import Normalization

NOW_S = 1_700_000_000
NOW_US = NOW_S * MILLION
URL = "http://example.org/"
LONG_URL = "http://example.org/" + "a" * 100_000


TOPIC = "crawl.events/0"


def decoded(
    value: bytes, kind: str = "event", limits: EventLimits | None = None, partition: str = LOG_PARTITION
) -> CheckedEvent:
    return decode_record(partition, Record(0, NOW_US, value, kind), limits or EventLimits())


def of_json(fields: Mapping[str, object]) -> CheckedEvent:
    return decoded(json.dumps({"url": URL, **fields}).encode())


def of_msgpack(fields: Mapping[str, object]) -> CheckedEvent:
    return decoded(msgspec.msgpack.encode({"url": URL, **fields}))


def refusal(event: CheckedEvent) -> str:
    assert event.outcome is Outcome.DEAD
    assert (event.url, event.links, event.seeds) == ("", (), ())
    return event.reason


# What is taken.


@pytest.mark.parametrize("taken", [of_json, of_msgpack], ids=["json", "msgpack"])
def test_an_event_needs_a_url_only_and_happened_when_the_log_says(taken: object) -> None:
    assert callable(taken)
    assert taken({}) == CheckedEvent(Outcome.READ, URL, [], NOW_US, status=0)


@pytest.mark.parametrize("name", [field for field in CrawlEvent.__struct_fields__ if field != "url"])
@pytest.mark.parametrize("partition", [LOG_PARTITION, TOPIC])
def test_a_null_field_is_as_if_it_were_absent(name: str, partition: str) -> None:
    """Go writes an empty slice as null."""
    fields = {"url": URL, name: None}
    for value in (json.dumps(fields).encode(), msgspec.msgpack.encode(fields)):
        assert decoded(value, partition=partition) == CheckedEvent(Outcome.READ, URL, [], NOW_US, status=0)


def test_an_event_of_nulls_is_logged_as_one_without_the_fields() -> None:
    nulls = dict.fromkeys(CrawlEvent.__struct_fields__) | {"url": URL}
    assert encode_crawl_event(decode_crawl_event(json.dumps(nulls).encode())) == encode_crawl_event(CrawlEvent(URL))


def test_json_and_messagepack_decode_to_the_same_event() -> None:
    fields: dict[str, object] = {
        "url": URL,
        "links": [URL + "a", URL + "ü"],
        "fetched_at": NOW_S - 0.5,
        "status": 200,
        "tags": ["news"],
        "crawler": "c1",
        "v": 1,
    }
    event = decoded(json.dumps(fields).encode())
    assert event.outcome is Outcome.READ
    assert event == decoded(msgspec.msgpack.encode(fields))
    assert event == decoded(encode_crawl_event(msgspec.convert(fields, CrawlEvent)))


def test_white_space_before_a_json_object_is_still_json() -> None:
    assert decoded(b' \r\n\t{"url": "http://example.org/"}\n').outcome is Outcome.READ


@pytest.mark.parametrize("size", [1, 20, 70_000])
def test_messagepack_maps_of_every_size_class_are_accepted(size: int) -> None:
    fields = {f"unknown-{i}": i for i in range(size)}
    value = msgspec.msgpack.encode({"url": URL, **fields})
    assert value[0] in (0x82, 0xDE, 0xDF)
    assert decoded(value, partition=TOPIC).outcome is Outcome.READ


def test_unknown_fields_of_a_topic_are_ignored_and_named() -> None:
    """A newer producer's events are no dead letters, and a mistyped field is not lost in silence."""
    for fields in ({"etag": "x", "nested": {"a": [1, 2]}}, {"link": [URL]}, {str(n): n for n in range(9)}):
        for value in (json.dumps({"url": URL, **fields}).encode(), msgspec.msgpack.encode({"url": URL, **fields})):
            event = decoded(value, partition=TOPIC)
            assert (event.outcome, list(event.unknown)) == (Outcome.READ, list(fields)[:3])
    assert not decoded(WHOLE, partition=TOPIC).unknown


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        ("link", "did you mean links?"),
        ("outlinks", "did you mean links?"),
        ("Links", "did you mean links?"),
        ("status_code", "did you mean status?"),
        ("fetchedAt", "did you mean fetched_at?"),
        ("zzz", "there are url, links, fetched_at, status, redirect, excluded, tags, crawler, "),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(field: str, advice: str) -> None:
    for event in (of_json({field: [URL]}), of_msgpack({field: [URL]})):
        assert refusal(event).startswith(f"unknown field '{field}': {advice}")


def test_every_field_of_the_contract_is_known() -> None:
    fields = {"excluded": False, "depth": 3, "meta": {"a": "b"}, "crawler": "c", "tags": [], "v": 1}
    assert of_json(fields).outcome is of_msgpack(fields).outcome is Outcome.READ


def test_the_page_of_a_refused_event_is_known() -> None:
    for fields in ({"links": "no list"}, {"link": []}, {"v": 99}, {"status": None}):
        assert page_of(json.dumps({"url": "HTTP://EXAMPLE.org#a", **fields}).encode()) == URL
    for value in (b"", b"nonsense", b"{}", b'{"url": 7}', b'{"url": "/about"}', b"\xc1", b"[]", b"\x91" * 100_000):
        assert page_of(value) is None


def test_the_url_is_canonical_and_links_are_left_unchanged() -> None:
    event = of_json({"url": "HTTP://EXAMPLE.org:80/a/../#top", "links": ["HTTP://B.example", "nonsense"]})
    assert event.url == URL
    assert event.links == ["HTTP://B.example", "nonsense"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((s, Outcome.READ) for s in (200, 204, 299, 300, 301, 304, 399)),
        *((s, Outcome.GONE) for s in (404, 410)),
        *((s, Outcome.EXCLUDED) for s in (401, 403, 451)),
        *((s, Outcome.FAILED) for s in (0, 100, 199, 400, 408, 429, 500, 503, 999)),
    ],
)
def test_the_status_decides_the_outcome(status: int, outcome: Outcome) -> None:
    assert of_json({"status": status}).outcome is outcome


def test_robots_txt_excludes_whatever_the_status() -> None:
    for status in (0, 200, 301, 404, 500):
        assert of_json({"status": status, "excluded": True}).outcome is Outcome.EXCLUDED


def test_the_only_link_of_a_redirect_is_its_target() -> None:
    assert of_json({"status": 301, "redirect": URL + "new", "links": [URL + "old"]}).links == [URL + "new"]
    assert list(of_json({"status": 301, "links": [URL + "old"]}).links) == []
    assert list(of_json({"status": 301, "redirect": "", "links": [URL + "old"]}).links) == []


@pytest.mark.parametrize(
    ("addresses", "kept"),
    [
        (None, ""),
        ([], ""),
        (["192.0.2.1"], "192.0.2.1"),
        (["2001:DB8:0:0::01", "192.0.2.1"], "2001:db8::1"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        ([f"192.0.2.{n}" for n in range(16)], "192.0.2.0"),
    ],
)
def test_first_address_of_a_host_is_kept_in_its_canonical_form(addresses: list[str] | None, kept: str) -> None:
    for status in (0, 200, 301, 404):
        assert of_json({"addresses": addresses, "status": status}).address == kept
        assert of_msgpack({"addresses": addresses, "status": status}).address == kept


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        (["a.example"], "addresses: 'a.example' is not an IP address: give one like 192.0.2.1 or 2001:db8::1"),
        (["192.0.2.1", "192.0.2.256"], "addresses: '192.0.2.256' is not an IP address"),
        (["010.0.0.1"], "addresses: '010.0.0.1' is not an IP address"),
        (["[2001:db8::1]"], "addresses: '[2001:db8::1]' is not an IP address"),
        (["fe80::1%eth0"], "addresses: 'fe80::1%eth0' is not an IP address"),
        (["192.0.2.1\n"], "addresses: '192.0.2.1\\n' is not an IP address"),
        (["192.0.2.1"] * 17, "17 addresses is over the limit of 16"),
        ("192.0.2.1", "Expected `array | null`, got `str` - at `$.addresses`"),
        ([3221225985], "Expected `str`, got `int` - at `$.addresses[0]`"),
    ],
)
def test_event_with_a_wrong_address_is_refused(addresses: Any, reason: str) -> None:
    assert reason in refusal(of_json({"addresses": addresses}))
    assert reason in refusal(of_msgpack({"addresses": addresses}))


def test_a_redirect_field_means_nothing_without_a_3xx() -> None:
    assert of_json({"status": 200, "redirect": URL + "new", "links": [URL + "old"]}).links == [URL + "old"]


@pytest.mark.parametrize("status", [0, 403, 404, 500])
def test_links_of_a_page_that_was_not_fetched_are_ignored(status: int) -> None:
    assert list(of_json({"status": status, "links": [URL + "a"], "redirect": URL + "b"}).links) == []


@pytest.mark.parametrize(
    ("fetched_at", "at_us"),
    [
        (NOW_S, NOW_US),
        (NOW_S - 0.25, NOW_US - 250_000),
        ("2023-11-14T22:13:20Z", NOW_US),
        ("2023-11-14T22:13:20.000001Z", NOW_US + 1),
        ("2023-11-14T23:13:20+01:00", NOW_US),
        ("2023-11-14t22:13:20z", NOW_US),
        (TIME_MIN_US // MILLION, TIME_MIN_US),
        (NOW_S + 86_400, NOW_US + DAY_US),
    ],
)
def test_a_fetch_time_is_unix_seconds_or_rfc_3339_from_1990_to_a_day_ahead(fetched_at: float | str, at_us: int) -> None:
    assert of_json({"fetched_at": fetched_at}).at_us == at_us
    assert of_msgpack({"fetched_at": fetched_at}).at_us == at_us


def test_a_record_at_the_limits_is_accepted() -> None:
    url = URL + "a" * (2_048 - len(URL))
    links = [f"{URL}{i}" for i in range(10_000)]
    event = of_json({"url": url, "links": links, "tags": ["t"] * TAGS_MAX})
    assert event == CheckedEvent(Outcome.READ, url, links, NOW_US, tags=["t"] * TAGS_MAX, status=0)


def test_seeds_are_canonical_distinct_and_in_order() -> None:
    event = decoded(encode_seeds(["http://B.example", URL + "#a", URL, "http://b.example/#x"]), "seeds")
    assert event == CheckedEvent(Outcome.SEEDS, seeds=("http://b.example/", URL), at_us=NOW_US)


# What is refused, and with which words.


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"{",
        b"not json",
        b'{"url": "http://example.org/"} trailing',
        b'{"url": "http://example.org/"}{"url": "http://example.org/"}',
        b'\xef\xbb\xbf{"url": "http://example.org/"}',  # A byte order mark is no JSON.
        b'{"url": "http://example.org/\xff"}',
        b'{"url": "http://\\ud800.example/"}',
        b'{"url": "http://example.org/\\udc00\\ud800x"}',
        b'{"url": "http://example.org/", "fetched_at": NaN}',
        b'{"url": "http://example.org/", "fetched_at": 1e999}',
        b'{"url": "http://example.org/", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
        b"\x82\xa3url\xb3http://example.org/\xa1x" + b"\x91" * 100_000 + b"\xc0",
        b"\x81\xa3url\xa8http://\xff",
        b"\x81\xa3url\xa8http://a and more",
        b"\xc1",
        b"\x80",
        b"\xde\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa3url\xdb\xff\xff\xff\xffhttp",
        b"\x81\x01\x02",
        b"\x82\xa3url\xb3http://example.org/\x05\x05",
        b"\x82\xa3url\xb3http://example.org/\xc4\x01a\x05",
        b"\x82\xa3url\xb3http://example.org/\xa1x\xc7\x04",
        b"null",
        b"true",
        b'"http://example.org/"',
        b'[{"url": "http://example.org/"}]',
        b"\x91\x81\xa3url\xa8http://a",
        b"9" * 10_000,
        b"{}",
        b'{"links": []}',
    ],
)
def test_a_value_that_does_not_decode_to_an_event_is_a_dead_letter_with_a_reason(value: bytes) -> None:
    reason = refusal(decoded(value))
    assert reason
    reason.encode()


@pytest.mark.parametrize(
    "fields",
    [
        *({"url": bad} for bad in (None, 1, ["http://a/"], {"href": "http://a/"}, True)),
        *({"links": bad} for bad in ("http://a/", {"a": 1}, [1], [None], [["http://a/"]])),
        *({"status": bad} for bad in ("200", 200.5, True, [200])),
        *({"fetched_at": bad} for bad in (True, [1], {"s": 1})),
        *({"redirect": bad} for bad in (1, ["http://a/"], True)),
        *({"excluded": bad} for bad in (0, 1, "true")),
        *({"tags": bad} for bad in ("news", [1])),
        *({"crawler": bad} for bad in (1, ["c"])),
        *({"v": bad} for bad in ("1", 1.5, True)),
    ],
)
def test_a_field_of_the_wrong_type_is_named_in_the_refusal(fields: dict[str, object]) -> None:
    (name,) = fields
    for event in (of_json(fields), of_msgpack(fields)):
        assert f"$.{name}" in refusal(event)


@pytest.mark.parametrize(
    "url",
    [
        *("", "/relative", "page.html", "//example.org/", "javascript:alert(1)", "mailto:a@b.example", "ftp://a/"),
        *("http://", "http://a b/", "http://[::1", LONG_URL),
    ],
)
def test_an_event_of_no_absolute_http_url_or_of_one_over_the_limit_is_refused(url: str) -> None:
    reason = refusal(of_json({"url": url}))
    assert reason.startswith("url ")
    assert len(reason) < 200


def test_a_url_of_100_kb_is_refused_with_the_limit_by_name() -> None:
    assert "100,019 bytes long, over OPIC_MAX_URL_BYTES 2,048" in refusal(of_json({"url": LONG_URL}))


def test_links_over_the_limit_are_counted_and_left_out() -> None:
    links = [f"{URL}{i}" for i in range(10_001)]
    event = of_json({"links": links})
    assert (event.outcome, event.links, event.links_left_out) == (Outcome.READ, links[:10_000], 1)
    event = of_json({"links": links[:10_000]})
    assert (event.links, event.links_left_out) == (links[:10_000], 0)


def test_fragments_duplicates_and_links_of_a_page_to_itself_do_not_count_for_the_limit() -> None:
    """An index page has thousands of them."""
    links = [f"#{i}" for i in range(4_000)] + [f"{URL}#{i}" for i in range(4_000)] + [URL + "a", URL + "a#x"] * 2_000
    event = of_json({"links": [*links, "HTTP://EXAMPLE.org/b"]})
    assert (event.outcome, event.links_left_out) == (Outcome.READ, 0)
    ledger = ledger_after(*links, "HTTP://EXAMPLE.org/b")
    assert list(ledger.pages) == [URL, URL + "a", URL + "b"]
    assert (ledger.books.links, ledger.books.bad_links) == (2, 4_000)


@pytest.mark.slow
def test_only_the_first_entries_of_a_huge_link_list_are_examined() -> None:
    for link in ("", "nonsense", URL + "#a"):
        event = of_msgpack({"links": [link] * (LINKS_SEEN_MAX + 7) + [URL + "b"]})
        assert (event.outcome, event.links_left_out) == (Outcome.READ, 8)
        assert len(event.links) <= LINKS_SEEN_MAX


def test_links_of_a_page_that_was_not_read_are_not_counted_as_left_out() -> None:
    links = [f"{URL}{i}" for i in range(10_001)]
    for status in (301, 404, 500):
        assert of_json({"links": links, "status": status}).links_left_out == 0


def test_limits_are_settings() -> None:
    value = json.dumps({"url": URL + "abc", "links": [URL, URL + "x", URL]}).encode()
    found = decoded(value, limits=EventLimits(links_max=1))
    assert (found.links, found.links_left_out) == ([URL], 1)
    assert "OPIC_MAX_URL_BYTES 20" in refusal(decoded(value, limits=EventLimits(url_bytes_max=20)))


def test_too_many_tags_refuse_the_event() -> None:
    assert "1,001 tags" in refusal(of_json({"tags": ["t"] * 1_001}))


@pytest.mark.parametrize(
    "value", [*BAD_PACKED.values(), *UNENDING_PACKED.values()], ids=[*BAD_PACKED, *UNENDING_PACKED]
)
def test_a_malformed_packed_record_is_a_dead_letter_with_a_short_reason(value: bytes) -> None:
    found = decode_record("log/0", Record(0, NOW_US, value), EventLimits())
    assert found.outcome is Outcome.DEAD
    assert 0 < len(found.reason) < 200


@pytest.mark.parametrize("fetched_at", [math.nan, math.inf, -math.inf, 1e300, -1e300, 0, -1, 5e-324])
def test_an_impossible_time_is_refused(fetched_at: float) -> None:
    assert "between 1990 and a day ahead" in refusal(of_msgpack({"fetched_at": fetched_at}))


@pytest.mark.parametrize(
    "fetched_at",
    [
        "1900-01-01T00:00:00Z",
        "1989-12-31T23:59:59Z",
        "2100-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        (NOW_US + DAY_US) / MILLION + 1,
        TIME_MIN_US / MILLION - 1,
    ],
)
def test_a_time_before_1990_or_more_than_a_day_ahead_of_the_log_is_refused(fetched_at: str | float) -> None:
    assert "between 1990 and a day ahead" in refusal(of_json({"fetched_at": fetched_at}))


@pytest.mark.parametrize(
    "fetched_at",
    ["", "now", "2023-11-14", "1700000000", "2023-02-30T00:00:00Z", "2023-11-14T25:00:00Z", "P1D", "\ud800"],
)
def test_a_time_that_is_not_rfc_3339_is_refused(fetched_at: str) -> None:
    assert refusal(of_json({"fetched_at": fetched_at}))


@pytest.mark.parametrize(
    ("fetched_at", "unix_seconds"),
    [("2016-12-31T23:59:60Z", 0.0), ("2016-12-31t15:59:60.25-08:00", 0.25), ("2017-01-01T00:00:00Z", 0.0)],
)
def test_a_leap_second_is_the_second_after_it(fetched_at: str, unix_seconds: float) -> None:
    """RFC 3339, section 5.8, has the second of these; Unix time has no leap seconds."""
    assert time_us(fetched_at, NOW_US) == (1_483_228_800 + unix_seconds) * MILLION


@pytest.mark.parametrize("fetched_at", ["2016-12-31T23:59:61Z", "2016-12-31T23:60:60Z", "2016-12-31T23:59:60+00:60"])
def test_other_seconds_beyond_a_minute_are_refused(fetched_at: str) -> None:
    assert "not an RFC 3339 time" in refusal(of_json({"fetched_at": fetched_at}))


def test_a_time_without_a_zone_is_refused_with_a_remedy() -> None:
    assert "end it with Z or +hh:mm" in refusal(of_json({"fetched_at": "2023-11-14T22:13:20"}))


@pytest.mark.parametrize("v", [0, 2, -1, 10**18])
def test_an_unknown_schema_version_is_refused_and_the_known_one_named(v: int) -> None:
    assert "this service takes v=1" in refusal(of_json({"v": v}))


@pytest.mark.parametrize("status", [-1, 1_000, 10**18])
def test_an_impossible_status_is_refused(status: int) -> None:
    assert "is no HTTP status" in refusal(of_json({"status": status}))


@pytest.mark.parametrize("name", ["v", "status", "fetched_at", "url", "crawler", "redirect"])
def test_a_reason_stays_short_however_long_the_field(name: str) -> None:
    """It becomes a header of the dead letter."""
    digits = b"1" * 4_000  # More than Python prints of an integer: it could not even say which.
    value = b'{"url":"http://example.org/","' + name.encode() + b'":' + digits + b"}"
    assert len(refusal(decoded(value))) < 300


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x91",
        b"\x91\x01",
        b"\x81\xa1a\xa1b",
        b"\x91" * 100_000,
        b"\x91\xa1\xff",
        b'["http://example.org/"]',
        encode_seeds(["http://example.org/", "/relative"]),
        encode_seeds(["javascript:alert(1)"]),
        encode_seeds([LONG_URL]),
    ],
)
def test_a_seeds_record_with_a_bad_seed_is_one_dead_letter(value: bytes) -> None:
    refusal(decoded(value, "seeds")).encode()


# Whatever the bytes.

WHOLE = encode_crawl_event(CrawlEvent(URL, [URL + "a", "x"], NOW_S, 301, URL + "b", False, ["t"], "c", 1))
WHOLE_JSON = json.dumps(msgspec.to_builtins(msgspec.msgpack.decode(WHOLE))).encode()


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_truncated_messagepack_event_is_a_dead_letter_wherever_it_ends(length: int) -> None:
    assert refusal(decoded(WHOLE[:length]))


@pytest.mark.parametrize("whole", [WHOLE, WHOLE_JSON, encode_seeds([URL, URL + "a"])], ids=["msgpack", "json", "seeds"])
@pytest.mark.parametrize("kind", ["event", "seeds"])
def test_one_wrong_byte_never_raises(whole: bytes, kind: str) -> None:
    for place in range(len(whole)):
        for byte in (0x00, 0x7F, 0x80, 0x9F, 0xC0, 0xC1, 0xC7, 0xD9, 0xDD, 0xFF):
            decoded(whole[:place] + bytes([byte]) + whole[place + 1 :], kind).reason.encode()


STARTS = st.sampled_from(
    [b"", b"{", b'{"url":', b'{"url":"http://a/","links":', b"\x81\xa3url", b"\x8f", b"\xdf", b"\x91"]
)


@given(start=STARTS, rest=st.binary(max_size=200), kind=st.sampled_from(["event", "seeds"]))
def test_arbitrary_bytes_never_raise(start: bytes, rest: bytes, kind: str) -> None:
    event = decoded(start + rest, kind)
    assert event.outcome is not Outcome.DEAD or event.reason


WILD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from([URL, "2023-11-14T22:13:20Z", 200, 1]),
        st.binary(max_size=9),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=8,
)
FIELDS = st.sampled_from(["url", "links", "fetched_at", "status", "redirect", "excluded", "tags", "crawler", "v", "?"])


@given(fields=st.dictionaries(FIELDS, WILD, max_size=6))
def test_arbitrary_fields_never_raise_and_an_accepted_event_is_within_every_limit(fields: dict[str, object]) -> None:
    event = of_msgpack(fields)
    if event.outcome is Outcome.DEAD:
        event.reason.encode()
        return
    assert TIME_MIN_US <= event.at_us <= NOW_US + DAY_US
    assert event.url.startswith(("http://", "https://"))
    assert all(isinstance(link, str) for link in event.links)


# What is dropped from a good event, and counted.


def ledger_after(*links: str) -> Ledger:
    ledger = Ledger()
    ledger.apply("p", [Record(0, NOW_US, encode_crawl_event(CrawlEvent(URL, list(links))))])
    return ledger


def test_duplicate_links_count_once_in_any_spelling() -> None:
    ledger = ledger_after("http://b.example", "HTTP://B.EXAMPLE:80/", "http://b.example/#a", "http://b.example/x/..")
    assert list(ledger.pages) == [URL, "http://b.example/"]
    assert (ledger.books.links, ledger.books.bad_links) == (1, 0)


def test_links_of_a_page_to_itself_are_dropped() -> None:
    ledger = ledger_after(URL, URL + "#top", "http://EXAMPLE.org")
    assert list(ledger.pages) == [URL]
    assert (ledger.books.links, ledger.books.bad_links) == (0, 0)


@pytest.mark.parametrize(
    "link", ["", "/a", "a.html", "#top", "javascript:x", "mailto:a@b.example", "http://", LONG_URL]
)
def test_a_bad_link_is_dropped_and_counted_and_the_event_is_accepted(link: str) -> None:
    ledger = ledger_after(link, URL + "good")
    assert list(ledger.pages) == [URL, URL + "good"]
    assert (ledger.books.reads, ledger.books.links, ledger.books.bad_links) == (1, 1, 1)


def test_a_repeated_bad_link_is_counted_each_time() -> None:
    assert ledger_after("nonsense", "nonsense").books.bad_links == 2


def test_a_bad_redirect_is_a_bad_link_of_a_page_without_links() -> None:
    ledger = Ledger()
    value = encode_crawl_event(CrawlEvent(URL, status=301, redirect="javascript:x"))
    ledger.apply("p", [Record(0, NOW_US, value)])
    assert (ledger.books.reads, ledger.books.links, ledger.books.bad_links) == (1, 0, 1)


RULES = EventLimits(normalization=Normalization.of("www,https,index,unreserved"))


@pytest.mark.parametrize(
    ("url", "redirect", "outcome", "name"),
    [
        ("http://www.a.example/", "https://www.a.example/", Outcome.ALIAS, "https://www.a.example/"),
        ("https://a.example/", "https://www.a.example/", Outcome.ALIAS, "https://www.a.example/"),
        ("https://www.a.example/", "https://a.example/#top", Outcome.ALIAS, ""),
        (
            "https://a.example/",
            "HTTPS://u:p@a.example:443/%69ndex.html",
            Outcome.READ,
            "",
        ),  # Another user, another page.
        ("https://a.example/%e2", "https://a.example/%E2", Outcome.ALIAS, ""),
        ("https://a.example/", "https://a.example/index.html", Outcome.ALIAS, "https://a.example/index.html"),
        # To itself, and to other pages.
        ("https://a.example/", "HTTPS://A.example:443/#top", Outcome.READ, ""),
        ("https://www.a.example/", "https://www.a.example/", Outcome.READ, "https://www.a.example/"),
        ("https://www.a.example/", "https://a.example/b", Outcome.READ, "https://www.a.example/"),
        ("https://www.a.example/", "nonsense", Outcome.READ, "https://www.a.example/"),
        ("https://www.a.example/", None, Outcome.READ, "https://www.a.example/"),
    ],
)
def test_redirect_to_another_name_of_the_page_is_no_read(
    url: str, redirect: str | None, outcome: Outcome, name: str
) -> None:
    value = encode_crawl_event(CrawlEvent(url, links=["http://b.example/"], status=301, redirect=redirect))
    found = decoded(value, limits=RULES)
    assert (found.outcome, found.name) == (outcome, name)
    assert list(found.links) == ([redirect] if outcome is Outcome.READ and redirect else [])
    assert (found.failures > 0) == (outcome is Outcome.ALIAS)
    assert not found.failed
    plain = decoded(value)
    assert (plain.outcome, plain.name, plain.url) == (Outcome.READ, None, url)


def test_name_of_a_page_is_that_of_its_last_answer_but_never_too_long() -> None:
    for status, name in ((200, "https://www.a.example/"), (404, None), (500, None), (403, None)):
        value = encode_crawl_event(CrawlEvent("https://www.a.example/", status=status, redirect="https://a.example/"))
        assert decoded(value, limits=RULES).name == name
    long = f"https://www.a.example/{'a' * (RULES.url_bytes_max - 20)}"
    assert decoded(encode_crawl_event(CrawlEvent(long)), limits=RULES).name == ""


def test_alias_takes_no_links_and_counts_as_a_failure_in_a_row() -> None:
    ledger = Ledger(CrawlRules(normalize="www"))
    events = [
        CrawlEvent("http://www.a.example/", links=["http://b.example/"], meta={"k": "v"}),
        CrawlEvent("http://a.example/", status=301, redirect="http://www.a.example/", fetched_at=NOW_S + 1),
    ]
    ledger.apply("p", [Record(at, NOW_US + at, encode_crawl_event(event)) for at, event in enumerate(events)])
    page = ledger.pages["http://a.example/"]
    assert (page.reads, page.failures, page.name, page.digest != 0) == (1, 1, "http://www.a.example/", True)
    assert (ledger.books.reads, ledger.books.failures, ledger.books.links) == (1, 1, 1)
    again = encode_crawl_event(CrawlEvent("http://a.example/"))
    ledger.apply("p", [Record(2, NOW_US + 2, again)])
    assert (page.reads, page.failures, page.name) == (2, 0, "")


def test_a_dead_letter_is_counted_and_processing_goes_on() -> None:
    ledger = Ledger()
    ledger.apply("p", [Record(0, NOW_US, b"nonsense"), Record(1, NOW_US, encode_crawl_event(CrawlEvent(URL)))])
    assert (ledger.books.dead_letters, ledger.books.reads) == (1, 1)
    assert ledger.next_offset("p") == 2


def test_only_our_own_partitions_may_set_payments() -> None:
    """Whoever may write to the topic may name any kind in a header."""
    for kind, value in (("transfer", Transfer(grant=7).pack()), ("grant", b"7")):
        assert decode_record("crawl.events/0", Record(0, NOW_US, value, kind), EventLimits()).outcome is Outcome.DEAD
        assert decode_record(GRANTS, Record(0, NOW_US, value, kind), EventLimits()).outcome.value == kind
