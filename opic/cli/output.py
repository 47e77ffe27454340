"""What a command prints: JSON for programs, aligned columns on a terminal, tab-separated lines otherwise.

No line is wrapped or cut, so that every URL can be copied. Times are local ISO times, except in JSON.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, Self

from opic.errors import BadInput

ShowProgress = Callable[[int, int | None, str], None]  # Steps done, all steps if they are known, a text.

# Fields of answers that are Unix seconds.
TIMES: Final = frozenset({
    "as_of", "at", "expires_at", "fetched_at", "host_free_at", "last_fetched_at", "last_pass_at", "lease_until",
    "loaded_as_of", "loaded_at", "log_closed_at", "not_before", "rank_as_of", "revisit_at", "time", "waits_until",
})  # fmt: skip
REFUSED_SHOWN_MAX: Final = 5
PROGRESS_LINE_SECONDS: Final = 5.0  # Of a command that may take long, where it is no terminal.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LEFT: Final = ("url", "host", "lease", "name", "error", "note")  # Columns of text.

_shown = {"header": True}


@contextmanager
def printing() -> Iterator[None]:
    """Say so if what the block prints can't be written, for instance because the disk of its file is full.

    Raises:
        BadInput: it can't; the message says why.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Else Python tries again at its end.
        raise BadInput(f"standard output can't be written ({error.strerror})") from None


def show_headers(wanted: bool) -> None:
    """Begin lists in a pipe or file with a line of names, or not, from now on."""
    _shown["header"] = wanted


def print_json(answer: object) -> None:
    """Print an answer as one line of JSON."""
    print(json.dumps(answer))


def print_answer(answer: Mapping[str, object], as_json: bool) -> None:
    """Print one record, as JSON or as lines."""
    if as_json:
        print_json(answer)
    else:
        print_fields(answer)


def print_list(names: Sequence[str], answer: Mapping[str, Any], key: str, as_json: bool) -> None:
    """Print an answer that is a list under `key`, as JSON or as rows."""
    if as_json:
        print_json(answer)
    else:
        print_rows(names, answer[key])


def print_fields(answer: Mapping[str, object]) -> None:
    """Print one record as lines: its name, a tab, its value."""
    wide = max(map(len, answer)) if sys.stdout.isatty() else 0
    for name, value in answer.items():
        print(f"{name:<{wide}}\t{as_text(name, value)}")


def print_paragraph(title: str, sentences: Sequence[str]) -> None:
    """Print sentences below their title; what could command a terminal is escaped."""
    print(f"\n{title}")
    for sentence in sentences:
        print(f"  {''.join(char if char.isprintable() else ascii(char)[1:-1] for char in sentence)}")


def print_rows(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print records below their names: on a terminal numbered, in columns, else a line each with tabs in between.

    A missing value is empty.
    """
    texts = [[as_text(name, row.get(name, "")) for name in names] for row in rows]
    if not sys.stdout.isatty():
        for text in [names, *texts] if _shown["header"] else texts:
            print("\t".join(text))
        return
    lines = [["", *names], *([str(number), *text] for number, text in enumerate(texts, 1))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [name in LEFT for name in ("", *names)]
    for line in lines:
        cells = [c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in zip(line, widths, left, strict=True)]
        print("  ".join(cells).rstrip())


@contextmanager
def showing_progress(line_seconds: float = 0.0) -> Iterator[ShowProgress]:
    """Yield a function that shows progress on stderr, given the steps done, their total (None: unknown) and a text.

    On a terminal it draws a bar. Elsewhere it prints the text as a line: after each twentieth of the total, or every
    `line_seconds` if these are given.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_printer(line_seconds)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, description=text, completed=done, total=total)


def _line_printer(line_seconds: float) -> ShowProgress:
    previous: object = 0 if line_seconds else None  # With an interval, the first line comes after it.
    started = time.monotonic()

    def show(done: int, total: int | None, text: str) -> None:
        nonlocal previous
        if line_seconds:
            current: object = int((time.monotonic() - started) / line_seconds)
        else:
            current = (20 * done // max(total or 1, 1), total)
        if current != previous:
            previous = current
            print(text, file=sys.stderr, flush=True)

    return show


class Refusals:
    """Reports what was refused on stderr: the first few at once, the number of the others at the end of the block."""

    def __init__(self, what: str) -> None:
        self._what, self.count = what, 0

    def __enter__(self) -> Self:
        return self

    def add(self, sentence: str) -> None:
        """Report one, with its place."""
        self.count += 1
        if self.count <= REFUSED_SHOWN_MAX:
            print(f"opic: {sentence}", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        if self.count > REFUSED_SHOWN_MAX:
            print(f"opic: and {self.count - REFUSED_SHOWN_MAX:,} more {self._what}", file=sys.stderr)


def as_text(name: str, value: object) -> str:
    """Return a value as a person reads it, given the name of its field, or its place like frontier.lease_until."""
    readable = _readable(name.rpartition(".")[2], value)
    if isinstance(readable, float):
        return f"{readable:.6g}" if abs(readable) < 1e6 else f"{readable:.3f}"
    return readable if isinstance(readable, str) else json.dumps(readable)


def _readable(name: str, value: object) -> object:
    """Turn the times in a value, however deep, into local ISO times."""
    if isinstance(value, Mapping):
        return {inner: _readable(inner, item) for inner, item in value.items()}
    if isinstance(value, list):
        return [_readable(name, item) for item in value]
    if name in TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value).astimezone().isoformat(timespec="seconds")
    return value
