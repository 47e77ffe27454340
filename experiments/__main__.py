"""`python -m experiments NAME`: repeat an experiment of a paper, and print its table beside the paper's figures."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.catalogue import EXPERIMENTS, reproduce
from experiments.result import Result
from opic.cli.options import ResultAsJson
from opic.cli.output import print_json, print_rows, printing, showing_progress
from opic.errors import BadInput, OpicError

WRONG_USAGE = 2
RECORDED = Path(__file__).parents[1] / "benchmarks" / "results" / "reproduce"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment; --list shows all.", show_default=False)
    ] = None,
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
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Run it K times with different random numbers: each figure is a mean, with its standard error (±) "
            "beside it. To rank strategies, 20.",
            show_default="as recorded",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Make a small run, to see that it works.")] = False,
    as_json: ResultAsJson = False,
) -> None:
    """Repeat an experiment of a paper, and print its table beside the paper's figures.

    The results in benchmarks/results/reproduce are from `python -m experiments NAME --data DIR --out DIR`, where DIR
    has the recorded graphs; the same command gives the same figures, to the digit, but for times. Graphs that are not
    there are left out, and named. docs/guide/reproduce.md says what each experiment does and what its columns mean.
    """
    if list_all:
        _list(as_json)
        return
    if name is None:
        raise BadInput("name an experiment: `python -m experiments --list` shows them")
    with showing_progress() as show:
        result = reproduce(
            name,
            data,
            lambda done, total, text: show(done, total, f"{done} of {total}: {text}"),
            quick=quick,
            runs=runs,
        )
    for sentence in result.missing:
        print(f"left out: {sentence}", file=sys.stderr)
    written = result.write(out) if out else []
    if as_json:
        print_json(result.as_json())
    else:
        _print(result)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)


def _list(as_json: bool) -> None:
    rows = [
        {"name": one.name, "title": one.title, "paper": one.source, "runs": one.recorded, "seconds": _took(one.name)}
        for one in EXPERIMENTS.values()
    ]
    if as_json:
        print_json({"experiments": rows})
    else:
        print_rows(("name", "title", "paper", "runs", "seconds"), rows)


def _took(name: str) -> float | None:
    """Return how long the recorded run of an experiment took; None if there is none."""
    path = RECORDED / f"{name}.json"
    return round(float(json.loads(path.read_text())["seconds"]), 1) if path.is_file() else None


def _print(result: Result) -> None:
    print_rows(result.columns, [dict(zip(result.columns, row, strict=True)) for row in result.rows])
    if result.paper:
        print("\nthe paper's figures:")
        print_rows(tuple(result.paper[0]), result.paper)
    for sentence in result.notes:
        print(f"note: {sentence}")


if __name__ == "__main__":
    try:
        with printing():
            app()
    except OpicError as error:
        print(f"experiments: {error}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
