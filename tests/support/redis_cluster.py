"""A real cluster for the tests: primaries, and replicas of them, on loopback, of whose nodes any may be killed."""

import time
from collections.abc import Callable
from typing import Any, Self

import redis
from ports import free_ports
from redis.crc import key_slot
from server_process import ServerFailed, ServerProcess
from servers import LIVE_OPTIONS, Binary, answers

SLOTS = 16_384
# A node is thought dead after this; its replica is elected within about as long again.
NODE_TIMEOUT_MS = 1_000
CHANGE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02
KEYS_A_MIGRATE = 5
START_OPTIONS = {
    "bind": "127.0.0.1",
    "protected-mode": "no",
    "appendonly": "yes",
    "cluster-enabled": "yes",
    "cluster-node-timeout": str(NODE_TIMEOUT_MS),
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
}


class Node(ServerProcess):
    """One server of a cluster, with its files in a directory of its own."""

    def __init__(self, binary: Binary) -> None:
        super().__init__(f"node-{binary.name}")
        self.binary = binary
        self.port, self.bus_port = free_ports(2)
        self.name = f"127.0.0.1:{self.port}"

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=CHANGE_SECONDS_MAX)

    def ask(self, *command: object) -> Any:
        """Send one command to this node, wherever its keys may be; text comes back as text."""
        with self.client() as client:
            return client.execute_command(*command)

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.ask("INFO", section))

    @property
    def node_id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def start(self) -> None:
        """Start it, and wait until it has read its files."""
        command = [self.binary.path, "--dir", str(self.directory), "--port", str(self.port)]
        for option, value in (START_OPTIONS | LIVE_OPTIONS | {"cluster-port": str(self.bus_port)}).items():
            command += [f"--{option}", value]
        with self.client() as client:
            self.launch(command, lambda: answers(client))


