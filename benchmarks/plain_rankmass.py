"""The crawls of Cho and Schonfeld (2007) as the paper prints them, to compare
`experiments.algorithms.rankmass` with.

Line by line, in plain Python; picking the greatest looks at all pages. A crawl yields each page that it downloads with
the coverage that was guaranteed before, and at its end None with the last guarantee. What the paper leaves open is
settled as in `experiments.algorithms.rankmass`: pages without links, pages that link to themselves, rm of downloaded
pages, ties, the window.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

Links = Sequence[Sequence[int]]  # The distinct pages that each page links to, increasing.
Step = tuple[int | None, float]
DAMPING = 0.85


def l_neighbor(links: Links, trust: Mapping[int, float], epsilon: float = 0.0, d: float = DAMPING) -> Iterator[Step]:
    """Figure 2."""
    level = 0
    pages, downloaded, guaranteed = set(trust), set[int](), 0.0
    while pages and 1 - guaranteed > epsilon:
        for page in sorted(pages):
            yield page, guaranteed
            downloaded.add(page)
        pages = {child for page in pages for child in links[page]} - downloaded
        level += 1
        guaranteed = 1 - d**level if pages else 1.0
    yield None, guaranteed


def rankmass(
    links: Links, trust: Mapping[int, float], epsilon: float = 0.0, d: float = DAMPING, push_from: float = 1.0
) -> Iterator[Step]:
    """Figure 5."""
    crm = waiting = lost = 0.0
    rm, downloaded, unseen = [0.0] * len(links), bytearray(len(links)), len(trust)
    missing = 1 - math.fsum(trust.values())
    for page, share in trust.items():
        rm[page] = (1 - d) * share
    while (crm + waiting) / (1 - lost) < 1 - epsilon:
        if not unseen and settled(missing, waiting, d):
            yield None, (1 - missing - lost) / (1 - lost)
            return
        page = greatest(rm, downloaded, push_from)
        if not downloaded[page]:
            yield page, (crm + waiting) / (1 - lost)
            downloaded[page], unseen, waiting = True, unseen - 1, waiting + rm[page]
        amount, rm[page] = rm[page], 0.0
        crm, waiting = crm + amount, waiting - amount
        children = links[page]
        if not children:
            lost += amount * d / (1 - d)
        for child in children:
            unseen += not rm[child] and not downloaded[child]
            rm[child] += d / len(children) * amount
            waiting += d / len(children) * amount * downloaded[child]
    yield None, (crm + waiting) / (1 - lost)


def rankmass_by_heap(links: Links, trust: Mapping[int, float], downloads: int, d: float = DAMPING) -> list[int]:
    """Figure 5 with a heap of rm, where entries that are out of date are passed over: the first pages downloaded."""
    rm, downloaded = [0.0] * len(links), dict[int, None]()
    for page, share in trust.items():
        rm[page] = (1 - d) * share
    heap = [(-rm[page], page) for page in trust]
    heapify(heap)
    while heap and len(downloaded) <= downloads:
        amount, page = heappop(heap)
        if -amount != rm[page]:
            continue
        if len(downloaded) == downloads and page not in downloaded:
            break
        downloaded[page], rm[page] = None, 0.0
        children = links[page]
        for child in children:
            rm[child] += d / len(children) * -amount
            heappush(heap, (-rm[child], child))
    return list(downloaded)


def greatest(rm: Sequence[float], downloaded: Sequence[int], push_from: float) -> int:
    """Return the page with the greatest rm, a downloaded page's divided by push_from; of equal ones the first."""
    if push_from == 1:
        return rm.index(max(rm))
    return max(range(len(rm)), key=lambda page: (rm[page] / push_from if downloaded[page] else rm[page], -page))


def windowed_rankmass(
    links: Links,
    trust: Mapping[int, float],
    window: float,
    epsilon: float = 0.0,
    d: float = DAMPING,
    sweeps: int = 1,
    parts: Sequence[Sequence[int]] | None = None,
) -> Iterator[Step]:
    """Figure 6, if each page is a part of its own; the pages of a part are expanded at once."""
    parts = [[page] for page in range(len(links))] if parts is None else list(parts)
    crm = waiting = lost = 0.0
    rm, downloaded = [0.0] * len(links), set[int]()
    missing = 1 - math.fsum(trust.values())
    for page, share in trust.items():
        rm[page] = (1 - d) * share
    while (crm + waiting) / (1 - lost) < 1 - epsilon:
        seen = sorted((i for i, amount in enumerate(rm) if amount and i not in downloaded), key=lambda i: (-rm[i], i))
        if not seen and settled(missing, waiting, d):
            yield None, (1 - missing - lost) / (1 - lost)
            return
        for page in seen[: math.ceil(window * len(seen))]:
            yield page, (crm + waiting) / (1 - lost)
            downloaded.add(page)
            waiting += rm[page]
        for part in parts * sweeps:
            taken = {page: rm[page] for page in part if page in downloaded}
            for page in taken:
                rm[page] = 0.0
            for page, amount in taken.items():
                crm += amount
                children = links[page]
                if not children:
                    lost += amount * d / (1 - d)
                for child in children:
                    rm[child] += d / len(children) * amount
        waiting = math.fsum(rm[page] for page in downloaded)
    yield None, (crm + waiting) / (1 - lost)


def settled(missing: float, waiting: float, d: float) -> bool:
    """Whether downloaded pages can't add to the guarantee, when all pages that are known are downloaded."""
    return missing < 1e-9 or waiting * d / (1 - d) < 1e-12
