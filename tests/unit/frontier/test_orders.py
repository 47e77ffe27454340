"""An order of pages is one class with one method, as docs/architecture.md shows."""

import re
from typing import Any

import numpy as np
from plain_pages import PlainPages
from repository import ROOT

from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import Order
from opic.frontier.picking import pick

CHAPTER = re.search(r"^## A new order of pages$(.*?)^## ", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)


class Pages(PlainPages):
    """Pages with depths."""

    def __init__(self, nearness: list[int]) -> None:
        super().__init__(range(len(nearness)))
        self._nearness = np.array(nearness)

    def nearness(self, ids: Any) -> Any:
        return self._nearness[ids]


def by_depth() -> type[Any]:
    """The class of the page."""
    assert CHAPTER is not None
    code = re.search(r"```python\n(.*?)```", CHAPTER[1], re.S)
    assert code is not None
    assert len(code[1].splitlines()) <= 20
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["ByDepth"]  # type: ignore[no-any-return]


def test_order_of_the_architecture_page_is_a_class_with_one_method() -> None:
    made = by_depth()
    assert issubclass(made, Order)
    assert {name for name, value in vars(made).items() if callable(value)} == {"__init__", "keys"}


def test_pages_come_by_it_with_priorities_and_without_those_that_are_held() -> None:
    pages = Pages([3, 9, 0, 5, 9, 4])
    hot = HotOrder(pages)
    order = by_depth()(pages)
    assert pick([hot], 9, [1.0], by=[order]).ids.tolist() == [1, 4, 3, 5, 0]  # No depth, no place; ties by id.
    hot.hold(np.array([1]), np.array([5.0]))
    pages.factors = np.array([4.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    hot.changed(np.array([0]))
    assert pick([hot], 9, [1.0], by=[order]).ids.tolist() == [0, 4, 3, 5]
    assert pick([hot], 2, [5.0], by=[order]).ids.tolist() == [0, 1]
