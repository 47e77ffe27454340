"""The command that checks exact importance: `opic verify`."""

import typer

from opic.cli.options import FOUND_A_PROBLEM, ResultChosen, choosing, opened
from opic.cli.output import print_answer


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
