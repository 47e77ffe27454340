"""What does a token with rates cost a call, and does it keep one crawl from slowing another of the same store?

The cost is CPU time of a call through the whole application in one process, with a handler that does nothing. Then two
crawls share a store, each with an endpoint and a worker: one is asked by the clock, a few times a second, the other is
flooded with events.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from endpoint_world import wait_for
from harness import embedded_server, write_result

from opic.api.access import Access
from opic.api.application import Application
from opic.api.problems import Json
from opic.api.router import Routes
from opic.service.tokens import Tokens, new_token
from opic.settings import Settings

ROUNDS, CALLS = 9, 4_000
FLOODERS, EVENTS_A_CALL, LINKS = 4, 200, 10
CALLS_PLAYED = 20  # Then the same again.
ASKED_PER_S = 20  # Of the other crawl: a call for importance, and one with an event, in turn.
HOSTS = 50
SETTLE_SECONDS = 3.0
TOKENS = 1_000
RATE = 1_000  # Events a second of the crawl that is flooded.
CASES: dict[str, tuple[str | None, bool]] = {  # By name: the token of the flood, and whether it waits as it is told.
    "alone": (None, False),
    "flood without a rate": ("free", False),
    "flood with a rate, that waits": ("rated", True),
    "flood with a rate, that does not wait": ("rated", False),
}


# What a call costs.


def application(folder: Path, **settings: Any) -> Application:
    """Return an application of one call that answers at once."""

    async def show(_: str) -> None:
        """Wait for nothing."""

    async def get_nothing() -> Json:
        return Json({"nothing": True})

    routes = Routes(1 << 20, show)
    routes.add("GET", "/v1/nothing", get_nothing, "read")
    access = Access(Tokens(Settings.load(data=folder, **settings)), {"default"})
    return Application(routes, access, instance="bench", document=dict, observe=lambda *_: None)


async def call_us(app: Application, token: str | None) -> float:
    """Return the CPU time of a call, the median of ROUNDS."""
    headers = [(b"host", b"127.0.0.1"), *([(b"authorization", f"Bearer {token}".encode())] if token else [])]
    scope = {"type": "http", "method": "GET", "path": "/v1/nothing", "query_string": b"", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise SystemExit(f"a call was answered {message['status']}")

    took = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for _ in range(CALLS):
            await app(dict(scope), receive, send)  # type: ignore[arg-type]
        took.append((time.process_time() - began) / CALLS * 1e6)
    return statistics.median(took[1:])


def costs(folder: Path) -> dict[str, float]:
    """Return the µs of a call, by what its access needs."""
    made = [new_token(f"token-{number}", ["read"], ["default"]) for number in range(TOKENS)]
    (many := folder / "many.toml").write_text("".join(lines for _, lines in made))
    limits = {"calls_per_second": 1e9, "bytes_per_second": 1e12, "concurrent_calls": 100}
    rated, lines = new_token("rated", ["read"], [], **limits)
    (few := folder / "few.toml").write_text(lines)
    own = "a-token-of-the-settings-of-this-run-of-it"
    cases: dict[str, tuple[dict[str, Any], str | None]] = {
        "no token": ({}, None),
        "OPIC_API_TOKEN": ({"api_token": own}, own),
        f"one of {TOKENS} tokens": ({"tokens_file": many}, made[TOKENS // 2][0]),
        "a token with rates": ({"tokens_file": few}, rated),
    }
    return {name: asyncio.run(call_us(application(folder, **given), token)) for name, (given, token) in cases.items()}


# One crawl that floods.


@contextmanager
def process(*words: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of opic; end it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPIC_")}
    env |= {f"OPIC_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "opic", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()


@contextmanager
def crawl(store: str, name: str, **settings: str) -> Iterator[str]:
    """Run an endpoint and a worker of a crawl; lend the URL."""
    common = {"store": store, "crawl": name, "keep_links": "off", **settings}
    with process("serve", "--port", "0", **common) as endpoint, process("worker", **common):
        assert endpoint.stdout is not None
        line = endpoint.stdout.readline()
        if "http" not in line:
            raise SystemExit(f"the endpoint of {name} did not start: {line}")
        yield line[line.index("http") :].split(",")[0]


def bodies(number: int) -> list[bytes]:
    """Return the calls of a flooding client, made beforehand."""
    urls = [f"http://f{page % HOSTS}.example/{number}/{page}" for page in range(CALLS_PLAYED * EVENTS_A_CALL + LINKS)]
    events = [{"url": url, "links": urls[at + 1 : at + 1 + LINKS]} for at, url in enumerate(urls[:-LINKS])]
    starts = range(0, len(events), EVENTS_A_CALL)
    return [json.dumps(events[at : at + EVENTS_A_CALL]).encode() for at in starts]


def flood(
    url: str, token: str, seconds: float, waits: bool, answers: "multiprocessing.Queue[dict[int, int]]", number: int
) -> None:
    """Send events as fast as they are answered, and wait as they say, or don't; report answers by status."""
    found, calls = dict[int, int](), itertools.cycle(bodies(number))
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    deadline = time.monotonic() + seconds
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        while time.monotonic() < deadline:
            answer = client.post("/v1/events", content=next(calls))
            found[answer.status_code] = found.get(answer.status_code, 0) + 1
            if waits and answer.status_code == 429:
                time.sleep(min(float(answer.headers["retry-after"]), deadline - time.monotonic()))
    answers.put(found)


