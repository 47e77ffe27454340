"""Focused sampling: random walks on the pages of a topic that stay equally long on each of them.

The graph is undirected and a multigraph: two pages that link to each other are joined by two edges. A page of degree d
has D - d loops to itself, so that all pages have the virtual degree D and the walk is on each equally often. The steps
on loops cost nothing: the walk draws how many there are, the *hold* of the visit, from Geometric(d/D). Time that counts
holds is virtual time; a sample of the topic is the pages at fixed virtual times (`opic.graph.walk_samples`).

A drawn neighbour that the walk may not visit counts as one more loop, and its edge is dropped. The chain is the same as
if all neighbours had been tested before the degree was counted, as the paper says, for far fewer fetches.

Source: Bar-Yossef, Kanungo, Krauthgamer (2005), sections 3.3 to 3.5 and 4; see docs/papers.md.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from opic.errors import BadInput

VIRTUAL_DEGREE: Final = 10**9  # More than any page has neighbours. Larger costs nothing: holds are drawn, not walked.
WINDOW: Final = 100  # L, the paper's.
HOSTS: Final = 100  # H; the paper gives no number. As many as the window can show.
RADIUS: Final = 1  # k of the topical neighbourhood, and how many probes tell whether a page is in it: B.
PROBES: Final = 10
TRIES: Final = 3  # k of trial and error; the paper gives no number.

PageT = TypeVar("PageT", bound=Hashable)


class Focus(StrEnum):
    """Which pages a walk may visit.

    NONE           all: the WebWalker
    HARD           those of the topic
    NEIGHBOURHOOD  those within RADIUS links of the topic, as far as PROBES short walks can tell
    TRIAL          all, but after TRIES pages off the topic it goes back to the last page on it
    """

    NONE = "none"
    HARD = "hard"
    NEIGHBOURHOOD = "neighbourhood"
    TRIAL = "trial"


class SeenPage(NamedTuple, Generic[PageT]):
    """A page that was looked at. Its name differs from the one asked for if the page moved."""

    page: PageT
    links: Sequence[PageT]
    on_topic: bool


class LinkedPages(Protocol[PageT]):
    """What a walk knows of the web. Pages are named by URLs or numbers."""

    def load_page(self, page: PageT) -> SeenPage[PageT] | None:
        """Return a page, or None if it can't be had. Keep fetched pages: one looked at again must be the same."""

    def inlinks(self, page: PageT) -> Iterable[PageT]:
        """Return pages that are known to link to a page. Those that the walk visited need not be among them."""

    def host(self, page: PageT) -> Hashable: ...


class Visit(NamedTuple, Generic[PageT]):
    """A page that the walk was on.

    hold      virtual steps that it stayed; always 1 in trial and error, where degrees are unequal
    degree    number of its edges, without those that were dropped
    jumped    whether the walk came by a jump out of a crowded host
    expected  virtual steps that it was to stay on average: D/d, or the sum of that over the edges drawn until one
              led to a page that the walk may visit
    """

    page: PageT
    on_topic: bool
    hold: int
    degree: int
    jumped: bool
    expected: float = 1.0


@dataclass(frozen=True, slots=True)
class WalkOptions:
    """Options of a walk; the constants of this module are the defaults.

    radius, probes  k and B of the topical neighbourhood
    tries           k of trial and error
    virtual_degree  D
    window, hosts   at most half of the last `window` pages are of one host, if others are known; a jump goes to one of
                    the last `hosts` hosts; 0 for `window`: no such rule
    """

    focus: Focus = Focus.HARD
    radius: int = RADIUS
    probes: int = PROBES
    tries: int = TRIES
    virtual_degree: int = VIRTUAL_DEGREE
    window: int = WINDOW
    hosts: int = HOSTS


