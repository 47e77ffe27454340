"""A worker that a service started ends with the service."""

import os
import signal
import subprocess
import sys

from servers import Server

WORKER = [sys.executable, "-P", "-m", "opic.service.worker_process"]
STORE_AWAY = "redis://127.0.0.1:1"


def test_worker_gives_up_on_a_store_that_never_answers() -> None:
    environment = {**os.environ, "OPIC_STORE": STORE_AWAY, "OPIC_START_SECONDS": "0.3"}
    worker = subprocess.run(WORKER, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert worker.returncode == 2
    assert "waited OPIC_START_SECONDS=0.3 for it; --wait waits" in worker.stderr.splitlines()[-1]


def test_worker_with_wait_waits_for_a_store_that_starts_later(valkey: Server) -> None:
    valkey.stop()
    command = [sys.executable, "-m", "opic", "worker", "--wait", "--store", valkey.url]
    environment = {**os.environ, "OPIC_START_SECONDS": "0.01"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        said = iter(worker.stderr.readline, "")
        assert any("retrying until this is over" in line for line in said)
        valkey.start()
        assert any("ready, from offset" in line for line in said)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0


def test_worker_ends_if_its_service_died_meanwhile() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    environment = {**os.environ, "OPIC_STORE": STORE_AWAY, "OPIC_CHILD": str(dead.pid)}
    worker = subprocess.run(WORKER, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert worker.returncode == 0, worker.stderr
