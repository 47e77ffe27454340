"""The command that exports a crawl."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from opic.cli.options import ResultChosen, choosing, opened
from opic.cli.output import print_answer, showing_progress

PROGRESS_LINE_SECONDS: Final = 5.0


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

    kind = format if format else format_of(file)
    with opened(chosen) as backend, showing_progress(PROGRESS_LINE_SECONDS) as show:
        failures = backend.settings.max_failures
        answer = run(backend.query, file, kind, links=links, max_failures=failures, on_progress=show)
    print_answer(answer, chosen.as_json)
