"""What the endpoint, the command line and replays ask of the frontier."""

from collections.abc import Mapping, Sequence
from typing import Any

from opic.frontier.admission import Admission
from opic.frontier.held_pages import Manners, read_manners, write_manners
from opic.frontier.requests import FrontierTerms, PagesRequest, PolitenessSettings
from opic.frontier.scheduler import Scheduler
from opic.frontier.standing import PageStanding, against, place_in_order, state_of
from opic.replica import Crawl
from opic.urls.canonical import URL_BYTES_MAX, canonical_url, host_of


class Frontier:
    """Hands out pages of a crawl. Any thread may ask."""

    def __init__(
        self,
        crawl: Crawl,
        politeness: PolitenessSettings | None = None,
        discovery: float = 1.0,
        *,
        share: float | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Offer the pages of an open crawl.

        Args:
            crawl: whose pages.
            politeness: towards hosts and among crawlers.
            discovery: in the order, cash of pages never read counts so many times.
            share: of the pages handed out to who asks for any, so much is for pages never read, where there are such;
                purely by cash if None.
            admission: says which pages are never to be offered.
        """
        self.crawl, self.politeness = crawl, politeness or PolitenessSettings()
        self.discovery, self.admission = discovery, admission
        self._hand = Scheduler(crawl, FrontierTerms(self.politeness, discovery, share), admission)

    def next(
        self,
        n: int = 10,
        crawler: str = "",
        *,
        lease_seconds: float | None = None,
        busy_hosts: Sequence[str] = (),
        domain: str | None = None,
        mode: str = "any",
        crawl_delays: Mapping[str, float] | None = None,
    ) -> dict[str, object]:
        """Lease the pages with most cash to a crawler.

        Args:
            n: how many at most; of a host with a delay, one at most. While these and the leases that run are more
                than a tenth of the live pages, the batch is cut at half of its best page's cash.
            crawler: who asks.
            lease_seconds: how long the pages are the crawler's own; as set if None.
            busy_hosts: hosts to pass over.
            domain: only this host or domain, with all below it.
            mode: "discover": only pages never read since they became known or came back; "refresh": only others.
            crawl_delays: what robots.txt of hosts asks for, in seconds: kept, and held where it is longer than ours.

        Returns:
            "pages": most cash first, each with "url", "cash" (grains; negative where a page owes), "importance",
            "fetched_before", "lease" (for `release`) and "lease_until" (Unix seconds); "retry_after": 0, or, without
            pages, the seconds until the first one may be free, at most a minute, and 5 s while leases run: their
            fetches move cash.

        Raises:
            BadInput: a parameter can't be taken.
        """
        wish = self.wish(
            n, lease_seconds=lease_seconds, busy_hosts=busy_hosts, domain=domain, mode=mode, crawl_delays=crawl_delays
        )
        return self.next_many([wish])[0]

    def wish(self, n: int, *, lease_seconds: float | None = None, mode: str = "any", **more: Any) -> PagesRequest:
        """Check what is asked for, as by `next`.

        Raises:
            BadInput: a parameter can't be taken.
        """
        return PagesRequest.of(
            n, self.politeness.lease_seconds if lease_seconds is None else lease_seconds, mode=mode, **more
        )

    def next_many(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        """Answer several wishes by one look and, mostly, one round trip, as if they had come one after the other."""
        return self._hand.serve(wishes)

    def peek(self, n: int = 10, domain: str | None = None, mode: str = "any") -> dict[str, object]:
        """Return the pages that would be handed out next, without leasing them: a look for people, not a promise.

        Args:
            n: how many at most; of a host with a delay, one at most.
            domain: only this host or domain, with all below it.
            mode: as in `next`.

        Returns:
            "pages": most cash first, each with "url", "host", "cash", "importance" and "fetched_before".

        Raises:
            BadInput: a parameter can't be taken.
        """
        wish = self.wish(n, domain=domain, mode=mode)
        return self.crawl.steadily(lambda: self._peeked(wish))

    def _peeked(self, wish: PagesRequest) -> dict[str, object]:
        places = self._hand.peek(wish)
        if not places:
            return {"pages": []}
        rows, urls = self.crawl.rows(places), self.crawl.urls_of(places)
        total = self._hand.hot.total(rows.books)
        return {
            "pages": [
                {
                    "url": urls[place],
                    "host": host_of(urls[place]),
                    "cash": cash,
                    "importance": min(max(spent + cash, 0) / total, 1.0),
                    "fetched_before": reads > 0,
                }
                for place, cash, spent, reads in zip(
                    places, rows.cash.tolist(), rows.spent.tolist(), rows.reads.tolist(), strict=True
                )
            ]
        }

    def explain(self, url: str, url_bytes_max: int = URL_BYTES_MAX) -> dict[str, object] | None:
        """Say why a page is next or not.

        Returns:
            None for a page never seen. Else "state": "owed" (it has cash and was not read since it became known or came
            back), "read", "empty" (no cash), "gone", "excluded"; "host"; "lease_until", "waits_until", "host_free_at":
            Unix seconds, None where nothing holds it; "failures": how often its fetch failed since the last success;
            "host_delay_seconds", as it holds for this host; "host_in_flight": leases of pages of its host that run, and
            "host_in_flight_max", None without a cap; "rules": that it falls under; "place": in the greedy order of all
            that may be offered, from 1, None for what is not in it; "next": nothing stands against it; "why_not": what
            does, a sentence each.

        Raises:
            BadUrl: the URL can't be taken.
        """
        canonical = canonical_url(url, url_bytes_max)
        return self.crawl.steadily(lambda: self._explained(canonical))

    def _explained(self, canonical: str) -> dict[str, object] | None:
        (place,), rows = self.crawl.look([canonical])
        if place is None:
            return None
        host = host_of(canonical)
        standing = PageStanding.read(self.crawl, place, host, self.politeness)
        state, cash = int(rows.state[0]), int(rows.cash[0])
        why_not = against(standing, state, cash, host)
        if self.admission is not None and self.admission.is_shut(place):
            why_not.append("a rule keeps it from being fetched")
        return {
            "state": state_of(state, cash),
            "host": host,
            "lease_until": standing.lease_until,
            "waits_until": standing.waits_until,
            "failures": standing.failures,
            "host_free_at": standing.host_free_at,
            "host_delay_seconds": standing.delay,
            "host_in_flight": standing.in_flight,
            "host_in_flight_max": standing.cap or None,
            "rules": self.admission.why(canonical) if self.admission is not None else [],
            "place": place_in_order(self.crawl.replicas, place, self.discovery),
            "next": not why_not,
            "why_not": why_not,
        }

    def manners(self) -> dict[str, Manners]:
        """Return what an operator set for hosts: a delay in seconds and a cap, None where the setting holds."""
        return read_manners(self.crawl)

    def set_manners(self, manners: Mapping[str, Manners]) -> None:
        """Let other delays and caps of hosts hold in the place of those before, at all endpoints.

        Args:
            manners: by canonical host; of a delay 0 is none, of a cap 0 is any number.
        """
        write_manners(self.crawl, manners)
        self._hand.forget()

    def release(self, leases: Sequence[str]) -> dict[str, object]:
        """Give pages back unread; their hosts' delays go on.

        Returns:
            "released": how many of the leases still ran. One that ended, or whose page is another's now, counts 0.

        Raises:
            BadInput: a text is no lease; none is given back.
        """
        return {"released": self._hand.release(leases)}
