"""docker-compose.yml as Docker Compose reads it, and its commands run here: on real servers, with hosts replaced."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import curls
import redis
import yaml
from kafka_server import CLUSTER_ID, Kafka
from ports import free_port, free_ports
from processes import environment, wait_until
from repository import ROOT
from servers import Binary

COMPOSE = ROOT / "docker-compose.yml"
SECRETS = {
    "OPIC_API_TOKEN": "token-of-the-test",
    "STORE_PASSWORD": "store-of-the-test",
    "STORE_ADMIN_PASSWORD": "admin-of-the-test",
    "GRAFANA_PASSWORD": "grafana-of-the-test",
}
BIN = Path(sys.executable).parent
COMMAND_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::([?-])([^}]*))?\}")


def read() -> dict[str, Any]:
    """The file as YAML, anchors and merges followed, variables not yet put in."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    """Each service by its name."""
    return dict(read()["services"])


def variables(text: str) -> Iterator[tuple[str, str | None]]:
    """The variables in a text: name, and `?` if they must be set or `-` if they have a default."""
    for match in _VARIABLE.finditer(text):
        if match[1]:
            yield match[1], match[2]


def filled(value: Any, given: Mapping[str, str]) -> Any:
    """Put variables into a value, as Compose does."""
    if isinstance(value, Mapping):
        return {name: filled(inner, given) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, given) for inner in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda match: given[match[1]] if match[1] else "$", value)


def argv(service: Mapping[str, Any]) -> list[str]:
    """What a service runs: its entrypoint, or that of our image, with its command."""
    first = service.get("entrypoint") or (["opic"] if service["image"].startswith("opic:") else [])
    return [*first, *service.get("command", [])]


class ComposedKafka(Kafka):
    """The tests' Kafka with the settings that compose gives the image, which turns KAFKA_A_B into a.b."""

    def __init__(self, binary: Binary, given: Mapping[str, str]) -> None:
        super().__init__(binary)
        self._given = given

    def _format(self) -> None:
        self._host, *_ = free_ports(1)
        ports = {":9092": f":{self._plain}", ":9093": f":{self._controller}", ":9094": f":{self._host}"}
        lines = []
        for name, value in self._given.items():
            if not name.startswith("KAFKA_") or name == "KAFKA_HEAP_OPTS":
                continue
            text = value.replace("kafka:", "127.0.0.1:")
            for port, ours in ports.items():
                text = text.replace(port, ours)
            lines.append(f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={text}")
        lines = [line for line in lines if not line.startswith("log.dirs=")] + [f"log.dirs={self.directory / 'logs'}"]
        lines.append("group.initial.rebalance.delay.ms=0")
        # The image listens on all addresses; the tests stay on this machine's own.
        self._properties.write_text("\n".join(lines).replace("://:", "://127.0.0.1:") + "\n")
        command = [*self._command("-Xmx256m"), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        subprocess.run([*command, "-c", str(self._properties)], capture_output=True, timeout=60, check=True)


class Stack:
    """All of docker-compose.yml that is ours or holds our data, running."""

    def __init__(self, store: Binary, kafka: Binary) -> None:
        self._store, self._kafka = store, kafka
        self.home = Path(tempfile.mkdtemp(prefix="opic-stack-"))
        self.services = filled(services(), SECRETS)
        self.nodes = [name for name in self.services if name.startswith("valkey-")]
        self._running = ExitStack()
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Stack":
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            stack.callback(self._end)
            self._start_nodes()
            self.make_cluster()
            given = self.services["kafka"]["environment"]
            self.kafka = stack.enter_context(ComposedKafka(self._kafka, given))
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _start_nodes(self) -> None:
        self.ports = {name: free_ports(2) for name in self.nodes}
        for name in self.nodes:
            (self.home / name).mkdir()
            self._start_node(name)
        for name in self.nodes:
            wait_until(lambda name=name: self._answers(name))

    def _start_node(self, name: str) -> None:
        data = self.home / name
        entry = [str(data) if word == "/data" else word for word in self.services[name]["entrypoint"]]
        entry = [str(ROOT / "deploy/valkey/start.sh") if word == "/etc/opic/start.sh" else word for word in entry]
        port, bus = self.ports[name]
        own = {"STORE_CONF": str(ROOT / "deploy"), "STORE_RUN": str(data), "STORE_SERVER": self._store.path}
        more = ["--port", str(port), "--cluster-port", str(bus), "--bind", "127.0.0.1"]
        self.start(name, [*entry, *more], self.services[name]["environment"] | own)

    def restart_nodes(self) -> None:
        """Restart the store's servers, one after the other, as an upgrade does."""
        for name in self.nodes:
            self.stop(name)
            self._start_node(name)
            wait_until(lambda name=name: self._answers(name))
        self.make_cluster()  # Waits until each says that the cluster is ok.

    def _answers(self, name: str) -> bool:
        assert self._started[name].poll() is None, self.said(name)[-3000:]
        try:
            with self.client(name) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def client(self, node: str, user: str = "admin") -> redis.Redis:
        """A client of one node, as one of the store's users."""
        password = SECRETS["STORE_ADMIN_PASSWORD" if user == "admin" else "STORE_PASSWORD"]
        return redis.Redis(port=self.ports[node][0], username=user, password=password, socket_timeout=30)

    def make_cluster(self) -> str:
        """Run the one-shot service that makes the cluster."""
        service = self.services["cluster"]
        script = ROOT / "deploy/valkey/create-cluster.sh"
        assert service["entrypoint"] == ["/bin/sh", "/etc/opic/create-cluster.sh"]
        nodes = [f"127.0.0.1:{self.ports[name][0]}" for name in self.nodes]
        assert len(service["command"]) == len(nodes)
        done = subprocess.run(
            ["/bin/sh", str(script), *nodes],
            env={"PATH": os.environ["PATH"], "STORE_CLI": "redis-cli", **service["environment"]},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def administer(self, *words: str) -> str:
        """Run redis-cli as the administrator, as docs/operations.md does."""
        done = subprocess.run(
            ["redis-cli", "--user", "admin", *words],
            env={"PATH": os.environ["PATH"], "REDISCLI_AUTH": SECRETS["STORE_ADMIN_PASSWORD"]},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def environment(self, name: str, **more: str) -> dict[str, str]:
        """The environment of a service, with our hosts and ports in the place of Compose's."""
        given = {key: str(value) for key, value in self.services[name].get("environment", {}).items()}
        text = given["OPIC_STORE"]
        for node in self.nodes:
            text = text.replace(f"{node}:6379", f"127.0.0.1:{self.ports[node][0]}")
        assert given["OPIC_KAFKA_BOOTSTRAP"] == "kafka:9092"
        given |= {"OPIC_STORE": text, "OPIC_KAFKA_BOOTSTRAP": self.kafka.bootstrap}
        clean = {key: value for key, value in environment().items() if not key.startswith("STORE_")}
        return clean | {"PATH": f"{BIN}{os.pathsep}{clean['PATH']}"} | given | more

    def start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        """Start a process of a service."""
        with (self.home / f"{name}.log").open("ab") as said:
            self._started[name] = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"], **env},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def run(self, *words: str, service: str = "worker", **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside a service, as `docker compose exec` would."""
        return subprocess.run(
            words,
            env=self.environment(service, **more),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    def said(self, name: str) -> str:
        """A process's log."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    @contextmanager
    def workers(self, count: int) -> Iterator[list[str]]:
        """So many workers; yields where each is asked for its health."""
        names, urls = [], []
        for number in range(count):
            port = free_port()
            names.append(f"worker-{number}")
            self.start(names[-1], argv(self.services["worker"]), self.environment("worker", OPIC_WORKER_PORT=str(port)))
            urls.append(f"http://127.0.0.1:{port}")
        yield urls
        for name in names:
            self.stop(name)

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """The endpoint; yields its address."""
        port = free_port()
        command = [str(port) if word == "8080" else word for word in argv(self.services["endpoint"])]
        self.start("endpoint", command, self.environment("endpoint"))
        yield f"http://127.0.0.1:{port}"
        self.stop("endpoint")

    def await_ready(self, url: str) -> None:
        """Wait until a service says at /readyz that it is; fail with its log where one ended meanwhile."""

        def ready() -> bool:
            ended = [name for name, process in self._started.items() if process.poll() is not None]
            assert not ended, "\n".join(self.said(name)[-3000:] for name in ended)
            return curls.ready(url)

        wait_until(ready)

    def stop(self, name: str) -> None:
        """End a process as Compose does, and see that it ends in order."""
        process = self._started.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0, self.said(name)[-3000:]

    def _end(self) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()
