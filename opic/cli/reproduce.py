"""The command that repeats the papers' experiments."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from opic.cli.output import print_json, print_rows
from opic.errors import BadInput

if TYPE_CHECKING:
    from opic.experiments.result import Progress

PROGRESS_LINE_STEPS: Final = 10


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Experiment; --list shows them.", show_default=False)] = None,
    *,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Write NAME.json and NAME.svg into this directory."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Recorded graphs; default: those that ship."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A small run: to see that it works.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Repeat an experiment of a paper, and print its table beside the paper's figures."""
    from opic.experiments.catalogue import EXPERIMENTS
    from opic.experiments.catalogue import reproduce as run

    if list_all:
        rows = [{"name": key, "title": one.title, "paper": one.source} for key, one in EXPERIMENTS.items()]
        if as_json:
            print_json({"experiments": rows})
        else:
            print_rows(("name", "title", "paper"), rows)
        return
    if name is None:
        raise BadInput("name an experiment: `opic reproduce --list` shows them")
    with _progress() as progress:
        result = run(name, data, progress, quick=quick)
    for sentence in result.missing:
        print(f"left out: {sentence}", file=sys.stderr)
    written = result.write(out) if out else []
    if as_json:
        print_json(result.as_json())
        return
    print_rows(result.columns, [dict(zip(result.columns, row, strict=True)) for row in result.rows])
    if result.paper:
        print("\nthe paper's figures:")
        print_rows(tuple(result.paper[0]), result.paper)
    for sentence in result.notes:
        print(f"note: {sentence}")
    for path in written:
        print(f"wrote {path}", file=sys.stderr)


@contextmanager
def _progress() -> Iterator["Progress"]:
    """Show progress on stderr: a bar on a terminal, else a line now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:

        def say(done: int, total: int, text: str) -> None:
            if done % PROGRESS_LINE_STEPS == 0:
                print(f"{done} of {total}: {text}", file=sys.stderr, flush=True)

        yield say
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, description=text, completed=done, total=total)
