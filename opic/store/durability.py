"""Durability: when a write counts as durable, and how to wait for replicas.

A server with `appendfsync always` replies after its file is synced, so confirmed writes survive a power loss. They do
not survive the loss of the disk or a failover: replicas receive writes a moment later, and a promoted replica lacks
those that it has not received. `wait_replicas` closes this gap: an offset counts as durable once that many replicas
have the writes.

WAITAOF exists since Redis 7.2 and in Valkey, but is not used here, for two reasons that
`benchmarks/bench_durability.py` shows. With everysec it is unreliable: from Redis 7.4 until the fix in
redis/redis#13793, and in Valkey up to at least 9.1, the first iteration of the event loop that has nothing to write
marks everything as synced if the last sync is less than a second old. And for replicas it takes a second, because they
report synced offsets only once a second. With `appendfsync always` on both sides, WAIT gives the same guarantee at
once: like every server, a replica replies after it has synced what it received before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import redis

from opic.errors import StoreError, StoreUnavailable
from opic.store.connection import Client, Line, store_errors
from opic.store.keys import Keys
from opic.store.library import primaries
from opic.store.loader_rights import LossRisk

Level = Literal["server", "fsync"]


@dataclass(frozen=True)
class Durability:
    """The conditions under which an offset counts as durable.

    Args:
        level: "server" accepts the server's own settings; "fsync" requires `appendfsync always`.
        replicas: number of replicas that must have the write; on disk, if they also use `appendfsync always`.
        seconds: how long to wait for the replicas.
    """

    level: Level = "server"
    replicas: int = 0
    seconds: float = 5.0

    @cached_property
    def wanted(self) -> bool:
        """Whether there is anything to wait for or to check."""
        return self.level != "server" or self.replicas > 0


def await_durable(line: Line, keys: Keys, durability: Durability) -> None:
    """Wait until everything that the line's server has written up to now is durable.

    A small write is sent first: WAIT waits for the last write of the same connection, and all earlier writes of any
    client precede it in the stream to the replicas and the file.

    Raises:
        StoreUnavailable: too few replicas have the writes.
        StoreError: the server's settings do not provide the requested durability.
    """
    replicas, milliseconds = durability.replicas, max(1, round(durability.seconds * 1000))
    commands: list[list[Any]] = [["SET", keys.barrier, "1"]]
    if durability.level == "fsync":
        commands += [["INFO", "persistence"], ["CONFIG", "GET", "appendfsync"]]
    if replicas:
        commands.append(["WAIT", replicas, milliseconds])
    line.send(*commands)
    _, *answers = line.answers(len(commands))
    if refusal := next((answer for answer in answers if isinstance(answer, redis.ResponseError)), None):
        raise StoreError(f"OPIC_DURABILITY, OPIC_WAIT_REPLICAS: the store refused the check: {refusal}")
    if durability.level == "fsync":
        info, policy, *answers = answers
        if b"aof_enabled:1" not in info or (mode := _appendfsync(policy)) != "always":
            told = f"appendfsync is {mode}" if b"aof_enabled:1" in info else "appendonly is no"
            raise StoreError(
                f"OPIC_DURABILITY=fsync, but {told}: set appendonly to yes and appendfsync to always, or use "
                "OPIC_DURABILITY=server"
            )
    if replicas and (reached := int(answers[0])) < replicas:
        raise StoreUnavailable(
            f"only {reached} of {replicas} replicas received the writes within {durability.seconds:g} s "
            "(OPIC_WAIT_REPLICAS, OPIC_WAIT_SECONDS): check that they run"
        )


def durability_problem(client: Client, durability: Durability | None = None) -> LossRisk | None:
    """Return which confirmed writes a crash, a power loss or a failover may lose; None if none.

    Args:
        client: a client of a server or of a cluster; for a cluster, the worst problem of its primaries is returned.
        durability: the conditions in use.
    """
    wanted, worst = durability or Durability(), None
    with store_errors():
        for server in primaries(client):
            problem = _problem(server, server.info(), wanted)
            if problem is not None and (worst is None or problem.fatal > worst.fatal):
                worst = problem
    return worst


def _problem(server: Client, info: Mapping[str, Any], wanted: Durability) -> LossRisk | None:
    if not int(info.get("aof_enabled", 0)):
        return LossRisk(
            "appendonly is no: a restart loses what was accepted since the last snapshot; set it to yes. Only where "
            "events are in Kafka for longer than from one `opic backup` to the next, a restore and a replay bring all "
            "of it back",
            fatal=True,
        )
    try:
        policy = server.config_get("appendfsync").get("appendfsync")
    except redis.ResponseError:
        policy = None
    if policy is None:
        return LossRisk(
            "appendonly is yes; CONFIG is not allowed: see that appendfsync is always", wanted.level == "fsync"
        )
    if policy != "always":
        seconds = "a second or two" if policy == "everysec" else "what the system had not written yet"
        return LossRisk(
            f"appendfsync is {policy}: a power loss may lose {seconds}; set it to always", wanted.level == "fsync"
        )
    replicas = int(info.get("connected_slaves", 0))
    if replicas < wanted.replicas:
        return LossRisk(f"{replicas} replicas are connected, OPIC_WAIT_REPLICAS wants {wanted.replicas}", fatal=True)
    if replicas and not wanted.replicas:
        return LossRisk(
            "replicas follow a moment behind: a failover may lose that moment; OPIC_WAIT_REPLICAS=1 waits for one"
        )
    return None


def _appendfsync(answer: Any) -> str:
    values = answer if not isinstance(answer, dict) else [part for pair in answer.items() for part in pair]
    return str(values[1].decode()) if len(values) > 1 else "unknown"
