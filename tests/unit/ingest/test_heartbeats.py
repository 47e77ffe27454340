"""Whether workers are there, in words."""

import pytest

from opic.ingest.heartbeats import WorkersSeen, plain_duration, workers_missing

START_ONE = ": start one with `opic worker`, or see its log"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 seconds"), (0.6, "1 second"), (25.4, "25 seconds"), (119.0, "119 seconds"), (120.0, "2 minutes"),
        (3_599.0, "60 minutes"), (7_199.0, "120 minutes"), (7_200.0, "2 hours"), (86_400.0, "24 hours"),
        (200_000.0, "2 days"),
    ],
)  # fmt: skip
def test_durations_are_plain_words(seconds: float, words: str) -> None:
    assert plain_duration(seconds) == words


@pytest.mark.parametrize(
    ("seen", "waiting", "applied", "exact", "said"),
    [
        (WorkersSeen(2, 3.0), 20, 60.0, True, None),
        (WorkersSeen(0, None), 0, None, True, None),  # None ever ran, or all ended in order.
        (WorkersSeen(0, None), 0, 60.0, True, None),
        (WorkersSeen(0, 25.0), 0, 59.0, False, "no worker was seen for 25 seconds"),
        (WorkersSeen(0, 25.0), 0, None, True, "no worker was seen for 25 seconds"),
        (
            WorkersSeen(0, 25.0), 20, 59.0, False,
            "no worker has applied an event for 25 seconds, and about 20 accepted events wait",
        ),
        (
            WorkersSeen(0, 25.0), 1, 59.0, True,
            "no worker has applied an event for 25 seconds, and 1 accepted event waits",
        ),
        (
            WorkersSeen(0, None), 2_000, 7_300.0, True,
            "no worker has applied an event for 2 hours, and 2,000 accepted events wait",
        ),
        (WorkersSeen(0, None), 3, None, True, "no worker has applied an event yet, and 3 accepted events wait"),
        (WorkersSeen(0, 25.0), 3, None, True, "no worker has applied an event yet, and 3 accepted events wait"),
    ],
)  # fmt: skip
def test_missing_workers_are_told_with_what_waits(
    seen: WorkersSeen, waiting: int, applied: float | None, exact: bool, said: str | None
) -> None:
    found = workers_missing(seen, waiting, applied, exact=exact)
    assert found == (None if said is None else said + START_ONE)
