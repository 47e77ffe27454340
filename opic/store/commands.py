"""Commands for the store as lists: fields as they are given, and portions of what is written in bulk."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Command = list[Any]
CALL_BYTES_AIM: Final = 1 << 20


def flat(fields: Mapping[Any, Any]) -> list[Any]:
    """Return the names and values of fields in turn, as HSET and XADD take them.

    >>> flat({"a": 1, "b": 2})
    ['a', 1, 'b', 2]
    """
    return [part for pair in fields.items() for part in pair]


def portions(commands: Iterable[Command]) -> Iterator[list[Command]]:
    """Yield commands in groups of about CALL_BYTES_AIM, each for one round trip."""
    some, size = list[Command](), 0
    for command in commands:
        some.append(command)
        size += sum(len(part) if isinstance(part, bytes | str) else 8 for part in command)
        if size >= CALL_BYTES_AIM:
            yield some
            some, size = [], 0
    if some:
        yield some
