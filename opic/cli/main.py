"""The command line. Results go to stdout, one record per line; logs and progress go to stderr.

Exit status: 0 done; 1 found a problem (books that do not balance, a page never seen); 2 wrong usage, or the command
cannot be done; 130 after Ctrl-C, except for `opic serve`, where Ctrl-C is the normal end: 0. Modules that are slow to
import are imported by the command that needs them, so that `opic --help` is quick.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from opic.cli.kafka import letters_app, publish, topics_app
from opic.cli.options import FOUND_A_PROBLEM, AsJson, Chosen, asking, choosing, ending_in_order, open_to_feed
from opic.cli.output import print_answer, print_fields, print_json, print_list
from opic.cli.rules import rules_app
from opic.cli.sites import Policy, Url, Window, check_n, explain, hosts, seen
from opic.cli.store import backup, restore, stats
from opic.errors import BadInput, NotBuiltYet, OpicError, SettingsError
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.ops.replay import Plan, Progress, Summary

WRONG_USAGE: Final = 2
PROGRESS_LINE_SECONDS: Final = 5.0

app = typer.Typer(
    help="Streaming page importance for crawlers: crawl events in, importance and the next pages to crawl out.",
    epilog="Settings come from the command line, OPIC_… environment variables, or the TOML file named by --config.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from opic import __version__

        print(f"opic {__version__}")
        raise typer.Exit


@app.callback()
def _opic(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class Mode(StrEnum):
    """Which pages `next` may offer."""

    ANY = "any"
    DISCOVER = "discover"
    REFRESH = "refresh"


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


Domain = Annotated[str | None, typer.Option(help="Only pages of this host or domain, including subdomains.")]


# The service.


@app.command()
@choosing
def serve(
    *,
    embedded: Annotated[bool, typer.Option("--embedded", help="Run the bundled store, and ignore OPIC_STORE.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1. [OPIC_HOST]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 0 for any free one; default 8080. [OPIC_PORT]")
    ] = None,
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Allow connections from other machines without OPIC_API_TOKEN.")
    ] = False,
    chosen: Chosen,
) -> None:
    """Serve the HTTP API.

    With the bundled store it also runs a worker: one process tree is the whole service. With a server of your own, run
    workers beside it (`opic worker`); events go to Kafka, or without Kafka to the store's log. Stop it with Ctrl-C or
    SIGTERM.
    """
    own = {"host": host, "port": port}
    settings = chosen.settings(**own)
    if embedded and not settings.embedded:
        if chosen.store is not None:
            raise SettingsError("--embedded and --store contradict each other: leave one out")
        settings = replace(chosen, store="embedded").settings(**own)
    from opic.api import ConnectionLimits, bind, create_app
    from opic.api import serve as serve_app
    from opic.api.server import url_of
    from opic.memory import give_back_large_arrays
    from opic.service.service import EmbeddedService, StandingService

    log_to_stderr(logging.INFO, settings.log_format)
    give_back_large_arrays()
    opened = EmbeddedService(settings) if settings.embedded else StandingService(settings)
    listener = bind(settings.host, settings.port, token_set=settings.api_token is not None, allow_open=allow_open)
    with listener, ending_in_order(), opened as service:
        url = url_of(listener)
        print(f"opic answers at {url}, its manual is at {url}/docs; Ctrl-C stops it", flush=True)
        serve_app(
            create_app(service), sockets=[listener], limits=ConnectionLimits(connections=settings.max_connections)
        )


@app.command()
@choosing
def worker(
    *,
    chosen: Chosen,
) -> None:
    """Run one worker, which applies crawl events.

    The same as `python -m consumers.crawl_events`.
    """
    from opic.service.worker_process import main as run

    raise typer.Exit(run(chosen.settings()))


# Recorded crawls.


@app.command()
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
    chosen: Chosen,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Feed recorded crawls, or simulate the crawl of a graph.

    Crawl events are JSON Lines, or MessagePack maps one after another. A graph is lines FROM TO (or FROM, tab, TO) and
    # comments; names that are not absolute URLs become http://graph.example/NAME. Files may be gzipped. Beside a
    running service its worker applies the events; otherwise this command does. It ends when all events have taken
    effect and no cash is in flight between shards.
    """
    from opic.ops.replay import replay as run

    plan = _plan(files, format, strategy, reads_per_page, seed, seeds, seed_url)
    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        backend, works_here = open_to_feed(settings, stack)
        with _progress() as told:
            summary = run(backend, files, plan, works_here=works_here, on_progress=told)
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
) -> "Plan":
    """Check the options of `replay` against each other."""
    from opic.ops.replay import READS_PER_PAGE, SEEDS, Plan, format_of

    formats = {format.value} if format else {format_of(path) for path in files}
    if len(formats) > 1:
        raise BadInput(f"files of several formats ({', '.join(sorted(formats))}): replay one format at a time")
    (kind,) = formats
    if kind != "edges" and (strategy or reads_per_page is not None or seeds or seed_url):
        raise BadInput(f"--strategy, --reads-per-page, --seeds and --seed-url apply to edges only, and this is {kind}")
    if strategy is not Strategy.GREEDY and (seeds or seed_url):
        raise BadInput("--seeds and --seed-url apply to --strategy greedy only: the others need no seeds")
    return Plan(
        kind,
        (strategy or Strategy.LOG).value,
        READS_PER_PAGE if reads_per_page is None else reads_per_page,
        seed,
        SEEDS if seeds is None else seeds,
        tuple(seed_url or ()),
    )


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """Show progress on stderr: a bar on a terminal, else a line now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        last = 0.0

        def say(progress: "Progress") -> None:
            nonlocal last
            if progress.seconds - last >= PROGRESS_LINE_SECONDS:
                last = progress.seconds
                of = f" of {progress.total:,}" if progress.total else ""
                rate = progress.events / progress.seconds
                text = f"{progress.events:,}{of} events, {rate:,.0f}/s, lag {progress.lag:,}{_transfers(progress)}"
                print(text, file=sys.stderr, flush=True)

        yield say
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: "Progress") -> None:
            rate = progress.events / max(progress.seconds, 1e-6)
            text = f"{progress.events:,} events, {rate:,.0f}/s, lag {progress.lag:,}{_transfers(progress)}"
            bar.update(task, description=text, completed=progress.events, total=progress.total)

        yield show


def _transfers(progress: "Progress") -> str:
    return f", {progress.undelivered:,} transfers between shards" if progress.undelivered else ""


def _print_summary(summary: "Summary", audit: Mapping[str, object], as_json: bool) -> None:
    from dataclasses import asdict

    found: dict[str, object] = {k: v for k, v in asdict(summary).items() if v is not None}
    if as_json:
        print_json({**found, "audit": audit})
        return
    print_fields({**found, "audit": "conserved" if audit["conserved"] else "NOT conserved: see `opic audit`"})


# Questions.


@app.command()
@choosing
def top(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 100,
    domain: Domain = None,
    policy: Policy = None,
    window: Window = None,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the most important pages, best first."""
    settings = chosen.settings()
    check_n(n, settings)
    with asking(settings) as backend:
        as_of = backend.query.as_of(policy)
        pages = backend.query.top(n, domain, policy, window)
    print_list(("importance", "url"), {"as_of": as_of, "pages": pages}, "pages", as_json)


