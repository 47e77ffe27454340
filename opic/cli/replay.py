"""The command that feeds recorded crawls, or simulates the crawl of a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opic.cli.options import FOUND_A_PROBLEM, Files, ResultChosen, choosing, without_none, working
from opic.cli.output import PROGRESS_LINE_SECONDS, print_fields, print_json, showing_progress
from opic.errors import BadInput

if TYPE_CHECKING:
    from opic.ops.feeder import Progress
    from opic.ops.replay import Plan, Summary

ReplayFormat = Literal["jsonl", "msgpack", "warc", "wat", "arc", "edges"]  # What `replay` may be given.
ArchiveLinks = Literal["html", "recorded"]  # Which links of an archive's pages count.
Nofollow = Literal["count", "drop"]  # Whether nofollow links count.
Strategy = Literal["log", "random", "greedy", "cycle"]  # In which order `replay` crawls a graph.


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How the crawl of a graph is simulated."""

    reads_per_page: Annotated[
        float | None, typer.Option(min=0.001, help="Edges: stop after this many reads per page; default 1.")
    ] = None
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            help="Edges: 'log' (the default) reads pages in the order in which the file first mentions them, over and "
            "over; 'cycle' does the same and 'random' reads at random, both with all pages known from the start; "
            "'greedy' starts from a few seeds and reads what the service suggests next."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Edges: seed of the random choices.")] = 0
    seeds: Annotated[int | None, typer.Option(min=1, help="Greedy: start from this many random pages; default 5.")] = (
        None
    )
    seed_url: Annotated[list[str] | None, typer.Option(help="Greedy: start from these pages instead.")] = None
    batch: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Greedy: share of the known pages read before the service is asked again; default 0.01.",
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FROM,TO",
            help="Edges: the file is CSV, and these are its columns: names in its first line, or numbers from 1.",
        ),
    ] = None

    def plan(self, format: str) -> "Plan":
        """Check the options against each other and the format; return a plan without those of other formats."""
        from opic.ops.replay import Plan

        greedy, strategy = self.seeds or self.seed_url or self.batch is not None, self.strategy or "log"
        if format != "edges" and (self.strategy or self.reads_per_page is not None or greedy):
            options = "--strategy, --reads-per-page, --seeds, --seed-url and --batch"
            raise BadInput(f"{options} apply to edges only, and this is {format}")
        if strategy != "greedy" and greedy:
            raise BadInput(
                "--seeds, --seed-url and --batch apply to --strategy greedy only: the others need none of them"
            )
        if self.batch is not None and not 0 < self.batch <= 1:
            raise BadInput(f"--batch {self.batch} is not a share of the known pages, above 0 and at most 1")
        counts = {"reads_per_page": self.reads_per_page, "seed": self.seed, "seeds": self.seeds, "batch": self.batch}
        seed_urls, columns = tuple(self.seed_url or ()), self._columns(format)
        return Plan(format, strategy, seed_urls=seed_urls, columns=columns, **without_none(counts))

    def _columns(self, format: str) -> tuple[str, str] | None:
        if self.columns is None:
            return None
        if format != "edges":
            raise BadInput(f"--columns applies to edges only, and this is {format}")
        first, _, second = (name.strip() for name in self.columns.partition(","))
        if not first or not second or "," in second:
            raise BadInput(f"--columns {self.columns}: name two columns, like source,target, or number them, like 1,2")
        return first, second


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How archives are read."""

    links: Annotated[
        ArchiveLinks | None,
        typer.Option(help="WARC, ARC: the links of the HTML, the default, or those that Heritrix recorded."),
    ] = None
    nofollow: Annotated[
        Nofollow | None, typer.Option(help="Archives: 'drop' leaves out nofollow links; by default they count.")
    ] = None
    again: Annotated[
        bool, typer.Option("--again", help="Archives: feed files from their beginning that were fed before.")
    ] = False

    def added_to(self, plan: "Plan") -> "Plan":
        """Check the options, and add them to the plan."""
        from opic.ops.replay import ARCHIVES

        if plan.format not in ARCHIVES and (self.links or self.nofollow or self.again):
            raise BadInput(
                f"--links, --nofollow and --again apply to {', '.join(ARCHIVES)} only, and this is {plan.format}"
            )
        if self.links and plan.format == "wat":
            raise BadInput("--links applies to warc and arc: a WAT file has one list of links")
        recorded, drop = self.links == "recorded", self.nofollow == "drop"
        return replace(plan, recorded=recorded, drop_nofollow=drop, again=self.again)


@choosing
def replay(
    files: Files,
    *,
    format: Annotated[
        ReplayFormat | None, typer.Option(help="Default: by the file name, as .jsonl or .warc.gz; otherwise edges.")
    ] = None,
    graph: GraphOptions,
    archives: ArchiveOptions,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Events: leave out unknown fields, instead of refusing the events.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any event was refused.")] = False,
    chosen: ResultChosen,
) -> None:
    """Feed recorded crawls, or simulate the crawl of a graph.

    Crawl events are JSON Lines, or MessagePack maps one after another. A graph is lines FROM TO (or FROM, tab, TO) and
    # comments; names that are not absolute URLs become http://graph.example/NAME. Files may be gzipped.
    WARC, WAT, ARC and WACZ files need opic[warc]; a file that was fed in part goes on there. The worker of the running
    service applies the events; where none runs, the command starts a store and a worker for as long as it takes. It
    ends when all events have taken effect and no cash is in flight between shards. Exit status 1: all events were
    refused, or with --strict any.
    """
    from opic.ops.replay import replay as run
    from opic.service.service import feeding

    kind = _format_of(files, format)
    plan = archives.added_to(graph.plan(kind))
    if ignore_unknown:
        if kind not in ("jsonl", "msgpack"):
            raise BadInput(f"--ignore-unknown applies to crawl events only, and this is {kind}")
        plan = replace(plan, ignore_unknown=True)
    with working(chosen) as (settings, stack):
        backend = stack.enter_context(feeding(settings))
        with showing_progress(PROGRESS_LINE_SECONDS) as show:
            summary = run(
                backend, files, plan, lambda progress: show(progress.events, progress.total, _shown(progress))
            )
        audit = backend.query.audit()
    _print_summary(summary, audit, chosen.as_json)
    refused = summary.dead_letters and (strict or not summary.accepted)
    if refused or not audit["conserved"]:
        raise typer.Exit(FOUND_A_PROBLEM)


def _format_of(files: Sequence[Path], format: ReplayFormat | None) -> str:
    from opic.ops.replay import format_of

    formats = {format} if format else {format_of(path) for path in files}
    if len(formats) > 1:
        raise BadInput(f"files of several formats ({', '.join(sorted(formats))}): replay one format at a time")
    return formats.pop()


def _shown(progress: "Progress") -> str:
    total = f" of {progress.total:,}" if progress.total else ""
    rate = progress.events / max(progress.seconds, 1e-6)
    transfers = f", {progress.undelivered:,} transfers between shards" if progress.undelivered else ""
    return f"{progress.events:,}{total} events, {rate:,.0f}/s, lag {progress.lag:,}{transfers}"


def _print_summary(summary: "Summary", audit: Mapping[str, object], as_json: bool) -> None:
    fields = without_none(asdict(summary))
    if as_json:
        print_json({**fields, "audit": audit})
        return
    print_fields({**fields, "audit": "conserved" if audit["conserved"] else "NOT conserved: see `opic audit`"})
