"""When pages may be offered again after their last read: OPIC_REVISIT_SECONDS, or what a rule, host or class asks for.

The last read of a page is in its history: the latest time of its kept measures, as the events' `fetched_at` tell it. So
a page that a replayed crawl fetched long ago is due at once.
"""

from collections.abc import Mapping

import numpy as np

from opic.admission import Admission
from opic.arrays import Float64s, Int64s
from opic.model.cash import CLASS_BITS, CLASSES_MAX, MILLION
from opic.model.classes import WeightClasses
from opic.replica.replica import Replica


class RevisitTerms:
    """The least time from a page's read to its next suggestion, for the pages of a replica.

    The most specific term applies: that of the rule that decides about the page's URL, of its host, of its class, and
    last the setting. The caller must hold the replica's lock.
    """

    def __init__(self, replica: Replica, seconds: float, admission: Admission | None) -> None:
        """Start with the setting, the classes, and what rules ask for."""
        self._replica, self._seconds, self._admission = replica, seconds, admission
        self._classes: WeightClasses | None = None
        self._of_class: Float64s = np.full(CLASSES_MAX, seconds)
        self._host_names: dict[str, float] = {}
        self._hosts: tuple[Int64s, Float64s] = np.empty(0, np.int64), np.empty(0)  # Numbers, ascending, and seconds.
        self._seen = 0  # Number of hosts looked through for names.

    def set_hosts(self, seconds: Mapping[str, float]) -> bool:
        """Set what operators asked for by host; return whether that changed."""
        if seconds == self._host_names:
            return False
        self._host_names = dict(seconds)
        self._hosts, self._seen = (np.empty(0, np.int64), np.empty(0)), 0
        return True

    def _of_hosts(self) -> tuple[Int64s, Float64s]:
        """Return the numbers of the hosts with their own term, ascending, and the terms."""
        table = self._replica.hosts
        if self._host_names and len(table) > self._seen:
            self._seen = len(table)
            numbered = [(table.number(name), seconds) for name, seconds in self._host_names.items()]
            pairs = sorted((number, seconds) for number, seconds in numbered if number is not None)
            self._hosts = np.array([n for n, _ in pairs], np.int64), np.array([s for _, s in pairs], np.float64)
        return self._hosts

    def classes(self) -> Float64s:
        """Return the seconds by class, (8,)."""
        if self._replica.classes is not self._classes:
            self._classes = self._replica.classes
            self._of_class = np.full(CLASSES_MAX, self._seconds)
            for slot, weight_class in self._classes.placed:
                if weight_class.revisit_seconds is not None:
                    self._of_class[slot] = weight_class.revisit_seconds
        return self._of_class

    def seconds(self, ids: Int64s) -> Float64s | None:
        """Return the seconds that apply to pages; None if they are 0 for all pages."""
        of_class, (hosts, of_host) = self.classes(), self._of_hosts()
        of_rule = None if self._admission is None else self._admission.revisit_seconds(self._replica.shard, ids)
        if of_rule is None and not of_class.any() and not of_host.any():
            return None
        seconds: Float64s = of_class[self._replica.state[ids] & CLASS_BITS]
        if len(hosts):
            mine = self._replica.host[ids]
            positions = np.minimum(np.searchsorted(hosts, mine), len(hosts) - 1)
            seconds = np.where(hosts[positions] == mine, of_host[positions], seconds)
        return seconds if of_rule is None else np.where(np.isnan(of_rule), seconds, of_rule)

    def due(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered again, in Unix seconds; None if at any time.

        0 for pages never read, and for those without a revisit time, also where the clock that told their read is
        ahead of the server's.
        """
        seconds = self.seconds(ids)
        if seconds is None:
            return None
        rows = self._replica.columns.row[ids]
        read_us = self._replica.histories.last_read_us(rows)
        due: Float64s = np.where((read_us > 0) & (seconds > 0), read_us / MILLION + seconds, 0.0)
        return due

    def read_pages(self) -> Int64s:
        """Return the pages with a history, ascending."""
        return np.flatnonzero(self._replica.columns.row[: len(self._replica)])
