"""What every test may use: real servers, started once a session and emptied between tests."""

import os
import shutil
import signal
from collections.abc import Iterator

import pytest
import servers as real_servers
from chromium import find_chromium
from example_counts import THOROUGH, USUAL, part_of
from hypothesis import HealthCheck, settings
from kafka_server import Kafka, find_kafka
from redis_cluster import Cluster
from servers import Binary, Missing, Server

pytest.register_assert_rewrite("same_state")  # What it asserts is explained where it fails, as in a test file.

IN_CI = bool(os.environ.get("CI"))
SKIP_PREFIX = "wants a real server: "

# No property test fails for being slow on a busy machine. Fixtures that outlast an example are meant to.
settings.register_profile(
    "opic",
    deadline=None,
    max_examples=part_of(USUAL),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("quick", parent=settings.get_profile("opic"), max_examples=20)  # `make check` chooses it.
settings.load_profile("opic")

# Who starts us in the background, as a CI may, has these ignored; the services that we start would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

FOUND = {name: real_servers.find_server(name) for name in real_servers.NAMES} | {
    "kafka": find_kafka(),
    "chromium": find_chromium(),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked `thorough` to a thorough run."""
    if THOROUGH:
        return
    left = [item for item in items if item.get_closest_marker("thorough")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_report_header() -> str:
    """Say which real servers the tests will meet."""
    return f"real servers: {describe_servers()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it again at the end, with what was left untested for want of one."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if SKIP_PREFIX in str(report.longrepr)]
    terminalreporter.section("real servers")
    terminalreporter.line(f"found: {describe_servers()}")
    terminalreporter.line(f"skipped for want of a server: {len(skipped)} tests")


def describe_servers() -> str:
    """One phrase a server: its version, or why there is none."""
    return "; ".join(
        f"{name} {found.version}" if isinstance(found, Binary) else f"{name}: none ({found.reason})"
        for name, found in FOUND.items()
    )


def want_server(name: str) -> Binary:
    """The named server's program; without it the test is skipped, or fails where CI is set."""
    found = FOUND[name]
    if isinstance(found, Missing):
        if IN_CI:
            pytest.fail(f"{SKIP_PREFIX}{found.reason} (a skip, were this not CI)")
        pytest.skip(f"{SKIP_PREFIX}{found.reason}")
    return found


def want_tool(name: str, package: str = "", how: str = "") -> str:
    """The path of a tool, of a Debian package or got as `how` says; without it the test is skipped, or fails in CI."""
    tool = shutil.which(name)
    if tool is None:
        said = how or f"no {name} on the PATH; Debian, Ubuntu: apt-get install --no-install-recommends {package}"
        if IN_CI:
            pytest.fail(f"{SKIP_PREFIX}{said} (a skip, were this not CI)")
        pytest.skip(f"{SKIP_PREFIX}{said}")
    return tool


@pytest.fixture(scope="session")
def running_servers() -> Iterator[dict[str, Server]]:
    """Servers that run already, by name: started by the first test that wants one, stopped with the session."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.close()


def lend_server(name: str, running: dict[str, Server]) -> Iterator[Server]:
    """Hand an empty server to one test; the test may kill it."""
    binary = want_server(name)
    server = running.get(name) or running.setdefault(name, Server(binary))
    server.reset()
    yield server
    server.close_clients()


@pytest.fixture(params=real_servers.NAMES)
def servers(request: pytest.FixtureRequest, running_servers: dict[str, Server]) -> Iterator[Server]:
    """An empty real server; the test runs once for the bundled Valkey and once for Redis."""
    yield from lend_server(request.param, running_servers)


# For what differs between the two in no way that our code above the store could see.
ONE_SERVER = pytest.mark.parametrize(
    "servers", ["valkey", pytest.param("redis", marks=pytest.mark.thorough)], indirect=True
)


@pytest.fixture
def valkey(running_servers: dict[str, Server]) -> Iterator[Server]:
    """An empty bundled Valkey, for what needs one real server but not each."""
    yield from lend_server("valkey", running_servers)


@pytest.fixture(scope="session")
def running_kafka() -> Iterator[Kafka]:
    """A Kafka that was started by the first test that wants one, stopped with the session."""
    with Kafka(want_server("kafka")) as kafka:
        yield kafka


@pytest.fixture
def kafka(running_kafka: Kafka) -> Kafka:
    """A Kafka that runs, with whatever other tests left in it; the test may kill it."""
    if not running_kafka.alive:
        running_kafka.start()
    return running_kafka


@pytest.fixture(scope="session")
def running_clusters() -> Iterator[dict[tuple[str, int], Cluster]]:
    """Clusters that run already, by server and number of replicas; stopped with the session."""
    running: dict[tuple[str, int], Cluster] = {}
    yield running
    for cluster in running.values():
        cluster.close()


def lend_cluster(name: str, replicas: int, running: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    """Hand an empty cluster of three primaries to one test; the test may do to it what it likes."""
    binary = want_server(name)
    cluster = running.get((name, replicas))
    if cluster is None:
        cluster = running[name, replicas] = Cluster(binary, 3, replicas)
        cluster.start()
    cluster.reset()
    yield cluster
    cluster.close_clients()


@pytest.fixture(params=real_servers.NAMES)
def cluster(request: pytest.FixtureRequest, running_clusters: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    """An empty real cluster of three primaries; once of the bundled Valkey, once of Redis."""
    yield from lend_cluster(request.param, 0, running_clusters)


@pytest.fixture
def valkey_cluster(running_clusters: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    """An empty cluster of three primaries of the bundled Valkey, for what Redis can't do."""
    yield from lend_cluster("valkey", 0, running_clusters)


@pytest.fixture(params=real_servers.NAMES)
def cluster_of_six(
    request: pytest.FixtureRequest, running_clusters: dict[tuple[str, int], Cluster]
) -> Iterator[Cluster]:
    """An empty real cluster of three primaries and a replica of each."""
    yield from lend_cluster(request.param, 1, running_clusters)
