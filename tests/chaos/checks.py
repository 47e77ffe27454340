"""What crawlers are promised: no page is leased twice, `next` answers while the store is up, in-links are whole."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from chaos.fetchers import CallNote, LeaseNote, is_ours

CLOCK_SECONDS = 0.002  # What two readings of the same clock may differ by.
LINKED_PAGES = 60  # How many pages are asked for their in-links.
INLINKS_MAX = 1_000


def leased_twice(leases: Iterable[LeaseNote]) -> list[str]:
    """Leases that were given while another one of the same page ran, and whose holder had done nothing to end it.

    Only pages that nobody but the crawlers reports count: an event of somebody else may end a lease.
    """
    by_page: dict[str, list[LeaseNote]] = defaultdict(list)
    for lease in leases:
        if is_ours(lease.url):
            by_page[lease.url].append(lease)
    found = []
    for url, ones in by_page.items():
        ones.sort(key=lambda lease: lease.begun)
        for number, later in enumerate(ones):
            for lease in ones[:number]:
                ended = lease.until if lease.ended is None else min(lease.ended, lease.until)
                if later.begun < ended - CLOCK_SECONDS:
                    left = lease.until - later.begun
                    found.append(
                        f"{url} was leased to {later.holder} while {lease.holder} had it for {left:.1f} s more"
                    )
    return found


def failed_while_up(calls: Iterable[CallNote], away: Sequence[tuple[float, float]]) -> list[CallNote]:
    """Calls that were answered 5xx though the store was there all the time."""
    return [
        call
        for call in calls
        if call.status >= 500 and not any(call.begun < end and call.ended > begin for begin, end in away)
    ]


def inlinks_wrong(
    who: str, ask: Callable[[str], set[str]], links: Mapping[str, set[str]], rng: random.Random
) -> list[str]:
    """Where somebody's in-links are not those that the events show: of the most linked pages, and of some others."""
    most = sorted(links, key=lambda url: (-len(links[url]), url))[: LINKED_PAGES // 2]
    some = rng.sample(sorted(links), min(LINKED_PAGES // 2, len(links)))
    wrong = []
    for url in dict.fromkeys([*most, *some]):
        if len(links[url]) < INLINKS_MAX and (found := ask(url)) != links[url]:
            missing, more = sorted(links[url] - found)[:2], sorted(found - links[url])[:2]
            counts = f"{len(found)} in-links of {url}, events show {len(links[url])}"
            wrong.append(f"{who} knows {counts}; missing {missing}, too many {more}")
    return wrong
