"""What do several crawls behind one endpoint cost: a call, an open crawl, and a neighbour that is flooded?

The cost of a call is CPU time through the whole application in one process, on OPIC_CRAWL and on another crawl. Then
two crawls of a store, each with a worker, have an endpoint each, and one together: one crawl is asked by the clock, the
other is flooded, as in bench_tokens.py. Not in `make bench`, whose run of bench_tokens.py has most of it.
"""

import asyncio
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from bench_tokens import options, own_endpoints, process, sharing
from harness import write_result

from opic.api.app import create_app
from opic.service.service import EmbeddedService
from opic.settings import Settings

ROUNDS, CALLS = 5, 1_000
CRAWLS = 5  # Opened for the cost of one.
CASES_HERE = ("alone", "flood without a rate")
PATHS = {"OPIC_CRAWL": "/v1/canonical", "another crawl": "/v1/crawls/crawl-0/canonical"}


async def costs(folder: Path) -> dict[str, Any]:
    """Return the µs of a call by crawl, and the seconds and bytes of the endpoint that an open, empty crawl takes."""
    with EmbeddedService(Settings.load(data=folder / "data", keep_links=False)) as service:
        app = create_app(service, crawls=service.crawls)
        before, began = resident(), time.perf_counter()
        for number in range(CRAWLS):
            await service.crawls.make(f"crawl-{number}")
        opened = {"seconds": time.perf_counter() - began, "bytes": resident() - before}
        took: dict[str, list[float]] = {name: [] for name in PATHS}
        for _ in range(ROUNDS + 1):
            for name, path in PATHS.items():
                took[name].append(await call_us(app, path))
    return {
        "call_us": {name: statistics.median(some[1:]) for name, some in took.items()},
        "opened": {name: value / CRAWLS for name, value in opened.items()},
    }


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def call_us(app: Any, path: str) -> float:
    """Return the CPU time of a call, the mean of CALLS."""
    query = b"url=http://a.example/"
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": [(b"host", b"localhost")]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise SystemExit(f"a call was answered {message['status']}")

    began = time.thread_time()
    for _ in range(CALLS):
        await app(dict(scope), receive, send)
    return (time.thread_time() - began) / CALLS * 1e6


def one_endpoint(store: str, stack: ExitStack, **settings: str) -> dict[str, str]:
    """Run an endpoint for both crawls, and a worker of each; return the URLs."""
    common = {"store": store, "keep_links": "off", **settings, "api_token": "the-token-of-this-run"}
    endpoint = stack.enter_context(process("serve", "--port", "0", **common))
    assert endpoint.stdout is not None
    line = endpoint.stdout.readline()
    url = line[line.index("http") :].split(",")[0]
    for name in ("quiet", "loud"):
        made = httpx.put(
            f"{url}/v1/crawls/{name}", json={}, timeout=60, headers={"authorization": "Bearer the-token-of-this-run"}
        )
        made.raise_for_status()
        stack.enter_context(process("worker", **common, crawl=name))
    return {name: f"{url}/v1/crawls/{name}" for name in ("quiet", "loud")}


ENDPOINTS = {"own_endpoints": own_endpoints, "one_endpoint": one_endpoint}


def main() -> None:
    """Measure, and print the figures."""
    given = options(__doc__)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as folder:
        found = asyncio.run(costs(Path(folder)))
        taken: dict[str, list[dict[str, dict[str, Any]]]] = {name: [] for name in ENDPOINTS}
        for _ in range(given.rounds):  # By turns: the machine may be busy with other things for a while.
            for name, run in ENDPOINTS.items():
                taken[name].append(sharing(Path(folder), given.seconds, 1, run, CASES_HERE))
    for name, turns in taken.items():
        found[name] = {
            case: {figure: statistics.median(turn[case][figure] for turn in turns) for figure in turns[0][case]}
            for case in CASES_HERE
        }
    found |= {"rounds": given.rounds, "seconds": given.seconds}
    print(json.dumps(found, indent=1))
    write_result("shared_endpoint", found, given.result)


if __name__ == "__main__":
    main()
