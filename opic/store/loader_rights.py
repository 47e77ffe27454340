"""Rights of the user `default`, as which Redis reads its append-only file when it starts.

Redis 7.0 checks each command of a transaction in the file against the rules of `default`. What `default` may not do is
skipped, with one line in the log, and the next rewrite of the file leaves it out for good. Every call of a function is
a transaction, so a rule such as `user default off -@all` loses the whole store at the next start. `default off
resetpass` with its rights kept lets nobody in and loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis

from opic.store.connection import Client

# The oldest version known to read its file without checking rights. The others are asked.
VALKEY_LOADS_ALL: Final = (9, 1)
# A write of each kind that we make in transactions.
WRITES: Final = (
    "SET {} x",
    "HSET {} f x",
    "HDEL {} f",
    "HINCRBY {} f 1",
    "SADD {} x",
    "SREM {} x",
    "ZADD {} 1 x",
    "ZREM {} x",
    "ZREMRANGEBYSCORE {} 0 1",
    "XADD {} 1-1 f x",
    "XTRIM {} MAXLEN 0",
    "XDEL {} 1-1",
    "DEL {}",
)
KEY: Final = "opic:{any:0}:key"
MEND: Final = (
    "run `ACL SETUSER default off resetpass ~* &* +@all`, which still lets nobody in, and put it into the server's "
    "rules (deploy/users.acl)"
)


@dataclass(frozen=True, slots=True)
class LossRisk:
    """Why data may be lost; `fatal` if a mere restart may lose it, or the requested durability does not hold."""

    text: str
    fatal: bool = False


def loader_problem(server: Client, info: Mapping[str, Any]) -> LossRisk | None:
    """Return whether `default` lacks a right that the loader of the append-only file needs; None if it has all.

    Args:
        server: a client of one server.
        info: its reply to INFO.
    """
    version = tuple(int(part) for part in str(info.get("valkey_version", "0.0")).split(".")[:2])
    if not int(info.get("aof_enabled", 0)) or version >= VALKEY_LOADS_ALL:
        return None
    with server.pipeline(transaction=False) as pipe:
        for write in WRITES:
            pipe.execute_command("ACL DRYRUN", "default", *write.format(KEY).split())
        answers = pipe.execute(raise_on_error=False)
    for write, answer in zip(WRITES, answers, strict=True):
        if isinstance(answer, redis.exceptions.NoPermissionError):
            return LossRisk(
                "whether a restart of the store's server loses data can't be told: it reads its append-only file as "
                "the user `default`, and this user may not ask what that one may do: allow this user `+acl|dryrun`, as "
                "deploy/users.acl does",
                fatal=True,
            )
        if isinstance(answer, redis.ResponseError):  # A managed server without ACL.
            return LossRisk(
                f"the store's server does not say what the user `default` may do ({answer}), as which it may read its "
                "append-only file: see that this user may write"
            )
        if isinstance(answer, Exception):
            raise answer
        if answer not in (b"OK", "OK", True):
            return LossRisk(
                "a restart of the store's server loses data: it reads its append-only file as the user `default`, who "
                f"may not {write.split()[0]} keys that begin with `opic:`. Before the server stops, {MEND}",
                fatal=True,
            )
    return None
