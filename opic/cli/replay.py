"""The command that feeds recorded crawls, or simulates the crawl of a graph."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from opic.cli.options import FOUND_A_PROBLEM, ResultChosen, choosing, ending_in_order, open_to_feed
from opic.cli.output import print_fields, print_json, showing_progress
from opic.errors import BadInput
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.ops.feeder import Progress
    from opic.ops.replay import Plan, Summary

PROGRESS_LINE_SECONDS: Final = 5.0


class ReplayFormat(StrEnum):
    """What `replay` may be given."""

    JSONL = "jsonl"
    MSGPACK = "msgpack"
    WARC = "warc"
    WAT = "wat"
    ARC = "arc"
    EDGES = "edges"


class ArchiveLinks(StrEnum):
    """Which links of an archive's pages count."""

    HTML = "html"
    RECORDED = "recorded"


class Nofollow(StrEnum):
    """Whether nofollow links count."""

    COUNT = "count"
    DROP = "drop"


class Strategy(StrEnum):
    """In which order `replay` crawls a graph."""

    LOG = "log"
    RANDOM = "random"
    GREEDY = "greedy"
    CYCLE = "cycle"


ReadsPerPage = Annotated[
    float | None, typer.Option(min=0.001, help="Edges: stop after this many reads per page; default 1.")
]
Order = Annotated[
    Strategy | None,
    typer.Option(
        help="Edges: 'log' (the default) reads pages in the order in which the file first mentions them, over and "
        "over; 'cycle' does the same and 'random' reads at random, both with all pages known from the start; "
        "'greedy' starts from a few seeds and reads what the service suggests next."
    ),
]
Batch = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Greedy: share of the known pages read before the service is asked again; default 0.01."
    ),
]
Links = Annotated[
    ArchiveLinks | None,
    typer.Option(help="WARC, ARC: the links of the HTML, the default, or those that Heritrix recorded."),
]
DropNofollow = Annotated[
    Nofollow | None, typer.Option(help="Archives: 'drop' leaves out nofollow links; by default they count.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="FROM,TO",
        help="Edges: the file is CSV, and these are its columns: names in its first line, or numbers from 1.",
    ),
]
IgnoreUnknown = Annotated[
    bool,
    typer.Option("--ignore-unknown", help="Events: leave out unknown fields, instead of refusing the events."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any event was refused.")]
Again = Annotated[bool, typer.Option("--again", help="Archives: feed files from their beginning that were fed before.")]


@choosing
def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, show_default=False)
    ],
    *,
    format: Annotated[
        ReplayFormat | None,
        typer.Option(help="Default: by the file name, as .jsonl or .warc.gz; otherwise edges."),
    ] = None,
    reads_per_page: ReadsPerPage = None,
    strategy: Order = None,
    seed: Annotated[int, typer.Option(help="Edges: seed of the random choices.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Greedy: start from this many random pages; default 5.")
    ] = None,
    seed_url: Annotated[list[str] | None, typer.Option(help="Greedy: start from these pages instead.")] = None,
    batch: Batch = None,
    links: Links = None,
    nofollow: DropNofollow = None,
    again: Again = False,
    columns: Columns = None,
    ignore_unknown: IgnoreUnknown = False,
    strict: Strict = False,
    chosen: ResultChosen,
) -> None:
    """Feed recorded crawls, or simulate the crawl of a graph.

    Crawl events are JSON Lines, or MessagePack maps one after another. A graph is lines FROM TO (or FROM, tab, TO) and
    # comments; names that are not absolute URLs become http://graph.example/NAME. Files may be gzipped.
    WARC, WAT and ARC files need opic[warc]; a file that was fed in part goes on there. Beside a
    running service its worker applies the events; otherwise this command does. It ends when all events have taken
    effect and no cash is in flight between shards. Exit status 1: all events were refused, or with --strict any.
    """
    from opic.ops.replay import replay as run

    plan = _plan(files, format, strategy, reads_per_page, seed, seeds, seed_url, batch)
    plan = _with_archives(plan, links, nofollow, again=again)
    plan = _with_fields(plan, columns, ignore_unknown=ignore_unknown)
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
    _print_summary(summary, audit, chosen.as_json)
    refused = summary.dead_letters and (strict or not summary.accepted)
    if refused or not audit["conserved"]:
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


def _with_archives(plan: "Plan", links: ArchiveLinks | None, nofollow: Nofollow | None, *, again: bool) -> "Plan":
    """Check the options of archives, and add them to the plan."""
    from opic.ops.replay import ARCHIVES

    if plan.format not in ARCHIVES and (links or nofollow or again):
        raise BadInput(
            f"--links, --nofollow and --again apply to {', '.join(ARCHIVES)} only, and this is {plan.format}"
        )
    if links and plan.format == "wat":
        raise BadInput("--links applies to warc and arc: a WAT file has one list of links")
    return replace(plan, recorded=links is ArchiveLinks.RECORDED, drop_nofollow=nofollow is Nofollow.DROP, again=again)


def _with_fields(plan: "Plan", columns: str | None, *, ignore_unknown: bool) -> "Plan":
    """Check the options of what a line holds, and add them to the plan."""
    if ignore_unknown and plan.format not in ("jsonl", "msgpack"):
        raise BadInput(f"--ignore-unknown applies to crawl events only, and this is {plan.format}")
    if columns is None:
        return replace(plan, ignore_unknown=ignore_unknown)
    if plan.format != "edges":
        raise BadInput(f"--columns applies to edges only, and this is {plan.format}")
    first, _, second = (name.strip() for name in columns.partition(","))
    if not first or not second or "," in second:
        raise BadInput(f"--columns {columns}: name two columns, like source,target, or number them, like 1,2")
    return replace(plan, columns=(first, second))


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
