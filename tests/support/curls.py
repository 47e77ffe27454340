"""The calls of `httpx` with one client for all of them; as there, each call opens its own connection.

`httpx.get` makes a client for each call, which reads the certificates that the system trusts: 20 to 60 ms of CPU. Tests
ask many times a second whether a service is ready, and would slow down what they wait for.
"""

import httpx

_CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
get, post, put, delete, request = _CLIENT.get, _CLIENT.post, _CLIENT.put, _CLIENT.delete, _CLIENT.request


def ready(url: str) -> bool:
    """Whether a service says at /readyz that it is ready."""
    try:
        return get(f"{url}/readyz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False
