"""Records unpacked all at once are those unpacked one by one."""

from hypothesis import given
from hypothesis import strategies as st

from opic.ledger import Measure
from opic.store.columns import Record, unpack_measures

BIG = (1 << 62) - 1
TIMES_US = st.integers(-(1 << 51), 1 << 51)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """A record as a worker may write one, to the edges of its numbers."""
    clocks = sorted(draw(st.lists(st.integers(0, BIG), max_size=6)))
    measures = tuple(Measure(clock, draw(st.integers(0, 1 << 53)), draw(TIMES_US)) for clock in clocks)
    times_gone = draw(st.sampled_from([0, 0, 1, 127, 128, 5_000]))
    digest = draw(st.integers(0, (1 << 48) - 1)) if measures else 0
    until_us = draw(st.integers(0, 1 << 52)) if times_gone else 0
    reads = len(measures) and draw(st.integers(len(measures), 1 << 40))
    anchor_clocks = sorted(draw(st.lists(st.integers(1, BIG), max_size=2))) if measures else []
    spent = sorted(draw(st.lists(st.integers(0, BIG), min_size=2, max_size=2)))
    anchors = tuple(zip(anchor_clocks, spent, strict=False))
    return Record(reads, digest, times_gone, until_us, measures, anchors)


@given(st.lists(st.one_of(st.none(), records()), max_size=30))
def test_many_records_at_once_are_unpacked_as_one_by_one(some: list[Record | None]) -> None:
    packed = [record.pack() if record else b"" for record in some]
    found = unpack_measures(packed)
    assert found.starts[0] == 0
    assert len(found.starts) == len(some) + 1
    for i, one in enumerate(packed):
        at = slice(int(found.starts[i]), int(found.starts[i + 1]))
        assert Record.unpack(one) == (some[i] or Record())
        older = Record.unpack(one).anchors[:1] or ((0, 0),)
        assert (int(found.anchor_clock[i]), int(found.anchor_spent[i])) == older[0]
        measures = zip(found.clock[at].tolist(), found.cash[at].tolist(), found.fetched_at_us[at].tolist(), strict=True)
        assert tuple(Measure(*measure) for measure in measures) == Record.unpack(one).measures
    assert found.starts[-1] == len(found.clock)
