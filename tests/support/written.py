"""What an answer to a write says."""

from typing import Any

import httpx

from opic.service.positions import read_position


def written(answer: httpx.Response | dict[str, Any]) -> dict[str, Any]:
    """Return the answer without its position, which it must have."""
    told = dict(answer if isinstance(answer, dict) else answer.json())
    read_position(told.pop("position"))
    return told
