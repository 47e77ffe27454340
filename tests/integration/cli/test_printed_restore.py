"""What docs/operations.md prints about backup, restore and its rehearsal works with the shipped files and users."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import want_server
from documents import BIN, Command, commands
from repository import ROOT
from servers import NAMES
from shipped_server import PASSWORDS, ShippedServer

from opic.ingest import Writer
from opic.model.books import BooksAudit
from opic.model.events import Record, encode_seeds
from opic.replica import Crawl
from opic.store import connect

PAGE = ROOT / "docs/operations.md"
SECTION = "## Back up and restore"
ADDRESS = "127.0.0.1:6379"
SECONDS_MAX = 120.0
NOW_US = 1_790_000_000_000_000
PAGES = [f"http://h{i}.example/" for i in range(60)]


def printed() -> list[Command]:
    """The commands of the section, in order."""
    before, _, after = PAGE.read_text().partition(f"{SECTION}\n")
    first, lines = before.count("\n"), after.partition("\n## ")[0].count("\n")
    return [command for command in commands(PAGE) if first < command.line <= first + lines]


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[ShippedServer]:
    with ShippedServer(want_server(request.param)) as server:
        writer = Writer(Crawl.open(connect(server.url), shards=3))
        writer.apply("t/0", [Record(0, NOW_US, encode_seeds(PAGES), "seeds")])
        writer.drain()
        yield server


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="opic-restore-"))
    yield made
    shutil.rmtree(made)


def run(text: str, server: ShippedServer, folder: Path, user: str) -> subprocess.CompletedProcess[str]:
    """Run commands as they are printed, but for the port; before `export`, they name the store as this user."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    environment |= {"STORE_ADMIN_PASSWORD": PASSWORDS["admin"], "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    environment["OPIC_STORE"] = f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{server.port}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text.replace(ADDRESS, f"127.0.0.1:{server.port}")],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def audited(server: ShippedServer) -> BooksAudit:
    return Crawl.open(connect(server.url), create=False).audit()[0]


@pytest.mark.slow
def test_commands_of_the_page_work_as_printed(server: ShippedServer, folder: Path) -> None:
    before, texts = audited(server), [command.text for command in printed()]
    assert [text.split()[:2] for text in texts] == [
        ["export", texts[0].split()[1]], ["opic", "backup"], ["opic", "restore"],
        ["opic", "restore"], ["opic", "audit"], ["opic", "crawls"],
    ]  # fmt: skip
    done = run("\n".join(texts), server, folder, "opic")
    assert done.returncode == 0, done.stderr
    assert "conserved\ttrue" in done.stdout
    assert audited(server) == before
    with server.client() as client:
        assert list(client.scan_iter("opic:{rehearsal:*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["opic restore kept --replace", "opic restore kept --crawl new", "opic crawls --delete default"]
)
def test_user_of_the_service_is_refused_before_anything_changes(
    server: ShippedServer, folder: Path, command: str
) -> None:
    before = audited(server)
    assert run("opic backup kept", server, folder, "opic").returncode == 0
    with server.client() as client:
        keys = {key: client.dump(key) for key in client.scan_iter("opic:*")}
        done = run(command, server, folder, "opic")
        assert done.returncode == 2
        assert "may not remove keys of the store, and nothing was changed: run this as `admin`" in done.stderr
        assert {key: client.dump(key) for key in client.scan_iter("opic:*")} == keys
    assert audited(server) == before  # The crawl is open.
