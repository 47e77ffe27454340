"""What a choice costs follows the pages that may be offered, not those that wait to be offered again."""

from typing import Any

import numpy as np

from opic.frontier.hot_order import HotOrder
from opic.frontier.page_counts import KINDS
from opic.frontier.picking import first_free, pick
from opic.model.cash import Flag

WAITING, FREE = 200_000, 100
REVISIT = next(number for number, row in KINDS.items() if row.kind == "revisit")


class Columns:
    """Very many pages that were read a moment ago, with more cash than the few others."""

    hosts = 1

    def __init__(self) -> None:
        self.v = np.arange(WAITING + FREE, 0, -1)
        self.state = np.full(len(self.v), Flag.KNOWN, np.uint8)
        self.state[:WAITING] = Flag.KNOWN | Flag.OPEN
        self.host = np.zeros(len(self.v), np.uint32)
        self.due_at = np.where(np.arange(len(self.v)) < WAITING, 4_600.0 + np.arange(len(self.v)) / 100, 0.0)

    def __len__(self) -> int:
        return len(self.v)

    def credits(self) -> Any:
        return np.zeros(8, np.int64)

    def given_up(self, ids: object) -> None:
        return None

    ruled_out = host_full = not_before = priority = given_up

    def preferred(self) -> Any:
        return np.arange(0)

    def revisit_at(self, ids: Any) -> Any:
        return self.due_at[ids]

    def nearness(self, ids: Any) -> Any:
        return np.zeros(len(ids), np.int64)

    def within_depth(self, least: int) -> Any:
        return np.arange(0)


def test_waiting_pages_add_nothing_to_the_cost_of_a_choice() -> None:
    order = HotOrder(Columns())
    order.note_reads(np.arange(WAITING), 1_000.0)
    order.settle()
    assert order.counts.totals[2 * REVISIT + 1] == WAITING
    assert pick([order], 10, [1_000.0]).ids.tolist() == list(range(WAITING, WAITING + 10))
    looked = order.looked
    for _ in range(100):
        assert len(pick([order], 10, [1_000.0])) == 10
        assert not len(pick([order], 10, [1_000.0], mode="refresh"))
    assert order.looked - looked <= 100 * 2 * FREE
    assert first_free([order], mode="refresh", seconds_max=7_200.0) == 3_600.0
    assert first_free([order], mode="refresh", seconds_max=60.0) >= 60.0  # type: ignore[operator]


def test_pages_come_back_as_they_become_due_though_they_were_read_again() -> None:
    columns = Columns()
    order = HotOrder(columns)
    order.note_reads(np.arange(WAITING), 1_000.0)
    columns.due_at[:2] = 9_000.0
    order.note_reads(np.array([0, 1]), 1_000.0)
    assert pick([order], 3, [4_600.03], mode="refresh").ids.tolist() == [2, 3]
    assert len(order.revisit_timers) == WAITING - 2
    assert pick([order], 3, [9_000.0], mode="refresh").ids.tolist() == [0, 1, 2]
