"""Commands for a store and its crawls: counts, audit, backup, restore; taking pages or a whole crawl away."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from opic.cli.calls import ApiCall, asked, asking, service_address
from opic.cli.options import FOUND_A_PROBLEM, Chosen, Plot, ResultChosen, ServiceChosen, choosing, working
from opic.cli.output import (
    PROGRESS_LINE_SECONDS,
    print_answer,
    print_fields,
    print_json,
    print_list,
    print_rows,
    showing_progress,
)
from opic.cli.pictures import Panel, write_plot
from opic.errors import BadInput, DiskFull, SettingsError, StoreError

if TYPE_CHECKING:
    from opic.settings import Settings

POLL_SECONDS: Final = 0.2
NOT_CONFIRMED: Final = 1
# What `series --plot` draws: by name, the field of the counts; the first always, the others where there are any.
PAGES_DRAWN: Final = {
    "read": "read_pages",
    "to fetch": "to_fetch_pages",
    "failed": "failed_pages",
    "not to be fetched": "denied_pages",
    "outside the scope": "outside_pages",
}
PAGES_ALWAYS: Final = ("read_pages", "to_fetch_pages")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

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
    began, first = time.monotonic(), _waiting(answer)
    if first and alone:
        advice = "and no service runs here: start it with `opic serve --embedded`, then try again"
        return answer, f"{first}, {advice}"
    with showing_progress(PROGRESS_LINE_SECONDS) as show:
        while left := _waiting(answer):
            if timeout is not None and time.monotonic() - began >= timeout:
                advice = "give --timeout more seconds" if left != first else "check that a worker runs, and its log"
                return answer, f"{left} after {timeout:g} s: {advice}"
            show(0, None, left)
            time.sleep(POLL_SECONDS)
            answer = ask("GET", "/v1/stats")
    return answer, None


def _waiting(stats: dict[str, Any]) -> str | None:
    """Say what has not taken effect yet, if anything."""
    events, transfers = stats["lag"], stats["undelivered"]
    return f"{events:,} events and {transfers:,} transfers between shards wait" if events or transfers else None


@choosing
def series(
    *,
    n: Annotated[int, typer.Option("--n", min=2, max=1_000, help="Approximate number of entries.")] = 400,
    plot: Plot = None,
    chosen: ServiceChosen,
) -> None:
    """Print the progress of the crawl, oldest first: time, rounds, clock; and when the crawl ends, if that can be told.

    --plot draws the pages read and to be fetched over time, and the error bound over rounds.
    """
    answer = asked(chosen, "GET", "/v1/series", {"n": n})
    if plot is not None:
        _draw_progress(plot, answer)
    print_list(("time", "rounds", "clock"), answer, "series", chosen.as_json)
    if not chosen.as_json:
        print(answer["forecast"]["text"], file=sys.stderr)


def _draw_progress(path: Path, answer: Mapping[str, Any]) -> None:
    progress = answer["progress"]
    bounds = [(point["rounds"], point["error_bound"]) for point in answer["convergence"] if point["error_bound"]]
    if len(progress) < 2 or len(bounds) < 2:
        raise BadInput("a picture needs two points: they are recorded while a service runs and pages are read")
    lines = {
        name: [(point["time"], point[field]) for point in progress]
        for name, field in PAGES_DRAWN.items()
        if field in PAGES_ALWAYS or any(point[field] for point in progress)
    }
    pages = Panel("Pages of the crawl", lines, "time, UTC", "pages", x_scale="time", y_scale="linear")
    bound = Panel("Error bound of importance", {"error bound": bounds}, "rounds", "L1 distance, at most")
    write_plot(path, pages, bound)


@choosing
def audit(*, chosen: ServiceChosen) -> None:
    """Recount the books.

    minted = pages + virtual + in_flight, in whole grains; exit 1 if they do not balance.
    """
    answer = asked(chosen, "GET", "/v1/audit")
    if chosen.as_json:
        print_json(answer)
    else:
        shards = answer["shards"]
        print_fields({"unit": "grains of cash", **{name: value for name, value in answer.items() if name != "shards"}})
        print_rows(list(shards[0]), shards)
    if not answer["conserved"]:
        raise typer.Exit(FOUND_A_PROBLEM)


@choosing
def backup(directory: Directory, *, chosen: ResultChosen) -> None:
    """Copy all shards of a crawl into a new directory.

    The copy is of one state. Workers and endpoints may keep running.
    """
    from opic.ops import backup as backups
    from opic.replica import Crawl as OpenCrawl
    from opic.service.moves import after_moves

    with connected(chosen) as (named, client), showing_progress(PROGRESS_LINE_SECONDS) as show:
        settings = after_moves(client, named)
        crawl = OpenCrawl.open(client, settings.crawl, settings.rules_given(), create=False)
        manifest = backups.backup(
            crawl, directory, lambda done, total: show(done, total, f"{done:,} of {total:,} blocks copied")
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

    with connected(chosen, make=True) as (settings, client), showing_progress(PROGRESS_LINE_SECONDS) as show:
        manifest, fence = restores.restore(
            client, directory, settings.crawl, replace=replace,
            on_progress=lambda done, total: show(done, total, f"{done:,} of {total:,} values written"),
        )  # fmt: skip
    replaced = {"log_closed_at": fence.closed_at, "log_end": fence.log_end} if fence.log_end else {}
    _print_manifest(manifest, directory, chosen.as_json, **replaced)


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
    from opic.service import stored_crawls

    if not accept:
        raise BadInput("this gives up what the store has lost: restore a backup, or say --accept-loss")
    with connected(chosen, make=True) as (settings, client):
        removed = stored_crawls.begin_anew(client, settings.crawl, settings.rules_given(), settings.shards)
    print_fields({"crawl": settings.crawl, "keys_removed": removed})


@contextmanager
def connected(chosen: Chosen, *, make: bool = False, writes: bool = False) -> "Iterator[tuple[Settings, Any]]":
    """Lend the settings and a connection to the store; an embedded one that does not run is started for as long.

    Raises:
        SettingsError: with `make`, a service runs on the embedded store.
        DiskFull: with `make` or `writes`, the disk of the embedded store has no room.
        StoreError: the store can't be used.
    """
    from opic.service.embedded import EmbeddedServer, disk_full
    from opic.store import connect

    with working(chosen) as (settings, stack):
        url = settings.store
        if settings.embedded:
            running = EmbeddedServer.running(settings.data_dir())
            if running is not None and make:
                raise SettingsError(f"a service runs on {settings.data_dir()}: stop it first")
            if running is None:
                if not make and not (settings.data_dir() / "store").is_dir():
                    raise StoreError(f"no embedded store in {settings.data_dir()}: name another with --data or --store")
                server = EmbeddedServer(settings.data_dir())
                stack.callback(server.stop)
                server.start()
                stack.enter_context(server.explaining())
                running = server.url
            url = running
            if (make or writes) and (full := disk_full(settings.data_dir())) is not None:
                raise DiskFull(f"{full}, then try again")
        client = connect(url)
        stack.callback(client.close)
        yield settings, client


def _print_manifest(manifest: dict[str, Any], directory: Path, as_json: bool, **more: object) -> None:
    if as_json:
        print_json(manifest | more)
        return
    size = sum(file["bytes"] for file in manifest["files"])
    copied = {name: manifest[name] for name in ("crawl", "shards", "pages", "records")}
    beside = {"bytes": size, "conserved": manifest["audit"]["conserved"]}
    print_fields({"backup": manifest["id"], "directory": str(directory), **copied, **beside, **more})


@choosing
def forget(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", show_default=False)] = None,
    *,
    prefix: Annotated[str | None, typer.Option(metavar="URL", help="All pages whose URLs begin so.")] = None,
    host: Annotated[str | None, typer.Option(help="All pages of this host.")] = None,
    domain: Annotated[str | None, typer.Option(help="All pages of this host or domain, including subdomains.")] = None,
    expired: Annotated[
        bool, typer.Option("--expired", help="The pages that the rule of OPIC_EXPIRE_BELOW would forget now.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Forget nothing; print how many pages it would be.")
    ] = False,
    yes: Yes = False,
    chosen: ServiceChosen,
) -> None:
    """Forget pages, with their links and metadata, and print how many.

    Their cash goes to the virtual page. Backups made from then on do not have them. A page that is named again, by a
    link, an event or a seed, becomes known again.
    """
    areas = {"prefix": prefix, "host": host, "domain": domain, "expired": "true" if expired else None}
    wanted = [{"url": url} for url in urls or ()]
    wanted += [{name: value} for name, value in areas.items() if value is not None]
    if not wanted or len(wanted) > max(len(urls or ()), 1):
        raise BadInput("name the pages to forget: by URLs, or by one of --prefix, --host, --domain and --expired")
    if dry_run:
        with asking(chosen, feeds=True) as ask:
            answers = [ask("DELETE", "/v1/pages", {**area, "dry_run": "true"}) for area in wanted]
        importance = {"importance": answers[0]["importance"]} if expired else {}
        print_answer({"would_forget": sum(answer["would_forget"] for answer in answers), **importance}, chosen.as_json)
        return
    places = prefix or host or domain
    what = f"{len(wanted):,} pages" if urls else f"all pages of {places}" if places else "what the rule takes"
    _confirm(f"Forget {what}?", yes)
    count = 0
    with asking(chosen, feeds=True) as ask:
        for area in wanted:
            more = True
            while more:
                answer = ask("DELETE", "/v1/pages", area)
                count, more = count + answer["forgotten"], answer.get("more", False)
    print_answer({"forgotten": count}, chosen.as_json)


def _confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `yes`; end the command if the answer is no."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise typer.Exit(NOT_CONFIRMED)


@choosing
def crawls(
    *,
    create: Annotated[str | None, typer.Option(metavar="NAME", help="Make this crawl, with the rules set.")] = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Delete this crawl and all its data.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if a worker of it seems to run.")] = False,
    yes: Yes = False,
    chosen: ResultChosen,
) -> None:
    """Print the crawls of a store; make one, or delete one.

    A crawl that is made has the rules of the settings, such as OPIC_DAMPING; exit status 2 if it is there with others.
    A crawl is not deleted while a worker of it runs. Stop its endpoints first, too: they answer nothing from then on.
    Needs a user that may remove keys.
    """
    from opic.service.known_crawls import KnownCrawls
    from opic.service.open_crawls import check_name
    from opic.service.stored_crawls import crawls_of, delete_crawl, make_crawl

    if create is not None and delete is not None:
        raise BadInput("--create and --delete contradict each other: leave one out")
    with connected(chosen, writes=(create or delete) is not None) as (settings, client):
        if create is not None:
            check_name(create)
            KnownCrawls(settings.with_crawl(create)).check(client)
            made = make_crawl(client, create, settings.rules_given(), settings.shards)
            print_answer({"name": create, "made": made}, chosen.as_json)
            return
        if delete is None:
            answer = {"crawls": [asdict(crawl) for crawl in crawls_of(client)]}
            print_list(("name", "shards", "known_pages", "read_pages", "moved_to"), answer, "crawls", chosen.as_json)
            return
        _confirm(f"Delete crawl {delete!r} and all its data?", yes)
        removed = delete_crawl(client, delete, force=force)
        KnownCrawls(settings).forget(delete)
    print_answer({"deleted": delete, "keys_removed": removed}, chosen.as_json)
