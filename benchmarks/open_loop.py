"""Open-loop load by vegeta: requests leave at a constant rate, however long the answers take.

vegeta (github.com/tsenart/vegeta) starts as many workers as a slow endpoint makes necessary, so no caller waits for
another one's answer. A time is from when a request is sent to its whole answer. The answers are kept, and say how old
the state is that they show: their `as_of` against the time at which they arrived.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from http_load import TIMEOUT_SECONDS, Request, percentiles

HOW_TO_GET = (
    "no vegeta on the PATH, so no open-loop load: `go install github.com/tsenart/vegeta/v12@latest`, and put "
    "$(go env GOPATH)/bin on the PATH; where the module proxy lists no versions, build it as .ci/run does"
)


def available() -> bool:
    """Tell whether vegeta is on the PATH."""
    return shutil.which("vegeta") is not None


def attack(
    url: str, asked: Mapping[str, Sequence[Request]], rates: Mapping[str, float], seconds: float, scratch: Path
) -> dict[str, dict[str, Any]]:
    """Send each kind of request at its rate, all at once; return percentiles of times and ages by kind, milliseconds.

    Raises:
        SystemExit: an answer was an error.
    """
    processes = {}
    for kind, rate in rates.items():
        targets = scratch / f"{kind}.targets"
        targets.write_text("".join(json.dumps(_target(url, request)) + "\n" for request in asked[kind]))
        command = ["vegeta", "attack", "-format", "json", "-targets", str(targets), "-rate", f"{rate:g}/1s"]
        command += [
            "-duration",
            f"{seconds:g}s",
            "-timeout",
            f"{TIMEOUT_SECONDS}s",
            "-output",
            str(_file(scratch, kind)),
        ]
        processes[kind] = subprocess.Popen(command)
    for kind, process in processes.items():
        if process.wait():
            raise SystemExit(f"vegeta, {kind}: exit {process.returncode}")
    return {kind: _summary(kind, _file(scratch, kind)) for kind in rates}


def _target(url: str, request: Request) -> dict[str, Any]:
    target: dict[str, Any] = {"method": request.method, "url": url.rstrip("/") + request.path}
    if request.body:
        target |= {
            "body": base64.b64encode(request.body.encode()).decode(),
            "header": {"Content-Type": ["application/json"]},
        }
    return target


def _file(scratch: Path, kind: str) -> Path:
    return scratch / f"{kind}.results"


def _answers(file: Path) -> Iterator[dict[str, Any]]:
    """Yield vegeta's results; there `latency` is in nanoseconds, `body` in base64."""
    with subprocess.Popen(["vegeta", "encode", "-to", "json", str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)


def _summary(kind: str, file: Path) -> dict[str, Any]:
    took, ages, pages, errors = [], [], 0, {}
    for answer in _answers(file):
        took.append(answer["latency"] / 1e6)
        if answer["code"] != 200:
            errors[str(answer["code"])] = answer["error"] or base64.b64decode(answer["body"] or "").decode()[:200]
            continue
        body = json.loads(base64.b64decode(answer["body"]))
        pages += len(body.get("pages", ()))
        if "as_of" in body:
            arrived = datetime.fromisoformat(answer["timestamp"]).timestamp() + answer["latency"] / 1e9
            ages.append(1000 * (arrived - body["as_of"]))
    if errors or not took:
        raise SystemExit(f"{kind}: not all was answered: {errors}")
    return percentiles(took) | {"age": percentiles(ages) if ages else None, "pages_an_answer": pages / len(took)}
