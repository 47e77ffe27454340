"""The command for the history of a page: its last reads, or its importance at any past time of a recorded crawl."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opic.cli.calls import asked
from opic.cli.options import Plot, ServiceChosen, choosing, event_files, moment_us, without_none
from opic.cli.output import print_json, print_list, print_rows
from opic.cli.pages import Policy, Url, Window
from opic.cli.pictures import Panel, write_plot
from opic.errors import BadInput

if TYPE_CHECKING:
    from opic.model.past_importance import TimedEvent

POINTS = 200  # Times at which a recorded page is looked at, unless --at names one.
ROWS = 20  # Of these are printed.
MEASURES = 64  # Kept by the ledger that replays a recorded crawl.
MILLION = 1_000_000


@choosing
def history(
    url: Url,
    *,
    recorded: Annotated[
        list[Path] | None,
        event_files(
            "Apply these crawl events in memory, in the order of their time, and print the page's importance over "
            "time; no store is used."
        ),
    ] = None,
    moment: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="With --recorded: only at this time, such as 2024-05-01.")
    ] = None,
    plot: Plot = None,
    policy: Policy = None,
    window: Window = None,
    chosen: ServiceChosen,
) -> None:
    """Print the last reads of a page, oldest first, or its importance at past times of a recorded crawl.

    The picture of the last reads shows the share of all cash spent that came to the page between one read and the next.
    Exit status 1 if the page was never seen.
    """
    if recorded:
        _print_recorded(url, recorded, moment, plot, policy, window, chosen.as_json)
        return
    if moment or policy or window:
        raise BadInput("--at, --policy and --window apply to --recorded only: a store keeps the last reads of a page")
    answer = asked(chosen, "GET", "/v1/history", {"url": url})
    if plot is not None:
        _draw(plot, str(answer["url"]), _flow(answer["measures"]), "share of the cash spent between reads")
    print_list(("clock", "cash", "fetched_at"), answer, "measures", chosen.as_json)


def _flow(measures: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the share of the flow between reads, as steps: Unix seconds, share.

    Raises:
        BadInput: fewer than two reads are kept, so that there is no time between them.
    """
    if len(measures) < 2:
        raise BadInput(
            f"reads kept of this page: {len(measures)}; a picture needs 2: read the page again, or use --recorded"
        )
    points = []
    for before, after in pairwise(measures):
        share = after["cash"] / max(after["clock"] - before["clock"], 1)
        points += [(before["fetched_at"], share), (after["fetched_at"], share)]
    return points


def _print_recorded(  # noqa: PLR0917 - options of one command
    url: str, files: Sequence[Path], moment: str | None, plot: Path | None, policy: str | None, window: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    from opic.model import series
    from opic.model.cash import CrawlRules
    from opic.model.past_importance import RecordedPast, standings
    from opic.model.windows import POLICIES
    from opic.settings import Settings

    if policy not in (None, *POLICIES):
        raise BadInput(f"--policy {policy} is not one of {', '.join(POLICIES)}")
    span = None if window is None else series.Window.parse(window)
    settings = Settings.load()
    page, events = settings.limits().canonical(url), list(_timed_events(files))
    if not events:
        raise BadInput(f"{', '.join(map(str, files))}: contains no crawl event")
    first, last = (limit(event.time_us for event in events) for limit in (min, max))
    times = (
        [moment_us("--at", moment)] if moment else [first + (last - first) * i // (POINTS - 1) for i in range(POINTS)]
    )
    past = RecordedPast(events, CrawlRules(measures_max=MEASURES, normalize=settings.limits().normalization.text))
    # A window of the clock may need many measures; `variable` takes as many as the service would, not 64.
    measures = settings.history_measures
    course = list(standings(past, page, times, policy or "static", span, measures=measures))
    rows = [
        {
            "time": standing.time_us / MILLION,
            "importance": standing.importance,
            "rank": standing.rank,
            "pages": standing.pages,
        }
        for standing in course
    ]
    if plot is not None:
        points = [
            (standing.time_us / MILLION, standing.importance) for standing in course if standing.importance is not None
        ]
        _draw(plot, page, points, "importance")
    if as_json:
        print_json({"url": page, "policy": policy or "static", "window": span and span.shown(), "past": rows})
        return
    shown = rows[:: max(1, len(rows) // ROWS)] if len(rows) > ROWS else rows
    print_rows(("time", "importance", "rank", "pages"), [without_none(row) for row in shown])


def _timed_events(files: Sequence[Path]) -> Iterator["TimedEvent"]:
    """Yield the events of files.

    Raises:
        BadInput: a file is of another kind, or an event can't be decoded or has no time.
    """
    from opic.errors import BadEvent
    from opic.model.event_checks import time_us
    from opic.model.events import decode_crawl_event
    from opic.model.past_importance import TimedEvent
    from opic.ops.replay import format_of, values_by_number
    from opic.settings import Settings

    bytes_max, now = Settings.load().max_body_bytes, int(datetime.now(UTC).timestamp() * MILLION)
    for path in files:
        kind = format_of(path)
        if kind not in ("jsonl", "msgpack"):
            raise BadInput(f"{path}: --recorded takes crawl events, .jsonl or .msgpack, and this is {kind}")
        for number, value in values_by_number(path, kind, bytes_max):
            try:
                fetched_at = decode_crawl_event(value).fetched_at
                if fetched_at is None:
                    raise BadInput(f"{path}:{number}: the event has no fetched_at, so its time is unknown: give it one")
                yield TimedEvent(time_us(fetched_at, now), value)
            except BadEvent as error:
                raise BadInput(f"{path}:{number}: {error}") from None


def _draw(path: Path, title: str, points: Sequence[tuple[float, float]], y: str) -> None:
    write_plot(path, Panel(title, {y: points}, "time, UTC", y, x_scale="time", y_scale="linear"))
