"""Undo is the exact inverse of apply: over every array and every table that a replica holds."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, record, seeds
from numpy.typing import NDArray
from same_state import assert_same_replica

from opic.model.cash import CONTINUOUS, CrawlRules
from opic.model.classes import check_classes, encode_classes
from opic.model.events import EventLimits, Record, encode_ids
from opic.model.page_links import PageLinks
from opic.replica import Replica
from opic.replica.batch import Batch
from opic.replica.columns import Growing
from opic.replica.effect import Effect
from opic.replica.fingerprints import Fingerprints
from opic.replica.inputs import Input
from opic.replica.page_columns import SPARSE
from opic.replica.remote_pages import RemotePages
from opic.replica.shown_links import ShownLinks

PAGES = [f"http://{host}/{name}" for host in ("a.org", "www.a.org", "b.co.uk", "c.net") for name in "pqr"]
urls = st.sampled_from(PAGES)
rules = st.builds(
    replace, st.sampled_from([CrawlRules(), CONTINUOUS]), measures_max=st.integers(1, 3), inflow=st.booleans()
)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    made: list[Record] = []
    for offset in range(draw(st.integers(1, 30))):
        kind = draw(st.sampled_from(["read"] * 6 + ["gone", "failed", "seeds", "dead", "classes", "classify", "hours"]))
        if kind == "read":
            made.append(record(offset, draw(urls), draw(st.lists(urls, max_size=6))))
        elif kind == "seeds":
            made.append(seeds(offset, *draw(st.lists(urls, min_size=1, max_size=3))))
        elif kind == "classes":
            classes = [{"name": "a", "weight": draw(st.sampled_from([0.5, 3])), "hosts": ["a.org"]}]
            made.append(Record(offset, NOW_US, encode_classes(check_classes(classes)), "classes"))
        elif kind == "classify":
            made.append(Record(offset, NOW_US, encode_ids((0, 9)), "classify"))
        elif kind in ("dead", "hours"):
            made.append(Record(offset, NOW_US + 3_600_000_000 * offset * (kind == "hours"), b"\xff"))
        else:
            made.append(record(offset, draw(urls), status={"gone": 404, "failed": 500}[kind]))
    return made


class Alone:
    """Who decides batches on a replica, with no store."""

    keep_links: bool | None = None

    def __init__(self, rules: CrawlRules) -> None:
        self.rules, self.replica = rules, Replica(rules)
        self.limits, self.shards, self.far = EventLimits(), 1, RemotePages(1)
        self.fingerprints = Fingerprints(bytes(16))
        self.urls: list[str] = []
        self.links: dict[int, PageLinks] = {}  # By record.
        self.shown: ShownLinks | None = ShownLinks(self._all)
        self.replica.effect_listeners.append(self._note)

    def _all(self) -> Iterator[PageLinks]:
        return (links for lsn, links in self.links.items() if lsn <= self.replica.head.lsn)

    def _note(self, effect: Effect) -> None:
        assert self.shown is not None
        self.links[effect.lsn] = effect.kept()
        self.shown.note(effect.lsn, effect.kept())

    def urls_of(self, ids: Sequence[int]) -> Mapping[int, str]:
        return {number: self.urls[number] for number in ids}

    def marks(self, pages: int) -> NDArray[np.bool_]:
        return np.zeros(pages, np.bool_)

    def decide(self, inputs: Sequence[Input], at: int) -> tuple[Effect, int]:
        batch = Batch(self, inputs, at)
        batch.decide({})
        batch.effect.pack()
        return batch.effect, batch.end


def growing(columns: Growing, rows: int) -> dict[str, list[Any]]:
    """All columns as far as they are in use; behind that, all is zero but what a batch writes ahead."""
    found = {name: getattr(columns, name) for name, _ in columns.COLUMNS}
    for name, column in found.items():
        assert name == "host" or not column[rows:].any(), name
    return {name: column[:rows].tolist() for name, column in found.items()}


def everything(replica: Replica) -> dict[str, Any]:
    """All that a replica holds."""
    histories, index, hosts, tail = replica.histories, replica.index, replica.hosts, replica.tail
    asked = Fingerprints(bytes(16)).hash_strings(PAGES)
    return deepcopy({
        "columns": growing(replica.columns, replica.pages),
        "rows": growing(histories.rows, histories.count),
        "slots": growing(histories.slots, histories.slot_count),
        "anchors": growing(histories.anchors, histories.count),
        "counts": (replica.pages, histories.count, histories.slot_count, len(index)),
        "index": (index.fingerprints[: replica.pages].tolist(), index.find(asked).tolist()),
        "hosts": (hosts.names, hosts.domains.tolist(), hosts.resolve(PAGES)[0].tolist(), hosts.below("org")),
        "tail": (tail.first, tail.end, tail.get(range(replica.pages))),
        "rest": (replica.head, replica.books, replica.series, replica.classes, replica.sent, replica.taken),
        "trust": replica.trust,
        "sparse": [replica.columns.values_of(of.name, np.arange(replica.pages)).tolist() for of in SPARSE],
        "failing": [column.tolist() for column in replica.host_failures.rows(np.arange(len(hosts)))],
        "keeping": replica.keeping,
    })  # fmt: skip


@examples(200)
@given(
    log=logs(),
    rules=rules,
    batch=st.integers(1, 9),
    undone=st.lists(st.integers(0, 2)),
    keep_links=st.lists(st.sampled_from([None, True, False])),  # By batch.
)
def test_undo_is_the_inverse_of_apply_and_a_follower_needs_the_record_alone(
    log: list[Record], rules: CrawlRules, batch: int, undone: list[int], keep_links: list[bool | None]
) -> None:
    worker, follower = Alone(rules), Replica(rules)
    inputs = [Input(PARTITION, one) for one in log]
    at = number = 0
    while at < len(inputs):
        before = everything(worker.replica)
        worker.keep_links = keep_links[number] if number < len(keep_links) else None
        effect, end = worker.decide(inputs[: at + batch], at)
        for _ in range(undone[number] if number < len(undone) else 0):
            kept = worker.replica.apply(effect, keep=True)
            assert kept is not None
            assert everything(worker.replica) != before
            worker.replica.undo(kept)
            assert everything(worker.replica) == before
            again, _ = worker.decide(inputs[: at + batch], at)
            assert again.digest == effect.digest
        worker.replica.apply(effect)
        worker.urls += effect.urls
        follower.apply(Effect.unpack(effect.pack()))
        at, number = end, number + 1
    assert_same_replica(worker.replica, follower)
    assert everything(worker.replica) == everything(follower)
    assert np.array_equal(worker.replica.cash(), follower.cash())
