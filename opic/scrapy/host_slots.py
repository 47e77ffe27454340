"""The downloader's slots keep the delays of hosts, and the pauses that hosts ask for."""

from collections import deque

from scrapy import Request, signals
from scrapy.core.downloader import Downloader, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from opic.client.host_pace import REST_STATUSES
from opic.scrapy.in_flight import InFlight, host_asked, wait_asked


class HostRests(IgnoreRequest):
    """The host of a request that waited in its slot has asked for a pause."""


class HostSlots:
    """Watches what the downloader sends, and what comes back."""

    def __init__(self, crawler: Crawler, pages: InFlight) -> None:
        self._crawler, self._pages = crawler, pages
        crawler.signals.connect(self._slow_down, signals.request_reached_downloader)
        crawler.signals.connect(self._heard, signals.response_downloaded)

    def _slot(self, request: Request) -> Slot | None:
        assert self._crawler.engine is not None
        return self._crawler.engine.downloader.slots.get(str(request.meta.get(Downloader.DOWNLOAD_SLOT)))

    def _slow_down(self, request: Request) -> None:
        """Let a slot be no faster than the service's delay for the host."""
        slot, delay = self._slot(request), self._pages.pace.delay(host_asked(request))
        if slot is not None and delay:
            slot.delay = max(slot.delay, delay)
            setattr(slot, "jitter" if hasattr(slot, "jitter") else "randomize_delay", 0)  # Scrapy 2.18 has a flag.

    def _heard(self, response: Response, request: Request) -> None:
        """Note the pause that an answer asks for; requests that wait in the slot go back to the scheduler."""
        self._slow_down(request)  # AutoThrottle may have changed it.
        slot, host, seconds = self._slot(request), host_asked(request), wait_asked(response)
        if response.status not in REST_STATUSES or not seconds:
            return
        self._pages.pace.rest(host, seconds)
        queue = slot.queue if slot is not None else deque()
        for waiting, answer in list(queue):
            if host_asked(waiting) == host and waiting in self._pages.given:  # Not those for robots.txt or media.
                queue.remove((waiting, answer))
                answer.errback(HostRests(f"{host} asked for a pause"))
