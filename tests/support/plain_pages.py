"""Columns of a shard's pages in plain arrays, as orders read them: no store, no replica."""

from typing import Any

import numpy as np

from opic.model.cash import Flag


class PlainPages:
    """Pages that were read, by host number: with cash, and nothing that holds them back."""

    def __init__(self, hosts: Any, cash: int = 1_000) -> None:
        self.host = np.array(hosts, np.int64)
        self.hosts = int(self.host.max()) + 1
        self.v = np.full(len(self.host), cash)
        self.state = np.full(len(self.host), Flag.KNOWN | Flag.OPEN, np.uint8)
        self.factors: Any = None

    def __len__(self) -> int:
        return len(self.host)

    def credits(self) -> Any:
        return np.zeros(8, np.int64)

    def _nothing(self, ids: Any) -> None:
        return None

    ruled_out = host_full = given_up = not_before = revisit_at = _nothing

    def priority(self, ids: Any) -> Any:
        return None if self.factors is None else self.factors[ids]

    def preferred(self) -> Any:
        return np.zeros(0, np.int64) if self.factors is None else np.flatnonzero(self.factors > 1)

    def last_read_us(self, ids: Any) -> Any:
        return np.zeros(len(ids), np.int64)

    def nearness(self, ids: Any) -> Any:
        return np.zeros(len(ids), np.int64)

    def within_depth(self, least: int) -> Any:
        return np.zeros(0, np.int64)
