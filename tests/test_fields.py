"""A field of a call's body or answer is told: in an example of /docs and in the guide.

tests/data/untold-fields.txt lists the fields that are older than this rule, with where each is missing. It only gets
shorter: tell of a new field instead of adding it.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from repository import ROOT

import opic.messages
from opic.api import examples

UNTOLD = ROOT / "tests/data/untold-fields.txt"
GUIDE = "\n".join(path.read_text() for path in sorted((ROOT / "docs/guide").glob("*.md")))


def keys(example: Any) -> Iterator[str]:
    """All names in an example."""
    if isinstance(example, dict):
        for name, inner in example.items():
            yield name
            yield from keys(inner)
    elif isinstance(example, list):
        for inner in example:
            yield from keys(inner)


def fields() -> Iterator[tuple[str, str]]:
    """Each field of each message that declares it, as it is on the wire."""
    for module in pkgutil.iter_modules(opic.messages.__path__):
        source = importlib.import_module(f"opic.messages.{module.name}")
        for name, kind in vars(source).items():
            if isinstance(kind, type) and kind.__module__ == source.__name__:
                if issubclass(kind, msgspec.Struct):
                    own = [field for field in msgspec.structs.fields(kind) if field.name in kind.__annotations__]
                    yield from ((name, field.encode_name) for field in own)
                elif hasattr(kind, "__dataclass_fields__"):
                    yield from ((name, field) for field in kind.__dataclass_fields__)


def missing(field: str, shown: set[str], guide: str) -> str:
    """Where a field is not told, in words; empty if it is told everywhere."""
    named = re.compile(rf"[`\"]{field}[`\":]|`[^`\n]*\b{field}\b[^`\n]*`")
    places = {
        "example": field in shown,
        "guide": bool(named.search(guide)),
    }
    return ", ".join(place for place, told in places.items() if not told)


def untold() -> dict[str, str]:
    """The fields that are not told everywhere, with where they are missing."""
    shown = set(keys([examples.BODIES, examples.ANSWERS]))
    found = {f"{kind}.{field}": missing(field, shown, GUIDE) for kind, field in fields()}
    return {name: places for name, places in found.items() if places}


def test_each_field_is_in_an_example_and_in_the_guide() -> None:
    listed = dict(line.split(": ") for line in UNTOLD.read_text().splitlines())
    found = untold()
    new = {
        name: places
        for name, places in found.items()
        if set(places.split(", ")) - set(listed.get(name, "").split(", "))
    }
    assert new == {}, "tell of these fields: opic/api/examples.py, docs/guide/"
    assert listed.keys() <= {f"{kind}.{field}" for kind, field in fields()}, "no such fields any more: delete"


def test_field_that_is_told_nowhere_is_detected() -> None:
    assert missing("colour", {"url"}, "a colour, `colours`") == "example, guide"
    assert missing("colour", {"colour"}, 'send `"colour": "red"`') == ""