def asked(url: str, token: str, seconds: float) -> dict[str, float]:
    """Ask a crawl by the clock; return how long its answers took from when they were due, in ms."""
    took = list[float]()
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        began = time.perf_counter()
        for number in range(int(seconds * ASKED_PER_S)):
            due = began + number / ASKED_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            if number % 2:
                answer = client.get("/v1/importance", params={"url": "http://quiet.example/"})
            else:
                answer = client.post(
                    "/v1/events", json={"url": "http://quiet.example/", "links": ["http://q.example/"]}
                )
            answer.raise_for_status()
            took.append(1000 * (time.perf_counter() - due))
    return {"p50_ms": float(np.percentile(took, 50)), "p90_ms": float(np.percentile(took, 90)), "calls": len(took)}


def situation(
    urls: Mapping[str, str], secrets: Mapping[str, str], flooding: str | None, waits: bool, seconds: float
) -> dict[str, Any]:
    """Ask the quiet crawl while the other is flooded by a token, if any."""
    answers: multiprocessing.Queue[dict[int, int]] = multiprocessing.Queue()
    whole = seconds + SETTLE_SECONDS
    flooders = [
        multiprocessing.Process(target=flood, args=(urls["loud"], secrets[str(flooding)], whole, waits, answers, at))
        for at in range(FLOODERS if flooding else 0)
    ]
    for one in flooders:
        one.start()
    time.sleep(SETTLE_SECONDS)
    found: dict[str, Any] = asked(urls["quiet"], secrets["quiet"], seconds)
    taken = [answers.get() for _ in flooders]
    for one in flooders:
        one.join()
    accepted = sum(answer.get(202, 0) for answer in taken) * EVENTS_A_CALL
    found["flood_events_per_s"] = accepted / whole
    found["refused_calls_per_s"] = sum(answer.get(429, 0) for answer in taken) / whole
    others = {status for answer in taken for status in answer} - {202, 429}
    if others:
        raise SystemExit(f"the flood was answered {others}")
    return found


def own_endpoints(store: str, stack: ExitStack, **settings: str) -> dict[str, str]:
    """Run an endpoint and a worker for each of the two crawls; return the URLs."""
    return {name: stack.enter_context(crawl(store, name, **settings)) for name in ("quiet", "loud")}


def sharing(
    folder: Path,
    seconds: float,
    rounds: int,
    run: Callable[..., dict[str, str]] = own_endpoints,
    cases: Iterable[str] = CASES,
) -> dict[str, dict[str, Any]]:
    """Return what the quiet crawl sees, by what happens to the other one: medians of some rounds."""
    secrets, lines = dict[str, str](), ""
    for name, limits in {"quiet": {}, "free": {}, "rated": {"events_per_second": RATE}}.items():
        secrets[name], more = new_token(name, ["publish", "read"], [], **limits)
        lines += more
    (file := folder / "tokens.toml").write_text(lines)
    with ExitStack() as stack:
        server = stack.enter_context(embedded_server())
        urls = run(server.url, stack, tokens_file=str(file), max_lag="100000000")
        event = {"url": "http://quiet.example/", "links": ["http://q.example/"]}
        headers = {"authorization": f"Bearer {secrets['quiet']}"}
        httpx.post(f"{urls['quiet']}/v1/events", json=event, headers=headers, timeout=60).raise_for_status()
        settle(urls["quiet"], secrets["quiet"])
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, taken in found.items():
                token, waits = CASES[name]
                taken.append(situation(urls, secrets, token, waits, seconds))
                settle(urls["loud"], secrets["quiet"])
    return {
        name: {figure: statistics.median(one[figure] for one in ones) for figure in ones[0]}
        for name, ones in found.items()
    }


def settle(url: str, token: str) -> None:
    """Wait until all accepted events have taken effect."""
    headers = {"authorization": f"Bearer {token}"}

    def settled() -> bool:
        return not httpx.get(f"{url}/v1/stats", headers=headers, timeout=60).raise_for_status().json()["lag"]

    wait_for("all events have taken effect", settled)


def options(about: str | None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each situation")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--result", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, and print the figures."""
    given = options(__doc__)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as folder:
        found: dict[str, Any] = {"call_us": costs(Path(folder))}
        found["sharing"] = sharing(Path(folder), given.seconds, given.rounds)
    found |= {"rate_events_per_s": RATE, "flooders": FLOODERS, "rounds": given.rounds, "seconds": given.seconds}
    print(json.dumps(found, indent=1))
    write_result("tokens", found, given.result)


if __name__ == "__main__":
    main()
