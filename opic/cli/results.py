"""Commands that read a whole crawl from its store: export, comparison with other scores, verification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from opic.cli.options import FOUND_A_PROBLEM, File, ResultChosen, choosing, moment_us, opened
from opic.cli.output import PROGRESS_LINE_SECONDS, print_answer, print_fields, print_json, print_rows, showing_progress
from opic.errors import BadInput

ExportFormat = Literal["parquet", "csv", "jsonl", "cc-ranks"]  # What `export` writes.


@choosing
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, show_default=False)],
    *,
    format: Annotated[ExportFormat | None, typer.Option(help="Default: by the file name.")] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Also write the links between the pages, to FILE with .links in its name.")
    ] = False,
    chosen: ResultChosen,
) -> None:
    """Write all pages with their importance to a file, as of one moment; events may go on.

    parquet needs opic[parquet]. csv, jsonl and cc-ranks are compressed if FILE ends in .gz. cc-ranks has hosts, in the
    columns of Common Crawl's host ranks. --links writes pairs of row numbers, from 0, in the file of the pages.
    """
    from opic.ops.export import export as run
    from opic.ops.export import format_of

    kind = format or format_of(file)
    with opened(chosen) as backend, showing_progress(PROGRESS_LINE_SECONDS) as show:
        patience = backend.frontier.politeness.patience
        answer = run(backend.query, file, kind, links=links, patience=patience, on_progress=show)
    print_answer(answer if chosen.as_json else _plain_export(answer), chosen.as_json)


def _plain_export(answer: Mapping[str, Any]) -> dict[str, object]:
    """Return what a person reads of an export: files and counts first, no value with others inside.

    The digests of the journals and the weights of classes are in the JSON only, and beside the export.
    """
    left: dict[str, object] = {**answer, "files": ", ".join(answer["files"]), **answer["settings"]}
    return {name: value for name, value in left.items() if value is not None and not isinstance(value, list | dict)}


@choosing
def load_importance(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False)] = None,
    *,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When the export was made: its `as_of`, or an ISO time."),
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(
            min=0, max=2, help="Bound on the L1 distance from exact PageRank. Default: one step on the kept links."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take FILE although its sum, or unknown or missing pages, speak against it.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what was loaded; without FILE.")] = False,
    chosen: ResultChosen,
) -> None:
    """Load importance that another program computed from an export: policy loaded, until the next load.

    FILE is a table with columns url and importance (Parquet, CSV, JSON Lines), or lines URL SCORE; text may be gzipped;
    or a directory of such files. It is taken whole or not at all. A page that the file lacks, or that becomes known
    later, has its share by cash.
    """
    from opic.ops import load_importance as loads

    if remove == (file is not None):
        raise BadInput("give a FILE to load, or --remove")
    with opened(chosen) as backend, showing_progress(PROGRESS_LINE_SECONDS) as show:
        if file is None:
            answer = loads.remove_importance(backend.query)
        else:
            seconds = None if as_of is None else moment_us("--as-of", as_of) / 1e6
            answer = loads.load_importance(
                backend.query, file, as_of=seconds, error_bound=bound, force=force, on_progress=show
            )
    print_answer(answer, chosen.as_json)


@choosing
def compare(file: File, *, chosen: ResultChosen) -> None:
    """Compare importance with the scores in a file: rank correlations, overlap of the tops, L1 distance.

    FILE is an export of pages, Common Crawl's ranks of hosts or domains, or lines URL SCORE. Pages that only one of
    both has are counted and left out. Differences below a relative 1e-6, or below the error bound, count as ties. Notes
    say what shows that the scores can't be PageRank of this graph.
    """
    from opic.ops.compare import compare as run

    with opened(chosen) as backend:
        answer = run(backend.query, file)
    if chosen.as_json:
        print_json(answer)
        return
    differ_most, notes = (
        cast("list[dict[str, object]]", answer.pop("differ_most")),
        cast("list[str]", answer.pop("notes")),
    )
    print_fields(answer)
    for note in notes:
        print(f"note\t{note}")
    if differ_most:
        print_rows(list(differ_most[0]), differ_most)


@choosing
def verify(*, chosen: ResultChosen) -> None:
    """Compute PageRank from the kept links by another way, and print the true error beside the bound.

    Needs kept links (not OPIC_KEEP_LINKS=off), and a crawl in which no events arrive meanwhile. Exit status 1 if the
    bound is too low.
    """
    from opic.query.verification import verified

    with opened(chosen) as backend:
        answer = verified(backend.query)
    print_answer(answer, chosen.as_json)
    if answer["error"] > answer["error_bound"]:  # type: ignore[operator]
        raise typer.Exit(FOUND_A_PROBLEM)
