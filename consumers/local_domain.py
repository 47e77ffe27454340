"""The local-domain estimator as a process of its own: `python -m consumers.local_domain DOMAIN --state DIR`.

It makes rounds until all outside pages that it was asked for are fetched, sends the ranked list to the service after
each, and later again whenever the service has learned more. Settings come from the environment and the file named by
OPIC_CONFIG; OPIC_SERVICE names the service. It ends on SIGTERM and SIGINT, and goes on where it was when started again
with the same --state. /metrics, /healthz and /readyz are on --port.
"""

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opic.cli.__main__ import naming_the_extra

if TYPE_CHECKING:
    from opic.local.estimator import DomainRanking, Estimator, EstimatorProgress

POLL_SECONDS: Final = 60.0


class LocalHealth:
    """Metrics and readiness of an estimator."""

    def __init__(self) -> None:
        from opic.ingest.worker_health import HealthAnswers

        self.answers = HealthAnswers(self.gauges)
        self._progress: EstimatorProgress | None = None
        self._ranking: DomainRanking | None = None
        self._sent_at = 0.0

    def progressed(self, progress: "EstimatorProgress") -> None:
        """Note the counts of a round."""
        self._progress = progress

    def ranked(self, ranking: "DomainRanking", sent: bool) -> None:
        """Note a list, and become ready."""
        self._ranking, self.answers.reason = ranking, None
        if sent:
            self._sent_at = time.time()

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        """Yield the gauges with their current values: name, help, value."""
        yield "opic_local_ready", "1 if there is a list, else 0.", float(self._ranking is not None)
        if (progress := self._progress) is not None:
            part = progress.part
            yield f"opic_local_{part}_tried", f"Pages ({part}) fetched, those that failed included.", progress.tried
            yield "opic_local_candidates", "Outside pages that are linked from the crawled ones.", progress.candidates
            yield "opic_local_service_away", "1 if the service gave no answer last time.", float(bool(progress.away))
        if (ranking := self._ranking) is not None:
            yield "opic_local_pages", "Pages of the domain.", len(ranking.urls)
            yield "opic_local_outside_fetched", "Outside pages in the graph.", ranking.outside_fetched
            yield "opic_local_failed", "Outside pages that could not be fetched.", ranking.failed
            yield "opic_local_combined", "1 if the service's in-flow is used.", float(ranking.method == "combined")
            yield "opic_local_service_coverage", "Share of outside importance on read pages.", ranking.service_coverage
            yield "opic_local_list_time_seconds", "When the list was made, Unix seconds.", ranking.as_of
        yield "opic_local_sent_time_seconds", "When the service got the list last, Unix seconds.", self._sent_at


def run(given: argparse.Namespace, done: threading.Event, health: LocalHealth) -> None:
    """Work until stopped, or with --once until all is fetched."""
    from opic.cli.calls import service_address
    from opic.cli.local_rank import EstimatorInput, opened
    from opic.cli.options import ServiceChosen
    from opic.local.estimator import EstimatorOptions

    chosen = ServiceChosen(service=given.service)
    settings = chosen.settings(service=given.service)
    options = EstimatorOptions(
        given.fetch, given.select, given.round_pages, given.local_pages, limits=settings.limits()
    )
    names = (field.name for field in fields(EstimatorInput))
    read = EstimatorInput(**{name: getattr(given, name) for name in names})
    with ExitStack() as stack:
        estimator = opened(
            stack,
            given.domain,
            options,
            read,
            settings=settings,
            address=service_address(chosen, settings),
            on_progress=health.progressed,
            stopped=done.is_set,
        )
        if done.is_set():
            return
        _tell(estimator, health)
        while not done.is_set():
            if not estimator.done and estimator.round():
                _tell(estimator, health)
                continue
            if given.once:
                return
            if not done.wait(given.poll_seconds):
                _tell(estimator, health)


def _tell(estimator: "Estimator", health: LocalHealth) -> None:
    """Make the list, and send it to the service."""
    from opic.cli.local_rank import PAGES_KEPT

    ranking = estimator.ranking()
    sent = estimator.service is not None and estimator.service.show(ranking.sent(PAGES_KEPT))
    health.ranked(ranking, sent)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    from opic.cli.local_rank import RETRY_SECONDS

    parser = argparse.ArgumentParser(prog="python -m consumers.local_domain", description=__doc__.partition("\n")[0])
    parser.add_argument("domain", help="the local domain: a host or a registered domain")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="where to keep what was fetched")
    parser.add_argument("--crawl", type=Path, action="append", default=[], metavar="FILE", help="the domain's events")
    parser.add_argument("--recorded", type=Path, action="append", default=[], metavar="FILE", help="events of the web")
    parser.add_argument("--service", metavar="URL", help="the service; else OPIC_SERVICE")
    parser.add_argument("--fetch", type=int, default=100, help="outside pages to fetch")
    parser.add_argument("--select", default="combined", help="sc, pf, outlinks, random or combined")
    parser.add_argument("--round-pages", type=int, help="pages selected at once; a 25th of --fetch")
    parser.add_argument("--local-pages", type=int, default=1_000, help="pages of the domain to fetch without --crawl")
    parser.add_argument("--seed-url", action="append", default=[], help="where that crawl begins")
    parser.add_argument("--host-delay", type=float, help="seconds between two fetches of a host")
    parser.add_argument(
        "--retry-seconds", type=float, default=RETRY_SECONDS, help="for pages of a host that gives no answer"
    )
    parser.add_argument("--allow-private", action="store_true", help="also fetch from private addresses")
    parser.add_argument(
        "--poll-seconds", type=float, default=POLL_SECONDS, help="between two lists when all is fetched"
    )
    parser.add_argument("--once", action="store_true", help="end when all is fetched")
    parser.add_argument("--host", default="127.0.0.1", help="address of --port")
    parser.add_argument("--port", type=int, default=0, help="port of /metrics; 0 for none")
    return parser.parse_args(words)


def main() -> int:
    """Run until told to stop; return the exit status."""
    from opic.errors import OpicError
    from opic.ingest.worker_health import HealthPort
    from opic.logs import log_to_stderr

    given, done = parse(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    log_to_stderr(logging.INFO)
    health = LocalHealth()
    try:
        with ExitStack() as stack:
            if given.port:
                stack.enter_context(HealthPort(health.answers, given.host, given.port, "--port "))
            run(given, done, health)
    except OpicError as error:
        print(f"consumers.local_domain: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    naming_the_extra(main)
