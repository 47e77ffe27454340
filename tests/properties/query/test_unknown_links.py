"""Links to pages that their shard does not know: found, dropped and refused as a plain list of them says."""

from collections import Counter

import numpy as np
import pytest
from example_counts import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from opic.query import unknown_links
from opic.query.unknown_links import UnknownLinks

SHARDS, PAGES, TARGETS = 3, 6, 9
Link = tuple[int, int, bool]  # Source, target, whether it is new.


class Links(RuleBasedStateMachine):
    """Pages show links, their deposits arrive, and the pages become known, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.links = UnknownLinks()
        self.coming = dict[Link, int]()  # With the number of the entry that has the deposit.
        self.refused = set[Link]()
        self.sent = np.zeros((SHARDS, SHARDS), np.int64)

    def drop(self, pages: set[int]) -> None:
        self.coming = {link: number for link, number in self.coming.items() if link[0] not in pages}
        self.refused = {link for link in self.refused if link[0] not in pages}

    @rule(page=st.integers(0, PAGES - 1), shown=st.dictionaries(st.integers(0, TARGETS - 1), st.booleans(), min_size=1))
    def read(self, page: int, shown: dict[int, bool]) -> None:
        home = page % SHARDS
        self.sent[home] += 1
        self.links.drop(np.array([page]))
        self.drop({page})
        deposits = [(home, target % SHARDS, self.sent[home, target % SHARDS]) for target in shown]
        columns = np.array(list(shown), np.uint64), np.array(list(shown.values()))
        self.links.add(np.full(len(shown), page), *columns, np.array(deposits))
        self.coming |= {(page, target, new): self.sent[home, target % SHARDS] for target, new in shown.items()}

    @rule(pages=st.sets(st.integers(0, PAGES - 1), min_size=1))
    def go(self, pages: set[int]) -> None:
        self.links.drop(np.array(sorted(pages)))
        self.drop(pages)

    @rule(taken=st.lists(st.floats(0, 1), min_size=SHARDS**2, max_size=SHARDS**2))
    def deliver(self, taken: list[float]) -> None:
        received = np.floor(self.sent * np.array(taken).reshape(SHARDS, SHARDS)).astype(np.int64)  # [from, to]
        done = {link for link, number in self.coming.items() if received[link[0] % SHARDS, link[1] % SHARDS] >= number}
        sources, new = self.links.refused(received.T)
        assert Counter(zip(sources.tolist(), new.tolist(), strict=True)) == Counter((a, c) for a, _, c in done)
        self.coming = {link: number for link, number in self.coming.items() if link not in done}
        self.refused |= done

    @rule(named=st.lists(st.integers(0, TARGETS - 1), min_size=1, unique=True))
    def know(self, named: list[int]) -> None:
        found = self.links.pop_known(np.array(named, np.uint64))
        columns = (found.sources, np.array(named)[found.targets], found.fresh, found.coming)
        told = sorted(zip(*(column.tolist() for column in columns), strict=True))
        here = {link for link in self.coming.keys() | self.refused if link[1] in named}
        assert told == sorted((*link, link in self.coming) for link in here)
        self.coming = {link: number for link, number in self.coming.items() if link not in here}
        self.refused -= here

    @rule()
    def count(self) -> None:
        assert self.links.pages_coming == len({target for _, target, _ in self.coming})


TestLinks = Links.TestCase
TestLinks.settings = examples(100, stateful_step_count=30)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_links, "RECENT_MAX", 4)
