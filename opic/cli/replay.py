"""The command that feeds recorded crawls, or simulates the crawl of a graph."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from opic.cli.options import FOUND_A_PROBLEM, Chosen, ResultAsJson, choosing, ending_in_order, open_to_feed
from opic.cli.output import print_fields, print_json, showing_progress
from opic.errors import BadInput
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.ops.replay import Plan, Progress, Summary

PROGRESS_LINE_SECONDS: Final = 5.0


class ReplayFormat(StrEnum):
    """What `replay` may be given."""

    JSONL = "jsonl"
    MSGPACK = "msgpack"
    WARC = "warc"
    WAT = "wat"
    EDGES = "edges"


class Strategy(StrEnum):
    """In which order `replay` crawls a graph."""

    LOG = "log"
    RANDOM = "random"
    GREEDY = "greedy"
    CYCLE = "cycle"


@choosing
def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, show_default=False)
    ],
    *,
    format: Annotated[
        ReplayFormat | None,
        typer.Option(help="Default: by the file name, .jsonl or .msgpack; otherwise edges."),
    ] = None,
    reads_per_page: Annotated[
        float | None, typer.Option(min=0.001, help="Edges: stop after this many reads per page; default 1.")
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            help="Edges: 'log' (the default) reads pages in the order in which the file first mentions them, over and "
            "over; 'cycle' does the same and 'random' reads at random, both with all pages known from the start; "
            "'greedy' starts from a few seeds and reads what the service suggests next."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Edges: seed of the random choices.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Greedy: start from this many random pages; default 5.")
    ] = None,
    seed_url: Annotated[list[str] | None, typer.Option(help="Greedy: start from these pages instead.")] = None,
    batch: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Greedy: share of the known pages read before the service is asked again; default 0.01.",
        ),
    ] = None,
    chosen: Chosen,
    as_json: ResultAsJson = False,
) -> None:
    """Feed recorded crawls, or simulate the crawl of a graph.

    Crawl events are JSON Lines, or MessagePack maps one after another. A graph is lines FROM TO (or FROM, tab, TO) and
    # comments; names that are not absolute URLs become http://graph.example/NAME. Files may be gzipped. Beside a
    running service its worker applies the events; otherwise this command does. It ends when all events have taken
    effect and no cash is in flight between shards.
    """
    from opic.ops.replay import replay as run

    plan = _plan(files, format, strategy, reads_per_page, seed, seeds, seed_url, batch)
    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        backend, works_here = open_to_feed(settings, stack)
        with showing_progress(PROGRESS_LINE_SECONDS) as show:
            summary = run(
                backend, files, plan, works_here=works_here,
                on_progress=lambda at: show(at.events, at.total, _shown(at)),
            )  # fmt: skip
        audit = backend.query.audit()
    _print_summary(summary, audit, as_json)
    if not audit["conserved"]:
        raise typer.Exit(FOUND_A_PROBLEM)


def _plan(  # noqa: PLR0917 - options of one command
    files: Sequence[Path],
    format: ReplayFormat | None,
    strategy: Strategy | None,
    reads_per_page: float | None,
    seed: int,
    seeds: int | None,
    seed_url: Sequence[str] | None,
    batch: float | None,
) -> "Plan":
    """Check the options of `replay` against each other."""
    from opic.ops.replay import BATCH, READS_PER_PAGE, SEEDS, Plan, format_of

    formats = {format.value} if format else {format_of(path) for path in files}
    if len(formats) > 1:
        raise BadInput(f"files of several formats ({', '.join(sorted(formats))}): replay one format at a time")
    (kind,) = formats
    if kind != "edges" and (strategy or reads_per_page is not None or seeds or seed_url or batch is not None):
        options = "--strategy, --reads-per-page, --seeds, --seed-url and --batch"
        raise BadInput(f"{options} apply to edges only, and this is {kind}")
    if strategy is not Strategy.GREEDY and (seeds or seed_url or batch is not None):
        raise BadInput("--seeds, --seed-url and --batch apply to --strategy greedy only: the others need none of them")
    if batch is not None and not 0 < batch <= 1:
        raise BadInput(f"--batch {batch} is not a share of the known pages, above 0 and at most 1")
    return Plan(
        kind,
        (strategy or Strategy.LOG).value,
        READS_PER_PAGE if reads_per_page is None else reads_per_page,
        seed,
        SEEDS if seeds is None else seeds,
        tuple(seed_url or ()),
        BATCH if batch is None else batch,
    )


def _shown(progress: "Progress") -> str:
    of = f" of {progress.total:,}" if progress.total else ""
    rate = progress.events / max(progress.seconds, 1e-6)
    transfers = f", {progress.undelivered:,} transfers between shards" if progress.undelivered else ""
    return f"{progress.events:,}{of} events, {rate:,.0f}/s, lag {progress.lag:,}{transfers}"


def _print_summary(summary: "Summary", audit: Mapping[str, object], as_json: bool) -> None:
    from dataclasses import asdict

    found: dict[str, object] = {k: v for k, v in asdict(summary).items() if v is not None}
    if as_json:
        print_json({**found, "audit": audit})
        return
    print_fields({**found, "audit": "conserved" if audit["conserved"] else "NOT conserved: see `opic audit`"})
