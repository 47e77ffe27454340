"""What commands print: whole URLs, readable times, a newline at the end."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import datetime
from typing import Any

import msgspec
import pytest

from opic.api.document import schemas_of
from opic.cli.output import TIMES, as_text, print_answer, print_list
from opic.client import answers

NOW = 1_764_000_000.5
LONG = "http://a.example/" + "long-path/" * 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*given: Any, terminal: bool = False) -> str:
    out = Terminal() if terminal else io.StringIO()
    with redirect_stdout(out):
        (print_list if len(given) > 2 else print_answer)(*given)
    return out.getvalue()


def names_of_times() -> Iterator[str]:
    """The fields of answers that the API describes as Unix seconds."""
    kinds = [kind for kind in vars(answers).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    for schema in schemas_of(kinds).values():
        for name, field in schema["properties"].items():
            if "Unix seconds" in field.get("description", ""):
                yield name


def test_every_timestamp_field_of_the_api_is_printed_as_a_time() -> None:
    assert {*names_of_times(), "log_closed_at"} == TIMES  # Only `opic restore` says the last one.


@pytest.mark.parametrize("value", [NOW, int(NOW)])
def test_time_is_a_local_iso_time_however_deep(value: float) -> None:
    text = shown({"as_of": value, "measures": [{"clock": 5, "fetched_at": value}]}, False)
    when = text.splitlines()[0].split("\t")[1]
    assert datetime.fromisoformat(when).timestamp() == int(NOW)
    assert datetime.fromisoformat(when).tzinfo is not None
    assert "17640" not in text
    assert json.loads(text.splitlines()[1].split("\t")[1])[0]["fetched_at"] == when


def test_time_inside_a_flattened_object_is_a_time() -> None:
    assert as_text("frontier.lease_until", NOW) == as_text("lease_until", NOW) != str(NOW)


def test_missing_time_is_printed_as_null() -> None:
    assert as_text("lease_until", None) == "null"


def test_terminal_shows_whole_urls_on_one_line() -> None:
    rows = {"pages": [{"importance": 0.25, "url": LONG}, {"importance": 0.125, "url": "http://b.example/"}]}
    head, first, second = shown(("importance", "url"), rows, "pages", False, terminal=True).splitlines()
    assert head.split() == ["importance", "url"]
    assert first.split() == ["1", "0.25", LONG]
    assert second.index("http://b.example/") == first.index(LONG)


def test_rows_elsewhere_are_separated_by_tabs() -> None:
    rows = {"pages": [{"importance": 0.25, "url": LONG}]}
    assert shown(("importance", "url"), rows, "pages", False) == f"importance\turl\n0.25\t{LONG}\n"
    assert shown(("importance", "url"), {"pages": []}, "pages", False) == "importance\turl\n"


def test_json_has_the_numbers_and_ends_with_a_newline() -> None:
    assert shown({"as_of": NOW}, True) == '{"as_of": 1764000000.5}\n'
