"""Random and greedy choices from a set of pages whose weights change one at a time.

A crawl changes a few weights at each fetch and then chooses one page; looking at all pages for each choice would make a
crawl of n pages cost n^2. Here a change and a choice cost O(1), amortised, or O(log n):

    GreatestCount       a page of the greatest count                  O(1)       Crawl-GAI
    ByCount             at random, in proportion to a count           O(1)       Crawl-AI, policy OR
    ByWeight            at random, in proportion to a weight          O(log n)   policy YR
    GreatestWeight      a page of the greatest weight                 O(log n)   policy LDU
    Uniform             at random                                     O(1)       policy U

Pages are numbers >= 0.
"""

import heapq

import numpy as np

Generator = np.random.Generator


class Uniform:
    """Pages, each as likely as any other."""

    def __init__(self) -> None:
        """Start without pages."""
        self._pages: list[int] = []

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._pages)

    def add(self, page: int) -> None:
        """Add a page that is not there yet."""
        self._pages.append(page)

    def pick(self, rng: Generator) -> int | None:
        """Return a page; None without pages."""
        return _any_of(self._pages, rng)


class GreatestCount:
    """Pages with counts, of which one with the greatest is chosen; of equal ones, any at random.

    The pages of each count are a list. An increment moves a page to the end of the next list. The greatest count falls
    only past lists that increments have filled before, so looking for it costs O(1) an increment.
    """

    def __init__(self) -> None:
        """Start without pages."""
        self._pages: list[list[int]] = [[]]  # By count.
        self._place: dict[int, tuple[int, int]] = {}  # Count, and index in the list of that count.
        self._greatest = 0

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._place)

    def count(self, page: int) -> int:
        """Return a page's count; 0 for one that is not here."""
        return self._place.get(page, (0, 0))[0]

    def increment(self, page: int) -> None:
        """Add 1 to a page's count; a new page starts at 1."""
        count = self._take(page) + 1 if page in self._place else 1
        if count == len(self._pages):
            self._pages.append([])
        self._place[page] = count, len(self._pages[count])
        self._pages[count].append(page)
        self._greatest = max(self._greatest, count)

    def discard(self, page: int) -> None:
        """Remove a page, if it is here."""
        if page in self._place:
            self._take(page)

    def pick(self, rng: Generator) -> int | None:
        """Return a page of the greatest count; None without pages."""
        while self._greatest and not self._pages[self._greatest]:
            self._greatest -= 1
        return _any_of(self._pages[self._greatest], rng)

    def _take(self, page: int) -> int:
        """Remove a page, filling its place with the last of its list; return its count."""
        count, index = self._place.pop(page)
        pages = self._pages[count]
        last = pages.pop()
        if last != page:
            pages[index] = last
            self._place[last] = count, index
        return count


class ByCount:
    """Pages with counts, chosen with probability in proportion to them.

    Each increment is a ticket, and a random ticket is drawn. The tickets of a page that was removed are thrown away as
    they are drawn, each once.
    """

    def __init__(self) -> None:
        """Start without pages."""
        self._tickets: list[int] = []
        self._count: dict[int, int] = {}

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._count)

    def count(self, page: int) -> int:
        """Return a page's count; 0 for one that is not here."""
        return self._count.get(page, 0)

    def increment(self, page: int, by: int = 1) -> None:
        """Add to a page's count, also of a new page. A page that was removed never comes back."""
        if by > 0:
            self._tickets.extend([page] * by)
            self._count[page] = self.count(page) + by

    def discard(self, page: int) -> None:
        """Remove a page, if it is here."""
        self._count.pop(page, None)

    def pick(self, rng: Generator) -> int | None:
        """Return a page; None without pages."""
        tickets = self._tickets
        while tickets:
            drawn = int(rng.random() * len(tickets))
            page = tickets[drawn]
            if page in self._count:
                return page
            tickets[drawn] = tickets[-1]
            tickets.pop()
        return None


class ByWeight:
    """Pages with weights >= 0, chosen with probability in proportion to them.

    A binary tree in an array: each inner node holds the sum of its two children, computed from them at each change, so
    that rounding errors do not add up. A choice walks from the root to a leaf.
    """

    def __init__(self) -> None:
        """Start without pages."""
        self._leaves = 1
        self._sums = [0.0, 0.0]  # Node i has the children 2i and 2i + 1; the leaves come last.
        self._pages: list[int] = []
        self._leaf: dict[int, int] = {}

    def __len__(self) -> int:
        """Count the pages that ever had a weight."""
        return len(self._pages)

    def weight(self, page: int) -> float:
        """Return a page's weight; 0 for one that is not here."""
        return self._sums[self._leaves + self._leaf[page]] if page in self._leaf else 0.0

    def set(self, page: int, weight: float) -> None:
        """Set the weight of a page."""
        leaf = self._leaf.get(page)
        if leaf is None:
            leaf = self._leaf[page] = len(self._pages)
            self._pages.append(page)
            if leaf == self._leaves:
                self._double()
        sums, node = self._sums, self._leaves + leaf
        sums[node] = weight
        while node > 1:
            node //= 2
            sums[node] = sums[2 * node] + sums[2 * node + 1]

    def pick(self, rng: Generator) -> int | None:
        """Return a page; None if no page has a weight above 0."""
        sums, node = self._sums, 1
        if not sums[1] > 0:
            return None
        mark = rng.random() * sums[1]
        while node < self._leaves:
            node *= 2
            # Rounding may leave `mark` at the sum of both: never step into a child that weighs nothing.
            if mark >= sums[node] and sums[node + 1] > 0:
                mark -= sums[node]
                node += 1
        return self._pages[node - self._leaves]

    def _double(self) -> None:
        """Double the number of leaves: the old tree becomes the left half."""
        sums, level = [0.0, self._sums[1]], 1
        while level <= self._leaves:
            sums += self._sums[level : 2 * level] + [0.0] * level
            level *= 2
        self._sums, self._leaves = sums, self._leaves * 2


class GreatestWeight:
    """Pages with weights, of which the one with the greatest is chosen; of equal ones, the lower number."""

    def __init__(self) -> None:
        """Start without pages."""
        self._weight: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []  # Also entries that no longer hold.

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._weight)

    def weight(self, page: int) -> float:
        """Return a page's weight; 0 for one that is not here."""
        return self._weight.get(page, 0.0)

    def set(self, page: int, weight: float) -> None:
        """Set the weight of a page."""
        if self._weight.get(page) != weight:
            self._weight[page] = weight
            heapq.heappush(self._heap, (-weight, page))

    def pick(self, _rng: Generator) -> int | None:
        """Return the page; None if no page has a weight above 0."""
        while self._heap and self._weight[self._heap[0][1]] != -self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap and self._heap[0][0] < 0 else None


def _any_of(pages: list[int], rng: Generator) -> int | None:
    return pages[int(rng.random() * len(pages))] if pages else None
