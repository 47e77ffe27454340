"""The command that ranks the pages of one domain by their PageRank in the whole web: the local-domain estimator."""

import csv
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from opic.cli.calls import service_address, tell_service
from opic.cli.options import AllowPrivate, HostDelay, Plot, ServiceChosen, choosing, ending_in_order, event_files
from opic.cli.output import Refusals, print_json, print_rows, showing_progress
from opic.cli.pictures import Panel, write_plot
from opic.errors import BadEvent, BadInput
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.local.estimator import DomainRanking, Estimator, EstimatorOptions, EstimatorProgress
    from opic.local.fetcher import Fetcher
    from opic.local.service_view import ServiceView
    from opic.model.events import CrawlEvent
    from opic.service.service_file import Address
    from opic.settings import Settings

SHOWN: Final = 20  # Pages printed on a terminal.
RETRY_SECONDS: Final = 10.0
PAGES_KEPT: Final = 10_000  # Of the list that the service keeps; its OPIC_MAX_URLS must allow them.
Selection = Literal["sc", "pf", "outlinks", "random", "combined"]  # How outside pages are selected.


@dataclass(frozen=True, slots=True)
class EstimatorInput:
    """What an estimator reads and where it keeps its state."""

    crawl: Annotated[list[Path] | None, event_files("Crawl events of the domain's pages; repeatable.")] = None
    recorded: Annotated[list[Path] | None, event_files("Crawl events to use instead of the web; repeatable.")] = None
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save what was fetched here; the same command resumes after an interruption."),
    ] = None
    host_delay: HostDelay = None
    allow_private: AllowPrivate = False
    retry_seconds: Annotated[
        float, typer.Option(min=0, help="How long to retry the pages of a host that does not answer.")
    ] = RETRY_SECONDS
    seed_url: Annotated[
        list[str] | None,
        typer.Option(help="Without --crawl: where to begin; default https://DOMAIN/ and http://DOMAIN/."),
    ] = None


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Which pages an estimator fetches."""

    fetch: Annotated[int, typer.Option(min=0, help="Number of outside pages to fetch.")] = 100
    select: Annotated[Selection, typer.Option(help="How outside pages are selected.")] = "combined"
    round_pages: Annotated[
        int | None, typer.Option(min=1, help="Pages selected per round; default: a 25th of --fetch.")
    ] = None
    local_pages: Annotated[
        int, typer.Option(min=1, help="Without --crawl: maximum number of the domain's pages to fetch.")
    ] = 1_000
    seed: Annotated[int, typer.Option(help="Seed of --select random.")] = 0


@choosing
def local_rank(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", show_default=False)],
    *,
    given: EstimatorInput,
    selection: SelectionOptions,
    publish: Annotated[bool, typer.Option(help="Send the fetched pages and the list to the service.")] = True,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the list as CSV.")] = False,
    plot: Plot = None,
    chosen: ServiceChosen,
) -> None:
    """Rank the pages of a domain by their PageRank in the whole web.

    It fetches the outside pages that affect the ranking most (Davis and Dhillon), and uses what a running service
    knows about the rest of the web. Without --crawl it first crawls the domain itself.
    """
    from opic.local.estimator import EstimatorOptions

    if chosen.as_json and as_csv:
        raise BadInput("--json and --csv contradict each other: leave one out")
    settings = chosen.settings(service=chosen.service)
    log_to_stderr(logging.WARNING)
    options = EstimatorOptions(
        selection.fetch, selection.select, selection.round_pages, selection.local_pages, selection.seed, publish,
        settings.limits(),
    )  # fmt: skip
    if (address := service_address(chosen, settings)) is not None:
        tell_service(chosen, address)
    with ending_in_order(), showing_progress() as show, ExitStack() as stack:
        estimator = opened(
            stack, domain, options, given, settings=settings, address=address,
            on_progress=lambda progress: show(progress.tried, progress.pages_max, _shown(progress)),
        )  # fmt: skip
        ranking = _run(estimator, publish)
    _print(ranking, chosen.as_json, as_csv)
    _draw(plot, ranking)


def _draw(path: Path | None, ranking: "DomainRanking") -> None:
    """Draw importance by rank, and by how much each round of outside pages changed it."""
    if path is None:
        return
    by_rank = list(enumerate(ranking.importance, 1))
    title = f"{len(by_rank):,} pages of {ranking.domain}"
    panels = [Panel(title, {"importance": by_rank}, "rank", "importance, share of the domain's", x_scale="log")]
    if ranking.changes:
        title = "Change of the ranking by each round"
        moved = "L1 distance from the round before"
        panels.append(Panel(title, {"change": ranking.changes}, "outside pages fetched", moved, y_scale="linear"))
    write_plot(path, *panels)


def _run(estimator: "Estimator", publish: bool) -> "DomainRanking":
    """Make all rounds, and the list, which the service gets too."""
    while not estimator.done and estimator.round():
        pass
    if estimator.service is not None:
        estimator.service.try_now()
    ranking = estimator.ranking()
    if estimator.service is not None and publish:
        estimator.service.show(ranking.sent(PAGES_KEPT))
    return ranking


def opened(
    stack: ExitStack,
    domain: str,
    options: "EstimatorOptions",
    given: EstimatorInput,
    *,
    settings: "Settings",
    address: "Address | None",
    on_progress: "Callable[[EstimatorProgress], object]",
    stopped: Callable[[], bool] = lambda: False,
) -> "Estimator":
    """Make an estimator that has the pages of its domain, from a crawl or by crawling; `stack` closes what it uses."""
    from opic.local.estimator import Estimator
    from opic.local.journal import Journal
    from opic.urls.canonical import canonical_host

    name = canonical_host(domain)
    journal = stack.enter_context(Journal(name, given.state))
    service = stack.enter_context(service_view(address, name, settings)) if address is not None else None
    fetcher = _fetcher(given, settings)
    stack.callback(fetcher.close)
    estimator = Estimator(name, options, fetcher, journal, service, on_progress=on_progress, stopped=stopped)
    events = events_of(given.crawl, settings) if given.crawl else None
    estimator.open(events, given.seed_url or [f"https://{name}/", f"http://{name}/"])
    return estimator


def _fetcher(given: EstimatorInput, settings: "Settings") -> "Fetcher":
    from opic.local.fetcher import RecordedFetcher
    from opic.local.web import WebFetcher, WebLimits

    if given.recorded:
        return RecordedFetcher({event.url: event for event in events_of(given.recorded, settings)})
    delay = settings.host_delay_seconds if given.host_delay is None else given.host_delay
    return WebFetcher(WebLimits(delay, retry_seconds=given.retry_seconds, allow_private=given.allow_private))


def service_view(address: "Address", domain: str, settings: "Settings") -> "ServiceView":
    """Return a view of a service for a local domain; it connects to nothing yet."""
    import httpx

    from opic.local.service_view import ServiceView

    token = settings.api_token.get_secret_value() if settings.api_token is not None else None
    # A proxy from the environment does not reach an address of this machine.
    transport = httpx.AsyncHTTPTransport() if address.instance else None
    return ServiceView(address.url, domain, crawl=address.crawl or None, token=token, transport=transport)


def events_of(
    paths: Sequence[Path], settings: "Settings", decode: "Callable[[bytes], CrawlEvent] | None" = None
) -> "Iterator[CrawlEvent]":
    """Yield the events of files with canonical URLs; bad ones are skipped and reported on stderr.

    Redirects to another name of the same page are left out: they say nothing of it.
    """
    import time

    from opic.model.event_checks import check_event
    from opic.model.events import Outcome, decode_crawl_event
    from opic.ops.replay import lines_of

    limits, decode = settings.limits(), decode or decode_crawl_event
    with Refusals("invalid events") as bad:
        for path in paths:
            for number, line in lines_of(path, settings.max_body_bytes):
                try:
                    event = decode(line)
                    checked = check_event(event, time.time_ns() // 1000, limits)
                except BadEvent as error:
                    bad.add(f"{path}:{number}: {error}")
                    continue
                event.url = checked.url
                if checked.outcome is not Outcome.ALIAS:
                    yield event


def _shown(progress: "EstimatorProgress") -> str:
    away = f"; without the service: {progress.away}" if progress.away else ""
    failed = f", {progress.failed:,} failed" if progress.failed else ""
    return f"{progress.tried:,} of at most {progress.pages_max:,} {progress.part} pages fetched{failed}{away}"


def _print(ranking: "DomainRanking", as_json: bool, as_csv: bool) -> None:
    if as_json:
        print_json(ranking.shown())
        return
    rows = ranking.shown()["pages"]
    if as_csv:
        table = csv.DictWriter(sys.stdout, ("rank", "importance", "url"), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        return
    print_rows(("importance", "url"), rows[:SHOWN] if sys.stdout.isatty() else rows)
    service = f"; the service was not used: {ranking.service_away}" if ranking.service_away else ""
    print(
        f"{len(rows):,} pages of {ranking.domain}, {ranking.outside_fetched:,} outside pages fetched, "
        f"{ranking.failed:,} failed; method {ranking.method}, service coverage {ranking.service_coverage:.3g}{service}",
        file=sys.stderr,
    )
