"""Names of hosts that resolve as a test says, and addresses of loopback that count as public."""

import socket
from collections.abc import Sequence

import pytest

from opic import addresses


class Names:
    """A resolver whose names have other addresses each time, and to which 127.0.0.2 and above are public."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {f"{name}.example": list(found) for name, found in answers.items()}
        self._really = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)
        monkeypatch.setattr(
            addresses, "is_public", lambda address: address.startswith("127.") and address > "127.0.0.1"
        )

    def _resolve(self, host: str, port: int, *more: int, **named: int) -> list[object]:
        found = self._answers[host].pop(0) if host in self._answers else [host]
        return [entry for address in found for entry in self._really(address, port, *more, **named)]
