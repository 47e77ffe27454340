"""Load on an HTTP endpoint: wrk, which asks as soon as it is answered, and a client that asks by the clock.

wrk is closed-loop: each connection waits for its answer before it asks again. A pause of the server then holds up all
connections and is counted once for each, however many callers would have come meanwhile. So its percentiles are those
of 32 patient callers, and its rate is what the endpoint can do. By the clock (open-loop), a request is due when it is
due, and its time counts from then, whether a connection was free or not.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

PLAY = Path(__file__).parent / "wrk" / "play.lua"
TIMEOUT_SECONDS = 30
CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; a body is JSON."""

    method: str
    path: str
    body: str = ""

    def line(self) -> str:
        """Return it as wrk/play.lua reads it."""
        return f"{self.method} {self.path} {self.body}".rstrip()

    def wire(self, host: str) -> bytes:
        """Return it as it is sent."""
        body = self.body.encode()
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: {host}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body


def wrk(url: str, requests: Sequence[Request], seconds: float, scratch: Path, begin: int = 0) -> dict[str, Any]:
    """Let wrk play requests, over and over, on CONNECTIONS connections; return what it measured.

    Raises:
        SystemExit: an answer was an error.
    """
    file = scratch / "requests.txt"
    file.write_text("".join(request.line() + "\n" for request in requests))
    command = ["wrk", "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{max(1, round(seconds))}s"]
    command += ["--timeout", f"{TIMEOUT_SECONDS}s", "--script", str(PLAY), url, "--", str(file), str(begin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"wrk: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["refused"] or found["broken"]:
        raise SystemExit(f"not all was answered: {found}")
    times = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    if not found["requests"]:  # In all this time: that much is known of how long an answer takes.
        found |= dict.fromkeys(times, 1000 * found["seconds"])
    return {
        "requests_per_s": found["requests"] / found["seconds"],
        **{name: found[name] for name in (*times, "requests", "timeouts")},
        "answer_bytes": found["bytes"] / max(found["requests"], 1),
    }


class Line:
    """One connection that asks and waits for the answer."""

    def __init__(self, url: str) -> None:
        """Connect when first asked."""
        self.host, self._port = urlsplit(url).hostname or "", urlsplit(url).port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> bytes:
        """Return the body of the answer.

        Raises:
            SystemExit: the answer was an error.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.host, self._port)
        reader, writer = self._streams
        writer.write(request.wire(self.host))
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        if head.split(b" ", 2)[1] != b"200":
            raise SystemExit(f"{request.line()[:200]}: {head[:40]!r} {body[:500]!r}")
        return body

    def close(self) -> None:
        """Disconnect."""
        if self._streams is not None:
            self._streams[1].close()


async def by_the_clock(
    url: str, schedule: Sequence[tuple[float, str, Request]], seconds_max: float
) -> dict[str, dict[str, float]]:
    """Ask each request when it is due (seconds from now, kind, request); return percentiles by kind.

    A time is from when the request was due to its whole answer, so waiting for one of the CONNECTIONS is in it. After
    `seconds_max` no more are sent: what is due by then and was not sent counts as having waited until then, `unsent`.
    """
    took: dict[str, list[float]] = {}
    at, started = 0, time.perf_counter()

    async def connection() -> None:
        nonlocal at
        line = Line(url)
        while at < len(schedule) and time.perf_counter() - started < seconds_max:
            due, kind, request = schedule[at]
            at += 1
            if (early := started + due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            await line.ask(request)
            took.setdefault(kind, []).append(1000 * (time.perf_counter() - started - due))
        line.close()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    unsent: dict[str, int] = {}
    for due, kind, _ in schedule[at:]:
        took.setdefault(kind, []).append(1000 * (seconds_max - due))
        unsent[kind] = unsent.get(kind, 0) + 1
    return {kind: percentiles(times) | {"unsent": unsent.get(kind, 0)} for kind, times in took.items()}


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the greatest of times."""
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(times_ms), "of": len(times_ms)}
