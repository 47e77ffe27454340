"""The command that moves a living crawl to another number of shards, or to other rules."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opic.cli.options import ResultChosen, choosing, without_none
from opic.cli.output import PROGRESS_LINE_SECONDS, print_answer, showing_progress
from opic.cli.store import connected
from opic.errors import BadInput

if TYPE_CHECKING:
    from opic.migration.migrate import Migration, Progress, Report
    from opic.settings import Settings
    from opic.store.durability import Durability


@choosing
def migrate(
    name: Annotated[str | None, typer.Argument(help="Name of the new crawl.", show_default=False)] = None,
    *,
    shards: Annotated[int | None, typer.Option(min=1, max=4096, help="Shards of the new crawl.")] = None,
    damping: Annotated[float | None, typer.Option(help="Its OPIC_DAMPING.")] = None,
    regrant: Annotated[float | None, typer.Option(min=0, max=1, help="Its OPIC_REGRANT.")] = None,
    history_measures: Annotated[int | None, typer.Option(min=1, max=64, help="Its OPIC_HISTORY_MEASURES.")] = None,
    inflow: Annotated[
        bool | None, typer.Option("--inflow/--no-inflow", help="Its OPIC_INFLOW, which can only be switched off.")
    ] = None,
    to_store: Annotated[
        str | None, typer.Option(metavar="URL", help="Make it in another store; default: the same store.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a migration that broke off.")] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="End a migration that broke off; the old crawl goes on.")
    ] = False,
    chosen: ResultChosen,
) -> None:
    """Move a living crawl to another number of shards, or to other rules.

    Makes a new crawl with all that the old one has: cash to the grain, histories, links, classes, metadata, leases,
    waits, limits, dead letters, offsets. During the copy, events are accepted and questions answered; for a moment at
    its end, the crawl takes no writes. Then workers and endpoints go on with the new crawl by themselves, and the
    name of the old one leads to it. The old crawl stays until `opic crawls --delete` removes it.

    If the process is killed, one of the two crawls is whole: --resume or --abort say which, and end it. Needs a user
    that may remove keys.
    """
    from opic.migration import migrate as migration
    from opic.redaction import without_secret
    from opic.store import connect

    rules = {"damping": damping, "regrant": regrant, "history_measures": history_measures, "inflow": inflow}
    given = without_none({**rules, "shards": shards})
    _check_asked(name, given, resume=resume, abort=abort)
    with connected(chosen, writes=True) as (settings, client), ExitStack() as stack:
        show = stack.enter_context(showing_progress(PROGRESS_LINE_SECONDS))
        to = client if to_store is None else stack.enter_context(connect(to_store))
        store, say = "" if to_store is None else without_secret(to_store), partial(show, 0, None)
        if abort:
            answer: dict[str, Any] = {"aborted": migration.abort(client, settings.crawl, to, store).to}
            answer["whole"] = settings.crawl
        elif resume:
            durability = _durability(settings)
            done = migration.resume(client, settings.crawl, to, say, durability=durability, store=store)
            answer = _shown(done)
        else:
            answer = _shown(_begun(settings, client, to, migration.Migration(str(name), store, _stored(given)), say))
    print_answer(answer, chosen.as_json)


def _check_asked(name: str | None, given: dict[str, Any], *, resume: bool, abort: bool) -> None:
    if resume and abort:
        raise BadInput("--resume and --abort contradict each other: leave one out")
    if (resume or abort) and (name is not None or given):
        raise BadInput("--resume and --abort know what was begun: give no name and no rules with them")
    if not (resume or abort) and name is None:
        raise BadInput("give the new crawl a name, as in `opic migrate NAME --shards 4`; --help says more")
    if not (resume or abort) and not given:
        raise BadInput(
            "nothing is to change: give --shards (their present number gives ids of forgotten pages back) or a rule; "
            "for another store alone, use backup and restore"
        )


def _stored(given: dict[str, Any]) -> dict[str, Any]:
    """Return the rules as a store keeps them."""
    from opic.model.cash import MILLION, damping_ppm
    from opic.settings import RULES

    stored = {RULES[rule]: value for rule, value in given.items()}
    if "q" in stored:
        stored["q"] = damping_ppm(stored["q"])
    if "regrant_ppm" in stored:
        stored["regrant_ppm"] = round(stored["regrant_ppm"] * MILLION)
    return stored


def _begun(settings: "Settings", client: Any, to: Any, wanted: "Migration", say: "Progress") -> "Report":
    from opic.migration.migrate import begin
    from opic.replica import Crawl as OpenCrawl
    from opic.service.moves import after_moves

    settings = after_moves(client, settings)
    durability, yields = _durability(settings), settings.yields
    crawl = OpenCrawl.open(client, settings.crawl, create=False, durability=durability, yields=yields)
    return begin(crawl, to, wanted, say)


def _durability(settings: "Settings") -> "Durability":
    from opic.store.durability import Durability

    return Durability(settings.durability, settings.wait_replicas, settings.wait_seconds)


def _shown(report: "Report") -> dict[str, Any]:
    shown = asdict(report)
    return {"migrated_to": shown.pop("to"), **{name: value for name, value in shown.items() if value not in ([], None)}}
