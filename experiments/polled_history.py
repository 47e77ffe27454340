"""A site that grew and changed for 26 years, and crawlers that don't know when its pages change.

The site is that of `recorded_history`. Each day a crawler learns the URLs of new pages, as from the site's index, and
reads some pages as they are that day: their links, or that they are gone. A strategy picks the pages. At the end of
each year the crawler's estimates are compared with the PageRank of the site as it is then. So is the PageRank of the
versions that the crawler saw last: what one would compute without OPIC.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import Final

import numpy as np

from experiments.recorded_history import (
    MEASURES,
    RULES,
    SETTLED,
    SiteEvent,
    SiteGraph,
    YearError,
    pagerank_of,
    settled_means,
    site_events,
    year_error,
)
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Run, keys
from experiments.window_crawls import parsed_window, shown_window
from opic.arrays import Float64s
from opic.model.cash import MILLION, CrawlRules, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger_page import LedgerPage
from opic.model.past_importance import PARTITION, RecordedPast

READS_A_DAY: Final = (1, 4, 16)
YEARS: Final = range(2001, 2026)  # The history ends in August 2026.
DAY_SECONDS: Final = 86_400
EVERY_VERSION: Final = "every version"
CRAWLED: Final = "PageRank of the crawled"
ESTIMATES: Final = {
    "grants": (("static", ""), ("variable", "")),
    "continuous": (
        *(("static", ""), ("variable", ""), ("interpolation", "0.5")),
        *(("interpolation", "2"), ("interpolation", "8"), ("interpolation", "365d")),
    ),
}
DRAWN: Final = ("grants static", "continuous interpolation 2 rounds", CRAWLED)


@dataclass(slots=True)
class Crawler:
    """What a crawler knows: the estimates' ledger, the links that it saw last, and when it read each page."""

    past: RecordedPast
    rng: np.random.Generator
    seen: dict[str, Sequence[str]] = field(default_factory=dict)
    read_at: dict[str, int] = field(default_factory=dict)  # The number of the read.
    records: int = 0

    def learn(self, urls: Sequence[str], seconds: float) -> None:
        """Learn of new pages."""
        if urls:
            self._apply(encode_seeds(urls), seconds, "seeds")

    def read(self, url: str, site: SiteGraph, seconds: float) -> None:
        """Read a page as it is."""
        self.read_at[url] = self.records
        if url in site.links:
            self.seen[url] = site.links[url]
            event = CrawlEvent(url, list(site.links[url]))
        else:
            self.seen.pop(url, None)
            event = CrawlEvent(url, [], status=404)
        self._apply(encode_crawl_event(event), seconds, "event")

    def live(self) -> list[LedgerPage]:
        """Return the pages that it knows and that are not gone, as far as it knows."""
        return [page for page in self.past.ledger.pages.values() if not page.has(Flag.GONE)]

    def _apply(self, value: bytes, seconds: float, kind: str) -> None:
        record = Record(self.records, round(seconds * MILLION), value, kind=kind)
        self.past.ledger.apply(PARTITION, [record])
        self.records += 1


def _greedy(crawler: Crawler, count: int) -> list[str]:
    return [page.url for page in nlargest(count, crawler.live(), key=crawler.past.ledger.cash)]


def _cycle(crawler: Crawler, count: int) -> list[str]:
    return [page.url for page in nsmallest(count, crawler.live(), key=lambda page: crawler.read_at.get(page.url, -1))]


def _random(crawler: Crawler, count: int) -> list[str]:
    live = crawler.live()
    return [live[i].url for i in crawler.rng.permutation(len(live))[:count].tolist()]


STRATEGIES: Final[dict[str, Callable[[Crawler, int], list[str]]]] = {
    "Greedy": _greedy,
    "Cycle": _cycle,
    "Random": _random,
}


@dataclass(frozen=True, slots=True)
class YearEnd:
    """What a crawler has at the end of a year: the error of each estimate, and the share of pages out of date."""

    errors: Mapping[str, YearError]
    stale: float


