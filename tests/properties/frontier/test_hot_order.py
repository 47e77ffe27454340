"""The hot order gives what a sort of all pages gives, whatever changed before, at each instant."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st

from opic.frontier import host_pages, hot_order, key_blocks, page_counts, page_sources, picking, timers
from opic.frontier.domain_pages import Within
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_counts import KINDS, LEASED, RETRY
from opic.frontier.page_keys import random_keys
from opic.frontier.picking import first_free, near_of, pick
from opic.model.cash import Flag

HOSTS, SHARDS = 6, 2
STATES = [
    Flag.KNOWN,
    Flag.KNOWN,
    Flag.KNOWN | Flag.OPEN,
    Flag.KNOWN | Flag.OPEN,
    Flag.KNOWN | 1,
    Flag.KNOWN | Flag.OPEN | 2,
    Flag.KNOWN | Flag.GONE,
    Flag.KNOWN | Flag.OPEN | Flag.EXCLUDED,
    0,
]
CASH = st.one_of(st.integers(-3, 12), st.integers(0, 2), st.integers(-(1 << 40), 1 << 61))
PAGE, HOST, SHARD = st.integers(0, 39), st.integers(0, HOSTS - 1), st.integers(0, SHARDS - 1)
ENDS = st.sampled_from([0.0, 1.0, 2.0, 3.0, np.inf])
MODES = st.sampled_from(["any", "any", "discover", "refresh"])
RETRY_SECONDS = 1.0
KIND = {row.kind: number for number, row in reversed(KINDS.items())}
CHANGE = st.tuples(PAGE, CASH, st.sampled_from(STATES))


def call(name: str, *arguments: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


PICK = call(
    "pick",
    st.integers(1, 9),
    MODES,
    st.sets(HOST, max_size=2),
    st.none() | st.sets(HOST),
    st.none() | st.integers(0, 2),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([None, None, 1, 2]),
)
CALLS = st.lists(
    st.one_of(
        PICK,
        PICK,
        PICK,
        call("new", SHARD, st.lists(st.tuples(HOST, CASH, st.sampled_from(STATES)), max_size=20)),
        call("new", SHARD, st.integers(1, 30).map(lambda n: [(1, 5, Flag.KNOWN)] * n)),
        call("change", SHARD, st.lists(CHANGE, max_size=8)),
        call("hold", SHARD, st.sets(PAGE, max_size=6), ENDS, st.sampled_from([LEASED, LEASED, RETRY])),
        call("read", SHARD, st.sets(PAGE, max_size=6), st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0])),
        call("read", SHARD, st.sets(PAGE, max_size=20), st.sampled_from([0.5, 1.5])),
        call("postpone", SHARD, st.sets(PAGE, max_size=6), st.sampled_from([-1.0, 0.5, 2.0])),
        call("prefer", SHARD, st.sets(PAGE, max_size=6), st.sampled_from([0.5, 3.0, 1e9, 1e-9, 1.0])),
        call("give_up", SHARD, st.sets(PAGE, max_size=6)),
        call("fetched", SHARD, st.sets(PAGE, max_size=6).map(sorted), st.integers(0, 5)),
        call("release", SHARD, st.sets(PAGE, max_size=6)),
        call("shut", SHARD, st.sets(PAGE, max_size=6)),
        call("near", SHARD, st.sets(PAGE, max_size=12), st.integers(1, 2)),
        call("clear", SHARD),
        call("rest", SHARD, st.sets(HOST, max_size=3), ENDS),
        call("single", SHARD, HOST, st.booleans()),
        call("grant", SHARD, st.lists(st.integers(-4, 4), min_size=3, max_size=3)),
        call("grant", SHARD, st.integers(0, 5).map(lambda n: [n, n, n])),
        call("wait", st.sampled_from([0.5, 1.0, 2.0])),
        call("take", st.integers(1, 5), MODES, ENDS, ENDS),
    ),
    max_size=30,
)


@dataclass
class Columns:
    v: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    state: Any = field(default_factory=lambda: np.zeros(0, np.uint8))
    host: Any = field(default_factory=lambda: np.zeros(0, np.int32))
    hosts: int = HOSTS
    credit: Any = field(default_factory=lambda: np.zeros(8, np.int64))
    barred: set[int] = field(default_factory=set)
    near: dict[int, int] = field(default_factory=dict)
    due_at: dict[int, float] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)  # Pages whose time in `due_at` is not that after a read.
    failed: set[int] = field(default_factory=set)
    factors: dict[int, float] | None = None
    read_us: dict[int, int] = field(default_factory=dict)

    def last_read_us(self, ids: Any) -> Any:
        return np.array([self.read_us.get(page, 0) for page in ids.tolist()], np.int64)

    def revisit_at(self, ids: Any) -> Any:
        pages = ids.tolist()
        return np.array([0.0 if page in self.said else self.due_at.get(page, 0.0) for page in pages])

    def not_before(self, ids: Any) -> Any:
        return np.array([self.due_at[page] if page in self.said else 0.0 for page in ids.tolist()])

    def priority(self, ids: Any) -> Any:
        return None if self.factors is None else np.array([self.factors.get(page, 1.0) for page in ids.tolist()])

    def preferred(self) -> Any:
        return np.array(sorted(page for page, factor in (self.factors or {}).items() if factor > 1), np.int64)

    def ruled_out(self, ids: Any) -> Any:
        return np.isin(ids, list(self.barred)) if self.barred else None

    def host_full(self, ids: Any) -> None:
        return None

    def given_up(self, ids: Any) -> Any:
        return np.isin(ids, list(self.failed)) if self.failed else None

    def __len__(self) -> int:
        return len(self.v)

    def credits(self) -> Any:
        return self.credit.copy()

    def nearness(self, ids: Any) -> Any:
        return np.array([self.near.get(page, 0) for page in ids.tolist()], np.int64)

    def within_depth(self, least: int) -> Any:
        return np.flatnonzero(self.nearness(np.arange(len(self))) >= least)


class Twin:
    """Sorts all pages each time."""

    def __init__(self, columns: list[Columns], discovery: float, delay: bool, strategy: str) -> None:
        self.columns, self.discovery, self.strategy = columns, discovery, strategy
        self.holds: list[dict[int, tuple[float, int]]] = [{} for _ in columns]  # End of the lease or back-off.
        self.host_free: list[dict[int, float]] = [{} for _ in columns]
        self.single = [dict.fromkeys(range(HOSTS), delay) for _ in columns]

    def key(self, shard: int, page: int) -> tuple[float, bool]:
        key, read = self.plain_key(shard, page)
        factors = self.columns[shard].factors
        return (key if factors is None else key * factors.get(page, 1.0)), read

    def plain_key(self, shard: int, page: int) -> tuple[float, bool]:
        columns = self.columns[shard]
        state = int(columns.state[page])
        cash, read = int(columns.v[page]) + int(columns.credit[state & 7]), bool(state & Flag.OPEN)
        offered = Flag.KNOWN | Flag.GONE | Flag.EXCLUDED
        barred = page in columns.barred | columns.failed
        if barred or state & offered != Flag.KNOWN or cash == 0 or (cash < 0 and not read):
            return 0, read
        last_read = columns.read_us.get(page, 0)
        if self.strategy == "cycle":
            return (2**53 - 1 - last_read if read else 2**53), read
        if self.strategy == "random":
            return float(random_keys(np.array([page]), np.array([last_read]))[0]), read
        if self.discovery == 1:
            return float(abs(cash)), read
        return (float(abs(cash)) if read else max(cash * self.discovery, 1.0)), read

    def free_at(self, shard: int, page: int) -> float:
        end, kind = self.holds[shard].get(page, (0.0, RETRY))
        return max(end + RETRY_SECONDS * (kind == LEASED), self.columns[shard].due_at.get(page, 0.0))

    def code(self, shard: int, page: int, now: float) -> tuple[int, int]:
        """What holds a page back, and whether it was read."""
        columns, (end, kind) = self.columns[shard], self.holds[shard].get(page, (0.0, RETRY))
        (key, read), state = self.key(shard, page), int(columns.state[page])
        if end > now and kind == LEASED:
            return LEASED, read
        if not state & Flag.KNOWN:
            return page_counts.UNKNOWN, read
        if state & Flag.GONE:
            return KIND["gone"], read
        if state & Flag.EXCLUDED:
            return KIND["excluded"], read
        if page in columns.failed:
            return KIND["given_up"], read
        if page in columns.barred:
            return KIND["denied"], read
        if end + RETRY_SECONDS * (kind == LEASED) > now:
            return RETRY, read
        if columns.due_at.get(page, 0.0) > now:
            return KIND["not_before" if page in columns.said else "revisit"], read
        return (page_counts.FREE if key else KIND["spent"]), read

    def pick(
        self,
        count: int,
        now: float,
        mode: str,
        busy: set[int],
        within: set[int] | None,
        room: int | None,
        near: int,
        host_pages: int | None,
    ) -> list[tuple[int, int]]:
        pages = []
        for shard, columns in enumerate(self.columns):
            for page in range(len(columns)):
                (key, read), host = self.key(shard, page), int(columns.host[page])
                fit = mode == "any" or read == (mode == "refresh")
                held = self.free_at(shard, page) > now or self.host_free[shard].get(host, 0) > now
                fit &= columns.near.get(page, 0) >= near
                if key and fit and not held and host not in busy and (within is None or host in within):
                    pages.append((-key, shard, page, host))
        found: list[tuple[int, int]] = []
        had: Counter[tuple[int, int]] = Counter()
        for _, shard, page, host in sorted(pages):
            if had[shard, host] >= (host_pages or (1 if self.single[shard][host] else np.inf)):
                continue
            if room is not None and had[shard, host] >= room:
                continue
            had[shard, host] += 1
            found.append((shard, page))
        return found[: count + 1]

    def first_free(self, now: float, mode: str, busy: set[int], within: set[int] | None, near: int) -> float | None:
        times = []
        for shard, columns in enumerate(self.columns):
            for page in range(len(columns)):
                (key, read), host = self.key(shard, page), int(columns.host[page])
                fit = mode == "any" or read == (mode == "refresh")
                fit &= columns.near.get(page, 0) >= near
                if key and fit and host not in busy and (within is None or host in within):
                    time = max(self.free_at(shard, page), self.host_free[shard].get(host, 0))
                    times.append(max(time - now, 0))
        return min((time for time in times if time < np.inf), default=None)


class Room:
    def __init__(self, room: int) -> None:
        self.room, self.had = room, Counter[tuple[int, int]]()

    def fit(self, shards: Any, hosts: Any) -> Any:
        fits = []
        for key in zip(shards.tolist(), hosts.tolist(), strict=True):
            fits.append(self.had[key] < self.room)
            self.had[key] += 1
        return np.array(fits, np.bool_)


class Both:
    """The same is done to the hot orders and to the twin, and each choice compared."""

    def __init__(self, discovery: float, delay: bool, strategy: str = "greedy", *, preferring: bool = False) -> None:
        self.columns = [Columns(factors={} if preferring else None) for _ in range(SHARDS)]
        self.orders = [
            HotOrder(columns, discovery, strategy, single=delay, retry_seconds=RETRY_SECONDS)
            for columns in self.columns
        ]
        self.twin = Twin(self.columns, discovery, delay, strategy)
        self.now, self.delay = 0.0, delay
        self.within: dict[frozenset[int], Within] = {}

    def new(self, shard: int, pages: list[tuple[int, int, int]]) -> None:
        columns, count = self.columns[shard], len(self.columns[shard])
        for name, values in zip(("host", "v", "state"), zip(*pages, strict=True), strict=False):
            column = getattr(columns, name)
            setattr(columns, name, np.concatenate((column, np.array(values, column.dtype))))
        self.orders[shard].changed(np.arange(count, len(columns)))

    def known(self, shard: int, pages: Any) -> Any:
        return np.array([page for page in pages if page < len(self.columns[shard])], np.int64)

    def change(self, shard: int, changes: list[tuple[int, int, int]]) -> None:
        ids = self.known(shard, [page for page, _, _ in changes])
        for page, v, state in changes:
            if page in ids:
                self.columns[shard].v[page], self.columns[shard].state[page] = v, state
        self.orders[shard].changed(np.unique(ids))

    def fetched(self, shard: int, pages: set[int], at_us: int) -> None:
        ids = self.known(shard, pages)
        self.columns[shard].read_us.update(dict.fromkeys(ids.tolist(), at_us))
        self.orders[shard].changed(ids)

    def hold(self, shard: int, pages: Any, end: float, kind: int = LEASED) -> None:
        ids = self.known(shard, pages)
        self.orders[shard].hold(ids, np.full(len(ids), self.now + end), kind)
        self.twin.holds[shard].update(dict.fromkeys(ids.tolist(), (self.now + end, kind)))

    def release(self, shard: int, pages: set[int]) -> None:
        ids = self.known(shard, pages)
        self.orders[shard].release(ids)
        for page in ids.tolist():
            self.twin.holds[shard].pop(page, None)

    def postpone(self, shard: int, pages: set[int], wait: float) -> None:
        self.columns[shard].said |= set(self.known(shard, pages).tolist())
        self._due(shard, pages, wait)

    def read(self, shard: int, pages: set[int], wait: float) -> None:
        self.columns[shard].said -= pages
        self._due(shard, pages, wait)

    def prefer(self, shard: int, pages: set[int], factor: float) -> None:
        factors, ids = self.columns[shard].factors, self.known(shard, pages)
        if factors is not None:
            factors.update(dict.fromkeys(ids.tolist(), factor))
            self.orders[shard].changed(ids)

    def give_up(self, shard: int, pages: set[int]) -> None:
        self.columns[shard].failed ^= set(self.known(shard, pages).tolist())
        self.orders[shard].changed(self.known(shard, pages))

    def _due(self, shard: int, pages: set[int], wait: float) -> None:
        ids = self.known(shard, pages)
        self.columns[shard].due_at.update(dict.fromkeys(ids.tolist(), self.now + wait))
        self.orders[shard].note_reads(ids, self.now)

    def shut(self, shard: int, pages: set[int]) -> None:
        self.columns[shard].barred ^= set(self.known(shard, pages).tolist())
        self.orders[shard].changed(self.known(shard, pages))

    def near(self, shard: int, pages: set[int], nearness: int) -> None:
        self.columns[shard].near.update(dict.fromkeys(self.known(shard, pages).tolist(), nearness))

    def clear(self, shard: int) -> None:
        self.orders[shard].clear()
        self.twin.holds[shard].clear()
        self.twin.host_free[shard].clear()
        self.twin.single[shard] = dict.fromkeys(range(HOSTS), self.delay)

    def rest(self, shard: int, hosts: Any, end: float) -> None:
        self.orders[shard].rest(np.array(list(hosts), np.int64), np.full(len(hosts), self.now + end))
        self.twin.host_free[shard].update(dict.fromkeys(hosts, self.now + end))

    def single(self, shard: int, host: int, single: bool) -> None:
        self.orders[shard].set_single(np.array([host]), single=single)
        self.twin.single[shard][host] = single

    def grant(self, shard: int, credits: list[int]) -> None:
        self.columns[shard].credit[:3] += credits

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def pick(
        self,
        count: int,
        mode: str,
        busy: set[int],
        within: set[int] | None,
        room: int | None,
        near: int = 0,
        host_pages: int | None = None,
    ) -> list[tuple[int, int]]:
        wanted = None
        if within is not None:
            hosts = np.array(sorted(within), np.int64)
            wanted = self.within.setdefault(frozenset(within), Within([hosts] * SHARDS))
            room = None
        numbers = [np.array(sorted(busy), np.int64)] * SHARDS
        terms: dict[str, Any] = {"mode": mode, "busy": numbers}
        fit = None if room is None else Room(room).fit
        found = pick(
            self.orders,
            count,
            [self.now] * SHARDS,
            **terms,
            within=wanted,
            nearness=near,
            fit=fit,
            host_pages=host_pages,
        )
        expected = self.twin.pick(count, self.now, mode, busy, within, room, near, host_pages)
        places = list(zip(found.shards.tolist(), found.ids.tolist(), strict=True))
        assert places == expected[:count]
        assert found.counts.tolist() == [self.twin.key(*place)[0] for place in places]
        if not places and room is None:
            within_hosts = [wanted.pages(shard, order) if wanted else None for shard, order in enumerate(self.orders)]
            only = [near_of(order, ids, near) for order, ids in zip(self.orders, within_hosts, strict=True)]
            only = only if wanted or near else None
            first = first_free(self.orders, **terms, only=only, seconds_max=1e9)
            assert first == self.twin.first_free(self.now, mode, busy, within, near)
        self.compare_counts()
        assert found.hosts.tolist() == [self.columns[shard].host[page] for shard, page in places]
        return places

    def compare_counts(self) -> None:
        for shard, order in enumerate(self.orders):
            codes = [self.twin.code(shard, page, self.now) for page in range(len(self.columns[shard]))]
            assert [divmod(int(code), 2) for code in order.counts.code[: len(codes)]] == codes
            totals = Counter(2 * kind + read for kind, read in codes)
            assert {code: int(n) for code, n in enumerate(order.counts.totals) if n and code} == {
                code: n for code, n in totals.items() if code
            }
            hosts = {h for h, until in self.twin.host_free[shard].items() if self.now < until < np.inf}
            assert [host for host in order.resting().tolist() if order.host_free[host] < np.inf] == sorted(hosts)
            for host in range(HOSTS):
                at = [code for page, code in enumerate(codes) if self.columns[shard].host[page] == host]
                free = [at.count((page_counts.FREE, read)) for read in (0, 1)]
                assert order.counts.free_pages(np.array([host])).tolist() == free

    def take(self, count: int, mode: str, lease: float, delay: float) -> None:
        for shard, page in self.pick(count, mode, set(), None, None):
            self.hold(shard, [page], lease)
            self.rest(shard, [int(self.columns[shard].host[page])], delay)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Blocks so small, and limits so low, that each is met."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (key_blocks, "BLOCK_BITS", 2),
            (hot_order, "BLOCK_BITS", 2),
            (page_sources, "BLOCK_BITS", 2),
            (key_blocks, "PAGES_AT_ONCE", 7),
            (hot_order, "PAGES_AT_ONCE", 7),
            (hot_order, "CHANGED_MAX", 5),
            (page_sources, "BLOCKS_FIRST", 1),
            (page_sources, "BLOCKS_WIDE", 1),
            (timers, "BLOCK_BITS", 1),
            (host_pages, "PART_PAGES", 16),
            (timers, "RECENT_MAX", 3),
            (page_sources, "LISTED_FIRST", 2),
            (picking, "LISTED_PAGES", 8),
            (picking, "FIRST_DUE", 2),
        ):
            patch.setattr(module, name, value)
        yield


EXCLUDED_AND_GIVEN_UP = [("new", 0, [(1, 1, Flag.KNOWN | Flag.OPEN | Flag.EXCLUDED)]), ("give_up", 0, {0})]


@example(calls=EXCLUDED_AND_GIVEN_UP, discovery=1.0, delay=False, preferring=False)
@examples(150)
@given(calls=CALLS, discovery=st.sampled_from([1.0, 1.0, 3.0, 0.25]), delay=st.booleans(), preferring=st.booleans())
def test_each_choice_equals_a_sort_of_all_pages(
    calls: list[tuple[Any, ...]], discovery: float, delay: bool, preferring: bool
) -> None:
    both = Both(discovery, delay, preferring=preferring)
    for name, *arguments in [*calls, ("pick", 100, "any", set(), None, None)]:
        getattr(both, name)(*arguments)


NEW_WITHOUT_CASH = ("new", 0, [(1, 0, Flag.KNOWN), (2, 5, Flag.KNOWN | Flag.OPEN), (3, 2, Flag.KNOWN)])
ALL = ("pick", 5, "any", set(), None, None)


@example(calls=[NEW_WITHOUT_CASH, ALL, ("grant", 0, [2, 2, 2]), ALL], strategy="cycle", delay=False, preferring=False)
@example(
    calls=[NEW_WITHOUT_CASH, ALL, ("grant", 0, [-2, -2, -2]), ALL], strategy="random", delay=False, preferring=False
)
@example(
    calls=[NEW_WITHOUT_CASH, ALL, ("fetched", 0, [1], 5), ALL, ("fetched", 0, [1], 9), ALL],
    strategy="random",
    delay=True,
    preferring=True,
)
@examples(150)
@given(calls=CALLS, strategy=st.sampled_from(["random", "cycle"]), delay=st.booleans(), preferring=st.booleans())
def test_each_choice_by_another_strategy_equals_a_sort_of_all_pages(
    calls: list[tuple[Any, ...]], strategy: str, delay: bool, preferring: bool
) -> None:
    both = Both(1.0, delay, strategy, preferring=preferring)
    for name, *arguments in [*calls, ("pick", 100, "any", set(), None, None)]:
        getattr(both, name)(*arguments)


def test_random_keys_are_spread_evenly_and_change_with_each_read() -> None:
    ids = np.arange(20_000)
    for last_read_us in (np.zeros(len(ids), np.int64), 1_700_000_000_000_000 + ids):
        keys = random_keys(ids, last_read_us)
        assert keys.min() >= 1
        assert keys.max() <= 1 << 62
        counts = np.histogram(keys, 20, (0, 1 << 62))[0]
        assert abs(counts - 1_000).max() < 160  # 5 standard deviations.
        assert abs(np.corrcoef(keys[:-1], keys[1:])[0, 1]) < 0.05
        assert abs(np.corrcoef(ids, keys)[0, 1]) < 0.05
    assert len(np.unique(random_keys(np.full(100, 7), np.arange(100)))) == 100
