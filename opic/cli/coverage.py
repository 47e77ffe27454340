"""The command that says whether a crawl may stop: `opic coverage`."""

from typing import Annotated, Any, Final

import typer

from opic.cli.calls import asking
from opic.cli.options import FOUND_A_PROBLEM, AsJson, ServiceChosen, choosing
from opic.cli.output import print_answer

TARGET: Final = 0.98
TARGET_MAX: Final = 0.99999  # The guarantee may lack as much as is missing here, see `opic.graph.rank_coverage`.


@choosing
def coverage(
    *,
    target: Annotated[float, typer.Option(help="The coverage wanted, over 0 and up to 1.")] = TARGET,
    delta: Annotated[
        float, typer.Option(help="Share of all trust that is on pages other than the trusted ones, from 0 to below 1.")
    ] = 0.0,
    chosen: ServiceChosen,
    as_json: AsJson = False,
) -> None:
    """Print what share of personalized PageRank the fetched pages are guaranteed to hold, and what is missing.

    Seeds that were given trust are where this PageRank starts. Exit status 0 if the target is reached, 1 if not.
    """
    with asking(chosen) as ask:
        answer = ask("GET", "/v1/coverage", {"target": target, "delta": delta})
    print_answer(answer if as_json else {**answer, "missing": _missing(answer)}, as_json)
    if answer["coverage"] < target:
        raise typer.Exit(FOUND_A_PROBLEM)


def _missing(answer: dict[str, Any]) -> str:
    """Say what is missing."""
    short, expected = answer["target"] - answer["coverage"], answer["fetches_expected"]
    if short <= 0:
        return "nothing: the crawl may stop"
    if answer["target"] > (most := 1 - answer.get("delta", 0.0)):
        return f"{short:.4g}; of trust that is partly elsewhere no more than {most:.4g} can be guaranteed"
    if expected is None and answer["target"] > TARGET_MAX:
        return f"{short:.4g}; the guarantee may stay some 0.00001 below what is true: ask for {TARGET_MAX} at most"
    if expected is None:
        return f"{short:.4g}; fetching all pages known now is not expected to be enough"
    return f"{short:.4g}, about {expected:,} more page{'s' if expected != 1 else ''} in the order of mode coverage"