@app.command(name="next")
@choosing
def next_pages(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages; fewer may be returned.")] = 10,
    crawler: Annotated[str, typer.Option(help="Name of the crawler that gets the leases.")] = "opic next",
    lease_seconds: Annotated[
        float | None,
        typer.Option(min=0.001, max=86_400, help="Duration of the leases; default 300. [OPIC_LEASE_SECONDS]"),
    ] = None,
    busy_host: Annotated[list[str] | None, typer.Option(help="A host to skip; may be repeated.")] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="Only pages of this host or domain, including subdomains; may be repeated."),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="Any page, only pages never read (discover), or only pages read before (refresh).")
    ] = Mode.ANY,
    max_depth: Annotated[
        int | None, typer.Option(min=0, help="Only pages whose depth, in links from a seed, is known and at most this.")
    ] = None,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the next pages to crawl, and lease them.

    This takes leases as a crawler does: no other crawler gets the printed pages until an event for the page
    arrives or the lease expires, and their hosts are delayed for OPIC_HOST_DELAY_SECONDS.
    """
    settings = chosen.settings()
    check_n(n, settings)
    with asking(settings) as backend:
        as_of = backend.query.as_of()
        answer: dict[str, Any] = backend.frontier.next(
            n,
            crawler,
            lease_seconds=lease_seconds,
            busy_hosts=busy_host or (),
            domains=domain or (),
            mode=mode.value,
            max_depth=max_depth,
        )
    print_list(("cash", "importance", "lease", "url"), {"as_of": as_of, **answer}, "pages", as_json)
    if not answer["pages"] and not as_json:
        held = ", ".join(f"{count:,} {kind}" for kind, count in answer["waiting"].items() if count)
        then = "waiting will bring nothing" if answer["exhausted"] else f"ask again in {answer['retry_after']:g} s"
        print(f"nothing to crawl now: {then}{f' (held back: {held})' if held else ''}", file=sys.stderr)


@app.command()
@choosing
def importance(
    url: Url,
    *,
    policy: Policy = None,
    window: Window = None,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the importance of a page.

    Exit status 1 if the page was never seen.
    """
    with asking(chosen.settings()) as backend:
        as_of = backend.query.as_of(policy)
        page = seen(backend, url, *backend.query.importance([url], policy, window))
    print_answer({"as_of": as_of, **page}, as_json)