class Cluster:
    """A running cluster.

    >>> with Cluster(find_server("redis"), primaries=3, replicas=1) as cluster:
    ...     cluster.owner("{default:0}").kill()
    """

    def __init__(self, binary: Binary, primaries: int = 3, replicas: int = 0) -> None:
        """Nothing is started yet; `replicas` of each primary."""
        self.binary, self._primaries, self._replicas = binary, primaries, replicas
        self.nodes: list[Node] = []
        self._changed = False
        self._clients: list[Any] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Of the cluster, naming two of its nodes."""
        return f"redis+cluster://{self.nodes[0].name},{self.nodes[1].name}"

    def start(self) -> None:
        """Start all nodes, make them one cluster, and wait until it takes commands."""
        self._changed = False
        for _ in range(self._primaries * (1 + self._replicas)):
            self.nodes.append(Node(self.binary))
            self.nodes[-1].start()
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        edges = [SLOTS * number // self._primaries for number in range(self._primaries + 1)]
        for node, start, end in zip(self.nodes, edges, edges[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        for node in others:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        self._await(lambda: all(len(_lines(node)) == len(self.nodes) for node in self.nodes), "a node knows too few")
        for number, node in enumerate(self.nodes[self._primaries :]):
            primary = self.nodes[number % self._primaries]
            self._await(lambda node=node, of=primary: _replicate(node, of), f"{node} follows nobody")
        self.await_ok()

    def reset(self) -> None:
        """Back to an empty cluster as it was at the start, whatever the last test did to it."""
        self.close_clients()
        if self._changed:
            self.close()
            self.start()
        for node in self.nodes[: self._primaries]:
            node.ask("FLUSHALL")
            node.ask("FUNCTION", "FLUSH")
        for node in self.nodes:
            for option, value in LIVE_OPTIONS.items():
                node.ask("CONFIG", "SET", option, value)

    def client(self, **options: Any) -> Any:
        """A new client, as the product makes it; it is closed with the test that asked for it."""
        from opic.store import connect

        client = connect(self.url, **options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def close(self) -> None:
        """Stop all nodes and remove their files."""
        self.close_clients()
        while self.nodes:
            self.nodes.pop().close()

    # Who has what.

    def owner(self, key: str) -> Node:
        """The primary that has a key's slot, as the living nodes see it."""
        slot = key_slot(key.encode())
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        while time.monotonic() < deadline:
            witness = next(node for node in self.nodes if node.alive)
            for start, end, primary, *_ in witness.ask("CLUSTER", "SLOTS"):
                if int(start) <= slot <= int(end):
                    return self._by_port(int(primary[1]))
            time.sleep(POLL_SECONDS)  # In the moment of a failover nobody has it.
        raise ServerFailed(f"nobody has slot {slot}")

    def replica_of(self, primary: Node) -> Node:
        """A living replica of a primary."""
        wanted = primary.node_id if primary.alive else None
        for node in self.nodes:
            if node.alive and node is not primary:
                flags, of = _myself(node)
                if "slave" in flags and (wanted is None or of == wanted):
                    return node
        raise ServerFailed(f"{primary} has no replica")

    def other(self, node: Node) -> Node:
        """Another primary."""
        return next(n for n in self.nodes if n is not node and n.alive and "master" in _myself(n)[0])

    # What happens to clusters.

    def kill(self, node: Node) -> None:
        """Take a node down with SIGKILL."""
        self._changed = True
        node.kill()

    def restart(self, node: Node) -> None:
        """Start a killed node over its files, and wait until the whole cluster takes commands again."""
        node.start()
        self.await_ok()

    def await_failover(self, key: str, dead: Node) -> Node:
        """Wait until a replica has taken over a key's slot from a killed primary; return it."""
        self._await(lambda: self._taken_over(key, dead), f"nobody took over from {dead}")
        return self.owner(key)

    def failover(self, key: str) -> Node:
        """Let a replica take over in order, nothing lost; return it."""
        self._changed = True
        primary = self.owner(key)
        self.replica_of(primary).ask("CLUSTER", "FAILOVER")
        self._await(lambda: self.owner(key) is not primary, f"nobody took over from {primary}")
        return self.owner(key)

    def add_node(self) -> Node:
        """Add an empty primary."""
        self._changed = True
        node = Node(self.binary)
        node.start()
        self.nodes.append(node)
        first = self.nodes[0]
        first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        self._await(lambda: all(len(_lines(n)) == len(self.nodes) for n in self.nodes), f"{node} is not known")
        self.await_ok()
        return node

    def hand_over(self, key: str, how: str) -> None:
        """Let another node have a key's slot: by "failover", or by a "move" of all its keys."""
        if how == "failover":
            self.failover(key)
            self.await_ok()
        else:
            self.migrate_slot(key, self.other(self.owner(key)))

    def migrate_slot(self, key: str, to: Node, between: Callable[[], object] = lambda: None) -> None:
        """Move a key's slot with all its keys to another primary, as `redis-cli --cluster reshard` does.

        Args:
            key: any key of the slot.
            to: who gets it.
            between: called before each few keys that move: then the slot is in two places.
        """
        self._changed = True
        slot, source = key_slot(key.encode()), self.owner(key)
        assert source is not to
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.node_id)
        between()
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, KEYS_A_MIGRATE):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 10_000, "KEYS", *keys)
            between()
        for node in (to, source, *self.nodes):
            if node.alive and "master" in _myself(node)[0]:
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.node_id)
        self._await(lambda: all(n is to for n in self._owners(slot)), f"not all know that {to} has slot {slot}")

    def migrate_slot_at_once(self, key: str, to: Node) -> None:
        """Move a key's slot to another primary as Valkey 9 does by itself: clients see it here, and then there.

        It gives up where a node is silent for a moment, as on a loaded machine; then it is asked again.
        """
        self._changed = True
        slot, source = key_slot(key.encode()), self.owner(key)
        before = {job["name"] for job in source.ask("CLUSTER", "GETSLOTMIGRATIONS")}

        def moved() -> bool:
            if all(node is to for node in self._owners(slot)):
                return True
            jobs = [job for job in source.ask("CLUSTER", "GETSLOTMIGRATIONS") if job["name"] not in before]
            if {job["state"] for job in jobs} <= {"failed", "canceled", "cancelled"}:
                source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.node_id)
            return False

        self._await(moved, f"not all know that {to} has slot {slot}")

    def await_ok(self) -> None:
        """Wait until each living node takes commands, all agree on who is what, and replicas follow."""

        def ok() -> bool:
            living = [node for node in self.nodes if node.alive]
            return (
                all(node.ask("CLUSTER INFO")["cluster_state"] == "ok" for node in living)
                and len({_roles(node) for node in living}) == 1
                and all(node.info("replication").get("master_link_status", "up") == "up" for node in living)
            )

        self._await(ok, "the cluster is not ok")

    def _taken_over(self, key: str, dead: Node) -> bool:
        owner = self.owner(key)
        return owner is not dead and owner.ask("CLUSTER INFO")["cluster_state"] == "ok"

    def _owners(self, slot: int) -> list[Node]:
        found = []
        for node in self.nodes:
            if node.alive:
                for start, end, primary, *_ in node.ask("CLUSTER", "SLOTS"):
                    if int(start) <= slot <= int(end):
                        found.append(self._by_port(int(primary[1])))
        return found

    def _by_port(self, port: int) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def _await(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        while not done():
            if time.monotonic() > deadline:
                told = "\n".join(map(str, next(node for node in self.nodes if node.alive).ask("CLUSTER NODES")))
                raise ServerFailed(f"{otherwise} after {CHANGE_SECONDS_MAX:g} s:\n{told}")
            time.sleep(POLL_SECONDS)


def _lines(node: Node) -> dict[str, Any]:
    """What a node knows of the others, once hands are shaken."""
    return {name: of for name, of in node.ask("CLUSTER NODES").items() if "handshake" not in of["flags"]}


def _myself(node: Node) -> tuple[str, str]:
    mine = next(of for of in node.ask("CLUSTER NODES").values() if "myself" in of["flags"])
    return str(mine["flags"]), str(mine["master_id"])


def _roles(node: Node) -> frozenset[tuple[str, str]]:
    """Who is what, as a node sees it."""
    known = node.ask("CLUSTER NODES").values()
    return frozenset((of["node_id"], of["flags"].replace("myself,", "")) for of in known)


def _replicate(node: Node, primary: Node) -> bool:
    try:
        return bool(node.ask("CLUSTER", "REPLICATE", primary.node_id))
    except redis.ResponseError as error:
        if "Unknown node" in str(error):
            return False  # It has not heard of it yet.
        raise