class FocusedWalk(Generic[PageT]):
    """A random walk on the pages of a topic. It remembers the neighbours of each page that it visited.

    A page's neighbours are those known at its first visit: its links, the known in-links, and visited pages that link
    to it. They are frozen then, and symmetric: of two visited pages either both have the edges between them or neither
    does. So the walk is on a fixed graph, even if more links become known later.

    A step is O(1) plus O(links and in-links) at the first visit of a page; memory is O(links of the visited pages).

    >>> class Ring:
    ...     def load_page(self, page): return SeenPage(page, [(page + 1) % 4], page != 3)
    ...     def inlinks(self, page): return [(page - 1) % 4]
    ...     def host(self, page): return page
    >>> walk = FocusedWalk(Ring(), 0, random.Random(1), WalkOptions(virtual_degree=4))
    >>> [(visit.page, visit.hold) for visit, _ in zip(walk.visits(), range(4))]
    [(0, 7), (1, 1), (2, 2), (1, 1)]
    """

    def __init__(
        self, pages: LinkedPages[PageT], start: PageT, rng: random.Random, options: WalkOptions = WalkOptions()
    ) -> None:
        """Begin on a page.

        Raises:
            BadInput: an option is out of range, or the first page can't be had or is not on the topic.
        """
        if min(options.radius, options.probes, options.virtual_degree, options.hosts) < 1 or options.tries < 0:
            raise BadInput("radius, probes, virtual degree and hosts of a walk must be 1 or more, tries 0 or more")
        if options.window == 1 or options.window < 0:
            raise BadInput(f"a host window of {options.window} pages: give 2 or more, or 0 for none")
        self._pages, self._rng, self._options = pages, rng, options
        self._random = rng.random
        self._edges: dict[PageT, list[PageT]] = {}  # Of each visited page.
        self._on_topic: dict[PageT, bool] = {}  # The same pages.
        # Of pages not visited yet: the visited pages that have edges to them, and how many.
        self._waiting: dict[PageT, dict[PageT, int]] = {}
        self._member: dict[PageT, bool] = {}  # Whether a page off the topic is in the topical neighbourhood.
        self._window: deque[Hashable] = deque()  # Hosts of the last `window` - 1 pages.
        self._in_window: Counter[Hashable] = Counter()
        self._last_of: dict[Hashable, PageT] = {}  # The last `hosts` hosts, with the last page visited on each.
        self._away = 0  # Trial and error: pages since the last one on the topic, which is `_back`.
        seen = pages.load_page(start)
        if seen is None:
            raise BadInput(f"the first page, {start}, can't be fetched: name another")
        if not seen.on_topic and options.focus is not Focus.NONE:
            raise BadInput(f"the first page, {start}, is not on the topic: name another, or change the topic")
        self._back = self._at = seen.page
        self._jumped = False
        self._arrive(seen.page, seen)

    def visits(self) -> Iterator[Visit[PageT]]:
        """Yield the pages that the walk visits, without end, each when the walk leaves it.

        Raises:
            BadInput: nothing that the walk may visit is linked with its first page, or a page has over D neighbours.
        """
        leave = self._leave_by_trial if self._options.focus is Focus.TRIAL else self._leave
        while True:
            yield leave()

    def edges(self, page: PageT) -> Sequence[PageT]:
        """Return the neighbours of a visited page, as often as there are edges."""
        return self._edges[page]

    # One visit.

    def _leave(self) -> Visit[PageT]:
        """Stay for the hold of a page, and move to a neighbour that the walk may visit."""
        current, edges, hold, expected = self._at, self._edges[self._at], 0, 0.0
        while True:
            if not edges:
                raise BadInput(
                    f"{current} has no neighbour that the walk may visit: begin on another page, or choose a "
                    "softer focus"
                )
            hold += self._hold(current, len(edges))
            expected += self._options.virtual_degree / len(edges)
            number = int(self._random() * len(edges))
            target = edges[number]
            if target in self._edges:
                seen = None
                break
            seen = self._found(current, number)
            if seen is None:
                continue
            if seen.page in self._edges or self._may_visit(seen):
                target = seen.page
                break
            self._drop(current, number if edges[number] == seen.page else len(edges) - 1)  # One that moved is last.
        visit = Visit(current, self._on_topic[current], hold, len(edges), self._jumped, expected)
        self._arrive(target, seen)
        return visit

    def _leave_by_trial(self) -> Visit[PageT]:
        """Move to any neighbour; after too many pages off the topic, back to the last page on it."""
        current, edges, seen = self._at, self._edges[self._at], None
        while edges and seen is None:
            number = int(self._random() * len(edges))
            target = edges[number]
            seen = (
                SeenPage(target, (), self._on_topic[target]) if target in self._edges else self._found(current, number)
            )
        if not edges and current == self._back:
            raise BadInput(f"{current} has no neighbour that can be fetched: begin on another page")
        visit = Visit(current, self._on_topic[current], 1, len(edges), self._jumped)
        if seen is not None and (seen.on_topic or self._away < self._options.tries):
            self._arrive(seen.page, seen)
        else:
            self._arrive(self._back, None)
        if self._on_topic[self._at]:
            self._away, self._back = 0, self._at
        else:
            self._away += 1
        return visit

    def _hold(self, page: PageT, degree: int) -> int:
        """Draw from Geometric(d/D): the virtual steps until the walk leaves, this one included."""
        most = self._options.virtual_degree
        if degree >= most:
            if degree == most:
                return 1
            raise BadInput(f"{page} has {degree:,} edges, over the virtual degree {most:,}: raise the virtual degree")
        return 1 + int(math.log(1.0 - self._random()) / math.log1p(-degree / most))

    def _found(self, page: PageT, number: int) -> SeenPage[PageT] | None:
        """Look at the neighbour behind an edge. Without such a page, or with one that lacks the edge, drop it."""
        edges = self._edges[page]
        seen = self._pages.load_page(edges[number])
        if seen is None:
            self._drop(page, number)
        elif seen.page != edges[number]:  # It moved: the edge leads to where it is now.
            self._drop(page, number)
            if seen.page in self._edges:
                return None
            edges.append(seen.page)
            self._await(seen.page, page)
        return seen

    def _await(self, page: PageT, visited: PageT) -> None:
        """Note an edge from a visited page to one that was not visited."""
        counts = self._waiting.get(page)
        if counts is None:
            self._waiting[page] = {visited: 1}
        else:
            counts[visited] = counts.get(visited, 0) + 1

    def _drop(self, page: PageT, number: int) -> None:
        """Remove one edge from a visited page to one that was not visited."""
        edges = self._edges[page]
        target = edges[number]
        edges[number] = edges[-1]
        edges.pop()
        of_target = self._waiting[target]
        of_target[page] -= 1
        if not of_target[page]:
            del of_target[page]
            if not of_target:
                del self._waiting[target]

    def _may_visit(self, seen: SeenPage[PageT]) -> bool:
        focus = self._options.focus
        if focus is not Focus.NEIGHBOURHOOD or seen.on_topic:
            return seen.on_topic or focus is Focus.NONE
        if self._on_topic[self._at]:
            return True  # Its neighbours are in the neighbourhood.
        member = self._member.get(seen.page)
        if member is None:
            member = self._member[seen.page] = self._near_topic(seen)
        return member

    def _near_topic(self, seen: SeenPage[PageT]) -> bool:
        """Tell whether one of B short random walks from a page comes to the topic."""
        first = self._neighbours(seen)
        for _ in range(self._options.probes):
            near = first
            for _ in range(self._options.radius):
                if not near:
                    break
                neighbour = self._pages.load_page(near[int(self._random() * len(near))])
                if neighbour is None:
                    break
                if neighbour.on_topic:
                    return True
                near = self._neighbours(neighbour) if self._options.radius > 1 else []
        return False

    def _neighbours(self, seen: SeenPage[PageT]) -> list[PageT]:
        if seen.page in self._edges:
            return self._edges[seen.page]
        return self._edges_of(seen, self._waiting.get(seen.page, {}))

    # Where it goes.

    def _arrive(self, page: PageT, seen: SeenPage[PageT] | None) -> None:
        """Be on a page, or on one of another host if the page's host has half of the window."""
        host = self._pages.host(page)
        other = self._out_of_crowd(host)
        self._jumped = other is not None
        if other is not None:
            page, host = other, self._pages.host(other)
        if page not in self._edges:
            assert seen is not None
            self._freeze(seen)
        self._at = page
        self._note_host(host, page)

    def _out_of_crowd(self, host: Hashable) -> PageT | None:
        """Return the page to jump to if a host has half of the window; None if it has not, or none is known."""
        half = self._options.window // 2
        if self._in_window[host] < half:
            return None
        # Never to a host that is crowded itself.
        others = [last for other, last in self._last_of.items() if other != host and self._in_window[other] < half]
        return others[int(self._random() * len(others))] if others else None

    def _note_host(self, host: Hashable, page: PageT) -> None:
        """Count a visit to a host in the window, and keep the page as the last one of the host."""
        self._window.append(host)
        self._in_window[host] += 1
        if len(self._window) >= self._options.window:
            oldest = self._window.popleft()
            self._in_window[oldest] -= 1
            if not self._in_window[oldest]:
                del self._in_window[oldest]
        self._last_of.pop(host, None)
        self._last_of[host] = page
        if len(self._last_of) > self._options.hosts:
            del self._last_of[next(iter(self._last_of))]

    def _freeze(self, seen: SeenPage[PageT]) -> None:
        """Fix the neighbours of a page at its first visit."""
        page = seen.page
        of_visited = self._waiting.pop(page, {})
        self._edges[page], self._on_topic[page] = self._edges_of(seen, of_visited), seen.on_topic
        for other in self._edges[page]:
            if other not in of_visited:
                self._await(other, page)

    def _edges_of(self, seen: SeenPage[PageT], of_visited: Mapping[PageT, int]) -> list[PageT]:
        """Return the neighbours of a page, as often as there are edges; visited ones by their own edges to it."""
        edges: list[PageT] = []
        for linked in (seen.links, self._pages.inlinks(seen.page)):
            edges += [other for other in dict.fromkeys(linked) if other not in self._edges and other != seen.page]
        for visited, count in of_visited.items():
            edges += [visited] * count
        return edges
