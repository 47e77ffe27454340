"""The tutorial of docs/guide/local-rank.md as a reader follows it: its commands print what the page says, to the digit.

Where the page has `…`, digits differ from one run to the next.

It runs in a network namespace of its own, in which nothing but loopback answers: so its ports are free, and the pages
on real websites fail, as the page says that they do without an Internet connection.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SKIP_PREFIX, want_tool
from documents import BIN, parse, printed_as
from repository import ROOT

PAGE = ROOT / "docs/guide/local-rank.md"
MARK = "## Tutorial"
SERVED = {"python3.11-doc": "3.11.2", "sqlite3-doc": "3.40.1"}  # With their versions.
DPKG = shutil.which("dpkg-query")
READY = "curl -s -o /dev/null --fail --retry 60 --retry-all-errors --retry-delay 1 http://127.0.0.1:8080/readyz"
SECONDS_MAX = 1_800.0


def want_pages() -> None:
    """The versions of the packages whose figures the page has, and the right to make a network namespace."""
    for package, version in SERVED.items():
        asked = ["dpkg-query", "--show", "--showformat", "${Version}", package]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout if DPKG else ""
        if not found.startswith(f"{version}-"):
            pytest.skip(
                f"{SKIP_PREFIX}the tutorial's figures are of Debian 12: apt-get install python3-doc sqlite3-doc"
            )
    if os.geteuid():
        pytest.skip(f"{SKIP_PREFIX}only root makes a network namespace in which nginx can run")
    want_tool("nginx", "nginx-light")
    want_tool("ip", "iproute2")


def blocks() -> Iterator[tuple[str, str]]:
    """The blocks of the tutorial: their marks and their contents."""
    begin = PAGE.read_text().split(MARK)[0].count("\n")
    for token in parse(PAGE):
        if token.type == "fence" and token.map is not None and token.map[0] > begin:
            yield token.info, token.content


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder as a checkout is, but for what the tutorial makes in it; the paths of sockets below it must be short."""
    made = Path(tempfile.mkdtemp(prefix="opic-tutorial-"))
    (made / ".venv").mkdir()
    (made / ".venv/bin").symlink_to(BIN)
    yield made
    shutil.rmtree(made)


def script(folder: Path) -> tuple[str, list[tuple[str, str]]]:
    """The commands of the tutorial one after another, and of those that print: where to, and what the page says."""
    lines, expected, number = ["set -euo pipefail", "ip link set lo up"], [], 0
    for kind, content in blocks():
        if kind == "nginx":
            (folder / "nginx.conf").write_text(content)
        elif content.startswith("sudo apt-get"):
            lines += ["mkdir python-docs", "mv nginx.conf python-docs/"]
        elif kind == "text" and content.startswith("importance"):
            expected.append((f"printed.{number}", content))
        elif " serve " in content:
            lines += [f"{content.strip()} > serve.log 2>&1 &", READY]
        else:
            number += 1
            lines.append(f"{content.strip()} > printed.{number} 2> said.{number}")
    return "\n".join(lines) + "\n", expected


@pytest.mark.slow
def test_local_rank_tutorial_prints_what_the_page_says(folder: Path) -> None:
    want_pages()
    text, expected = script(folder)
    assert len(expected) == 3
    (folder / "tutorial.sh").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    # In a process namespace, so that nginx and the service end with the script.
    command = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "tutorial.sh"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    logs = "\n".join(f"{path.name}: {path.read_text()[-800:]}" for path in sorted(folder.glob("said.*")))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{logs}"
    for name, said in expected:
        *ranks, summary = said.splitlines()
        if "\t" in summary:
            ranks.append(summary)
        else:
            assert printed_as(summary, (folder / name.replace("printed", "said")).read_text().splitlines()[-1])
        for told, printed in zip(ranks, (folder / name).read_text().splitlines(), strict=False):
            assert printed_as(told, printed)
