"""Histories in columns are the plain lists that the ledger keeps, through any reads, undone ones, and a checkpoint."""

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opic.arrays import turns
from opic.model.cash import CONTINUOUS, Anchor, CrawlRules, PageMeasure, roll
from opic.replica.columns import Undo
from opic.replica.histories import Histories

PAGES = 6
ROUND = 4 * CONTINUOUS.minted
rules = st.builds(replace, st.sampled_from([CrawlRules(), CONTINUOUS]), measures_max=st.integers(1, 4))
reads = st.tuples(
    st.integers(0, PAGES - 1),
    st.integers(0, ROUND // 2),  # What the clock advances by besides.
    st.integers(-(1 << 40), 1 << 53),  # Cash; a page may owe.
    st.integers(-(1 << 51), 1 << 51),
    st.integers(0, (1 << 64) - 1),
)
batches = st.lists(st.lists(reads, min_size=1, max_size=8), max_size=12)


@dataclass
class Plain:
    """One page's history as anyone would keep it."""

    measures: deque[PageMeasure]
    spent: int = 0
    reads: int = 0
    digest: int = 0
    times_gone: int = 0
    gone_until_us: int = 0
    anchors: tuple[Anchor, ...] = field(default=())


class Model:
    """Histories of some pages, twice: in columns and plain."""

    def __init__(self, rules: CrawlRules) -> None:
        self.rules, self.clock = rules, 0
        self.histories = Histories(rules)
        self.row = self.histories.add(PAGES)
        self.plain = [Plain(deque(maxlen=rules.measures_max)) for _ in range(PAGES)]

    def read(self, batch: list[tuple[int, int, int, int, int]], undo: Undo | None) -> None:
        clocks = []
        for page, more, cash, at_us, digest in batch:
            self.clock += more + max(cash, 0)
            clocks.append(self.clock)
            plain = self.plain[page]
            plain.spent += cash
            plain.reads, plain.digest = plain.reads + 1, digest
            plain.measures.append(PageMeasure(self.clock, max(cash, 0), at_us))
            plain.anchors = roll(plain.anchors, self.clock, plain.spent, self.rules)
        pages, _, cash_, at, digests = zip(*batch, strict=True)
        self.histories.read(
            self.row[list(pages)],
            np.array(clocks, np.int64),
            np.array(cash_, np.int64),
            np.array(at, np.int64),
            np.array(digests, np.uint64),
            turns(np.array(pages)),
            undo,
        )

    def go(self, page: int, until_us: int, undo: Undo | None) -> None:
        plain = self.plain[page]
        plain.times_gone, plain.gone_until_us = plain.times_gone + 1, until_us
        times = np.array([plain.times_gone], np.uint32)
        self.histories.go(self.row[[page]], times, np.array([until_us], np.int64), undo)

    def assert_same(self) -> None:
        table = self.histories.rows
        found = self.histories.measures(self.row)
        for page, plain in enumerate(self.plain):
            row = int(self.row[page])
            assert self.histories.measures_of(row) == list(plain.measures)
            at = slice(int(found.starts[page]), int(found.starts[page + 1]))
            assert found.clock[at].tolist() == [measure.clock for measure in plain.measures]
            assert (int(table.spent[row]), int(table.reads[row])) == (plain.spent, plain.reads)
            assert int(table.digest[row]) == plain.digest
            assert int(table.times_gone[row]) == plain.times_gone
            assert int(table.gone_until_us[row]) == plain.gone_until_us
            assert self.histories.anchors_of(row) == tuple(plain.anchors)


@given(rules, batches, st.lists(st.booleans()), st.integers(0, PAGES - 1))
def test_histories_equal_plain_lists_also_after_undo(
    rules: CrawlRules, batches: list[list[tuple[int, int, int, int, int]]], undone: list[bool], gone: int
) -> None:
    model = Model(rules)
    for at, batch in enumerate(batches):
        undo = Undo()
        before = model.histories.count, model.histories.slot_count
        plain, clock = deepcopy(model.plain), model.clock
        model.read(batch, undo)
        model.go(gone, at, undo)
        model.assert_same()
        if at < len(undone) and undone[at]:
            undo.restore()
            model.histories.truncate(*before)
            model.plain, model.clock = plain, clock
            model.assert_same()


@given(rules, batches, st.lists(st.integers(0, PAGES - 1), unique=True))
def test_histories_survive_a_checkpoint_and_continue(
    rules: CrawlRules, batches: list[list[tuple[int, int, int, int, int]]], some: list[int]
) -> None:
    """Beside rows that were there before: those of blocks that were loaded first."""
    model = Model(rules)
    for batch in batches:
        model.read(batch, None)
    model.go(1, 77, None)
    offsets = np.array([7 * page for page in some], np.uint16)
    packed = model.histories.pack(offsets, model.row[some])
    loaded = Histories(rules)
    loaded.add(3)
    found, rows = loaded.unpack(packed)
    assert found.tolist() == offsets.tolist()
    model.histories, model.plain = loaded, [model.plain[page] for page in some]
    model.row = rows
    model.assert_same()
    for batch in batches:
        if wanted := [(some.index(page), *rest) for page, *rest in batch if page in some]:
            model.read(wanted, None)
    model.assert_same()
