"""`python -m consumers.local_domain` as a process that a test may kill, and the list that a service has of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import curls
import httpx
from ports import free_port
from processes import Service, environment, wait_until
from repository import ROOT

END_SECONDS_MAX = 60.0
RUN_SECONDS_MAX = 300.0


def clean() -> dict[str, str]:
    """Our environment, without settings and without a proxy."""
    return {name: value for name, value in environment().items() if not name.lower().endswith("_proxy")}


class LocalDomain:
    """A running estimator; its state is in `state`, and what it says beside it."""

    def __init__(
        self, domain: str, seed: str, state: Path, service: str, *, fetch: int, retry_seconds: int = 0
    ) -> None:
        self.port, self._said, self._fetch = free_port(), state.with_suffix(".log"), fetch
        options = {
            "state": state, "service": service, "seed-url": seed, "port": self.port, "select": "sc", "fetch": fetch,
            "round-pages": 5, "host-delay": 0.02, "poll-seconds": 0.2, "retry-seconds": retry_seconds,
        }  # fmt: skip
        words = [domain, "--allow-private", *(word for name, value in options.items() for word in (f"--{name}", value))]
        with self._said.open("ab") as said:
            command = [sys.executable, "-m", "consumers.local_domain", *map(str, words)]
            self.process = subprocess.Popen(command, env=clean(), cwd=ROOT, stdout=said, stderr=said)

    def metric(self, name: str) -> float:
        """A metric; 0 while there is none."""
        try:
            text = curls.get(f"http://127.0.0.1:{self.port}/metrics", timeout=5).text
        except httpx.TransportError:
            assert self.process.poll() is None, self._said.read_text()
            return 0.0
        found = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(found[0]) if found else 0.0

    def fetched_all(self) -> bool:
        """Whether it has fetched all that it was asked for, and the service has the list."""
        tried = self.metric("opic_local_outside_fetched") + self.metric("opic_local_failed")
        made, sent = (self.metric(f"opic_local_{what}_time_seconds") for what in ("list", "sent"))
        return tried == self._fetch and made <= sent

    def end(self) -> None:
        """Tell it to end; it does, with status 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_SECONDS_MAX) == 0, self._said.read_text()

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def settled_list(estimator: LocalDomain, service: Service, domain: str) -> dict[str, Any]:
    """The list that the service has once all is fetched and nothing changes any more, without its times."""
    wait_until(estimator.fetched_all, RUN_SECONDS_MAX)
    service.settle()
    for _ in range(2):  # One that was under way may be of the time before.
        sent = estimator.metric("opic_local_sent_time_seconds")
        wait_until(lambda sent=sent: estimator.metric("opic_local_sent_time_seconds") > sent, RUN_SECONDS_MAX)
    found: dict[str, Any] = service.get(f"/v1/local/{domain}", n="1000").raise_for_status().json()
    return {name: value for name, value in found.items() if name not in ("as_of", "expires_at")}
