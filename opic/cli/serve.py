"""Commands that run a part of the service, and the one that checks all of them."""

import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from opic.cli.options import FOUND_A_PROBLEM, Chosen, ResultChosen, choosing, ending_in_order
from opic.cli.output import print_json
from opic.errors import SettingsError
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from socket import socket

    from opic.api.metrics import Metrics
    from opic.service.endpoint_processes import EndpointChild
    from opic.service.service import EmbeddedService
    from opic.service.standing import StandingService
    from opic.service.tokens import Tokens
    from opic.settings import Settings

STARTING: Final = "opic serve: starting"

log = logging.getLogger("opic.service")


@dataclass(frozen=True, slots=True)
class UrlFrontierOptions:
    """Whether URLFrontier's calls are answered too."""

    urlfrontier: Annotated[
        int | None, typer.Option(metavar="PORT", help="Answer URLFrontier's gRPC calls too; 0 for any free port.")
    ] = None
    urlfrontier_allow_delete: Annotated[
        bool, typer.Option("--urlfrontier-allow-delete", help="Let URLFrontier's DeleteCrawl forget all pages.")
    ] = False

    def words(self) -> list[str]:
        """Return the options, as they are given to the process that answers the calls."""
        words = [] if self.urlfrontier is None else ["--urlfrontier", str(self.urlfrontier)]
        return words + (["--urlfrontier-allow-delete"] if self.urlfrontier_allow_delete else [])

    @contextmanager
    def answered(
        self, service: "EmbeddedService | StandingService", metrics: "Metrics", tokens: "Tokens"
    ) -> Iterator[None]:
        """Answer the calls, if they are wanted, and print where."""
        if self.urlfrontier is None:
            yield
            return
        from opic.urlfrontier.server import serving

        with serving(service, self.urlfrontier, metrics, tokens, allow_delete=self.urlfrontier_allow_delete) as address:
            print(f"opic answers URLFrontier's calls at {address}", flush=True)
            yield


@choosing
def serve(
    *,
    embedded: Annotated[bool, typer.Option("--embedded", help="Run the bundled store, and ignore OPIC_STORE.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1. [OPIC_HOST]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 0 for any free one; default 8080. [OPIC_PORT]")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes that answer calls on the port; each keeps all pages in memory. [OPIC_PROCESSES]"),
    ] = None,
    frontier: UrlFrontierOptions,
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Allow connections from other machines without OPIC_API_TOKEN.")
    ] = False,
    chosen: Chosen,
) -> None:
    """Serve the HTTP API.

    With the bundled store it also runs a worker: one process tree is the whole service. With a server of your own, run
    workers beside it (`opic worker`); events go to Kafka, or without Kafka to the store's log. With --processes,
    several processes answer on the port, and one that dies is started again. Stop it with Ctrl-C or SIGTERM.
    """
    if "OPIC_CHILD" not in os.environ and os.environ.get("OPIC_LOG_FORMAT") != "json":
        print(STARTING, file=sys.stderr, flush=True)  # The rest takes seconds, or minutes with a large store.
    from opic.service.endpoint_processes import EndpointChild

    child = EndpointChild.of_environment()
    settings = _settings(chosen, embedded, host=host, port=port, processes=processes)
    log_to_stderr(logging.INFO, settings.log_format)
    from opic.memory import keep_some_memory
    from opic.service.tokens import Tokens

    keep_some_memory()
    tokens = Tokens(settings)
    with _bound(settings, child, tokens, allow_open=allow_open) as listener, ending_in_order():
        if child is None and settings.processes > 1:
            _serve_together(settings, listener, frontier, allow_open=allow_open)
        else:
            _answer(settings, listener, frontier, child, tokens, allow_open=allow_open)
    if child is None:
        log.info("stopped")


def _bound(settings: "Settings", child: "EndpointChild | None", tokens: "Tokens", *, allow_open: bool) -> "socket":
    """Return a socket of the address: one that listens, or, for several processes and in them, that reserves it."""
    from opic.api.server import bind, reserved

    if child is not None:
        return child.socket()
    listener = bind(settings.host, settings.port, token_set=tokens.required, allow_open=allow_open)
    log.info("opening the store (%s)", f"embedded in {settings.data_dir()}" if settings.embedded else "a server")
    return reserved(listener) if settings.processes > 1 else listener


