"""Whatever the web is and whatever is known of it, the neighbours that a walk has frozen make one fixed graph."""

import random
from contextlib import suppress
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from plain_walk import SmallWeb, edge_counts

from opic.errors import BadInput
from opic.graph.focused_walk import Focus, FocusedWalk, WalkOptions

PAGES = 8
SOME = st.lists(st.integers(0, PAGES - 1), max_size=4)


@st.composite
def webs(draw: st.DrawFn, *, complete: bool = False) -> SmallWeb:
    links = [sorted({*draw(SOME)} - {page}) for page in range(PAGES)]
    topic = [True, *draw(st.lists(st.booleans(), min_size=PAGES - 1, max_size=PAGES - 1))]
    hosts = draw(st.lists(st.sampled_from("abc"), min_size=PAGES, max_size=PAGES))
    if complete:
        return SmallWeb(links, topic, hosts)
    moved = draw(st.dictionaries(st.integers(1, PAGES - 1), st.just(0), max_size=2))
    gone = {*draw(st.lists(st.integers(1, PAGES - 1), max_size=2))}
    known = [draw(SOME) for _ in range(PAGES)]  # An index may also be wrong.
    return SmallWeb(links, topic, hosts, [[x for x in row if x != page] for page, row in enumerate(known)], moved, gone)


def steps(walk: FocusedWalk[int], count: int) -> list[int]:
    """The pages of a walk until it ends for want of neighbours."""
    pages = list[int]()
    with suppress(BadInput):
        pages.extend(visit.page for visit in islice(walk.visits(), count))
    assert pages or not walk.edges(0)
    return pages


@given(webs(), st.sampled_from(list(Focus)), st.integers(2, 10), st.integers(0, 99))
def test_two_visited_pages_have_the_same_edges_between_them(
    web: SmallWeb, focus: Focus, window: int, seed: int
) -> None:
    walk = FocusedWalk(web, 0, random.Random(seed), WalkOptions(focus, window=window))
    visited = {0, *steps(walk, 60)}
    assert not visited & (web.gone | web.moved.keys())
    edges = {page: walk.edges(page) for page in visited}
    for page, others in edges.items():
        assert page not in others
        assert all(others.count(other) == edges[other].count(page) for other in visited & {*others})
    if focus is Focus.HARD:
        assert all(web.topic[page] for page in visited)


@given(webs(complete=True), st.sampled_from([Focus.NONE, Focus.HARD]), st.integers(0, 99))
def test_edges_of_a_web_that_is_known_are_its_links_either_way(web: SmallWeb, focus: Focus, seed: int) -> None:
    walk = FocusedWalk(web, 0, random.Random(seed), WalkOptions(focus))
    visited = {0, *steps(walk, 60)}
    counts = edge_counts(web.links, web.topic if focus is Focus.HARD else [True] * PAGES)
    for page in visited:
        of_page = walk.edges(page)
        assert [of_page.count(other) for other in visited] == counts[page, list(visited)].tolist()


@given(webs(complete=True), st.sampled_from(list(Focus)), st.integers(0, 99))
def test_walk_of_a_seed_is_always_the_same(web: SmallWeb, focus: Focus, seed: int) -> None:
    first, second = (steps(FocusedWalk(web, 0, random.Random(seed), WalkOptions(focus)), 30) for _ in range(2))
    assert first == second
