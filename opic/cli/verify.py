"""The command that checks exact importance: `opic verify`."""

import logging
from contextlib import ExitStack

import typer

from opic.cli.options import FOUND_A_PROBLEM, AsJson, Chosen, choosing, ending_in_order
from opic.cli.output import print_answer
from opic.logs import log_to_stderr


@choosing
def verify(*, chosen: Chosen, as_json: AsJson = False) -> None:
    """Compute PageRank from the kept links by another way, and print the true error beside the bound.

    Needs kept links (not OPIC_KEEP_LINKS=off), and a crawl in which no events arrive meanwhile. Exit status 1 if the
    bound is too low.
    """
    from opic.query.verification import verified
    from opic.service.service import open_backend

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        answer = verified(open_backend(settings, stack).query)
    print_answer(answer, as_json)
    if answer["error"] > answer["error_bound"]:  # type: ignore[operator]
        raise typer.Exit(FOUND_A_PROBLEM)
