"""A real Apache Kafka for the tests: one KRaft node from its Maven jars, on free ports of the loopback.

Its jars are kept in a cache of the user, never in the repository, and held to tests/kafka/jars.sha256 each time.

    python tests/kafka_server.py lock     writes that file anew, after a change of tests/kafka/pom.xml
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from ports import free_ports
from server_process import ServerFailed, ServerProcess
from servers import Binary, Missing

HERE = Path(__file__).parent / "kafka"
POM, LOCK = HERE / "pom.xml", HERE / "jars.sha256"
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
JAVA_MIN = 17

# A start takes 2 s on an idle machine; a first fetch of 43 MB what the network gives.
READY_SECONDS_MAX = 60.0
FETCH_SECONDS_MAX = 600.0

CLUSTER_ID = "b3BpY3Rlc3RjbHVzdGVyMQ"
USER, PASSWORD = "opic", "open-sesame"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT
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
    tree = ElementTree.parse(POM)
    found = tree.find(".//{*}dependency[{*}artifactId='kafka_2.13']/{*}version")
    assert found is not None
    assert found.text is not None
    return found.text


def jars() -> Path:
    """Where the jars are, or will be."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "opic-kafka" / version()


def find_kafka() -> Binary | Missing:
    """Find Java, and the jars or the Maven that fetches them."""
    java = shutil.which("java")
    if java is None:
        return Missing("kafka", "no java on the PATH; Debian, Ubuntu: apt-get install default-jre-headless maven")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    if match is None or int(match[1]) < JAVA_MIN:
        return Missing("kafka", f"java is {said.splitlines()[0] if said else 'mute'}; Kafka wants {JAVA_MIN} or newer")
    if shutil.which("mvn") is None and not jars().is_dir():
        return Missing("kafka", "no mvn on the PATH, which fetches Kafka; Debian, Ubuntu: apt-get install maven")
    return Binary("kafka", java, version())


def fetch(into: Path) -> None:
    """Let Maven put the jars into a directory."""
    command = ["mvn", "-B", "-q", "-f", str(POM), MAVEN_PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    if done.returncode:
        raise ServerFailed(f"Maven did not fetch Kafka:\n{(done.stdout + done.stderr)[-2000:]}")


def sums(directory: Path) -> dict[str, str]:
    """The checksum of each jar."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.jar"))}


def locked() -> dict[str, str]:
    """The checksums that the repository names."""
    rows = (line.split() for line in LOCK.read_text().splitlines() if line.strip())
    return {name: digest for digest, name in rows}


def ensure_jars() -> Path:
    """Return the directory of the jars, fetched and checked."""
    home = jars()
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            fetch(Path(scratch) / "jars")
            try:
                (Path(scratch) / "jars").rename(home)
            except OSError:
                if not home.is_dir():  # Else somebody was faster.
                    raise
    if (found := sums(home)) != locked():
        odd = sorted({name for name, _ in found.items() ^ locked().items()})
        raise ServerFailed(f"{home} is not what {LOCK.name} says ({', '.join(odd[:5])}): remove it, and run again")
    return home


class Kafka(ServerProcess):
    """One broker; it stays on its ports and its data over restarts. Tests keep apart by names of topics and crawls."""

    stop_seconds_max = 20.0

    def __init__(self, binary: Binary) -> None:
        super().__init__("kafka")
        self._java = binary.path
        self._plain, self._sasl, self._controller = free_ports(3)
        self.bootstrap = f"127.0.0.1:{self._plain}"
        self.sasl_bootstrap = f"127.0.0.1:{self._sasl}"  # User and password are USER and PASSWORD.
        self._jars: Path | None = None

    def start(self) -> None:
        """Start the broker, and wait until it serves."""
        if self._jars is None:
            self._jars = ensure_jars()
            self._format()
        said_before = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [*self._command("-Xmx512m"), "kafka.Kafka", str(self._properties)]
        started = b"Kafka Server started"
        self.launch(command, lambda: started in self.log_path.read_bytes()[said_before:], READY_SECONDS_MAX)

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
            controller=self._controller,
            logs=self.directory / "logs",
            user=USER,
            password=PASSWORD,
        )
        self._properties.write_text(text)
        command = [*self._command("-Xmx256m"), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        done = subprocess.run(
            [*command, "-c", str(self._properties)], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise ServerFailed(f"kafka's storage was not formatted:\n{(done.stdout + done.stderr)[-2000:]}")


def main() -> None:
    if sys.argv[1:] != ["lock"]:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        fetch(Path(scratch))
        LOCK.write_text("".join(f"{digest}  {name}\n" for name, digest in sums(Path(scratch)).items()))


if __name__ == "__main__":
    main()
