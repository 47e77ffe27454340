"""The function library on the servers, and who loads it where it is missing.

Functions are kept by each primary for itself; its replicas get them from it, and a restart keeps them. But a node that
joins later has none, and a server that lost the tail of its file may have lost them with it. A call of a function that
is not there is refused before anything is written, so it may be sent again once the library is loaded.
"""

import logging
from pathlib import Path
from typing import Any

import redis
from redis.cluster import RedisCluster

log = logging.getLogger("opic.store")

LIBRARY = "opic_4"  # The version is part of the name: two versions of the program may share a server.
MISSING = "Function not found"


def primaries(client: Any) -> list[Any]:
    """Return a client of each server that holds a part of the store: all primaries of a cluster that have slots."""
    if isinstance(client, RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]
    return [client]


def load_functions(client: Any) -> None:
    """Load the function library into each primary, unless it has this very text already."""
    code = "\n".join((Path(__file__).parent / name).read_text() for name in ("journal.lua", "leases.lua"))
    for server in primaries(client):
        for library in server.function_list(LIBRARY, withcode=True):
            flat = dict(zip(library[::2], library[1::2], strict=True)) if isinstance(library, list) else library
            if flat.get(b"library_code", b"").decode() == code:
                break
        else:
            server.function_load(code, replace=True)


def is_missing(error: Exception) -> bool:
    """Tell whether a server refused a call because it has no such function."""
    return isinstance(error, redis.ResponseError) and MISSING in str(error)


class LoadsLibrary:
    """A client that loads the library where a call did not find it, and calls again."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            if not is_missing(error):
                raise
        log.warning("a server has no function library: loading it")
        load_functions(self)
        return super().execute_command(*args, **options)  # type: ignore[misc]
