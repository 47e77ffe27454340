"""What a command prints: JSON for programs, tables on a terminal, tab-separated lines else."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


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
        print(f"{name:<{wide}}\t{as_text(value)}")


def print_rows(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print records: a table on a terminal, else a line each with tabs between the values."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(as_text(row[name]) for name in names))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("", justify="right")
    for name in names:
        table.add_column(name, justify="left" if name in ("url", "lease") else "right", overflow="fold")
    for number, row in enumerate(rows, 1):
        table.add_row(str(number), *(as_text(row[name]) for name in names))
    Console().print(table)


def as_text(value: object) -> str:
    """Return a value as a person reads it."""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
    return value if isinstance(value, str) else json.dumps(value)
