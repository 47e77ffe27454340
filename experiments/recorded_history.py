"""A site that grew and changed for 26 years: what the estimates would have said at each moment, and what was true.

The Python Enhancement Proposals, an event for each stored version of a page. Each event is a read, as of a crawler that
fetches a page whenever it changes. Pages come and go, and so do links. At the end of each year the estimates of each
policy are compared with the PageRank of the site as it was then.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from experiments.recorded_graphs import lines_of
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Run, keys
from experiments.window_crawls import parsed_window, shown_window
from opic.arrays import Float64s
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import pagerank
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules, Flag
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.model.past_importance import RecordedPast, TimedEvent

HISTORY: Final = "pep-history"
MEASURES: Final = 16
RULES: Final = {
    "grants": CrawlRules(measures_max=MEASURES),
    "continuous": CrawlRules(measures_max=MEASURES, minted=CONTINUOUS.minted, virtual=CONTINUOUS.virtual),
}
WINDOWS: Final = ("0.5", "2", "8", "365d", "1825d")
POLICIES: Final = (
    ("static", ""), ("variable", ""),
    *((name, window) for name in ("interpolation", "fixed", "improved") for window in WINDOWS),
)  # fmt: skip
YEARS: Final = range(2001, 2027)
SETTLED: Final = 2006  # Errors are means over the years from here on.
FOLLOWED: Final = (8, 20, 484, 3000)  # Proposals whose importance is drawn.
URL: Final = "https://peps.python.org/pep-{:04d}/"
DRAWN: Final = {
    ("grants", "static", ""),
    ("continuous", "static", ""),
    ("continuous", "interpolation", "2"),
    ("grants", "variable", ""),
}


@dataclass(frozen=True, slots=True)
class SiteEvent:
    """A page's version at a time (Unix seconds): its links, or, with status 404, that it went away."""

    t: int
    url: str
    status: int
    out: Sequence[str]

    def timed(self) -> TimedEvent:
        """Return it as a crawl event."""
        event = CrawlEvent(self.url, list(self.out), status=self.status, fetched_at=float(self.t))
        return TimedEvent(self.t * MILLION, encode_crawl_event(event))


OVER_TIME: Final = Axes("", "importance", "time", "linear")


@dataclass(frozen=True, slots=True)
class YearError:
    """The error of an estimate at the end of a year: L1; relative, in percent, of all pages, top and newest tenth."""

    year: int
    l1: float
    relative: float
    top: float
    newest: float


def rows_of(run: Run) -> Iterator[list[object]]:
    """Replay the history, and compare the estimates with the PageRank of the site at the end of each year."""
    found, events = dict[tuple[str, str, str], list[YearError]](), site_events(run.data)
    for payout, rules in run.steps(RULES.items(), lambda item: item[0]):
        past, site = RecordedPast([event.timed() for event in events], rules), SiteGraph(events)
        for year in run.steps(run.either(YEARS, YEARS[:4])):
            seconds = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
            past.until(round(seconds * MILLION))
            site.until(seconds)
            truth, newest = site.pagerank(past)
            for policy, window in POLICIES:
                x, key = past.importance(policy, parsed_window(window)), (payout, policy, window)
                errors = found.setdefault(key, [])
                errors.append(year_error(year, x, truth, newest))
                if key in DRAWN:
                    title, line = "error at the end of the year", " ".join(filter(None, key))
                    run.draw(title, line, [(float(year), errors[-1].l1)])
                if (payout, policy) == ("grants", "static"):
                    _follow(run, past, seconds, x, truth)
    for (payout, policy, window), errors in found.items():
        l1, relative, top, newest_error = settled_means(errors)
        yield [payout, policy, shown_window(window), l1, relative, top, errors[-1].l1, newest_error]


def settled_means(errors: Sequence[YearError]) -> list[float]:
    """Return the means of L1 and of the relative errors, over the years from SETTLED on."""
    settled = [error for error in errors if error.year >= SETTLED] or errors
    return [float(np.mean([getattr(error, name) for error in settled])) for name in ("l1", "relative", "top", "newest")]


