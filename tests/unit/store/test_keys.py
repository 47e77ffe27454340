"""What is said of keys elsewhere is what their rows say."""

import re

import pytest
from repository import ROOT

from opic.errors import SettingsError
from opic.store.keys import KEYS, Carried, Copied, Keys, copied_as

WAYS = {
    Copied.FILES: "own files",
    Copied.AT_END: "as of the head",
    Copied.ANY_TIME: "any time",
    Copied.OF_PAGES: "known pages",
    Copied.NOT: "",
}
MOVES = {
    Carried.MADE: "made",
    Carried.BY_PAGE: "by page",
    Carried.BY_HOST: "by host",
    Carried.FIRST: "to shard 0",
    Carried.ALL: "to all",
    Carried.LEFT: "",
}
HEAD = "| key | what | type | in a backup | moved |\n|---|---|---|---|---|\n"


def table() -> str:
    """The table of keys in docs/architecture.md."""
    rows = [
        f"| `{key.name}` | {key.purpose}{'; goes with a forgotten page' if key.forgets else ''} "
        f"| {key.kind} | {WAYS[key.copied]} | {MOVES[key.carried]} |\n"
        for key in KEYS
    ]
    return HEAD + "".join(rows)


def test_table_of_the_document_has_a_row_for_each_key() -> None:
    assert table() in (ROOT / "docs/architecture.md").read_text(), f"put this there:\n{table()}"


def test_lua_functions_name_only_declared_keys() -> None:
    names = {key.name for key in KEYS}
    for path in (ROOT / "opic/store").glob("*.lua"):
        code = re.sub(r"--[^\n]*", "", path.read_text())
        found = re.findall(r"\bkeys(?:\.(\w+)|\['([a-z]+)'\])", code)
        assert {name or other for name, other in found} <= names, path.name


def test_each_key_has_a_name_of_its_own_in_its_shard() -> None:
    keys = Keys("crawl", 3)
    names = [key.name for key in KEYS]
    assert len(set(names)) == len(names)
    assert keys.call_ends == "opic:{crawl:3}:callends"
    assert set(keys.names()) == {keys.prefix + name for name in names if "<" not in name}
    assert (keys.block(7), keys.outbox(2)) == ("opic:{crawl:3}:b:7", "opic:{crawl:3}:out:2")
    assert sum(len(copied_as(how)) for how in Copied) == len(KEYS)


def test_name_of_a_crawl_that_could_end_the_hash_tag_is_refused() -> None:
    for name in ("", "a}b", "a" * 65, "ü"):
        with pytest.raises(SettingsError, match="a crawl's name is 1 to 64 letters"):
            Keys(name, 0)
