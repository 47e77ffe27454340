"""Log lines: their times, and what a logger writes to."""

import logging
import os
import time
from collections.abc import Iterator

import pytest

from opic.logs import TEXT, TextLines


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/St_Johns"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_the_time_of_a_line_has_its_offset_from_utc(zone: str) -> None:
    record = logging.LogRecord("opic", logging.INFO, "", 0, "one", (), None)
    record.created = 1_790_000_000.25
    shown = {
        "UTC": "2026-09-21 14:13:20.250+00:00",
        "Asia/Kolkata": "2026-09-21 19:43:20.250+05:30",
        "America/St_Johns": "2026-09-21 11:43:20.250-02:30",
    }
    assert TextLines(TEXT).format(record) == f"{shown[zone]} INFO opic: one"
