"""A worker that a service started ends with the service."""

import os
import subprocess
import sys

WORKER = [sys.executable, "-P", "-m", "opic.service.worker_process"]
STORE_AWAY = "redis://127.0.0.1:1"


def test_worker_whose_service_died_while_it_started_ends() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    environment = {**os.environ, "OPIC_STORE": STORE_AWAY, "OPIC_CHILD": str(dead.pid)}
    worker = subprocess.run(WORKER, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert worker.returncode == 0, worker.stderr
