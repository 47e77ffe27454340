"""When a crawler may ask each host again: after the host's delay, and after the time that Retry-After asks for."""

import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from opic.messages.frontier import Politeness

AROUND: Final = "".join(map(chr, range(33)))  # What the URL standard takes off both ends; urlsplit does not.
REST_STATUSES: Final = (429, 503)  # With Retry-After they speak for the whole host, not for a page.
RETRY_AFTER_SECONDS_MAX: Final = 86_400.0  # A site that asks for more is asked again after a day.
RESTING_MAX: Final = 1_000  # Hosts that a call for pages passes over; those that rest longest count.
HOSTS_MAX: Final = 10_000  # Hosts remembered before those are dropped that may be asked by now.


def retry_after_seconds(header: str | None) -> float | None:
    """Parse a Retry-After header: a number of seconds, or a date in one of HTTP's three formats (RFC 9110, 10.2.3).

    Returns:
        The seconds from now, from 0 to RETRY_AFTER_SECONDS_MAX; None if the header is absent or invalid.

    >>> retry_after_seconds("120"), retry_after_seconds("Sun Nov  6 08:49:37 1994"), retry_after_seconds("soon")
    (120.0, 0.0, None)
    """
    text = (header or "").strip()
    if text.isascii() and text.isdecimal():
        seconds = float(text)
    else:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        # The format of asctime names no zone: dates of HTTP are in UTC.
        seconds = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() - time.time()
    return min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX)


class HostPace:
    """When each host may be asked again; by host as in canonical URLs, on the monotonic clock.

    A host rests after an answer of REST_STATUSES with Retry-After. `next` of a client passes resting hosts over. A
    crawler that sends requests which the service did not hand out notes its starts here, so that delays hold for them.
    """

    def __init__(self) -> None:
        self._delay, self._delays = 0.0, dict[str, float]()  # Default, and of hosts with one of their own.
        self._started, self._rests = dict[str, float](), dict[str, float]()  # By host: last start, end of its rest.

    def use(self, politeness: Politeness) -> None:
        """Hold the delays that the service has now."""
        self._delay = politeness.host_delay_seconds
        own = {host: settings.delay_seconds for host, settings in politeness.hosts.items()}
        self._delays = {host: delay for host, delay in own.items() if delay is not None}

    def delay(self, host: str) -> float:
        """Return the least number of seconds between two requests to a host."""
        return self._delays.get(host, self._delay)

    def start(self, host: str) -> None:
        """Note that a request to a host starts now."""
        if len(self._started) >= HOSTS_MAX:
            now = time.monotonic()
            self._started = {
                name: started for name, started in self._started.items() if started + self.delay(name) > now
            }
        self._started[host] = time.monotonic()

    def rest(self, host: str, seconds: float) -> None:
        """Let a host rest from now on; the later end counts if it rests already."""
        now = time.monotonic()
        if len(self._rests) >= HOSTS_MAX:
            self._rests = {name: end for name, end in self._rests.items() if end > now}
        self._rests[host] = max(now + seconds, self._rests.get(host, 0.0))

    def note(self, url: str, status: int, retry_after: float | None) -> None:
        """Let the host of a page rest, if the page's answer asked for that."""
        if status in REST_STATUSES and retry_after and (host := host_of(url)):
            self.rest(host, retry_after)

    def resting(self) -> list[str]:
        """Return the hosts that rest, at most RESTING_MAX."""
        now = time.monotonic()
        ends = sorted((-end, host) for host, end in self._rests.copy().items() if end > now)
        return [host for _, host in ends[:RESTING_MAX]]

    def rests(self, host: str) -> bool:
        return self._rests.get(host, 0.0) > time.monotonic()

    def wait(self, host: str) -> float:
        """Return the seconds until a request to a host may start."""
        now, started = time.monotonic(), self._started.get(host)
        free = now if started is None else started + self.delay(host)
        return max(free, self._rests.get(host, now), now) - now


def host_of(url: str) -> str | None:
    """Return the host of a URL, as in canonical URLs if the URL is one; None if it has none.

    >>> host_of("http://user@a.example:8080/"), host_of("http://[::1]/"), host_of("/about")
    ('a.example', '[::1]', None)
    """
    try:
        host = urlsplit(url.strip(AROUND).replace("\\", "/")).hostname  # As browsers read it.
    except ValueError:
        return None
    return f"[{host}]" if host and ":" in host else host
