"""Log lines that are held for a moment, and their order."""

import io
import logging

from opic.logs import TEXT, Lines, TextLines


def record(level: int, said: str) -> logging.LogRecord:
    return logging.LogRecord("opic", level, "", 0, said, (), None)


def test_a_warning_is_written_at_once_after_the_lines_that_were_held_before_it() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.held_max = 100
    for level, said in (
        (logging.INFO, "one"),
        (logging.INFO, "two"),
        (logging.WARNING, "three"),
        (logging.INFO, "four"),
    ):
        lines.handle(record(level, said))
    assert stream.getvalue().split() == ["one", "two", "three"]
    lines.flush()
    assert stream.getvalue().split() == ["one", "two", "three", "four"]


def test_a_stream_that_nobody_reads_stops_nothing() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.held_max = 100
    lines.handle(record(logging.INFO, "one"))
    stream.close()
    lines.flush()
    lines.handle(record(logging.WARNING, "two"))
    lines.flush()


def test_times_are_those_that_logging_itself_shows() -> None:
    one = record(logging.INFO, "one")
    for created in (1_790_000_000.0004, 1_790_000_000.999, 1_790_000_001.5):
        one.created, one.msecs = created, created % 1 * 1000
        assert TextLines(TEXT).format(one) == logging.Formatter(TEXT).format(one)
