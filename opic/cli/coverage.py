"""The command that says whether a crawl may stop: `opic coverage`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from opic.cli.calls import asking
from opic.cli.options import FOUND_A_PROBLEM, Plot, ServiceChosen, choosing
from opic.cli.output import print_answer
from opic.cli.pictures import Panel, write_plot

TARGET: Final = 0.98
POINTS: Final = 20  # Of the curve that --plot draws.
TARGET_MAX: Final = 0.99999  # The guarantee may lack as much as is missing here, see `opic.graph.rank_coverage`.


@choosing
def coverage(
    *,
    target: Annotated[float, typer.Option(help="The coverage wanted, over 0 and up to 1.")] = TARGET,
    delta: Annotated[
        float, typer.Option(help="Share of all trust that is on pages other than the trusted ones, from 0 to below 1.")
    ] = 0.0,
    plot: Plot = None,
    chosen: ServiceChosen,
) -> None:
    """Print what share of personalized PageRank the fetched pages are guaranteed to hold, and what is missing.

    Seeds that were given trust are where this PageRank starts. Exit status 0 if the target is reached, 1 if not.
    """
    with asking(chosen) as ask:
        answer = ask("GET", "/v1/coverage", {"target": target, "delta": delta})
        if plot is not None:
            _draw(plot, answer, lambda level: ask("GET", "/v1/coverage", {"target": level, "delta": delta}))
    print_answer(answer if chosen.as_json else {**answer, "missing": _missing(answer)}, chosen.as_json)
    if answer["coverage"] < target:
        raise typer.Exit(FOUND_A_PROBLEM)


def _draw(path: Path, answer: Mapping[str, Any], ask_for: Callable[[float], Mapping[str, Any]]) -> None:
    """Draw the coverage to expect over further fetches, up to the target or to what all pages known now give."""
    reached, target = float(answer["coverage"]), float(answer["target"])
    points = {0: reached}  # Coverage by further fetches.
    for step in range(1, POINTS if target > reached else 1):
        level = reached + (target - reached) * step / (POINTS - 1)
        expected = ask_for(level)["fetches_expected"]
        if expected is None:
            break
        points[expected] = level
    met = answer["fetches_expected"] if target > reached else 0
    title = f"Coverage guaranteed by {answer['fetched_pages']:,} fetched pages: {reached:.4g}"
    pages = f"{met:,} more page{'s' if met != 1 else ''}" if met else "reached: the crawl may stop"
    panel = Panel(
        title,
        {"guaranteed coverage": list(points.items())},
        "further pages fetched, in the order of mode coverage",
        "guaranteed coverage, share of PageRank",
        y_scale="linear",
        levels={f"target {target:g}" + ("" if met is not None else ", not reached by the pages known now"): target},
        mark=None if met is None else (pages, met, max(target, reached)),
    )
    write_plot(path, panel)


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
