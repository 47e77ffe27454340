"""The file service.json of a data directory: which processes run its store, and where the HTTP API answers.

The service writes it and removes it at its end. A service that was killed leaves it behind, so readers check that the
process it names is alive.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NAME: Final = "service.json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the HTTP API of a data directory's service answers.

    Attributes:
        url: of the endpoint, for clients on this machine.
        instance: what the service answers at /healthz under this name, so that another program on its port is noticed.
        crawl: its OPIC_CRAWL.
    """

    url: str
    instance: str
    crawl: str


def read_state(data: Path) -> dict[str, Any] | None:
    """Return what the file says, or None if there is none or it cannot be read."""
    try:
        state: dict[str, Any] = json.loads((data / NAME).read_text())
    except (OSError, ValueError):
        return None
    return state


def address_of(data: Path) -> Address | None:
    """Return the address of the API of a living service on this directory, or None if there is none."""
    state = read_state(data)
    if state is None or "api" not in state or not alive(state["service_pid"]):
        return None
    return Address(**state["api"])


def alive(pid: str | int) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A killed child that nobody has waited for yet is dead all the same.
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
