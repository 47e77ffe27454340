"""When an effect is durable: what the servers promise, and how to wait for more.

A server with `appendfsync always` answers once its file is synced, so what it confirmed outlives a power loss. It does
not outlive the disk, nor a failover: replicas are told a moment later, and one that takes over lacks what it was not
told. `wait_replicas` closes that: an offset counts as durable once so many replicas have what was written.

WAITAOF is not what waits here, though it is there since Redis 7.2 and in Valkey, for two reasons that
`benchmarks/bench_durability.py` shows. With everysec it can't be trusted: since Redis 7.4, until redis/redis#13793
mended it, and in Valkey up to 9.1 at least, the first turn of the server's loop that has nothing to write counts all
that was written as synced if the last sync is younger than a second. And for replicas it takes a second, since they
tell what they synced that often only. With `appendfsync always` on both sides WAIT says as much at once: a replica
answers, as every server does, after the sync of what it was told before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import redis

from opic.errors import StoreError, StoreUnavailable
from opic.store.connection import Client, Line, store_errors
from opic.store.keys import Keys
from opic.store.library import primaries

Level = Literal["server", "fsync"]


@dataclass(frozen=True, slots=True)
class Durability:
    """What has to hold before an offset counts as durable.

    Args:
        level: "server": what the server confirms by its own settings; "fsync": these have to be `appendfsync always`.
        replicas: how many replicas have to have it too; on disk, if their own setting is `appendfsync always`.
        seconds: how long to wait for them.
    """

    level: Level = "server"
    replicas: int = 0
    seconds: float = 5.0

    @property
    def wanted(self) -> bool:
        """Tell whether there is anything to wait for or to look at."""
        return self.level != "server" or self.replicas > 0


@dataclass(frozen=True, slots=True)
class DurabilityProblem:
    """What may be lost; `fatal` where a restart alone may lose it, or what was asked for does not hold."""

    text: str
    fatal: bool = False


def await_durable(line: Line, keys: Keys, durability: Durability) -> None:
    """Return once all that the line's server has written up to now is durable.

    A small write of our own comes first: what counts for WAIT is the last write of the connection that asks, and
    whatever anybody wrote before it is before it in the stream that replicas and the file get.

    Raises:
        StoreUnavailable: too few replicas have it.
        StoreError: the server's settings can't give what was asked for.
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
        raise StoreError(f"OPIC_DURABILITY, OPIC_WAIT_REPLICAS: the store can't be asked whether that holds: {refusal}")
    if durability.level == "fsync":
        info, policy, *answers = answers
        if b"aof_enabled:1" not in info or (found := _appendfsync(policy)) != "always":
            told = f"appendfsync is {found}" if b"aof_enabled:1" in info else "appendonly is no"
            raise StoreError(
                f"OPIC_DURABILITY=fsync, but {told}: set appendonly to yes and appendfsync to always, or use "
                "OPIC_DURABILITY=server"
            )
    if replicas and (reached := int(answers[0])) < replicas:
        raise StoreUnavailable(
            f"only {reached} of {replicas} replicas have got what was written within {durability.seconds:g} s "
            "(OPIC_WAIT_REPLICAS, OPIC_WAIT_SECONDS): see that they run"
        )


def durability_problem(client: Client, durability: Durability | None = None) -> DurabilityProblem | None:
    """Return what a crash, a power loss or a failover may lose of what was confirmed, or None for nothing.

    Args:
        client: of a server, or of a cluster: the worst of its primaries counts.
        durability: what is waited for.
    """
    wanted, found = durability or Durability(), None
    with store_errors():
        for server in primaries(client):
            problem = _problem(server, server.info(), wanted)
            if problem is not None and (found is None or problem.fatal > found.fatal):
                found = problem
    return found


def _problem(server: Client, info: Mapping[str, Any], wanted: Durability) -> DurabilityProblem | None:
    if not int(info.get("aof_enabled", 0)):
        return DurabilityProblem(
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
        return DurabilityProblem(
            "appendonly is yes; CONFIG is not allowed: see that appendfsync is always", wanted.level == "fsync"
        )
    if policy != "always":
        seconds = "a second or two" if policy == "everysec" else "what the system had not written yet"
        return DurabilityProblem(
            f"appendfsync is {policy}: a power loss may lose {seconds}; set it to always", wanted.level == "fsync"
        )
    replicas = int(info.get("connected_slaves", 0))
    if replicas < wanted.replicas:
        return DurabilityProblem(
            f"{replicas} replicas are connected, OPIC_WAIT_REPLICAS wants {wanted.replicas}", fatal=True
        )
    if replicas and not wanted.replicas:
        return DurabilityProblem(
            "replicas follow a moment behind: a failover may lose that moment; OPIC_WAIT_REPLICAS=1 waits for one"
        )
    return None


def _appendfsync(answer: Any) -> str:
    values = answer if not isinstance(answer, dict) else [part for pair in answer.items() for part in pair]
    return str(values[1].decode()) if len(values) > 1 else "unknown"
