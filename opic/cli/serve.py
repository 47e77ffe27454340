"""Commands that run a part of the service, and the one that checks all of them."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from opic.cli.options import FOUND_A_PROBLEM, Chosen, ResultChosen, choosing, ending_in_order
from opic.cli.output import print_json
from opic.errors import SettingsError
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.api.metrics import Metrics
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
    frontier: UrlFrontierOptions,
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
    if os.environ.get("OPIC_LOG_FORMAT") != "json":
        print(STARTING, file=sys.stderr, flush=True)  # The rest takes seconds, or minutes with a large store.
    settings = _settings(chosen, embedded, host=host, port=port)
    log_to_stderr(logging.INFO, settings.log_format)
    from opic.api import ConnectionLimits, bind
    from opic.api import serve as serve_app
    from opic.api.metrics import Metrics
    from opic.api.server import url_of
    from opic.api.succession import Succession
    from opic.ingest.traces import export_spans
    from opic.memory import keep_some_memory
    from opic.service.service import EmbeddedService
    from opic.service.standing import StandingService
    from opic.service.tokens import Tokens

    keep_some_memory()
    tokens = Tokens(settings)
    export_spans("opic-endpoint")
    opened = EmbeddedService(settings) if settings.embedded else StandingService(settings)
    listener = bind(settings.host, settings.port, token_set=tokens.required, allow_open=allow_open)
    url, limits = url_of(listener), ConnectionLimits(connections=settings.max_connections)
    log.info("opening the store (%s)", f"embedded in {settings.data_dir()}" if settings.embedded else "a server")
    with listener, ending_in_order(), opened as service:
        metrics = Metrics(service.backend, tokens)
        application = Succession(service, allow_open=allow_open, metrics=metrics, tokens=tokens)
        announced = service.announced(url, application.current.instance)
        with frontier.answered(service, metrics, tokens), announced, application.watched(), tokens.watched():
            print(f"opic answers at {url}, its manual is at {url}/docs; Ctrl-C stops it", flush=True)
            serve_app(application, sockets=[listener], limits=limits)
    log.info("stopped")


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
