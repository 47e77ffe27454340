"""PageRank of a crawl at any position of its journals, from their records alone, by solving the equations.

It follows the journals from the first record on, and knows nothing of replicas, kept links or flows: only what a record
says of states, classes and links.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import redis
from link_pools import rows_of
from plain_flow import exact, transitions

from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.replica import Crawl
from opic.replica.effect import Effect
from opic.store import connect
from opic.store.keys import Keys

POLL_SECONDS = 0.02
ENTRIES_A_READ = 200
Shares = dict[int, float]  # By the fingerprint of a page.
Links = dict[int, list[int]]  # Of pages, to pages that are there.


@dataclass
class Shard:
    """What the records up to one say of a shard's pages, by id."""

    lsn: int = 0
    prints: list[int] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    links: dict[int, list[int]] = field(default_factory=dict)  # To fingerprints, as last read.
    extra: Sequence[int] = ()

    def apply(self, effect: Effect) -> None:
        assert effect.lsn == self.lsn + 1
        self.lsn, self.extra = effect.lsn, effect.books.extra
        self.prints += effect.fingerprints.tolist()
        for page, near, far, _ in rows_of(effect.kept()):
            self.links[page] = [*(self.prints[link] for link in near.tolist()), *far.tolist()]
        for page, state in zip(effect.state_page.tolist(), effect.state.tolist(), strict=True):
            self.states[page] = state

    def weights(self) -> Shares:
        """The weight in the random jump of each page that is there."""
        there = {page: state for page, state in self.states.items() if state & (Flag.KNOWN | Flag.GONE) == Flag.KNOWN}
        return {self.prints[page]: 1 + self.extra[state & CLASS_BITS] / MILLION for page, state in there.items()}

    def read(self) -> dict[int, list[int]]:
        """The links of each page that was read since it became known or came back."""
        opened = Flag.OPEN | Flag.GONE
        return {
            self.prints[page]: self.links.get(page, [])
            for page, state in self.states.items()
            if state & opened == Flag.OPEN
        }


class JournalTruth(threading.Thread):
    """Follows the journals of a crawl while its store runs."""

    def __init__(self, url: str, shards: int, damping: float) -> None:
        super().__init__(name="truth", daemon=True)
        self.url, self.shards, self.damping = url, shards, damping
        self.secret = b""
        self.effects: list[list[Effect]] = [[] for _ in range(shards)]
        self._states = [Shard() for _ in range(shards)]
        self._known: dict[tuple[int, ...], Shares] = {}
        self._links: dict[tuple[int, ...], Links] = {}
        self._done = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        keys: list[Keys] = []
        while not self._done.wait(POLL_SECONDS):
            try:
                with connect(self.url) as client:
                    if not keys:
                        crawl = Crawl.open(client, create=False)
                        keys, self.secret = [shard.keys for shard in crawl.shards], crawl.shards[0].secret
                    while not self._done.wait(POLL_SECONDS):
                        self._read(client, keys)
            except (redis.RedisError, OSError):
                continue  # The store is away: it is restarted.
            except BaseException as error:
                self.failure = error
                raise

    def _read(self, client: redis.Redis, keys: Sequence[Keys]) -> None:
        for own, effects in zip(keys, self.effects, strict=True):
            found = client.xrange(own.journal, f"({len(effects)}-0", "+", ENTRIES_A_READ)
            for _, fields in found:
                effect = Effect.unpack(fields[b"r"])
                assert effect.lsn == len(effects) + 1, "the journal was trimmed too early for this thread"
                effects.append(effect)

    def end(self) -> None:
        self._done.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def has_all(self) -> bool:
        """Whether it has read all records that the store has now."""
        with connect(self.url) as client:
            crawl = Crawl.open(client, create=False)
            heads = [int(client.hget(shard.keys.head, "lsn") or 0) for shard in crawl.shards]
        return all(len(effects) >= lsn for effects, lsn in zip(self.effects, heads, strict=True))

    def inflow(self, heads: Sequence[int], inside: set[int]) -> Shares:
        """What comes to each page of a set by links from other pages: d times their shares, in equal parts."""
        shares, found = self.shares(heads), dict.fromkeys(inside, 0.0)
        for page, live in self._links[tuple(heads)].items():
            for link in live if page not in inside else ():
                if link in inside:
                    found[link] += self.damping * shares[page] / len(live)
        return found

    def shares(self, heads: Sequence[int]) -> Shares:
        """PageRank of the known graph, once these records of the shards have taken effect."""
        if (at := tuple(heads)) not in self._known:
            self._go_to(at)
            self._known[at], self._links[at] = self._pagerank()
        return self._known[at]

    def _go_to(self, heads: Sequence[int]) -> None:
        for number, lsn in enumerate(heads):
            if lsn < self._states[number].lsn:
                self._states[number] = Shard()
            for effect in self.effects[number][self._states[number].lsn : lsn]:
                self._states[number].apply(effect)
            assert self._states[number].lsn == lsn, "a record that was told of is not in the journal"

    def _pagerank(self) -> tuple[Shares, Links]:
        weights: Shares = {}
        for shard in self._states:
            weights |= shard.weights()
        links: Links = {}
        for shard in self._states:
            links |= {page: [link for link in shown if link in weights] for page, shown in shard.read().items()}
        if not weights:
            return {}, {}
        at = {page: number for number, page in enumerate(weights)}
        moves = transitions({at[page]: [at[link] for link in live] for page, live in links.items()}, set(), len(at))
        found = exact(moves, np.array(list(weights.values())), self.damping)
        return dict(zip(at, found.tolist(), strict=True)), links
