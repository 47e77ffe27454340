"""The commands of focused sampling: sampling a topic, and training a classifier that recognizes its pages."""

import logging
import sys
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from opic.cli.calls import asking, service_address, tell_service
from opic.cli.local_rank import events_of, service_view
from opic.cli.options import (
    AllowPrivate,
    HostDelay,
    Plot,
    ResultAsJson,
    ResultChosen,
    ServiceChosen,
    choosing,
    ending_in_order,
    event_files,
)
from opic.cli.output import print_answer, print_json, print_rows, showing_progress
from opic.cli.pictures import Panel, write_plot
from opic.errors import BadInput
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.graph.focused_walk import WalkOptions
    from opic.local.service_view import ServiceView
    from opic.model.events import CrawlEvent
    from opic.sampling.sampled_web import Inlinks, SampledWeb
    from opic.sampling.sampler import FocusedSample, SampleProgress, SampleRequest
    from opic.sampling.topics import Topic
    from opic.settings import Settings

RECORDED_STEPS: Final = 10_000
WEB_STEPS: Final = 1_000
STARTS_ASKED: Final = 100
PUBLISHED_AT_ONCE: Final = 100
PAGES_SHOWN: Final = 20
TOPIC_HELP: Final = (
    "url:TEXT (the URL contains it), host:H (a host or domain), tag:T, word:W (the text contains it), text:MODEL"
)
WalkFocus = Literal["hard", "neighbourhood", "trial", "none"]  # Which pages the walk may visit.


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """What is estimated."""

    estimate: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Estimate the share of the topic's pages that are on this topic too."),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="PROPERTY",
            help="Estimate the mean of a number of the topic's pages: links, links-on-topic, meta:NAME.",
        ),
    ] = None
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="PROPERTY",
            help="Estimate how the topic's pages divide by value: host, domain, suffix (com, co.uk), or one of --mean.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WalkChoices:
    """How the walk goes."""

    start: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="First page; it must be on the topic. Default: the best one of the service or the crawl.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(help=f"Steps of the walk; default {RECORDED_STEPS:,} recorded, {WEB_STEPS:,} over HTTP."),
    ] = None
    focus: Annotated[
        WalkFocus, typer.Option(help="Pages that the walk visits: on the topic, near it, by trial and error, or all.")
    ] = "neighbourhood"
    radius: Annotated[int, typer.Option(min=1, help="Focus neighbourhood: links from the topic.")] = 1
    probes: Annotated[
        int, typer.Option(min=1, help="Focus neighbourhood: short walks that tell if a page is so near to the topic.")
    ] = 10
    tries: Annotated[
        int, typer.Option(min=0, help="Focus trial: pages off the topic after which the walk turns back to the topic.")
    ] = 3
    fetch: Annotated[int | None, typer.Option(min=1, help="Maximum number of pages to fetch.")] = None
    host_window: Annotated[
        int | None,
        typer.Option(min=0, help="At most half of this many pages in a row are on one host; 0: no limit. [100]"),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0

    def options(self, topic: "Topic") -> "WalkOptions":
        """Return how the walk on a topic goes."""
        from opic.graph.focused_walk import WINDOW, Focus, WalkOptions

        window = self.host_window if self.host_window is not None else 0 if topic.kind == "host" else WINDOW
        return WalkOptions(Focus(self.focus), self.radius, self.probes, self.tries, window=window)


@dataclass(frozen=True, slots=True)
class WebInput:
    """What a sample of pages fetched over HTTP begins with, and its limits."""

    crawl: Annotated[
        list[Path] | None, event_files("Without --recorded: crawl events to take in-links from; repeatable.")
    ] = None
    host_delay: HostDelay = None
    allow_private: AllowPrivate = False
    publish: Annotated[bool, typer.Option(help="Send the pages fetched over HTTP to the service.")] = True


@choosing
def sample(
    *,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help=TOPIC_HELP, show_default=False)],
    wanted: EstimateOptions,
    recorded: Annotated[
        list[Path] | None,
        event_files(
            "Crawl events to use instead of the web, with `title` and `text` if the topic needs them; repeatable."
        ),
    ] = None,
    walk: WalkChoices,
    web: WebInput,
    verbose: Annotated[bool, typer.Option(help="Also print how the samples were taken, and why.")] = False,
    plot: Plot = None,
    chosen: ServiceChosen,
    as_json: ResultAsJson = False,
) -> None:
    """Take a uniform sample of the pages of a topic, and estimate shares and means of their properties.

    A random walk follows links in both directions, stays near the topic, and counts each page equally often
    (Bar-Yossef, Kanungo, Krauthgamer). Without --recorded it fetches pages over HTTP, politely and by robots.txt.

    Example: opic sample --recorded crawl.jsonl --topic host:example.org --estimate url:/news/

    --focus hard suits a topic whose pages link to each other. The default also visits pages next to the topic, and so
    finds parts of it that do not link to each other. `opic topic-model` trains a text classifier for text:MODEL.
    """
    from opic.sampling.topics import parse_topic

    log_to_stderr(logging.WARNING)
    settings, parsed_topic = chosen.settings(service=chosen.service), parse_topic(topic)
    request = _request(parsed_topic, wanted, walk, RECORDED_STEPS if recorded else WEB_STEPS)
    if not recorded:
        result = _from_web(request, walk, web, settings, chosen)
    elif web.crawl:
        raise BadInput(
            "--crawl adds in-links to pages fetched over HTTP: leave it out, and name its files with --recorded too"
        )
    else:
        result = _from_recorded(request, recorded, walk, settings)
    _print(result, as_json, verbose)
    if plot is not None:
        _draw(plot, result)


