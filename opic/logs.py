"""Log formats: plain text for people, or JSON lines for log collectors (OPIC_LOG_FORMAT)."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

from opic.redaction import without_logins

LogFormat = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
REQUEST_FIELDS: Final = ("request_id", "method", "route", "status", "ms")  # Extra fields of request logs.


class TextLines(logging.Formatter):
    """Formats a record as text, in local time with its offset from UTC, without the user and password of a URL in it.

    >>> TextLines("%(message)s").format(logging.LogRecord("opic", logging.INFO, "", 0, "http://u:p@a/", (), None))
    'http://…@a/'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, with those of its traceback."""
        return without_logins(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time by RFC 3339, such as 2026-11-27 18:50:04.123+01:00."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")


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


def log_to_stderr(level: int, form: LogFormat = "text") -> None:
    """Log to stderr, from a level on, unless logging is already configured in this process."""
    # What no format of ours shows, but each record would look up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT))
    logging.basicConfig(level=level, handlers=[handler])
