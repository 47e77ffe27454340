"""Errors of temporary files, which SQLite keeps for us and the system removes with the process."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from opic.errors import BadInput


@contextmanager
def temporary_file(name: str, advice: str) -> Iterator[None]:
    """Say what can't be written, and what to do, if SQLite finds no room in the block.

    Raises:
        BadInput: it finds none.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        raise BadInput(f"{name} can't be written ({error}): {advice}") from error
