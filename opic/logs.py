"""Log formats: plain text for people, or JSON lines for log collectors (OPIC_LOG_FORMAT)."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from opic.redaction import without_logins

LogFormat = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
REQUEST_FIELDS: Final = ("request_id", "method", "route", "status", "ms")  # Extra fields of request logs.


class TextLines(logging.Formatter):
    """Formats a record as text, in local time, without the user and password of a URL in it.

    >>> TextLines("%(message)s").format(logging.LogRecord("opic", logging.INFO, "", 0, "http://u:p@a/", (), None))
    'http://…@a/'
    """

    _second, _shown = -1, ""  # Of the last record.

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, with those of its traceback."""
        return without_logins(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time as `logging` does, computed once a second."""
        second = int(record.created)
        if second != self._second:
            self._second, self._shown = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._shown},{int(record.msecs):03d}"


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object on one line: time (RFC 3339, UTC), level, logger, message, request fields.

    >>> JsonLines().format(logging.LogRecord("opic", logging.INFO, "", 0, "read %d", (3,), None))[-35:]
    '"logger":"opic","message":"read 3"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, which is always a single line of ASCII."""
        shown = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": shown.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_logins(record.getMessage()),
        }
        line |= {name: value for name in REQUEST_FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = without_logins(self.formatException(record.exc_info))
        return json.dumps(line, separators=(",", ":"))


class Lines(logging.StreamHandler[TextIO]):
    """Writes records to a stream: each at once, or in a busy process many together.

    >>> lines = Lines(sys.stdout)
    >>> lines.held_max = 2
    >>> for n in range(3):
    ...     lines.handle(logging.LogRecord("opic", logging.INFO, "", 0, "read %d", (n,), None)) and None
    read 0
    read 1
    >>> lines.flush()
    read 2
    """

    held_max = 1  # A warning never waits. Who raises this calls `flush` often.

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        super().__init__(stream)
        self._held: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        try:
            self._held.append(self.format(record) + self.terminator)
            if len(self._held) >= self.held_max or record.levelno >= logging.WARNING:
                self.flush()
        except Exception:  # noqa: BLE001 - as every handler of `logging`
            self.handleError(record)

    def flush(self) -> None:
        """Write the held lines. Where the stream is closed or its reader is gone, they are dropped without an error."""
        with self.lock or nullcontext(), suppress(OSError, ValueError):
            if held := "".join(self._held):
                self._held.clear()
                self.stream.write(held)
            super().flush()


def log_to_stderr(level: int, form: LogFormat = "text") -> None:
    """Log to stderr, from a level on, unless logging is already configured in this process."""
    # What no format of ours shows, but each record would look up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = Lines(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT))
    logging.basicConfig(level=level, handlers=[handler])


def held_lines(held_max: int) -> Sequence[Lines]:
    """Let our handlers hold up to `held_max` records, and return them: call their `flush` every moment."""
    found = [one for one in logging.getLogger().handlers if isinstance(one, Lines)]
    for one in found:
        one.held_max = held_max
    return found