def rows_of(run: Run) -> Iterator[list[object]]:
    """Poll the site in each order at each rate, and compare the estimates with its PageRank at the end of each year."""
    events, years = site_events(run.data), run.either(YEARS, YEARS[:4])
    plan = [(EVERY_VERSION, 0), *((name, reads) for reads in READS_A_DAY for name in STRATEGIES)]
    for strategy, reads in run.steps(plan, lambda job: f"{job[0]}, {job[1]} reads a day" if job[1] else job[0]):
        both = [
            list(crawl(events, strategy, reads, rules, payout, years, run.rng(1))) for payout, rules in RULES.items()
        ]
        # Of strategies that don't look at the cash, both payouts' crawls are the same; PageRank is taken of the first.
        ends = [YearEnd({**other.errors, **one.errors}, one.stale) for one, other in zip(*both, strict=True)]
        stale = float(np.mean([end.stale for end in ends]))
        for name in ends[0].errors:
            errors = [end.errors[name] for end in ends]
            payout, _, estimate = name.partition(" ") if name != CRAWLED else ("", "", name)
            yield [strategy, reads or "", stale, payout, estimate, *settled_means(errors), errors[-1].l1]
        _draw(run, strategy, reads, ends)
    days = (events[-1].t - events[0].t) / DAY_SECONDS
    run.note(
        f"the site has {len({event.url for event in events})} pages at some time and {len(events) / days:.1f} new "
        "versions a day; a crawler learns of a new page the same day, and never when one changes or goes"
    )


def _draw(run: Run, strategy: str, reads: int, ends: Sequence[YearEnd]) -> None:
    for rate in (reads,) if reads else READS_A_DAY:
        title = f"{rate} read{'s' if rate > 1 else ''} a day, and {EVERY_VERSION}"
        for name in DRAWN:
            if strategy != "Random" and (reads or name != CRAWLED):
                errors = [end.errors[name] for end in ends]
                run.draw(title, f"{strategy}, {name}", [(float(error.year), error.l1) for error in errors])


def crawl(  # noqa: PLR0917 - what one crawl is made of
    events: Sequence[SiteEvent],
    name: str,
    reads: int,
    rules: CrawlRules,
    payout: str,
    years: Sequence[int],
    rng: np.random.Generator,
) -> Iterator[YearEnd]:
    """Poll the site from its first day at a fixed rate, and yield what is known at the end of each year."""
    site, crawler = SiteGraph(events), Crawler(RecordedPast((), rules), rng)
    ends = [datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() for year in years]
    first = events[0].t - events[0].t % DAY_SECONDS + DAY_SECONDS - 1  # The last second of a day, as the ends are.
    for seconds in range(first, round(ends[-1]) + 1, DAY_SECONDS):
        happened = site.until(seconds)
        crawler.learn(list(dict.fromkeys(e.url for e in happened if e.url not in crawler.past.ledger.pages)), seconds)
        urls = STRATEGIES[name](crawler, reads) if reads else [event.url for event in happened]
        for url in urls:
            crawler.read(url, site, seconds)
        if seconds in ends:
            yield _year_end(years[ends.index(seconds)], crawler, site, payout)


def _year_end(year: int, crawler: Crawler, site: SiteGraph, payout: str) -> YearEnd:
    pages = crawler.past.ledger.pages  # All of the site are known: the index has them.
    exist = [url for url in pages if url in site.links]
    ids = [pages[url].id for url in exist]
    truth, newest, crawled = (np.zeros(len(pages)) for _ in range(3))
    truth[ids] = pagerank_of(exist, site.links)
    newest[ids[-max(1, len(ids) // 10) :]] = 1
    live = crawler.live()
    crawled[[page.id for page in live]] = pagerank_of([page.url for page in live], crawler.seen)
    estimates: dict[str, Float64s] = {
        f"{payout} {policy} {shown_window(window)}".strip(): crawler.past.importance(policy, parsed_window(window))
        for policy, window in ESTIMATES[payout]
    }
    errors = {name: year_error(year, x, truth, newest) for name, x in (*estimates.items(), (CRAWLED, crawled))}
    return YearEnd(errors, float(np.mean([crawler.seen.get(url) != site.links[url] for url in exist])))


OPIC_POLLING: Final = Experiment(
    "opic-polling",
    "the same site, polled by crawlers that don't know when pages change",
    OPIC_PAPER,
    {
        **keys("strategy", "reads a day"),
        "pages out of date": ".1%",
        **keys("payout", "estimate"),
        **{"L1": 4, "relative error": 2, "of the top tenth": 2, "on the newest tenth": 2, "L1 at the end": 4},
    },
    rows_of,
    notes=(
        "error against the PageRank of the site as it is: its pages, with the links of the day; L1 and errors in "
        f"percent are means over the years from {SETTLED}; {MEASURES} measures a page are kept",
        f'"{EVERY_VERSION}": each version is a read on its day, as in opic-history',
        f'"{CRAWLED}": of all pages known and not known to be gone, link targets that are no pages yet among them, by '
        "the links that the crawler saw last; computed at the end of each year; crawled under grants",
        "pages out of date: share of the site's pages of which the crawler saw other links last, or none; mean of the "
        "years; crawled under grants",
        "Greedy reads the pages with the most cash at the start of the day, once each",
    ),
    axes=Axes("", "L1 error at the end of the year", y_scale="linear"),
)