def _answer(
    settings: "Settings",
    listener: "socket",
    frontier: UrlFrontierOptions,
    child: "EndpointChild | None",
    tokens: "Tokens",
    *,
    allow_open: bool,
) -> None:
    """Answer calls in this process, which may be one of several, until it is told to stop."""
    from opic.api import ConnectionLimits
    from opic.api import serve as serve_app
    from opic.api.metrics import Metrics
    from opic.api.server import beside, url_of
    from opic.api.shared_metrics import ProcessPlace
    from opic.api.succession import Succession
    from opic.ingest.traces import export_spans
    from opic.service.service import EmbeddedService
    from opic.service.standing import StandingService

    export_spans("opic-endpoint")
    if settings.embedded and child is None:
        opened: EmbeddedService | StandingService = EmbeddedService(settings)
    else:
        run_workers = child.run_workers if child is not None and settings.embedded else None
        opened = StandingService(settings, run_workers, create=child is None or child.creates)
    url, limits = url_of(listener), ConnectionLimits(connections=settings.max_connections)
    with opened as service, ExitStack() as stack:
        process_place = None if child is None else ProcessPlace(child.number, Path(child.metrics))
        instance = None if child is None else child.instance
        metrics = Metrics(service.backend, tokens, process_place)
        metrics.show_crawls(service.crawls)
        application = Succession(service, allow_open=allow_open, metrics=metrics, tokens=tokens, instance=instance)
        stack.enter_context(metrics.told())
        stack.enter_context(frontier.answered(service, metrics, tokens))
        stack.enter_context(service.announced(url, application.current.instance))
        stack.enter_context(application.watched())
        stack.enter_context(tokens.watched())
        if child is None:
            _say_where(url)
        else:
            stack.enter_context(child.ending_with_its_parent())
            listener = stack.enter_context(beside(listener))  # Not before: connections would wait for this process.
            child.answers()
        serve_app(application, sockets=[listener], limits=limits)


def _serve_together(
    settings: "Settings", listener: "socket", frontier: UrlFrontierOptions, *, allow_open: bool
) -> None:
    """Have several processes answer calls, and start those again that end, until this one is told to stop."""
    from opic.api.server import url_of
    from opic.service.endpoint_processes import EndpointProcesses
    from opic.service.service import EmbeddedService, supervised

    url, instance, done = url_of(listener), uuid.uuid4().hex, threading.Event()
    options = ["--allow-open"] if allow_open else []
    with ExitStack() as stack:
        service = stack.enter_context(EmbeddedService(settings, answers=False)) if settings.embedded else None
        metrics = stack.enter_context(tempfile.TemporaryDirectory(prefix="opic-metrics-"))
        processes = EndpointProcesses(
            settings, listener, instance, Path(metrics), options=options, first_options=frontier.words(),
            run_workers=None if service is None else service.run_workers,
        )  # fmt: skip
        stack.callback(processes.stop)
        processes.start()
        stack.enter_context(supervised(processes.supervise))
        if service is not None:
            stack.enter_context(service.announced(url, instance))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: done.set())
        _say_where(url)
        done.wait()


def _say_where(url: str) -> None:
    print(f"opic answers at {url}, its manual is at {url}/docs; Ctrl-C stops it", flush=True)


def _settings(chosen: Chosen, embedded: bool, **own: Any) -> "Settings":
    settings = chosen.settings(**own)
    if not embedded or settings.embedded:
        return settings
    if chosen.store is not None:
        raise SettingsError("--embedded and --store contradict each other: leave one out")
    return replace(chosen, store="embedded").settings(**own)


@choosing
def worker(
    *,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait without limit for a store and Kafka that do not answer yet: OPIC_START_SECONDS=0."
        ),
    ] = False,
    chosen: Chosen,
) -> None:
    """Run one worker, which applies crawl events.

    The same as `python -m consumers.crawl_events`. At its start it gives up, with exit status 2, after
    OPIC_START_SECONDS without a store or Kafka; later it waits for as long as they are away.
    """
    from opic.service.worker_process import main as run

    raise typer.Exit(run(chosen.settings(start_seconds=0 if wait else None)))


@choosing
def doctor(*, chosen: ResultChosen) -> None:
    """Check settings, store and Kafka; say what to fix.

    Exit status 1 if a check fails.
    """
    from opic.ops.doctor import run_checks

    findings = list(run_checks(chosen.settings))
    if chosen.as_json:
        print_json({"checks": [{"check": f.check, "verdict": f.verdict, "found": f.text} for f in findings]})
    else:
        for f in findings:
            print(f"{f.verdict:<4}\t{f.check}\t{f.text}")
    if any(f.verdict == "FAIL" for f in findings):
        raise typer.Exit(FOUND_A_PROBLEM)
