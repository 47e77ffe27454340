"""The units of deploy/systemd and docs/guide/systemd.md: what they run is started here, on real servers."""

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import curls
import httpx
import pytest
import redis
import yaml
from compose_file import BIN
from conftest import want_server, want_tool
from kafka_server import CLUSTER_ID, Kafka
from ports import free_ports, ports_in_a_row
from processes import environment, wait_until
from repository import ROOT
from servers import Binary

SYSTEMD = ROOT / "deploy/systemd"
PAGE = (ROOT / "docs/guide/systemd.md").read_text()
UNITS = sorted(path.name for path in SYSTEMD.glob("*.service"))
COMMAND_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0


def prepared(root: Path) -> str:
    done = subprocess.run(
        ["/bin/sh", str(SYSTEMD / "set-up.sh"), str(root)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def settings_of(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def entries(unit: str) -> list[tuple[str, str]]:
    """The lines of a unit: name and value."""
    text = (SYSTEMD / unit).read_text()
    return re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


def test_second_setup_keeps_the_passwords_and_their_permissions(tmp_path: Path) -> None:
    assert "prepared" in prepared(tmp_path)
    files = [tmp_path / "etc/opic" / name for name in ("store.env", "opic.env")]
    before = [settings_of(file) for file in files]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert before[0]["STORE_PASSWORD"] in before[1]["OPIC_STORE"]
    assert len({before[0]["STORE_PASSWORD"], before[0]["STORE_ADMIN_PASSWORD"], before[1]["OPIC_API_TOKEN"]}) == 3
    prepared(tmp_path)
    assert [settings_of(file) for file in files] == before


def test_page_names_existing_units_and_files() -> None:
    for command in re.findall(r"^systemctl enable --now (.*)$", PAGE, re.MULTILINE):
        assert {re.sub(r"@\d", "@", name) + ".service" for name in command.split()} <= set(UNITS)
    variables = set(re.findall(r"\bSTORE_(?!CLI)\w+", (ROOT / "deploy/valkey/start.sh").read_text()))
    assert variables <= set(re.findall(r"\bSTORE_\w+", PAGE))


def test_page_scrapes_the_ports_of_the_workers_that_it_starts(tmp_path: Path) -> None:
    """promtool accepts what the page shows, beside the rules; the jobs have the names that the alerts rely on."""
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in yaml.safe_load(shown)["scrape_configs"]}
    (first,) = re.findall(r"OPIC_WORKER_PORT=\$\$\(\((\d+) \+ %i\)\)", (SYSTEMD / "opic-worker@.service").read_text())
    started = set(re.findall(r"opic-worker@(\d+)", PAGE.split("## Prometheus")[0]))
    assert set(jobs["opic-worker"]) == {f"127.0.0.1:{int(first) + int(number)}" for number in started}
    shipped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert set(jobs) == {job["job_name"] for job in shipped} - {"prometheus"}
    shutil.copytree(ROOT / "deploy/prometheus", tmp_path, dirs_exist_ok=True)
    (tmp_path / "prometheus.yml").write_text(shown)
    command = [want_tool("promtool", "prometheus"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    tool = want_tool("systemd-analyze", "systemd")
    for name in UNITS:  # Their programs may not be here.
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", (SYSTEMD / name).read_text(), flags=re.M)
        (tmp_path / name.replace("@", "@1")).write_text(text.replace("User=opic", "User=root"))
    units = [str(path) for path in tmp_path.iterdir()]
    done = subprocess.run([tool, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if str(tmp_path) in line]
    assert (done.returncode, said) == (0, []), done.stdout + done.stderr


class UnitKafka(Kafka):
    """The tests' Kafka with the properties that the unit names."""

    def __init__(self, binary: Binary, replaced: Callable[[str], str]) -> None:
        super().__init__(binary)
        self._replaced = replaced

    def _format(self) -> None:
        text = self._replaced((SYSTEMD / "kafka.properties").read_text())
        self._properties.write_text(f"{text}group.initial.rebalance.delay.ms=0\n")
        command = [*self._command("-Xmx256m"), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        subprocess.run([*command, "-c", str(self._properties)], capture_output=True, timeout=60, check=True)


class Machine:
    """A directory that stands for the machine, and the processes of units on ports of the tests."""

    def __init__(self, root: Path, server: Path | str) -> None:
        self.root, self._running = root, dict[str, subprocess.Popen[bytes]]()
        store, kafka, controller, self.port = free_ports(4)
        self.worker_ports = ports_in_a_row(3)[0]  # Worker 1 is at the next one.
        self._words = {
            "/etc/opic": f"{root}/etc/opic", "/var/lib/opic": f"{root}/var/lib/opic", "/run/opic": f"{root}/run",
            "/opt/opic/bin": str(BIN), "redis-server": str(server), "127.0.0.1:9092": f"127.0.0.1:{kafka}",
            "127.0.0.1:9093": f"127.0.0.1:{controller}", "6379": str(store), "9100": str(self.worker_ports),
        }  # fmt: skip
        self.kafka_port, self.store_port = kafka, store
        (root / "run").mkdir()
        prepared(root)
        self.own = {name: self.here(value) for name, value in settings_of(root / "etc/opic/opic.env").items()}
        self.own["OPIC_PORT"] = str(self.port)

    def here(self, text: str) -> str:
        """A text with this directory and these ports in the place of those of the machine."""
        return re.sub("|".join(map(re.escape, self._words)), lambda found: self._words[found[0]], text)

    def start(self, unit: str, instance: str = "") -> None:
        """Start what a unit starts, with the environment that it names."""
        given = {name: value for name, value in environment().items() if not name.startswith("STORE_")}
        for name, value in entries(unit):
            if name == "EnvironmentFile":
                given |= self.own if value.endswith("opic.env") else settings_of(Path(self.here(value)))
            elif name == "Environment":
                given |= dict(word.split("=", 1) for word in shlex.split(self.here(value)))
        (command,) = (self.here(value) for name, value in entries(unit) if name == "ExecStart")
        given = {name: value.replace("%i", instance).replace("%H", "here") for name, value in given.items()}
        command, unit = command.replace("%i", instance).replace("$$", "$"), unit.replace("@", f"@{instance}")
        with self.log(unit).open("ab") as said:
            self._running[unit] = subprocess.Popen(
                shlex.split(command), env=given, cwd=self.root, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def log(self, unit: str) -> Path:
        return self.root / f"{unit}.log"

    def stop(self, unit: str) -> None:
        """End it as systemd does, and see that it ends in order."""
        process = self._running.pop(unit)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0, self.log(unit).read_text()[-3000:]

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the page does, with the settings of /etc/opic/opic.env."""
        command, env = [str(BIN / "opic"), *words], {**environment(), **self.own}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
        )

    def store_answers(self) -> bool:
        assert self._running["opic-store.service"].poll() is None, self.log("opic-store.service").read_text()[-3000:]
        password = settings_of(self.root / "etc/opic/store.env")["STORE_ADMIN_PASSWORD"]
        with redis.Redis(port=self.store_port, username="admin", password=password) as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                return False

    def worker_ready(self, number: int) -> bool:
        try:
            return curls.get(f"http://127.0.0.1:{self.worker_ports + number}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def stats(self) -> dict[str, int]:
        """What the endpoint counts; nothing while it does not answer."""
        header = {"Authorization": f"Bearer {self.own['OPIC_API_TOKEN']}"}
        try:
            answer = curls.get(f"http://127.0.0.1:{self.port}/v1/stats", headers=header, timeout=10)
        except httpx.TransportError:
            return {}
        found: dict[str, int] = answer.json() if answer.status_code == 200 else {}
        return found


@contextmanager
def running(root: Path) -> Iterator[Machine]:
    """All units of the page, started in its order."""
    server, kafka = want_server("redis"), want_server("kafka")
    with ExitStack() as stack:
        machine = Machine(root, server.path)
        stack.callback(machine.end)
        machine.start("opic-store.service")
        broker = UnitKafka(kafka, lambda text: machine.here(text).replace("/var/lib/opic", str(root)))
        stack.enter_context(broker)
        wait_until(machine.store_answers)
        made = machine.run("topics", "create", "--partitions", "16", "--replication", "1")
        assert made.returncode == 0, made.stderr
        for number in "12":
            machine.start("opic-worker@.service", number)
        machine.start("opic-endpoint.service")
        yield machine


@pytest.mark.slow
def test_units_run_and_the_store_restarts_without_a_password_in_the_shell(tmp_path: Path) -> None:
    with running(tmp_path) as machine:
        wait_until(lambda: "known_pages" in machine.stats())
        events = [{"url": f"http://h{i}.example/", "links": [f"http://h{i + 1}.example/"]} for i in range(30)]
        header = {"Authorization": f"Bearer {machine.own['OPIC_API_TOKEN']}"}
        sent = curls.post(f"http://127.0.0.1:{machine.port}/v1/events", json=events, headers=header, timeout=60)
        assert sent.status_code == 202, sent.text
        wait_until(lambda: machine.stats().get("read_pages") == 30)
        # Each worker has a port of its own.
        for number in (1, 2):
            wait_until(partial(machine.worker_ready, number))
        wait_until(lambda: "2 workers, last seen" in machine.run("doctor").stdout)
        checks = machine.run("doctor").stdout.splitlines()
        (warning,) = [line for line in checks if not line.startswith("ok")]
        assert "1 replica of each" in warning
        machine.stop("opic-store.service")
        machine.start("opic-store.service")
        wait_until(lambda: machine.stats().get("read_pages") == 30)
        for unit in ("opic-worker@1.service", "opic-worker@2.service", "opic-endpoint.service", "opic-store.service"):
            machine.stop(unit)