def site_events(data: Path | None) -> list[SiteEvent]:
    """Return the versions of all pages in order of time.

    Raises:
        NoGraph: the recorded history is not here.
    """
    rows = map(json.loads, lines_of(HISTORY, "events.jsonl.gz", data))
    return [SiteEvent(row["t"], row["url"], row["status"], row["out"]) for row in rows]


class SiteGraph:
    """The pages and links of the site at a moment."""

    def __init__(self, events: Sequence[SiteEvent]) -> None:
        """Stand before the first event."""
        self._events, self._done = events, 0
        self.links: dict[str, Sequence[str]] = {}

    def until(self, seconds: float) -> Sequence[SiteEvent]:
        """Go on to a time, and return what happened since the last."""
        first = self._done
        while self._done < len(self._events) and (event := self._events[self._done]).t <= seconds:
            if event.status == 200:
                self.links[event.url] = event.out
            else:
                self.links.pop(event.url, None)
            self._done += 1
        return self._events[first : self._done]

    def pagerank(self, past: RecordedPast) -> tuple[Float64s, Float64s]:
        """(n,), (n,) Return the PageRank of the known graph, 0 for gone pages, and which pages are the newest tenth."""
        pages = past.ledger.pages
        live = [page for page in pages.values() if not page.has(Flag.GONE)]
        ranks, newest = np.zeros(len(pages)), np.zeros(len(pages))
        ids = [page.id for page in live]
        ranks[ids] = pagerank_of([page.url for page in live], self.links)
        newest[ids[-max(1, len(ids) // 10) :]] = 1
        return ranks, newest


def pagerank_of(urls: Sequence[str], links: Mapping[str, Sequence[str]]) -> Float64s:
    """(n,) Return the PageRank of pages from the links among them."""
    place = {url: number for number, url in enumerate(urls)}
    ends = [(place[url], place[to]) for url in urls for to in links.get(url, ()) if to in place and to != url]
    array = np.array(ends, np.int64).reshape(-1, 2)
    return pagerank(link_matrix(array[:, 0], array[:, 1], (len(urls), len(urls))), threshold=1e-12)


def year_error(year: int, x: Float64s, truth: Float64s, newest: Float64s) -> YearError:
    """Compare estimates with the truth; `newest` is 1 for the pages that came last."""
    live = truth > 0
    relative = 100 * np.abs(x[live] - truth[live]) / truth[live]
    top = np.argsort(-truth[live])[: max(1, int(live.sum()) // 10)]
    new = relative[newest[live] > 0]
    return YearError(
        year, float(np.abs(x - truth).sum()), float(relative.mean()), float(relative[top].mean()), float(new.mean())
    )


def _follow(run: Run, past: RecordedPast, seconds: float, x: Float64s, truth: Float64s) -> None:
    for number in FOLLOWED:
        page = past.ledger.pages.get(URL.format(number))
        if page is not None:
            for line, values in ((f"PEP {number}", x), (f"PEP {number}, exact", truth)):
                run.draw("importance, grants and static", line, [(seconds, float(values[page.id]))], OVER_TIME)


OPIC_HISTORY: Final = Experiment(
    "opic-history",
    "a site's past: estimates and PageRank at the end of each year",
    OPIC_PAPER,
    {
        **keys("payout", "policy", "window"),
        **{"L1": 4, "relative error": 2, "of the top tenth": 2, "L1 at the end": 4, "on the newest tenth": 2},
    },
    rows_of,
    notes=(
        "each event of the history is a read at its time; windows in days are of the site's time",
        "error against the PageRank of the known graph of that moment: the pages that are there, with the links of "
        f"their last version; L1 and errors in percent are means over the years from {SETTLED}",
        f"{MEASURES} measures a page are kept",
    ),
    axes=Axes("", "L1 error", y_scale="linear"),
    runs=0,
)
