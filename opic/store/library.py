"""Loads the Redis function library on the servers, and reloads it where it is missing.

Each primary stores functions itself; its replicas receive them, and they survive a restart. But a node that joins later
has none, and a server that lost the end of its file may have lost them. A call of a missing function is refused before
anything is written, so it can be resent once the library is loaded.
"""

import logging
from pathlib import Path
from typing import Any

import redis
from redis.cluster import RedisCluster

from opic.store.keys import FORMAT, lua_tables

log = logging.getLogger("opic.store")

LIBRARY = f"opic_{FORMAT}"  # The version is part of the name: two versions of the program may share a server.
# Each may use what those before it define.
FILES = ("kept.lua", "journal.lua", "log.lua", "back_offs.lua", "leases.lua")
MISSING = "Function not found"


def primaries(client: Any) -> list[Any]:
    """Return a client of each server of the store; for a cluster, all primaries that have slots."""
    if isinstance(client, RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]
    return [client]


def library_code() -> str:
    texts = ((Path(__file__).parent / name).read_text() for name in FILES)
    return "\n".join([f"#!lua name={LIBRARY}", lua_tables(), *texts])


def load_functions(client: Any) -> None:
    """Load the function library on each primary that does not have exactly this code."""
    code = library_code()
    for server in primaries(client):
        for library in server.function_list(LIBRARY, withcode=True):
            flat = dict(zip(library[::2], library[1::2], strict=True)) if isinstance(library, list) else library
            if flat.get(b"library_code", b"").decode() == code:
                break
        else:
            server.function_load(code, replace=True)


def is_missing(error: Exception) -> bool:
    """Return whether a server refused a call because the function is missing."""
    return isinstance(error, redis.ResponseError) and MISSING in str(error)


class LoadsLibrary:
    """A client that loads the library if a call finds it missing, then repeats the call."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command; if the function library is missing, load it and send the command again."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            if not is_missing(error):
                raise
        log.warning("a server has no function library: loading it")
        load_functions(self)
        return super().execute_command(*args, **options)  # type: ignore[misc]
