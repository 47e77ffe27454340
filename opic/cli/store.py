"""Commands for a whole store: counts, audit, backup, restore."""

import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from opic.cli.calls import ApiCall, asked, asking, service_address
from opic.cli.options import FOUND_A_PROBLEM, Chosen, ResultChosen, ServiceChosen, choosing, ending_in_order
from opic.cli.output import print_answer, print_fields, print_json, print_list, showing_progress
from opic.errors import BadInput, SettingsError, StoreError
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.settings import Settings

PROGRESS_LINE_SECONDS: Final = 5.0  # Where it is no terminal.
POLL_SECONDS: Final = 0.2

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]


@choosing
def stats(
    *,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="First wait until all events have taken effect and no cash is in flight between shards."
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="With --wait: give up after this long, and exit 1; default: never."
        ),
    ] = None,
    chosen: ServiceChosen,
) -> None:
    """Print counts: known and read pages, the clock, rounds, lag.

    The lag is the number of accepted events that have not taken effect. With --wait the counts cover every accepted
    event, in every shard; that needs a running worker.
    """
    if timeout is not None and not wait:
        raise BadInput("--timeout is for --wait: add it, or leave --timeout out")
    problem = None
    with asking(chosen) as ask:
        answer = ask("GET", "/v1/stats")
        if wait:
            answer, problem = _drained(ask, answer, timeout, alone=_is_alone(chosen))
    print_answer(answer, chosen.as_json)
    if problem is not None:
        print(f"opic: {problem}", file=sys.stderr)
        raise typer.Exit(FOUND_A_PROBLEM)


def _is_alone(chosen: ServiceChosen) -> bool:
    """Return whether no service runs on the store, so that waiting is of no use."""
    from opic.service.embedded import EmbeddedServer

    settings = chosen.settings(service=chosen.service)
    if service_address(chosen, settings) is not None:
        return False
    return settings.embedded and EmbeddedServer.running(settings.data_dir()) is None


def _drained(
    ask: ApiCall, answer: dict[str, Any], timeout: float | None, *, alone: bool
) -> tuple[dict[str, Any], str | None]:
    """Wait until every accepted event has taken effect in all shards; if it takes too long, print what to do."""
    began, first = time.monotonic(), _undone(answer)
    if any(first) and alone:
        advice = "and no service runs here: start it with `opic serve --embedded`, then try again"
        return answer, f"{_waiting(*first)}, {advice}"
    with showing_progress(PROGRESS_LINE_SECONDS) as show:
        while any(left := _undone(answer)):
            if timeout is not None and time.monotonic() - began >= timeout:
                advice = "give --timeout more seconds" if left != first else "check that a worker runs, and its log"
                return answer, f"{_waiting(*left)} after {timeout:g} s: {advice}"
            show(0, None, _waiting(*left))
            time.sleep(POLL_SECONDS)
            answer = ask("GET", "/v1/stats")
    return answer, None


def _undone(stats: dict[str, Any]) -> tuple[int, int]:
    return stats["lag"], stats["undelivered"]


def _waiting(events: int, transfers: int) -> str:
    return f"{events:,} events and {transfers:,} transfers between shards wait"


@choosing
def series(
    *,
    n: Annotated[int, typer.Option("--n", min=2, max=1_000, help="Approximate number of entries.")] = 400,
    chosen: ServiceChosen,
) -> None:
    """Print the progress of the crawl, oldest first: time, rounds, clock."""
    answer = asked(chosen, "GET", "/v1/series", {"n": n})
    print_list(("time", "rounds", "clock"), answer, "series", chosen.as_json)


@choosing
def audit(*, chosen: ServiceChosen) -> None:
    """Recount the books.

    minted = pages + virtual + in_flight, in whole grains; exit 1 if they do not balance.
    """
    answer = asked(chosen, "GET", "/v1/audit")
    print_answer(answer, chosen.as_json)
    if not answer["conserved"]:
        raise typer.Exit(FOUND_A_PROBLEM)


@choosing
def backup(directory: Directory, *, chosen: ResultChosen) -> None:
    """Copy all shards of a crawl into a new directory.

    The copy is of one state. Workers and endpoints may keep running.
    """
    from opic.ops import backup as backups
    from opic.replica import Crawl as OpenCrawl

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack, showing_progress(PROGRESS_LINE_SECONDS) as show:
        client = connected(settings, stack, make=False)
        found = OpenCrawl.open(client, settings.crawl, settings.rules_given(), create=False)
        manifest = backups.backup(
            found, directory, lambda done, total: show(done, total, f"{done:,} of {total:,} blocks copied")
        )
    _print_manifest(manifest, directory, chosen.as_json)


@choosing
def restore(
    directory: Directory,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the existing crawl of that name.")] = False,
    chosen: ResultChosen,
) -> None:
    """Put a backup into a store, whole or not at all.

    Stop the crawl's workers and endpoints first. Workers started afterwards resume where the backup ends.
    """
    from opic.ops import restore as restores

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack, showing_progress(PROGRESS_LINE_SECONDS) as show:
        client = connected(settings, stack, make=True)
        manifest = restores.restore(
            client, directory, settings.crawl, replace=replace,
            on_progress=lambda done, total: show(done, total, f"{done:,} of {total:,} values written"),
        )  # fmt: skip
    _print_manifest(manifest, directory, chosen.as_json)


@choosing
def begin_anew(
    *,
    accept: Annotated[
        bool, typer.Option("--accept-loss", help="Say that what the store has lost of the crawl may stay lost.")
    ] = False,
    chosen: Chosen,
) -> None:
    """Make a crawl anew, empty, after its store has lost it.

    Removes what is left of the crawl. A crawl that is whole is kept, and processes that knew another then take it.
    Rather restore a backup if there is one. Needs a user that may remove keys.
    """
    from opic.ops import crawls

    settings = chosen.settings()
    if not accept:
        raise BadInput("this gives up what the store has lost: restore a backup, or say --accept-loss")
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        client = connected(settings, stack, make=True)
        removed = crawls.begin_anew(client, settings.crawl, settings.rules_given(), settings.shards_made)
    print_fields({"crawl": settings.crawl, "keys_removed": removed})


def connected(settings: "Settings", stack: ExitStack, *, make: bool) -> Any:
    """Connect to the store; an embedded one that does not run is started for as long."""
    from opic.service.embedded import EmbeddedServer
    from opic.store import connect

    url = settings.store
    if settings.embedded:
        running = EmbeddedServer.running(settings.data_dir())
        if running is not None and make:
            raise SettingsError(f"a service runs on {settings.data_dir()}: stop it first")
        if running is None:
            if not make and not (settings.data_dir() / "store").is_dir():
                raise StoreError(f"no embedded store in {settings.data_dir()}: there is nothing to copy")
            server = EmbeddedServer(settings.data_dir())
            stack.callback(server.stop)
            server.start()
            running = server.url
        url = running
    client = connect(url)
    stack.callback(client.close)
    return client


def _print_manifest(manifest: dict[str, Any], directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    files = manifest["files"]
    print_fields(
        {
            "backup": manifest["id"],
            "directory": str(directory),
            "crawl": manifest["crawl"],
            "shards": manifest["shards"],
            "pages": manifest["pages"],
            "records": manifest["records"],
            "bytes": sum(file["bytes"] for file in files),
            "conserved": manifest["audit"]["conserved"],
        }
    )
