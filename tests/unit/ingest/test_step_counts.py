"""What workers' steps took is added up as Prometheus wants a histogram."""

from collections.abc import Mapping

from opic.ingest.step_counts import STEP_EVENTS, STEP_SECONDS, Tallied


def tallied(*stored: Mapping[str, int]) -> Tallied:
    return Tallied.of({name.encode(): str(count).encode() for name, count in one.items()} for one in stored)


def test_no_steps_give_an_empty_histogram() -> None:
    found = tallied({})
    assert [bound for bound, _ in found.seconds] == [*map(str, map(float, STEP_SECONDS)), "+Inf"]
    assert [bound for bound, _ in found.events] == [*map(str, map(float, STEP_EVENTS)), "+Inf"]
    assert {count for _, count in [*found.seconds, *found.events]} == {0.0}
    assert (found.links, found.cached, found.round_trips) == (0, 0, 0)


def test_shards_are_summed_and_counts_are_cumulative() -> None:
    one = {"0.001": 1, "0.1": 2, "sum_us": 150_000, "events:10": 3, "events:sum": 21, "links": 9, "cached": 5}
    other = {"0.1": 1, "inf": 1, "sum_us": 20_000_000, "events:inf": 2, "events:sum": 9_000, "round_trips": 4}
    found = tallied(one, other)
    counts = dict(found.seconds)
    assert (counts["0.001"], counts["0.05"], counts["0.1"], counts["10.0"], counts["+Inf"]) == (1, 1, 4, 4, 5)
    assert found.seconds_sum == 20.15
    counts = dict(found.events)
    assert (counts["5.0"], counts["10.0"], counts["2000.0"], counts["+Inf"]) == (0, 3, 3, 5)
    assert (found.events_sum, found.links, found.cached, found.round_trips) == (9_021, 9, 5, 4)
