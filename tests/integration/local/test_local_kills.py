"""A whole chain on loopback, estimator, service, store and website, of which each is killed during the run.

The list of the domain at the end is that of an undisturbed run, to the last digit.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import curls
import httpx
import pytest
from estimator_process import RUN_SECONDS_MAX, LocalDomain, settled_list
from ports import free_port
from processes import Service, children_of, gone, running, wait_until

pytestmark = pytest.mark.slow

HOME, OTHER = "127.0.0.1", "127.0.0.2"
OWN_PAGES, OTHER_PAGES, FETCHED = 12, 45, 40
RETRY_SECONDS = 300  # Of a loaded machine.

NGINX = """\
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ }}
http {{
  access_log off; default_type text/html;
  {temporary}
  {servers}
}}
"""
TEMPORARY = "client_body proxy fastcgi uwsgi scgi"


class FileSites:
    """Two hosts whose pages are files, served by nginx; without it, by Python."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self._processes: list[subprocess.Popen[bytes]] = []
        for host in (HOME, OTHER):
            (folder / host).mkdir(parents=True)
        servers = "".join(f"server {{ listen {host}:{self.port}; root {host}; }}\n" for host in (HOME, OTHER))
        temporary = " ".join(f"{name}_temp_path tmp-{name};" for name in TEMPORARY.split())
        (folder / "nginx.conf").write_text(NGINX.format(servers=servers, temporary=temporary))

    def url(self, host: str, page: str) -> str:
        return f"http://{host}:{self.port}/{page}"

    def write(self, host: str, page: str, text: str) -> None:
        (self._folder / host / page).write_text(text)

    def start(self) -> None:
        """Start, and wait until both answer."""
        nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        python = [sys.executable, "-m", "http.server", str(self.port)]
        commands = [[nginx, "-p", f"{self._folder}/", "-c", "nginx.conf", "-e", "error.log"]] if nginx else [
            [*python, "--bind", host, "--directory", str(self._folder / host)] for host in (HOME, OTHER)
        ]  # fmt: skip
        null = subprocess.DEVNULL
        self._processes = [subprocess.Popen(command, stdout=null, stderr=null) for command in commands]
        wait_until(self._answers)

    def kill(self) -> None:
        """Kill it, as it stands."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        assert all(process.poll() is None for process in self._processes)
        try:
            return all(curls.get(self.url(host, "robots.txt"), timeout=5).is_success for host in (HOME, OTHER))
        except httpx.TransportError:
            return False


@contextmanager
def world(folder: Path) -> Iterator[FileSites]:
    """A domain and the host around it, which link to each other at random; some pages are missing, some forbidden."""
    choice, sites = random.Random(5), FileSites(folder)
    own = [sites.url(HOME, f"{n}.html") for n in range(OWN_PAGES)]
    other = [sites.url(OTHER, f"{n}.html") for n in range(OTHER_PAGES)]
    for host, robots in ((HOME, ""), (OTHER, "User-agent: *\nDisallow: /3.html\n")):
        sites.write(host, "robots.txt", robots)
    for n in range(OWN_PAGES):
        links = [own[(n + 1) % OWN_PAGES], *choice.sample(own, 3), *choice.sample(other, 6)]
        sites.write(HOME, f"{n}.html", "".join(f'<a href="{link}">x</a>' for link in links))
    for n in range(OTHER_PAGES):
        links = [*choice.sample(other, 3), choice.choice(own)]
        if n % 8:
            sites.write(OTHER, f"{n}.html", "".join(f'<a href="{link}">x</a>' for link in links))
    try:
        sites.start()
        yield sites
    finally:
        sites.kill()


class Run:
    """A service and an estimator of the domain, each of which may be killed."""

    def __init__(self, sites: FileSites, service: Service, state: Path) -> None:
        self.sites, self.service, self._state = sites, service, state
        self.estimator = self.started()

    def started(self) -> LocalDomain:
        seed = self.sites.url(HOME, "0.html")
        return LocalDomain(HOME, seed, self._state, self.service.url, fetch=FETCHED, retry_seconds=RETRY_SECONDS)

    def fetched(self, lines: int) -> None:
        """Wait until the estimator's journal has so many lines."""
        journal = self._state / "events.jsonl"
        wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= lines, RUN_SECONDS_MAX)

    def kill_site_and_estimator(self) -> None:
        self.sites.kill()
        self.estimator.kill()
        self.estimator = self.started()
        wait_until(
            lambda: self.estimator.metric("opic_local_outside_tried") + self.estimator.metric("opic_local_local_tried")
        )
        self.sites.start()

    def kill_store(self) -> None:
        """Kill the store's server; the service starts another."""
        before = self.service.store_pid()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.service.store_pid() != before)

    def kill_service(self) -> None:
        """Kill all processes of the service, and start it again."""
        assert self.service.process is not None
        pids = [*children_of(self.service.process.pid), self.service.process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.service.process.wait()
        wait_until(lambda: all(map(gone, pids)))
        self.service.start()


def final_list(run: Run) -> dict[str, Any]:
    found = settled_list(run.estimator, run.service, HOME)
    run.estimator.end()
    return found


def test_killed_chain_ends_with_the_list_of_an_undisturbed_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sites = stack.enter_context(world(tmp_path / "sites"))
        runs = []
        for name in ("calm", "stormy"):
            # Without links, in-flow is counted in whole grains: the lists are the same to the digit.
            terms = {"host_delay_seconds": 0, "keep_links": "off"}
            service = stack.enter_context(running(tmp_path / name, tmp_path / f"{name}.log", **terms))
            runs.append(Run(sites, service, tmp_path / f"{name}-state"))
            stack.callback(lambda run=runs[-1]: run.estimator.kill())
            if name == "calm":
                expected = final_list(runs[0])
        stormy = runs[1]
        stormy.fetched(5)
        stormy.kill_site_and_estimator()
        stormy.fetched(20)
        stormy.kill_store()
        stormy.fetched(35)
        stormy.kill_service()
        found = final_list(stormy)
        assert max(stormy.service.reads([page["url"] for page in found["pages"]])) == 1
        assert stormy.service.get("/v1/audit").json()["conserved"]
    assert (len(expected["pages"]), expected["method"]) == (OWN_PAGES, "combined")
    assert expected["outside_fetched"] > FETCHED / 2
    assert len(expected["changes"]) == 8  # Rounds of five pages.
    assert found == expected
