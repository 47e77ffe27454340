"""Spider trap detection: keeps a site that generates endless pages from absorbing a crawl, without operator rules.

It uses two criteria:

- The *shape* of a URL reveals endless variants of the same pages: very long URLs, deep paths, repeated path segments
  (/a/b/a/b/a/b), many parameters, endless calendars. Pages with such URLs are not offered.
- The *size* of a site limits its part of the suggestions. A large host gets at most a given share of the last WINDOW
  suggestions: the rule of Bar-Yossef, Kanungo, Krauthgamer, "Approximating the influence of web pages by focused
  sampling" (2005), section 4.3, whose walk keeps "the hosts of the last L pages" and leaves a host that exceeds L/2,
  with L = 100. A site that was read more often than the links from other sites paid for gets a smaller share. Like that
  walk, which stays if it knows no other host, a crawler still gets pages of these sites if there are no others.

Page counts alone prove nothing: every page is granted cash when it becomes known, so each page of a site that makes up
pages has as much importance as any other. What a site can't make up is its in-flow, the cash that it receives from
other registered domains.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, Final

import numpy as np

from opic.errors import BadInput, instead_of
from opic.urls.canonical import shown
from opic.urls.url_batch import UrlBatch

WINDOW: Final = 100  # Number of suggestions remembered, the paper's L.
PAGES_A_GRANT: Final = 100  # Number of reads that a site earns by receiving one grant's worth of cash from other sites.
TEMPLATES_MAX: Final = (
    100_000  # Maximum number of calendars counted, about 10 MB; those with the fewest dates go first.
)
NUMBER_MAX: Final = 1_000_000_000
SHORT: Final = "http://a/"  # Free by its shape.
# Dates as written in URLs: 2031-07, 2031/7/1, 1-7-2031, year=2031, date=20310701. Eight digits alone are usually the
# number of a page. No part can match more than a few characters, so a search takes linear time.
_date = re.compile(
    r"(?<![0-9A-Z%])(?:"
    r"(?P<a>1[0-9]{3}|2[01][0-9]{2})(?P<s>[-/])(?:1[0-2]|0?[1-9])(?:(?P=s)(?:3[01]|[12][0-9]|0?[1-9]))?"
    r"|(?:3[01]|[12][0-9]|0?[1-9])(?P<t>[-/])(?:3[01]|[12][0-9]|0?[1-9])(?P=t)(?P<b>1[0-9]{3}|2[01][0-9]{2})"
    r"|(?<=[?&;])(?:year|yr|y)=(?P<c>1[0-9]{3}|2[01][0-9]{2})"
    r"|(?<=[?&;])(?:date|day|dt|d|from|to|start|end)=(?P<d>1[0-9]{3}|2[01][0-9]{2})"
    r"(?:1[0-2]|0[1-9])(?:3[01]|[12][0-9]|0[1-9])"
    r")(?![0-9A-Z])",
    re.IGNORECASE,
)
_has_year = re.compile("(?<![0-9])[12][0-9]{3}").search  # Most URLs have none.
_ends_path = re.compile(r"/?(?:(?:index|default)?\.[a-z0-9]{1,5})?(?:\?|$)", re.IGNORECASE).match
_part_of_date = re.compile(r"(?<=[?&;])(month|mon|m|day|d|week|w|year|yr|y)=[0-9]{1,4}(?![0-9])", re.IGNORECASE)


class Verdict(IntEnum):
    """The verdict on a page, stored in one byte. Pages with DENIED or a later verdict are not offered."""

    FREE = 0
    ALLOWED = 1  # Allowed by a rule, whatever its shape.
    DENIED = 2
    LONG = 3
    DEEP = 4
    ROUND = 5
    PARAMETERS = 6
    FAR_DATE = 7
    CALENDAR = 8
    OUTSIDE = 9  # Of the crawl's scope, whatever rules and shape say.


@dataclass(frozen=True, slots=True)
class Traps:
    """Thresholds of trap detection. 0 disables a threshold; `on=False` disables all."""

    on: bool = True
    url_bytes: int = 1_024  # Hold back longer URLs,
    segments: int = 20  # URLs with more path segments,
    repeats: int = 4  # URLs in which a sequence of segments repeats this many times,
    parameters: int = 20  # URLs with more query parameters,
    years_ahead: int = 2  # and URLs with dates after the end of the year that is this many years ahead.
    dates: int = 1_000  # Of the pages whose URLs differ only in a date, hold back all after the first this many.
    host_pages: int = 1_000  # A host with more known pages is large.
    host_share: float = 0.5  # Maximum share of a large host in the last WINDOW suggestions.
    site_reads: int = 10_000  # A site is outgrown after more reads than this, and than links from other sites paid for.
    site_share: float = 0.1  # Maximum share of an outgrown site in the last WINDOW suggestions.

    def shown(self) -> dict[str, Any]:
        """Return the thresholds in the form accepted by `check_traps`."""
        return asdict(self)

    def effect(self, verdict: Verdict) -> str:
        """Return the reason for holding back a page with this verdict."""
        return {
            Verdict.LONG: f"the URL is over {self.url_bytes:,} bytes long",
            Verdict.DEEP: f"the path has over {self.segments:,} segments",
            Verdict.ROUND: f"the same segments of the path follow each other {self.repeats} times or more",
            Verdict.PARAMETERS: f"the query has over {self.parameters:,} parameters",
            Verdict.FAR_DATE: f"its date is more than {self.years_ahead} years ahead",
            Verdict.CALENDAR: f"{self.dates:,} pages that differ from it only in a date were known before",
        }[verdict]


def check_traps(given: object) -> Traps:
    """Check thresholds decoded from JSON; missing ones have their defaults.

    Raises:
        BadInput: a threshold is invalid; the message has its name, the value and the limit.

    >>> check_traps({"segments": 12}).segments
    12
    """
    if not isinstance(given, Mapping):
        raise BadInput("traps: an object with thresholds is wanted")
    known = {threshold.name: threshold.default for threshold in fields(Traps)}
    if unknown := [str(key) for key in given if key not in known]:
        raise BadInput(f"traps has no {shown(unknown[0])}: {instead_of(unknown[0], known)}")
    for name, value in given.items():
        least: object = known[name]
        if isinstance(least, bool):
            if not isinstance(value, bool):
                raise BadInput(f"traps: {name} {shown(str(value))} is neither true nor false")
        elif isinstance(least, int):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
                raise BadInput(f"traps: {name} {shown(str(value))} is no whole number from 0 (off) to {NUMBER_MAX:,}")
            if name == "repeats" and value == 1:
                raise BadInput("traps: repeats 1 would hold back every page: 2 is the least, 0 is off")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 1 / WINDOW <= value <= 1:
            # A smaller share would allow none of WINDOW suggestions.
            raise BadInput(f"traps: {name} {shown(str(value))} is no share from {1 / WINDOW} to 1 (off)")
    return Traps(**given)


class Shapes:
    """Judges URLs by their shape, each once, in the order in which they became known."""

    def __init__(self, traps: Traps, year: int) -> None:
        """Judge by the given thresholds; `year` is the current year."""
        self.traps = traps
        self._year_max = year + traps.years_ahead if traps.years_ahead else 9_999
        # A path with fewer segments is neither deep nor repeats any. Two more slashes come before the host.
        self._slashes_plain = 2 + min(traps.segments or NUMBER_MAX, traps.repeats - 1 if traps.repeats else NUMBER_MAX)
        self._dates: dict[int, int] = {}  # Number of dates seen, by the hash of a URL without its dates.

    def judge(self, url: str, *, count: bool = True) -> Verdict:
        """Return the verdict on a canonical URL. Takes about a microsecond.

        Args:
            url: a canonical URL.
            count: whether to count its dates; True when the page is judged for the first time.
        """
        traps = self.traps
        if traps.url_bytes and len(url) > traps.url_bytes:
            return Verdict.LONG
        # Most URLs are shallow and have no query; avoid slicing them.
        query = url.find("?", 8)
        if url.count("/") > self._slashes_plain:
            path = url[url.index("/", 8) + 1 : query if query >= 0 else None]
            depth = path.count("/") + (not path.endswith("/"))
            if traps.segments and depth > traps.segments:
                return Verdict.DEEP
            if traps.repeats and depth >= traps.repeats and goes_round(path.split("/"), traps.repeats):
                return Verdict.ROUND
        if traps.parameters and query >= 0 and url.count("&", query) >= traps.parameters:
            return Verdict.PARAMETERS
        if (traps.years_ahead or traps.dates) and _has_year(url, 8):
            return self._judge_dates(url, query, count=count)
        return Verdict.FREE

    def judge_all(self, urls: Sequence[str]) -> bytearray:
        """Return the verdict on each URL. Faster than `judge`, because most URLs are excluded by numpy."""
        traps, verdicts = self.traps, bytearray(len(urls))
        if traps.url_bytes:  # They need no further look, which would cost by their length.
            long = [index for index, url in enumerate(urls) if len(url) > traps.url_bytes]
            if long:
                urls = list(urls)
                for index in long:
                    verdicts[index], urls[index] = Verdict.LONG, SHORT
        texts = UrlBatch(urls)
        suspects = texts.slashes() > self._slashes_plain
        if traps.parameters:
            suspects |= texts.ampersands() >= traps.parameters
        if traps.years_ahead or traps.dates:
            suspects |= texts.may_be_dated()
        for index in np.flatnonzero(suspects).tolist():
            verdicts[index] = self.judge(urls[index])
        return verdicts

    def _judge_dates(self, url: str, query: int, *, count: bool) -> Verdict:
        matches = list(_date.finditer(url, url.index("/", 8)))
        if not matches:
            return Verdict.FREE
        # A page about a period has two dates; one date within the limit is enough.
        if min(int(next(filter(None, match.group("a", "b", "c", "d")))) for match in matches) > self._year_max:
            return Verdict.FAR_DATE
        last = matches[-1]
        if self.traps.dates and (0 <= query < last.start() or _ends_path(url, last.end())):
            template = hash(_part_of_date.sub(r"\1=", _date.sub("", url)))
            dates = self._dates.get(template, 0) + 1
            if count:
                self._dates[template] = dates
                if len(self._dates) > TEMPLATES_MAX:
                    self._forget()
            if dates > self.traps.dates:
                return Verdict.CALENDAR
        return Verdict.FREE

    def _forget(self) -> None:
        least = 1
        while len(self._dates) > TEMPLATES_MAX // 2:
            self._dates = {template: count for template, count in self._dates.items() if count > least}
            least *= 2


def goes_round(segments: Sequence[str], times: int) -> bool:
    """Return whether a sequence of segments repeats `times` times in a row. Takes at most quadratic time.

    >>> goes_round(["a", "b", "a", "b", "a", "b"], 3), goes_round(["a", "b", "a", "c", "a", "b"], 3)
    (True, False)
    """
    segments = [segment for segment in segments if segment]  # Honest sites have consecutive slashes, too.
    if len(set(segments)) > len(segments) - times + 1:  # With a repetition, fewer segments would be distinct.
        return False
    for period in range(1, len(segments) // times + 1):
        same = 0
        for index in range(period, len(segments)):
            same = same + 1 if segments[index] == segments[index - period] else 0
            if same == period * (times - 1):
                return True
    return False


def outgrown(reads: int, reads_of_others: int, inflow: float, grant: float, traps: Traps) -> bool:
    """Return whether a site was read more often than the links from other sites paid for.

    A site may be read `site_reads` times, plus PAGES_A_GRANT times for each grant's worth of cash that it received from
    other registered domains. No site is outgrown before other sites were read as often, because until then they could
    not pay; in a crawl of a single site, this is never the case.

    Args:
        reads: number of pages of the site that were read.
        reads_of_others: number of pages of all other sites that were read.
        inflow: grains that the site received from other sites.
        grant: grains that a page is granted in a round.
        traps: thresholds.

    >>> outgrown(10_200, 50_000, 1, 1.0, Traps()), outgrown(10_200, 50_000, 3, 1.0, Traps())
    (True, False)
    """
    free = traps.site_reads
    return 0 < free <= reads_of_others and reads > free + PAGES_A_GRANT * inflow / grant
