"""The frontier's interface for the HTTP endpoint, the command line and replays: next, peek, explain, release."""

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
    """Hands out the pages of a crawl. Thread-safe."""

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
            crawl: the crawl whose pages are offered.
            politeness: host delay, retry delay, lease duration and host cap.
            discovery: factor on the cash of pages never read, in the greedy order.
            share: fraction of never-read pages in answers with mode "any", as far as there are such pages; purely by
                cash if None.
            admission: filters pages that must not be offered.
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
        max_depth: int | None = None,
    ) -> dict[str, object]:
        """Lease the pages with the most cash to a crawler.

        Args:
            n: maximum number of pages; at most one page of a host that has a delay. While `n` plus the number of
                active leases exceeds a tenth of the live pages, the batch ends at half of its best page's cash.
            crawler: name of the crawler.
            lease_seconds: duration of the leases; the configured duration if None.
            busy_hosts: hosts to skip.
            domain: only pages of this host or domain and its subdomains.
            mode: "discover": only pages never read since they became known or came back; "refresh": only other pages.
            crawl_delays: the crawl-delay in each host's robots.txt, in seconds. It is stored, and applies where it is
                longer than the configured host delay.
            max_depth: only pages whose depth is known and at most this.

        Returns:
            "pages": most cash first, each with "url", "cash" (grains; negative if the page is overdrawn), "importance",
            "fetched_before", "lease" (for `release`) and "lease_until" (Unix seconds); "depth" and "meta", if known.
            "retry_after": 0, or, if there are no pages, the seconds until the first one may be free: at most a minute,
            and at most 5 s while leases are active, because their fetches move cash.

        Raises:
            BadInput: a parameter is invalid.
        """
        request = self.wish(
            n,
            lease_seconds=lease_seconds,
            busy_hosts=busy_hosts,
            domain=domain,
            mode=mode,
            crawl_delays=crawl_delays,
            max_depth=max_depth,
        )
        return self.next_many([request])[0]

    def wish(self, n: int, *, lease_seconds: float | None = None, mode: str = "any", **more: Any) -> PagesRequest:
        """Validate a request for pages; the parameters are those of `next`.

        Raises:
            BadInput: a parameter is invalid.
        """
        return PagesRequest.of(
            n, self.politeness.lease_seconds if lease_seconds is None else lease_seconds, mode=mode, **more
        )

    def next_many(self, wishes: Sequence[PagesRequest]) -> list[dict[str, object]]:
        """Answer several requests together, mostly in one round trip, as if they had come one after the other."""
        return self._hand.serve(wishes)

    def peek(self, n: int = 10, domain: str | None = None, mode: str = "any") -> dict[str, object]:
        """Return the pages that would be handed out next, without leasing them. It is for inspection and no guarantee.

        Args:
            n: maximum number of pages; at most one page of a host that has a delay.
            domain: only pages of this host or domain and its subdomains.
            mode: as in `next`.

        Returns:
            "pages": most cash first, each with "url", "host", "cash", "importance" and "fetched_before".

        Raises:
            BadInput: a parameter is invalid.
        """
        request = self.wish(n, domain=domain, mode=mode)
        return self.crawl.steadily(lambda: self._peeked(request))

    def _peeked(self, request: PagesRequest) -> dict[str, object]:
        places = self._hand.peek(request)
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
        """Explain why a page is or is not handed out next.

        Returns:
            None for a page never seen. Otherwise a dict of "state": "owed" (it has cash and was not read since it
            became known or came back), "read", "empty" (no cash), "gone", "excluded"; "host"; "lease_until",
            "waits_until", "host_free_at": Unix seconds, None if it does not apply; "failures": failed fetches and
            expired leases since the last success; "refused": why the event of its lease was refused, if it was;
            "host_delay_seconds": the delay in effect for this host; "host_in_flight": active leases
            on pages of its host, and "host_in_flight_max", None without a cap; "rules": the rules that apply to it;
            "place": its rank in the greedy order of all pages that may be offered, from 1, None if it is not in the
            order; "next": whether nothing prevents it from being handed out; "why_not": what does, a sentence each.

        Raises:
            BadUrl: the URL is invalid.
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
            "refused": standing.refused,
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
        """Return the delay (seconds) and cap that an operator set for each host; None where the default applies."""
        return read_manners(self.crawl)

    def set_manners(self, manners: Mapping[str, Manners]) -> None:
        """Replace the delays and caps of all hosts, for all endpoints.

        Args:
            manners: by canonical host; a delay of 0 means no delay, a cap of 0 means no cap.
        """
        write_manners(self.crawl, manners)
        self._hand.forget()

    def release(self, leases: Sequence[str]) -> dict[str, object]:
        """Release leases without fetching the pages; host delays stay in effect.

        Returns:
            "released": how many of the leases were still active. A lease that ended, or whose page is now leased to
            another crawler, is not counted.

        Raises:
            BadInput: a string is not a lease; then none is released.
        """
        return {"released": self._hand.release(leases)}
