"""A real Apache Kafka for the tests: one KRaft node from its Maven jars, on free ports of the loopback."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from maven_jars import Jars
from ports import free_port, free_ports
from server_process import ServerFailed, ServerProcess
from servers import Binary, Missing

FOLDER = Path(__file__).parent / "kafka"
# The version that the tests start, and the oldest and the newest that test_kafka_brokers.py starts.
JARS, OLDEST, NEWEST = (
    Jars("kafka", folder, "kafka_2.13") for folder in (FOLDER, FOLDER / "oldest", FOLDER / "newest")
)
JAVA_MIN = 17

JAVA_SECONDS_MAX = 120.0
READY_SECONDS_MAX = 60.0  # A start takes 2 s on an idle machine.

CLUSTER_ID = "b3BpY3Rlc3RjbHVzdGVyMQ"
USER, PASSWORD = "opic", "open-sesame"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}{listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}{listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT{protocols}
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
auto.create.topics.enable=false
"""


def version() -> str:
    """The version of Kafka that the POM names."""
    return JARS.version()


def find_kafka() -> Binary | Missing:
    """Find Java, and the jars or the Maven that fetches them."""
    java = shutil.which("java")
    if java is None:
        return Missing("kafka", "no java on the PATH; Debian, Ubuntu: apt-get install default-jre-headless maven")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    if match is None or int(match[1]) < JAVA_MIN:
        return Missing("kafka", f"java is {said.splitlines()[0] if said else 'mute'}; Kafka wants {JAVA_MIN} or newer")
    if shutil.which("mvn") is None and not JARS.home.is_dir():
        return Missing("kafka", "no mvn on the PATH, which fetches Kafka; Debian, Ubuntu: apt-get install maven")
    return Binary("kafka", java, version())


class Kafka(ServerProcess):
    """One broker; it stays on its ports and its data over restarts. Tests keep apart by names of topics and crawls."""

    stop_seconds_max = 20.0

    def __init__(
        self, binary: Binary, more: str = "", jars: Jars = JARS, listeners: Mapping[str, str] | None = None
    ) -> None:
        """Nothing is started yet.

        Args:
            binary: Java.
            more: further lines of the properties.
            jars: of which version.
            listeners: protocols of further listeners, by name; `at` has their addresses.
        """
        super().__init__("kafka")
        self._more, self._from = more, jars
        self._java = binary.path
        self._plain, self._sasl, self._controller = free_ports(3)
        self._listeners = dict(listeners or {})
        self.at = {name: f"127.0.0.1:{free_port()}" for name in self._listeners}
        self.bootstrap = f"127.0.0.1:{self._plain}"
        self.sasl_bootstrap = f"127.0.0.1:{self._sasl}"  # User and password are USER and PASSWORD.
        self._jars: Path | None = None

    def start(self) -> None:
        """Start the broker, and wait until it serves."""
        if self._jars is None:
            self._jars = self._from.ensure()
            self._format()
        said_before = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [*self._command("-Xmx512m"), "kafka.Kafka", str(self._properties)]
        started = b"Kafka Server started"
        self.launch(command, lambda: started in self.log_path.read_bytes()[said_before:], READY_SECONDS_MAX)

    def run_tool(self, tool: str, *args: str) -> None:
        """Run one of Kafka's own command-line tools against the broker."""
        self.run_java(tool, "--bootstrap-server", self.bootstrap, *args)

    def run_java(self, program: str, *args: str) -> None:
        """Run a class, or a file of source, with Kafka's jars."""
        command = [*self._command("-Xmx256m"), program, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=False)
        if done.returncode:
            raise ServerFailed(f"{program} failed:\n{(done.stdout + done.stderr)[-2000:]}")

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _command(self, heap: str) -> list[str]:
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        options.append("-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info")
        return [self._java, heap, *options, "-cp", f"{self._jars}/*"]

    def _format(self) -> None:
        text = PROPERTIES.format(
            plain=self._plain,
            sasl=self._sasl,
            listeners="".join(f",{name}://{at}" for name, at in self.at.items()),
            protocols="".join(f",{name}:{protocol}" for name, protocol in self._listeners.items()),
            controller=self._controller,
            logs=self.directory / "logs",
            user=USER,
            password=PASSWORD,
        )
        self._properties.write_text(text + self._more)
        command = [*self._command("-Xmx256m"), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        done = subprocess.run(
            [*command, "-c", str(self._properties)], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise ServerFailed(f"kafka's storage was not formatted:\n{(done.stdout + done.stderr)[-2000:]}")
