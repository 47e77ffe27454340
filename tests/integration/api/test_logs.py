"""Logs in JSON: one object a line, whatever is logged."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import curls
import pytest
from processes import running, wait_until

from opic.logs import JsonLines

pytestmark = pytest.mark.slow


def test_a_json_log_record_is_one_line_whatever_it_contains() -> None:
    record = logging.LogRecord("opic.api", logging.INFO, "", 0, "said %r\n%s", ("a\u2028\x1b", "\ud800"), None)
    record.request_id, record.ms = "r-1", 1.5
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["request_id"], found["ms"]) == ("INFO", "opic.api", "r-1", 1.5)
    assert found["time"].endswith("Z")
    assert "ValueError: two\nlines" in found["exception"]
    assert "status" not in found


def test_a_service_logs_json_if_configured(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log", log_format="json", log_requests="on") as service:
        service.get("/v1/top", n="7")
        curls.get(f"{service.url}/v1/nope", headers={"x-request-id": "mine"})
        os.kill(service.pids()["worker"], 15)
        wait_until(lambda: "the worker of crawl default ended" in service.said())
    lines = [json.loads(line) for line in service.said().splitlines() if not line.startswith("opic answers at")]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (line,) = [line for line in lines if line.get("request_id") == "mine"]
    assert (line["method"], line["route"], line["status"]) == ("GET", "other", 404)
    assert line["ms"] > 0
    assert [line["status"] for line in lines if line.get("route") == "/v1/top"] == [200]


def test_an_unknown_log_format_is_refused() -> None:
    command = [sys.executable, "-m", "opic.cli.main", "stats"]
    done = subprocess.run(
        command, env={**os.environ, "OPIC_LOG_FORMAT": "xml"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "OPIC_LOG_FORMAT" in done.stderr
