"""Any record of a topic is decoded or becomes a dead letter with a reason; the client warns of slow checksums."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors as broken

from opic.errors import KafkaThrottled, KafkaUnavailable
from opic.ingest.kafka.connection import kafka_errors, record_of, slow_checksums
from opic.ingest.kafka.record_batches import Damaged
from opic.ingest.throttle import Throttle
from opic.model.event_checks import decode_record
from opic.model.events import TIME_MAX_US, TIME_MIN_US, CrawlEvent, EventLimits, Outcome, encode_crawl_event
from opic.model.ledger import Ledger

NOW_MS = 1_790_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
GOOD = encode_crawl_event(CrawlEvent("http://a.example/", ["http://b.example/"]))
KEY = b"k" * 16

WITHOUT_THE_PACKAGE = """
import sys
sys.modules["crc32c"] = None  # Its import fails, as where it is not installed.
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
from opic.ingest.kafka import KafkaCluster
from opic.settings import Settings
for _ in range(2):
    KafkaCluster(Settings(kafka_bootstrap="127.0.0.1:1"))
"""


def message(
    value: bytes | None = GOOD, *headers: tuple[str, bytes | None], at_ms: int = NOW_MS, offset: int = 0
) -> Any:
    return SimpleNamespace(offset=offset, timestamp=at_ms, value=value, headers=list(headers))


def reason(given: Any) -> str:
    """Why a message is a dead letter; "" if it is none."""
    event = decode_record("t/0", record_of(given), EventLimits())
    return event.reason if event.outcome is Outcome.DEAD else ""


@pytest.mark.parametrize(
    "at_ms", [-(2**63), -1, 0, 1_790_000_000, TIME_MAX_US // 1000 + 1, 1_790_000_000_000_000, 2**63 - 1]
)
def test_record_with_an_impossible_time_is_a_dead_letter_with_the_reason(at_ms: int) -> None:
    """No time stamp at all, seconds or microseconds in the place of milliseconds, and the ends of what Kafka keeps."""
    assert f"the record's time, {at_ms} ms, is not between 1990 and 2100" in reason(message(at_ms=at_ms))
    assert record_of(message(at_ms=at_ms)).time_us == 0


@pytest.mark.parametrize("at_ms", [TIME_MIN_US // 1000, NOW_MS, TIME_MAX_US // 1000])
def test_record_with_a_possible_time_is_accepted(at_ms: int) -> None:
    assert reason(message(at_ms=at_ms)) == ""
    assert record_of(message(at_ms=at_ms)).time_us == at_ms * 1000


def test_dead_letter_of_a_bad_time_leaves_windows_as_they_were() -> None:
    """The series, which windows in days and rounds rest on, has no entry of it; the next record has its own time."""
    plain, other = Ledger(), Ledger()
    for ledger, times in ((plain, [NOW_MS] * 3), (other, [NOW_MS, 2**63 - 1, NOW_MS])):
        ledger.apply("t/0", [record_of(message(at_ms=at, offset=i)) for i, at in enumerate(times)])
    assert (plain.books.dead_letters, other.books.dead_letters) == (0, 1)
    assert other.books.time_us == plain.books.time_us
    assert {entry.time_us for entry in other.series} == {NOW_MS * 1000}


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([("opic-kind", None)], "not ''"),
        ([("opic-kind", b"\xff\xfe")], "a record is of kind"),
        ([("opic-kind", b"x" * 100_000)], "a record is of kind"),
        ([("opic-key", None), ("opic-index", None)], ""),
        ([("opic-key", KEY)], "opic-key and opic-index"),
        ([("opic-key", KEY[1:]), ("opic-index", b"0")], "opic-key and opic-index"),
        ([("opic-key", KEY), ("opic-index", b"4294967296")], "opic-key and opic-index"),
        ([("opic-key", KEY), ("opic-index", b"9" * 5_000)], "opic-key and opic-index"),
        ([("opic-key", KEY), ("opic-index", b"-1")], "opic-key and opic-index"),
        ([("opic-key", KEY), ("opic-index", b"4294967295")], ""),
        ([("other", None), ("opic-kind", b"event")], ""),
    ],
)  # fmt: skip
def test_invalid_headers_are_named_in_the_reason(headers: list[tuple[str, bytes | None]], said: str) -> None:
    found = reason(message(GOOD, *headers))
    assert said in found
    assert bool(said) == bool(found)
    assert len(found) < 1_000


def test_record_without_a_value_is_a_dead_letter() -> None:
    assert "not a decodable event" in reason(message(None))


@given(
    value=st.one_of(st.none(), st.just(GOOD), st.binary(max_size=40)),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["opic-kind", "opic-key", "opic-index", "other"]),
            st.one_of(
                st.none(), st.binary(max_size=20), st.sampled_from([KEY, b"1", b"seeds", b"classes", b"classify"])
            ),
        ),
        max_size=4,
    ),
    at_ms=st.one_of(INT64, st.integers(NOW_MS, NOW_MS + 1_000)),
)
def test_no_record_raises_anything(value: bytes | None, headers: list[tuple[str, bytes | None]], at_ms: int) -> None:
    record = record_of(message(value, *headers, at_ms=at_ms))
    ledger = Ledger()
    ledger.apply("t/0", [record, record_of(message(offset=1))])
    assert ledger.next_offset("t/0") == 2
    assert ledger.audit().conserved
    for entry in ledger.series:
        assert all(-(1 << 63) <= number < 1 << 63 for number in entry)
        assert 0 <= entry.time_us <= TIME_MAX_US


@pytest.mark.parametrize(
    ("error", "what_to_do"),
    [
        (broken.UnsupportedCodecError("t/3 at offset 7: no such codec"), "unreadable records: .*t/3 at offset 7"),
        (Damaged("t/3 at offset 7: bad header"), "t/3 at offset 7: bad header.*let a replica that is whole take over"),
    ],
)
def test_unreadable_records_are_waited_for_with_a_remedy_in_the_message(error: Exception, what_to_do: str) -> None:
    with pytest.raises(KafkaUnavailable, match=what_to_do), kafka_errors("k", Throttle()):
        raise error


def test_checksums_are_fast_with_the_package_that_the_extra_brings() -> None:
    assert slow_checksums() is None


def test_missing_package_for_checksums_is_reported_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("WARNING the package crc32c is missing") == 1


@pytest.mark.parametrize("error", [broken.KafkaTimeoutError("in vain"), OSError("closed")])
def test_silence_under_a_quota_is_told_as_that(error: Exception) -> None:
    throttle = Throttle()
    with pytest.raises(KafkaUnavailable, match="does not answer"), kafka_errors("k", throttle):
        raise error
    throttle.hold(40.5)
    throttle.hold(10)
    with pytest.raises(KafkaThrottled, match=r"by a quota for another 41 s") as told, kafka_errors("k", throttle):
        raise error
    assert told.value.retry_seconds == 41
    assert throttle.total == pytest.approx(40.5, abs=0.1)


def test_quota_of_changes_to_topics_is_told_as_that() -> None:
    with pytest.raises(KafkaThrottled), kafka_errors("k", Throttle()):
        raise broken.ThrottlingQuotaExceededError
