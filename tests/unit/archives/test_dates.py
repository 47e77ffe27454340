"""Dates of records, of every precision that WARC and ARC have."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.archives.dates import unix_seconds


@pytest.mark.parametrize(
    ("date", "iso"),
    [
        ("2024", "2024-01-01T00:00:00"),
        ("2024-05", "2024-05-01T00:00:00"),
        ("2024-05-18", "2024-05-18T00:00:00"),
        ("2024-05-18T02:01Z", "2024-05-18T02:01:00"),
        ("2024-05-18T02:01:22Z", "2024-05-18T02:01:22"),
        ("2024-05-18t02:01:22z", "2024-05-18T02:01:22"),
        (" 2024-05-18T02:01:22 ", "2024-05-18T02:01:22"),
        ("2024-05-18T02:01:22.5Z", "2024-05-18T02:01:22.5"),
        ("2024-05-18T02:01:22.123456789Z", "2024-05-18T02:01:22.123457"),
        ("2024-05-18T02:01:22+02:00", "2024-05-18T00:01:22"),
        ("2024-05-18T02:01:22-0230", "2024-05-18T04:31:22"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00"),
        ("2016-12-31T23:59:60.5Z", "2017-01-01T00:00:00.5"),
        ("20240518020122", "2024-05-18T02:01:22"),
        ("20240518020122123", "2024-05-18T02:01:22.123"),
        ("202405180201", "2024-05-18T02:01:00"),
        ("20240518", "2024-05-18T00:00:00"),
        ("20161231235960", "2017-01-01T00:00:00"),
    ],
)
def test_date_of_any_precision_is_a_time(date: str, iso: str) -> None:
    assert unix_seconds(date) == pytest.approx(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp(), abs=1e-6)


@pytest.mark.parametrize(
    "date",
    [
        "",
        "x",
        "24",
        "2024-5-18",
        "2024-13",
        "2024-02-30",
        "2024-05-18T25:00Z",
        "2024-05-18T02:60Z",
        "2024-05-18T02:01:61Z",
        "2024-00",
        "20241318",
        "2024-05-18T02:01:22+99:99",
        "0000",
        "Sat, 18 May 2024 02:01:22 GMT",
        "2024-05-18T02:01:22.Z",
    ],
)
def test_what_is_no_date_is_none(date: str) -> None:
    assert unix_seconds(date) is None


@given(st.datetimes(datetime(1990, 1, 1), datetime(2099, 1, 1)))  # noqa: DTZ001
def test_dates_that_python_writes_are_read(moment: datetime) -> None:
    seconds = moment.replace(tzinfo=UTC).timestamp()
    assert unix_seconds(moment.isoformat() + "Z") == pytest.approx(seconds, abs=1e-6)
    assert unix_seconds(moment.strftime("%Y%m%d%H%M%S")) == pytest.approx(seconds // 1, abs=1e-6)


@given(st.text())
def test_no_text_raises(text: str) -> None:
    unix_seconds(text)
