"""What every test may use: real servers, started once a session and emptied between tests."""

import os
import signal
from collections.abc import Iterator

import pytest
import servers as real_servers
from servers import Binary, Missing, Server

IN_CI = bool(os.environ.get("CI"))
SKIP_PREFIX = "wants a real server: "

# Who starts us in the background, as a CI may, has these ignored; the services that we start would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

FOUND = {name: real_servers.find_server(name) for name in real_servers.NAMES}


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


@pytest.fixture
def valkey(running_servers: dict[str, Server]) -> Iterator[Server]:
    """An empty bundled Valkey, for what needs one real server but not each."""
    yield from lend_server("valkey", running_servers)