def _request(topic: "Topic", wanted: EstimateOptions, walk: WalkChoices, steps: int) -> "SampleRequest":
    from opic.sampling.page_properties import parse_property
    from opic.sampling.sampler import SampleRequest
    from opic.sampling.topics import parse_topic

    return SampleRequest(
        topic,
        parse_topic(wanted.estimate) if wanted.estimate is not None else None,
        walk.steps if walk.steps is not None else steps,
        parse_property(wanted.mean) if wanted.mean is not None else None,
        parse_property(wanted.shares) if wanted.shares is not None else None,
        walk.seed,
        walk.options(topic),
    )


def _draw(path: Path, result: "FocusedSample") -> None:
    """Draw how the estimate came about, in its confidence interval; without one, the precision of the walk."""
    from opic.graph.walk_samples import CONFIDENCE

    topic, share = result.request.topic.written, result.share
    if share is None or result.request.wanted is None:
        name = "share of the steps on the topic"
        write_plot(path, Panel(f"Walk on the topic {topic}", {name: result.course}, "steps", name, y_scale="linear"))
        return
    interval = f"{100 * CONFIDENCE:.0f} % confidence interval"
    panel = Panel(
        f"Share of {result.request.wanted.written} in the pages of {topic}",
        {f"estimate: {share.share:.3g}": result.course},
        "steps of the walk",
        "estimated share of the topic's pages",
        y_scale="linear",
        band=(f"{interval}: {share.low:.3g} to {share.high:.3g}", share.low, share.high),
    )
    write_plot(path, panel)


def _from_recorded(
    request: "SampleRequest", files: Sequence[Path], walk: WalkChoices, settings: "Settings"
) -> "FocusedSample":
    from opic.local.fetcher import RecordedFetcher
    from opic.sampling.sampled_web import SampledWeb, content_of, decode_recorded_page, recorded_inlinks

    events = {event.url: event for event in events_of(files, settings, decode_recorded_page)}
    if not events:
        raise BadInput(f"{', '.join(map(str, files))}: contains no valid crawl event")
    for topic in (request.topic, request.wanted):
        if topic is not None and topic.needs_text and not any(content_of(event).text for event in events.values()):
            raise BadInput(
                f"{topic.written} needs texts, but no recorded page has a field `text`: see docs/guide/sampling.md"
            )
    inlinks = recorded_inlinks(events.values(), settings.limits())
    web = SampledWeb(
        RecordedFetcher(events), inlinks, request.topic, request.wanted, limits=settings.limits(),
        fetches_max=walk.fetch, metas=request.metas,
    )  # fmt: skip
    on_topic = [url for url, event in events.items() if request.topic.contains(content_of(event))]
    # The page with most known in-links first.
    return _walked(web, request, walk.start, sorted(on_topic, key=lambda url: -len(inlinks(url))))


def _from_web(
    request: "SampleRequest", walk: WalkChoices, given: WebInput, settings: "Settings", chosen: ServiceChosen
) -> "FocusedSample":
    """Sample pages fetched over HTTP; a running service gets their events."""
    from opic.local.web import WebFetcher, WebLimits
    from opic.sampling.sampled_web import SampledWeb, ServiceInlinks, recorded_inlinks

    for topic in (request.topic, request.wanted):
        if topic is not None and topic.kind == "tag":
            raise BadInput(
                f"{topic.written}: pages fetched over HTTP have no tags; name a crawl with tags by --recorded"
            )
    if request.metas:
        raise BadInput("pages fetched over HTTP have no metadata; name a crawl with `meta` by --recorded")
    address = service_address(chosen, settings)
    candidates = _known_pages(request.topic, chosen, address) if walk.start is None else ()
    known = recorded_inlinks(events_of(given.crawl or (), settings), settings.limits())
    delay = settings.host_delay_seconds if given.host_delay is None else given.host_delay
    taken: list[CrawlEvent] = []
    texts: dict[str, str] = {}
    with ending_in_order(), ExitStack() as stack:
        inlinks: Inlinks = known
        if address is not None:
            tell_service(chosen, address)
            service = stack.enter_context(service_view(address, "", settings))
            inlinks = ServiceInlinks(known, service, lambda said: print(f"opic: {said}", file=sys.stderr))
            if given.publish:
                stack.callback(_publish, service, taken)
        limits = WebLimits(delay, allow_private=given.allow_private)
        fetcher = stack.enter_context(WebFetcher(limits, on_text=texts.__setitem__))
        web = SampledWeb(
            fetcher, inlinks, request.topic, request.wanted, limits=settings.limits(), fetches_max=walk.fetch,
            texts=texts, took=taken.append,
        )  # fmt: skip
        return _walked(web, request, walk.start, candidates)


