"""A site that grew and changed for 26 years, and crawlers that don't know when its pages change.

The site is that of `recorded_history`. Each day a crawler learns the URLs of new pages, as from the site's index, and
reads some pages as they are that day: their links, or that they are gone. A strategy picks the pages. At the end of
each year the crawler's estimates are compared with the PageRank of the site as it is then. So is the PageRank of the
versions that the crawler saw last: what one would compute without OPIC.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from pathlib import Path
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
    site_events,
    year_error,
)
from experiments.result import Progress, Result
from experiments.window_crawls import parsed_window, shown_window
from opic.cli.pictures import Panel
from opic.graph.crawled import Float64s
from opic.model.cash import MILLION, CrawlRules, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import LedgerPage
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
COLUMNS: Final = (
    *("strategy", "reads a day", "pages out of date", "payout", "estimate", "L1", "relative error"),
    *("of the top tenth", "on the newest tenth", "L1 at the end"),
)
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


def run_polling(data: Path | None, progress: Progress, quick: bool) -> Result:
    """Run the experiment.

    Raises:
        NoGraph: the recorded history is not here.
    """
    started, found = time.perf_counter(), dict[tuple[str, int], list[YearEnd]]()
    events, years = site_events(data), YEARS[:4] if quick else YEARS
    plan = [(EVERY_VERSION, 0), *((name, reads) for reads in READS_A_DAY for name in STRATEGIES)]
    for number, (name, reads) in enumerate(plan):
        progress(number, len(plan), f"{name}, {reads} reads a day" if reads else name)
        ends = [list(crawl(events, name, reads, rules, payout, years)) for payout, rules in RULES.items()]
        # Of strategies that don't look at the cash, both payouts' crawls are the same; PageRank is taken of the first.
        found[name, reads] = [
            YearEnd({**other.errors, **one.errors}, one.stale) for one, other in zip(*ends, strict=True)
        ]
    progress(len(plan), len(plan), "")
    seconds = time.perf_counter() - started
    return Result("opic-polling", [], COLUMNS, list(_rows(found)), seconds, _panels(found), notes=_notes(events))


def crawl(  # noqa: PLR0917 - what one crawl is made of
    events: Sequence[SiteEvent], name: str, reads: int, rules: CrawlRules, payout: str, years: Sequence[int]
) -> Iterator[YearEnd]:
    """Poll the site from its first day at a fixed rate, and yield what is known at the end of each year."""
    site, crawler = SiteGraph(events), Crawler(RecordedPast((), rules), np.random.default_rng(1))
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


def _settled(ends: Sequence[YearEnd], name: str) -> list[YearError]:
    errors = [end.errors[name] for end in ends]
    return [error for error in errors if error.year >= SETTLED] or errors


def _rows(found: Mapping[tuple[str, int], Sequence[YearEnd]]) -> Iterator[list[object]]:
    for (strategy, reads), ends in found.items():
        stale = float(np.mean([end.stale for end in ends]))
        for name in ends[0].errors:
            settled = _settled(ends, name)
            l1, relative, top, newest = (
                float(np.mean([getattr(error, of) for error in settled])) for of in ("l1", "relative", "top", "newest")
            )
            payout, _, estimate = name.partition(" ") if name != CRAWLED else ("", "", name)
            yield [
                *(strategy, reads or "", f"{stale:.1%}", payout, estimate, round(l1, 4), round(relative, 2)),
                *(round(top, 2), round(newest, 2), round(ends[-1].errors[name].l1, 4)),
            ]


def _panels(found: Mapping[tuple[str, int], Sequence[YearEnd]]) -> list[Panel]:
    panels = []
    for reads in READS_A_DAY:
        lines = {
            f"{strategy}, {name}": [(float(end.errors[name].year), end.errors[name].l1) for end in ends]
            for (strategy, of), ends in found.items()
            for name in DRAWN
            if (of == reads and strategy != "Random") or (not of and name != CRAWLED)
        }
        title = f"{reads} read{'s' if reads > 1 else ''} a day, and {EVERY_VERSION}"
        panels.append(Panel(title, lines, "", "L1 error at the end of the year", y_scale="linear"))
    return panels


def _notes(events: Sequence[SiteEvent]) -> list[str]:
    days = (events[-1].t - events[0].t) / DAY_SECONDS
    return [
        f"the site has {len({event.url for event in events})} pages at some time and {len(events) / days:.1f} new "
        "versions a day; a crawler learns of a new page the same day, and never when one changes or goes",
        "error against the PageRank of the site as it is: its pages, with the links of the day; L1 and errors in "
        f"percent are means over the years from {SETTLED}; {MEASURES} measures a page are kept",
        f'"{EVERY_VERSION}": each version is a read on its day, as in opic-history',
        f'"{CRAWLED}": of all pages known and not known to be gone, link targets that are no pages yet among them, by '
        "the links that the crawler saw last; computed at the end of each year; crawled under grants",
        "pages out of date: share of the site's pages of which the crawler saw other links last, or none; mean of the "
        "years; crawled under grants",
        "Greedy reads the pages with the most cash at the start of the day, once each",
    ]
