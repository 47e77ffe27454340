"""The command that compares importance with other scores."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from opic.cli.options import Chosen, ResultAsJson, choosing, ending_in_order
from opic.cli.output import print_answer
from opic.logs import log_to_stderr


@choosing
def compare(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    *,
    chosen: Chosen,
    as_json: ResultAsJson = False,
) -> None:
    """Compare importance with the scores in a file: Kendall's tau-b, Spearman's rho, overlap of the tops.

    FILE is an export of pages, Common Crawl's host ranks, or lines URL SCORE. Pages that only one of both has are
    counted and left out.
    """
    from opic.ops.compare import compare as run
    from opic.service.service import open_backend

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        answer = run(open_backend(settings, stack).query, file)
    print_answer(answer, as_json)