def _known_pages(topic: "Topic", chosen: ServiceChosen, address: object) -> list[str]:
    """Return the most important pages that the service knows, of those that may be on the topic."""
    if address is None:
        raise BadInput(
            "a walk begins on a page of the topic: name a page with --start URL, or with --service URL a service that "
            "knows some; or use a recorded crawl with --recorded FILE"
        )
    with asking(chosen) as ask:
        if topic.kind == "url":
            answer = ask("GET", "/v1/search", {"text": topic.value, "n": STARTS_ASKED})
        else:
            domain = topic.value if topic.kind == "host" else None
            answer = ask("GET", "/v1/top", {"n": STARTS_ASKED, "domain": domain})
    return [page["url"] for page in answer["pages"]]


def _publish(service: "ServiceView", events: "Sequence[CrawlEvent]") -> None:
    """Send events to the service, once each."""
    name = uuid.uuid4().hex
    for first in range(0, len(events), PUBLISHED_AT_ONCE):
        if not service.publish(events[first : first + PUBLISHED_AT_ONCE], f"{name}-{first}"):
            print(f"opic: {len(events) - first:,} events were not sent: {service.away}", file=sys.stderr)
            return


def _walked(
    web: "SampledWeb", request: "SampleRequest", start: str | None, candidates: Iterable[str]
) -> "FocusedSample":
    """Walk from the first page, or from the first candidate on the topic; show progress."""
    from opic.sampling.sampler import first_on_topic, take_sample
    from opic.urls.canonical import canonical_url

    first = canonical_url(start) if start is not None else first_on_topic(web, candidates)
    if first is None:
        raise BadInput(
            f"found no page on the topic {request.topic.written}: name one with --start URL, or check the topic"
        )
    with showing_progress() as show:

        def told(progress: "SampleProgress") -> None:
            failed = f", {progress.failed:,} failed" if progress.failed else ""
            show(
                progress.steps,
                progress.steps_max,
                f"{progress.steps:,} of {progress.steps_max:,} steps, {progress.fetched:,} pages fetched{failed}",
            )

        return take_sample(web, first, request, told)


def _print(result: "FocusedSample", as_json: bool, verbose: bool) -> None:
    answer = result.shown()
    if as_json:
        print_json(answer)
        return
    notes, pages = answer.pop("notes"), answer.pop("pages")
    mean, shares = answer.pop("mean"), answer.pop("shares")
    if result.share is not None or mean is not None:
        of_mean = {f"mean.{name}": value for name, value in (mean or {}).items()}
        print_answer({**answer, **of_mean}, False)
    if shares is not None:
        rows = [{**row, "low": row["interval"][0], "high": row["interval"][1]} for row in shares["values"]]
        print_rows(("value", "share", "low", "high"), rows)
    elif result.share is None and mean is None:
        for url in pages[:PAGES_SHOWN] if sys.stdout.isatty() else pages:
            print(url)
    for sentence in notes:
        if verbose or sentence.startswith("doubt") or sentence.startswith("it ended"):
            print(sentence, file=sys.stderr)


@choosing
def topic_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", dir_okay=False, show_default=False, help="File to write.")],
    *,
    recorded: Annotated[list[Path], event_files("Crawl events with the `text` of their pages; repeatable.")],
    on: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Label: pages of this topic are on the topic of the model, such as tag:T, url:TEXT or host:H.",
        ),
    ],
    chosen: ResultChosen,
) -> None:
    """Train a text classifier for the topic text:MODEL, from labelled pages.

    It prints how well such a classifier does on pages that it was not trained with (cross-validation): accuracy,
    precision (share of the pages it finds that are on the topic), recall (share of the topic's pages that it finds).

    Example: opic topic-model birds.json --recorded labelled.jsonl --on tag:birds
    """
    from opic.sampling.sampled_web import content_of, decode_recorded_page
    from opic.sampling.text_model import train, validate
    from opic.sampling.topics import parse_topic

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    topic = parse_topic(on)
    events = {event.url: event for event in events_of(recorded, settings, decode_recorded_page)}
    pages = [page for page in map(content_of, events.values()) if page.text]
    if not pages:
        raise BadInput(
            f"{', '.join(map(str, recorded))}: no crawl event has a field `text`: see docs/guide/sampling.md"
        )
    texts, labels = [page.text for page in pages], [topic.contains(page) for page in pages]
    trained = train(texts, labels)
    trained.save(model)
    answer = {"model": str(model), "topic": topic.written, **asdict(validate(texts, labels))}
    print_answer(answer, chosen.as_json)
