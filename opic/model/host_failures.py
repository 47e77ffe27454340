"""Failures of a host in a row: fetches of its pages that had no answer, or a gateway's that the site gave none.

A site that is down fails page by page. So its failures in a row are counted, whatever the pages, with the times of the
first and the last. Any other answer of the host ends them, and so does a seed of one of its pages. An event that says
only that a page is excluded tells nothing of the host.

How many there are says little by itself: a crawler may have many pages of a host in flight when it goes down. So the
host is given up after as many failures as a page is, if they also took as long as the back-offs of a page would.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.model.cash import DAY_US, MILLION
from opic.model.events import CheckedEvent, Outcome
from opic.model.page_notes import noted_status
from opic.urls.canonical import host_of

NO_ANSWER: Final = tuple(noted_status(status, read=False) for status in (0, 502, 503, 504))
TIMES_MAX: Final = 65_535  # The count stops here: two bytes a host.
RESTS_FROM: Final = 2  # One failure may be that of a page alone.


class HostFailures(NamedTuple):
    """The failures in a row of a host; none if `times` is 0."""

    times: int = 0
    first_us: int = 0
    last_us: int = 0


NONE: Final = HostFailures()


def says_of_host(event: CheckedEvent) -> bool | None:
    """Return whether an event reports a failure of its host; None if it tells nothing of a host."""
    if event.outcome is Outcome.FAILED:
        return event.status in NO_ANSWER
    if event.outcome is Outcome.EXCLUDED and event.status in NO_ANSWER:
        return None
    return False if event.url or event.outcome is Outcome.SEEDS else None


def host_failures_after(before: HostFailures, *, failed: bool, time_us: int) -> HostFailures:
    """Return a host's failures in a row after an event.

    >>> host_failures_after(HostFailures(1, 5, 5), failed=True, time_us=9)
    HostFailures(times=2, first_us=5, last_us=9)
    """
    if not failed:
        return NONE
    first_us = before.first_us if before.times else time_us
    return HostFailures(min(before.times + 1, TIMES_MAX), first_us, max(time_us, before.last_us))


def note_hosts(hosts: dict[str, HostFailures], event: CheckedEvent, time_us: int) -> None:
    """Note what an event of the ledger says of its host, or of those of its seeds."""
    if (failed := says_of_host(event)) is not None:
        for host in {host_of(url) for url in ((event.url,) if event.url else event.seeds)}:
            hosts[host] = host_failures_after(hosts.get(host, NONE), failed=failed, time_us=time_us)


class Patience(NamedTuple):
    """After how many failures in a row a page or a host is given up, 0 for never; the first back-off, in seconds."""

    max_failures: int = 0
    retry_seconds: float = 0.0

    def seconds(self) -> float:
        """Return the sum of the back-offs of a page that is given up.

        >>> Patience(8, 60.0).seconds()
        7620.0
        """
        waits = (min(self.retry_seconds * 2.0**nth, DAY_US / MILLION) for nth in range(self.max_failures - 1))
        return float(sum(waits))

    def gives_up(self, times: Any, first_us: Int64s, last_us: Int64s) -> Bools:
        """Return a mask of the hosts that are given up, by their failures in a row, (n,) each."""
        if not self.max_failures:
            return np.zeros(len(times), np.bool_)
        given_up: Bools = (times >= self.max_failures) & (last_us - first_us >= self.seconds() * MILLION)
        return given_up

    def rests_until(self, times: Any, first_us: Int64s, last_us: Int64s) -> Float64s:
        """Return until when hosts rest, in Unix seconds, (n,); 0 for those with fewer than RESTS_FROM failures.

        The rest is as long as the failures have lasted, and the first back-off more. So it doubles, as that of a page.
        """
        rest = np.minimum((last_us - first_us) / MILLION + self.retry_seconds, DAY_US / MILLION)
        return np.where(times >= RESTS_FROM, last_us / MILLION + rest, 0.0)


NEVER: Final = Patience()  # Only an event gives a page up.
