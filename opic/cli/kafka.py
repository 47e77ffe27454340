"""Commands for Kafka: topics, publishing, dead letters."""

import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from opic.cli.options import FOUND_A_PROBLEM, Files, ResultChosen, choosing, ending_in_order, opened
from opic.cli.output import PROGRESS_LINE_SECONDS, Refusals, print_answer, print_json, print_list, showing_progress
from opic.errors import BadEvent
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.ingest.kafka import KafkaCluster
    from opic.ingest.kafka.topics import TopicSetup
    from opic.settings import Settings

EVENTS_A_LOOK: Final = 100  # Between two looks at how far it is.

topics_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
letters_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PublishFormat = Literal["jsonl", "msgpack"]  # What `publish` may be given.


def _cluster(settings: "Settings") -> "KafkaCluster":
    from opic.ingest.kafka import KafkaCluster

    log_to_stderr(logging.WARNING)
    return KafkaCluster(settings)


@topics_app.callback()
def topics() -> None:
    """Create the Kafka topics, or show them."""


@topics_app.command(name="create")
@choosing
def create_topics(
    *,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the topic of crawl events; default as many as OPIC_SHARDS.")
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas of each partition; default 3, or the number of brokers if fewer."),
    ] = None,
    chosen: ResultChosen,
) -> None:
    """Create the topics of crawl events and dead letters, if missing.

    An existing topic is not changed. If its settings differ from the recommended ones, the differences are printed and
    the exit status is 1.
    """
    from opic.ingest.kafka.topics import create, differences

    rows: list[dict[str, Any]] = []
    for plan, before in create(_cluster(chosen.settings()), partitions, replication):
        differs = list(differences(plan, before)) if before is not None else []
        verdict = "made" if before is None else "differs" if differs else "there"
        rows.append(_row(plan.name, verdict, before or plan, differs))
    _print_topics(rows, chosen.as_json)
    if any(row["differs"] for row in rows):
        raise typer.Exit(FOUND_A_PROBLEM)


@topics_app.command(name="list")
@choosing
def list_topics(*, chosen: ResultChosen) -> None:
    """Show the topics of crawl events and dead letters.

    Exit status 1 if one is missing.
    """
    from opic.ingest.kafka.topics import find

    cluster = _cluster(chosen.settings())
    admin = cluster.admin()
    try:
        existing = find(cluster, admin, [cluster.topic, cluster.dlq])
    finally:
        admin.close()
    rows = []
    for name in (cluster.topic, cluster.dlq):
        there = existing.get(name)
        verdict, differs = ("there", []) if there else ("missing", ["`opic topics create` makes it"])
        rows.append(_row(name, verdict, there, differs))
    _print_topics(rows, chosen.as_json)
    if len(existing) < len(rows):
        raise typer.Exit(FOUND_A_PROBLEM)


def _row(name: str, verdict: str, there: "TopicSetup | None", differs: list[str]) -> dict[str, Any]:
    partitions, replication = (there.partitions, there.replication) if there else (0, 0)
    row = {"topic": name, "verdict": verdict, "partitions": partitions, "replication": replication}
    return {**row, "differs": differs}


def _print_topics(rows: list[dict[str, Any]], as_json: bool) -> None:
    names = ("topic", "verdict", "partitions", "replication", "differs")
    shown = rows if as_json else [{**row, "differs": "; ".join(row["differs"])} for row in rows]
    print_list(names, {"topics": shown}, "topics", as_json)


@choosing
def publish(
    files: Files,
    *,
    format: Annotated[PublishFormat | None, typer.Option(help="Default: by the file name; otherwise jsonl.")] = None,
    chosen: ResultChosen,
) -> None:
    """Publish recorded crawl events to the Kafka topic.

    Files are JSON Lines, or MessagePack maps one after another, and may be gzipped. Each event is checked first. Bad
    ones are counted and not sent, and the exit status is 1.
    """
    from opic.ingest.publish import Publisher
    from opic.ops.replay import format_of, values_by_number

    settings = chosen.settings()
    _cluster(settings)
    began, sent = time.monotonic(), 0
    with ending_in_order(), Publisher(settings=settings) as publisher, Refusals("bad events") as bad:
        with showing_progress(PROGRESS_LINE_SECONDS) as show:
            for path in files:
                kind = format if format else "msgpack" if format_of(path) == "msgpack" else "jsonl"
                for number, value in values_by_number(path, kind, settings.max_body_bytes):
                    try:
                        publisher.send_encoded(value)
                        sent += 1
                    except BadEvent as error:
                        bad.add(f"{path}:{number}: {error}")
                    if number % EVENTS_A_LOOK == 0:
                        show(sent, None, f"{sent:,} events sent, {publisher.delivered:,} delivered, {bad.count:,} bad")
        delivered = publisher.flush()
    seconds = time.monotonic() - began
    summary: dict[str, object] = {"delivered": delivered, "bad": bad.count, "topic": settings.kafka_topic}
    summary |= {"seconds": round(seconds, 3), "events_per_second": round(delivered / max(seconds, 1e-6), 1)}
    print_answer(summary, chosen.as_json)
    if bad.count:
        raise typer.Exit(FOUND_A_PROBLEM)


@letters_app.callback()
def dead_letters() -> None:
    """Show events that cannot be taken, or publish them again."""


Error = Annotated[str | None, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")]


@letters_app.command(name="list")
@choosing
def list_letters(
    *,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Number of dead letters, newest last.")] = 100,
    error: Error = None,
    chosen: ResultChosen,
) -> None:
    """Show dead letters, from the topic with Kafka, otherwise from the store.

    It also says how many the store dropped because they were over OPIC_MAX_DEAD_LETTER_BYTES.
    """
    from opic.ingest.dead_letters import Dropped

    with opened(chosen) as backend:
        rows = [letter.shown() for letter in backend.letters.newest(n, error or "")]
        dropped = Dropped.of(backend.crawl)
    answer = {"dead_letters": rows, "dropped": dropped._asdict()}
    print_list(("topic", "partition", "offset", "replayed", "error"), answer, "dead_letters", chosen.as_json)
    if dropped.letters and not chosen.as_json:
        limit = f"OPIC_MAX_DEAD_LETTER_BYTES={backend.settings.max_dead_letter_bytes:,}"
        text = f"{dropped.letters:,} older ones, {dropped.value_bytes:,} bytes, were dropped: the store keeps {limit}"
        print(f"opic: {text}", file=sys.stderr)


@letters_app.command(name="replay")
@choosing
def replay_letters(
    *,
    n: Annotated[int | None, typer.Option("-n", "--n", min=1, help="Maximum number, oldest first.")] = None,
    error: Error = None,
    chosen: ResultChosen,
) -> None:
    """Publish dead letters again, unchanged, each once: after you raised a limit or fixed a fault.

    With Kafka the store remembers which were replayed, for as long as the topic has them; without Kafka they are
    removed from the store. What still cannot be taken becomes a dead letter again.
    """
    with opened(chosen) as backend:
        count = backend.letters.replay(error or "", n)
    if chosen.as_json:
        print_json({"replayed": count})
    else:
        print(f"{count:,} dead letters were published again")
