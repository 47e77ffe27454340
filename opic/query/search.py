"""Search for pages by a part of their URL. URLs are read from the store, so each search is bounded in time."""

import time
from typing import Final

import numpy as np

from opic.errors import BadInput
from opic.query.crawl_pages import CrawlPages
from opic.query.page_entries import EXACT
from opic.query.queries import Query, check_count
from opic.urls.canonical import canonical_host

SECONDS_MAX: Final = 1.0  # About 300,000 URLs. A search holds up other questions for as long.
URLS_A_READ: Final = 8_192


def search(
    query: Query, text: str, n: int = 20, domain: str | None = None, after: str | None = None
) -> dict[str, object]:
    """Find pages whose URL contains a text; case does not matter.

    It looks at URLs in order of shard and first sight until SECONDS_MAX has passed, at least at one batch of them.
    Pages that are gone are left out.

    Args:
        text: the part of a URL.
        n: maximum number of pages.
        domain: look only at pages of this host or registered domain, including subdomains.
        after: go on here: the "next" of the answer before.

    Returns:
        "pages", the `n` most important of those found, each with "url" and "importance"; "found", how many there are;
        "looked_at", at how many pages this call looked, and "known_pages", how many there are to look at; "next", the
        value for `after`, if the time was over before the end; and "as_of".

    Raises:
        BadInput: the text is empty, or `after` is not from an answer.
    """
    check_count(n, "page")
    wanted = text.strip().lower()
    if not wanted:
        raise BadInput("text is empty: give a part of a URL")
    within = None if domain is None else canonical_host(domain)
    return query.answered(None, lambda _: query.crawl.steadily(lambda: _search(query, wanted, n, within, after)))


def _search(query: Query, wanted: str, n: int, within: str | None, after: str | None) -> dict[str, object]:
    pages = query.exact_view() if query.policy == EXACT else query.snapshots.fresh()
    scores, total = pages.scores, pages.total
    candidates = np.flatnonzero(pages.live if within is None else pages.live & pages.within(within))
    first = 0 if after is None else int(np.searchsorted(candidates, _position(pages, after)))
    end, cursor = time.monotonic() + SECONDS_MAX, first
    matches: dict[int, str] = {}  # By position.
    while cursor < len(candidates) and (cursor == first or time.monotonic() < end):
        positions = candidates[cursor : cursor + URLS_A_READ]
        places = pages.places(positions)
        urls = query.crawl.urls_of(places)
        for position, shard_page in zip(positions.tolist(), places, strict=True):
            if wanted in urls[shard_page].lower():
                matches[position] = urls[shard_page]
        cursor += len(positions)
    best = sorted(matches, key=lambda position: (-scores[position].item(), position))[:n]
    answer: dict[str, object] = {
        "pages": [
            {"url": matches[position], "importance": min(scores[position].item() / total, 1.0)} for position in best
        ],
        "found": len(matches),
        "looked_at": cursor - first,
        "known_pages": len(candidates),
        "as_of": pages.as_of,
    }
    if cursor < len(candidates):
        ((shard, page),) = pages.places(candidates[cursor : cursor + 1])
        answer["next"] = f"{shard}-{page}"
    return answer


def _position(pages: CrawlPages, after: str) -> int:
    shard, _, page = after.partition("-")
    if not (shard.isdecimal() and page.isdecimal() and len(after) < 20 and int(shard) < len(pages.starts) - 1):
        raise BadInput(f"after={after[:40]!r} is not from this service: send the `next` of the answer before")
    return int(pages.positions(np.array([int(shard)]), np.array([int(page)]))[0])