@app.command()
@choosing
def history(
    url: Url,
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the last reads of a page, oldest first.

    Exit status 1 if the page was never seen.
    """
    with asking(chosen.settings()) as backend:
        as_of = time.time()
        answer = seen(backend, url, backend.query.history(url))
    print_list(("clock", "cash", "fetched_at"), {"as_of": as_of, **answer}, "measures", as_json)


@app.command()
@choosing
def audit(
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Recount the books.

    minted = pages + virtual + in_flight, in whole grains; exit 1 if they do not balance.
    """
    settings = chosen.settings()
    with asking(settings) as backend:
        answer = backend.query.audit()
    print_answer(answer, as_json)
    if not answer["conserved"]:
        raise typer.Exit(FOUND_A_PROBLEM)


classes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(classes_app, name="classes")


@classes_app.callback()
@choosing
def classes(
    context: typer.Context,
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Show or set classes of pages and their weights.

    A page is granted cash in proportion to the weight of its class: with 2, twice as much as a page in no class.
    """
    if context.invoked_subcommand is not None:
        if chosen != Chosen() or as_json:
            raise BadInput(f"put options after the command: opic classes {context.invoked_subcommand} …")
        return
    with asking(chosen.settings()) as backend:
        answer = {**backend.classes(), "as_of": time.time()}
    _print_classes(answer, as_json)


@classes_app.command(name="set")
@choosing
def set_classes(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Define the classes of pages, replacing the present ones.

    FILE is TOML with a table [[classes]] for each class: its name, its weight, and lists of what belongs to it: hosts
    (including subdomains), urls (prefixes), contains (parts of URLs) and tags (of crawl events). JSON of the same
    shape, as `opic classes --json` prints it, works too. A page belongs to the first class that it matches. To remove
    all classes, write `classes = []`.
    """
    from opic.model.classes import read_classes

    found = read_classes(file)
    with ending_in_order(), ExitStack() as stack:
        backend, works_here = open_to_feed(chosen.settings(), stack)
        pages, settled = backend.define(found, backend.settle_here if works_here else None)
        answer = {**backend.classes(), "reclassified": pages, "settled": settled, "as_of": time.time()}
    print(f"{pages:,} known pages {'were' if settled else 'are being'} reclassified", file=sys.stderr)
    _print_classes(answer, as_json)


def _print_classes(answer: dict[str, Any], as_json: bool) -> None:
    rows = [*answer["classes"], {"name": "other", **answer["other"]}]
    names = ("name", "weight", "known_pages", "read_pages", "grant_share")
    print_list(names, answer if as_json else {"classes": rows}, "classes", as_json)


@app.command()
@choosing
def doctor(
    *,
    chosen: Chosen,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check settings, store and Kafka; say what to fix.

    Exit status 1 if a check fails.
    """
    from opic.ops.doctor import look

    found = list(look(chosen.settings))
    if as_json:
        print_json({"checks": [{"check": f.check, "verdict": f.verdict, "found": f.found} for f in found]})
    else:
        for f in found:
            print(f"{f.verdict:<4}\t{f.check}\t{f.found}")
    if any(f.verdict == "FAIL" for f in found):
        raise typer.Exit(FOUND_A_PROBLEM)


app.command()(stats)
app.command()(hosts)
app.command()(explain)
app.add_typer(rules_app, name="rules")
app.add_typer(topics_app, name="topics")
app.command()(publish)
app.add_typer(letters_app, name="dead-letters")
app.command()(backup)
app.command()(restore)

# What the contract names and this version does not have.

NOT_BUILT_YET: Final = {
    "local-rank": "the local-domain estimator",
    "reproduce": "an experiment from the papers, with its table and plot",
}


def _add_not_built_yet(name: str, what: str) -> None:
    def refuse() -> NoReturn:
        raise NotBuiltYet(f"`opic {name}` ({what}) is not built yet: see README.md")

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name=name, help=f"(not built yet) {what[0].upper()}{what[1:]}.", context_settings=anything)(refuse)


for _name, _what in NOT_BUILT_YET.items():
    _add_not_built_yet(_name, _what)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except OpicError as error:
        print(f"opic: {error}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


if __name__ == "__main__":
    main()
