"""Dates of records."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

# WARC 1.1 has dates from a year to a nanosecond; ARC has digits alone. Parts that a date lacks are at their beginning.
DATE: Final = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?)?)?\s*(Z|[+-]\d\d:?\d\d)?",
    re.IGNORECASE,
)
DIGITS: Final = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)?(\d\d)?(\d\d)?(\d*)()")
LEAP_SECOND: Final = 60


def unix_seconds(date: str) -> float | None:
    """Return a date as Unix seconds, in UTC unless it says otherwise; None if it is no date.

    A leap second is the first one of the next minute, as in Unix time.

    >>> unix_seconds("2024"), unix_seconds("20240518020122"), unix_seconds("2016-12-31T23:59:60.5Z")
    (1704067200.0, 1715997682.0, 1483228800.5)
    """
    match = DATE.fullmatch(date.strip()) or DIGITS.fullmatch(date.strip())
    if match is None:
        return None
    *parts, fraction, zone = match.groups()
    least = (0, 1, 1, 0, 0, 0)
    year, month, day, hour, minute, second = (int(part or low) for part, low in zip(parts, least, strict=True))
    try:
        moment = datetime(year, month, day, hour, minute, min(second, LEAP_SECOND - 1), tzinfo=_zone(zone))
        seconds = moment.timestamp() + (second == LEAP_SECOND)
    except (ValueError, OverflowError):
        return None
    return seconds + float(f"0.{fraction or 0}") if second <= LEAP_SECOND else None


def _zone(name: str | None) -> timezone:
    if not name or name in "Zz":
        return UTC
    sign = -1 if name[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(name[1:3]), minutes=int(name[-2:])))
