"""What the store is compared with: OPIC on Redis as one writes it in an afternoon, and writes it well.

Each choice, and why a good engineer makes it:

- A sorted set `cash` of URL -> float. It gives the next page to crawl by one ZREVRANGE, which is why everybody starts
  here. The URL is the page's id, taken as the crawler sends it: no look-up, no ids to keep, no canonical form.
- A hash `history` of URL -> float, HINCRBYFLOAT; a key `clock` and a key `virtual`, INCRBYFLOAT.
- A batch is two round trips whatever its size: one ZMSCORE reads the cash of all pages that the batch reads, and one
  pipeline writes. What the batch itself pays is added up in a dict in between: so an event sees what earlier ones
  paid, and a page that ten events link to costs one ZINCRBY. That is also the least that can be sent.
- The pipeline is a MULTI (redis-py's default): readers see whole batches, and the append-only file is synced once.
- redis-py with hiredis, a unix socket and the same server settings as the store's, the append-only file included.

What it leaves out, each of which would cost it something: no fence and no offset in the write, so that a batch that
is sent twice, or by two workers, counts twice; no measures, no in-flow, no failed fetches, no leases, no pages that go
away; the virtual page only takes (to pay out, one would walk all pages). The sums are right but for rounding.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from opic.model.cash import MILLION, CrawlRules
from opic.model.event_checks import decode_events
from opic.model.events import EventLimits, Outcome, Record

DAMPING = 1 - CrawlRules().q / MILLION
BATCH = 100  # Events: 4,000 links, as the store takes at once.


class Baseline:
    """It applies records as `opic.store.writer.Writer` does."""

    def __init__(self, client: Any, batch: int = BATCH) -> None:
        """Use an empty server."""
        self.client, self.batch = client, batch
        self.limits = EventLimits()

    def apply(self, partition: str, records: Sequence[Record]) -> None:
        """Let records take effect, batch by batch."""
        for at in range(0, len(records), self.batch):
            self._apply(records[at : at + self.batch])

    def _apply(self, records: Iterable[Record]) -> None:
        events = [event for record in records for event in decode_events("log/0", record, self.limits)]
        seeds = [url for event in events if event.outcome is Outcome.SEEDS for url in event.seeds]
        if seeds:
            self._seed(seeds)
        events = [event for event in events if event.outcome is Outcome.READ]
        if not events:
            return
        pages = list({event.url for event in events})
        stored = {url: cash or 0.0 for url, cash in zip(pages, self.client.zmscore("cash", pages), strict=True)}
        paid: dict[str, float] = {}
        spent: dict[str, float] = {}
        virtual = 0.0
        for event in events:
            page = event.url
            cash = stored[page] + paid.get(page, 0.0)
            links = dict.fromkeys(event.links)
            links.pop(page, None)
            share = DAMPING * cash / len(links) if links else 0.0
            virtual += cash - share * len(links)
            paid[page] = paid.get(page, 0.0) - cash
            spent[page] = spent.get(page, 0.0) + cash
            for link in links:
                paid[link] = paid.get(link, 0.0) + share
        with self.client.pipeline() as pipe:
            for page, amount in paid.items():
                pipe.zincrby("cash", amount, page)
            for page, amount in spent.items():
                pipe.hincrbyfloat("history", page, amount)
            pipe.incrbyfloat("clock", sum(spent.values()))
            pipe.incrbyfloat("virtual", virtual)
            pipe.execute()

    def _seed(self, urls: Sequence[str]) -> None:
        """Give new pages one each: all cash there is comes from here."""
        with self.client.pipeline() as pipe:
            pipe.zadd("cash", dict.fromkeys(urls, 1.0), nx=True)
            _ = pipe.execute()

    def off_by(self, minted: float) -> float:
        """Return by how much the sums are off, relative to what was minted: the clock, and all cash."""
        cash = sum(score for _, score in self.client.zscan_iter("cash", count=10_000))
        spent = sum(map(float, self.client.hvals("history")))
        kept = cash + float(self.client.get("virtual") or 0)
        return max(abs(kept - minted) / minted, abs(spent - float(self.client.get("clock") or 0)) / minted)
