"""The bank's inspector: given all that is on the topic, is each event's effect in the store exactly once?

With one partition and one shard the store has to be the ledger's twin. With more, the order in which partitions and
shards interleave is nobody's to know; but every page must have been read by just the events that read it, and what it
received in all, which is `v` and its history, must be what those reads paid that link to it: how much each had to give
stands in the measures of the page that was read.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opic.model.cash import Flag, split
from opic.model.event_checks import decode_events
from opic.model.events import CheckedEvent, EventLimits, Outcome, Record
from opic.model.ledger_page import LedgerPage
from opic.replica import Crawl
from opic.urls.canonical import canonical_or_none


@dataclass
class Expected:
    """What the events of a topic come to."""

    reads: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)  # URL -> time of the fetch -> children.
    known: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    again: list[str] = field(default_factory=list)  # Reads that stand on the topic twice, not as repeats of one call.


def expected_of(records: Iterable[Record], limits: EventLimits | None = None) -> Expected:
    """Work out what the records ask for, each call's once."""
    found, calls = Expected(), set[bytes]()
    for record in records:
        for number, event in enumerate(decode_events("topic/0", record, limits or EventLimits())):
            if call := record.call_of(number):
                if call in calls:
                    found.counts["repeats"] += 1
                    continue
                calls.add(call)
            _count(found, event)
    return found


def _count(found: Expected, event: CheckedEvent) -> None:
    if event.outcome is Outcome.DEAD:
        found.counts["dead_letters"] += 1
        return
    if event.outcome is Outcome.SEEDS:
        found.counts["seeds"] += len(event.seeds)
        found.known.update(event.seeds)
        return
    found.known.add(event.url)
    name = {"read": "reads", "failed": "failures", "gone": "departures", "excluded": "exclusions"}[event.outcome]
    found.counts[name] += 1
    if event.outcome is Outcome.READ:
        children = _children(event)
        found.counts["links"] += len(children)
        found.known.update(children)
        times = found.reads.setdefault(event.url, {})
        if event.at_us in times:
            found.again.append(f"the read of {event.url} at {event.at_us} was accepted twice")
        times[event.at_us] = children


def _children(event: CheckedEvent) -> tuple[str, ...]:
    distinct = {page: None for link in event.links if (page := canonical_or_none(link)) is not None}
    distinct.pop(event.url, None)
    return tuple(distinct)


def inspect(crawl: Crawl, expected: Expected) -> list[str]:
    """Return all that is wrong with a store in which nothing is on its way any more; [] if nothing is."""
    wrong = list(expected.again)
    total, shards = crawl.audit()
    if not total.conserved or total.minted != crawl.rules.minted:
        wrong.append(f"the books don't balance: {total}")
    if total.in_flight or crawl.waiting():
        wrong.append(f"{total.in_flight} grains and {crawl.waiting()} entries are still on their way")
    for shard, audit in enumerate(shards):
        wrong += [f"shard {shard}: {text}" for text in audit.mismatches]
    books = crawl.totals()
    names = ("reads", "failures", "departures", "exclusions", "seeds", "links", "dead_letters", "repeats")
    wrong += [
        f"{name}: {getattr(books, name)} took effect, {expected.counts[name]} are on the topic"
        for name in names
        if getattr(books, name) != expected.counts[name]
    ]
    pages = {page.url: page for page in crawl.pages()}
    wrong += [f"{url} is known, and nothing names it" for url in sorted(pages.keys() - expected.known)]
    wrong += [f"{url} is not known" for url in sorted(expected.known - pages.keys())]
    return wrong + _reads_wrong(pages, expected) + _received_wrong(crawl, pages, expected)


def _reads_wrong(pages: dict[str, LedgerPage], expected: Expected) -> list[str]:
    wrong = []
    for url, page in pages.items():
        times, seen = expected.reads.get(url, {}), [m.fetched_at_us for m in page.measures]
        if page.reads != len(times):
            wrong.append(f"{url} was read {page.reads} times, by {len(times)} events")
        elif sorted(seen) != sorted(times):
            wrong.append(f"{url} has other measures than events")
    return wrong


def _received_wrong(crawl: Crawl, pages: dict[str, LedgerPage], expected: Expected) -> list[str]:
    received: Counter[str] = Counter()
    for url, page in pages.items():
        times = expected.reads.get(url, {})
        for measure in page.measures:
            children = times.get(measure.fetched_at_us, ())
            share = split(measure.cash, len(children), crawl.rules.q).share
            for child in children:
                received[child] += share
    return [
        f"{url} received {page.v + page.spent} grains, was sent {received[url]}"
        for url, page in pages.items()
        if page.v + page.spent != received[url]
    ]


def lost_and_doubled(crawl: Crawl, expected: Expected) -> tuple[int, int]:
    """How many reads have no effect in the store, and how many more effects there are than reads."""
    lost, doubled = 0, len(expected.again)
    seen = {page.url: Counter(m.fetched_at_us for m in page.measures) for page in crawl.pages()}
    for url, times in expected.reads.items():
        found = seen.pop(url, Counter())
        lost += sum(1 for at in times if not found[at])
        doubled += sum(count - (at in times) for at, count in found.items())
    return lost, doubled + sum(times.total() for times in seen.values())


def links_shown(crawl: Crawl, expected: Expected) -> dict[str, set[str]]:
    """By page: the pages that were read and not lost since, and whose last read shows a link to it."""
    found: dict[str, set[str]] = {url: set() for url in expected.known}
    for page in crawl.pages():
        if page.measures and page.has(Flag.OPEN) and not page.has(Flag.GONE):
            for child in expected.reads.get(page.url, {}).get(page.measures[-1].fetched_at_us, ()):
                found[child].add(page.url)
    return found


def shown(wrong: Sequence[str], most: int = 10) -> str:
    """The first of many."""
    return "\n".join([*wrong[:most], *([f"and {len(wrong) - most} more"] if len(wrong) > most else [])])
