"""What processes of our own that run beside this one have in common: their environment, and their end."""

import logging
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from opic.settings import Settings

STOP_SECONDS: Final = 30.0

log = logging.getLogger("opic.service")


def child_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a child that has these settings, but the API token."""
    environment = {**os.environ, **settings.environment(), "OPIC_CHILD": str(os.getpid())}
    environment.pop("OPIC_API_TOKEN", None)
    # The service may have been started from anywhere: the child imports what we imported.
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment


def is_child() -> bool:
    """Return whether a process of the service started this one, which has made what this one works on."""
    return bool(os.environ.get("OPIC_CHILD"))


def parent_is_gone() -> bool:
    """Return whether this process is such a child, and who started it has ended.

    The parent told its pid: by the first look it may be gone, and another process have adopted this one.
    """
    parent = int(os.environ.get("OPIC_CHILD") or 0)
    return parent != 0 and os.getppid() != parent


def end_all(children: Iterable[subprocess.Popen[bytes]], name: str) -> None:
    """End children in order, and kill those that do not within STOP_SECONDS; `name` says what they are."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for child in running:
        try:
            child.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            log.error("%s did not end within %.0f s; killing it: the store knows how far it got", name, STOP_SECONDS)
            child.kill()
            child.wait()
