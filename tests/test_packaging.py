"""What `pip install opic` and its extras bring: each part runs with its own packages, and names the extra it lacks."""

import ast
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository import ROOT, relative, repository_files

from opic.cli.serve import STARTING

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Packages that a listed one always brings, and that our modules import too.
ALONG = {
    "anyio": "starlette",
    "googleapis-common-protos": "protobuf",  # Both have modules below google.
    "pydantic": "pydantic-settings",
    "pydantic-core": "pydantic-settings",
    "twisted": "scrapy",
    "w3lib": "scrapy",
}
KAFKA = "opic/ingest/kafka/"
TRACES = "opic/ingest/traces.py"
GRAPH = ("opic/graph/", "opic/local/", "opic/sampling/")
SAMPLING = "opic/sampling/"
PICTURES = "opic/cli/pictures.py"
PARQUET = "opic/ops/export.py"
ARCHIVES = ("opic/archives/", "opic/compressed.py")
HTML = ("opic/html/", "opic/robots.py")
SCRAPY = "opic/scrapy/"
URLFRONTIER = "opic/urlfrontier/"
CRAWLEE = "opic/crawlee/"
WHERE_INSTALLED = {"opic/query/verification.py": {"igraph"}}  # Used where it is there, and no extra brings it.


def closure(requirements: list[str]) -> set[str]:
    """The distributions that installing requirements brings, their own ones too, without opic itself."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(one), "") for one in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ["", *sorted(requirement.extras)]:
            if (name, wanted) in found:
                continue
            found.add((name, wanted))
            if name == "opic":
                ours = EXTRAS[wanted] if wanted else PROJECT["dependencies"]
                waiting += [(Requirement(one), "") for one in ours]
            else:
                waiting += [(Requirement(one), wanted) for one in distribution(name).requires or []]
    return {name for name, _ in found} - {"opic"}


owners_of_modules = cache(packages_distributions)


def named(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def packages_imported(path: Path) -> Iterator[str]:
    """The distributions whose modules a file imports, anywhere in it."""
    owners = owners_of_modules()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in (name.partition(".")[0] for name in modules):
            if module not in sys.stdlib_module_names and module not in ("opic", "consumers"):
                name = canonicalize_name(owners.get(module, [module])[0])  # Some packages do not say what they have.
                yield ALONG.get(name, name)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in repository_files()
        if path.suffix == ".py" and relative(path).startswith(("opic/", "consumers/"))
    ],
    ids=relative,
)
def test_module_imports_only_packages_that_its_extra_names(path: Path) -> None:
    allowed = named(PROJECT["dependencies"])
    if not relative(path).startswith(("opic/client/", "opic/messages/")):
        allowed |= named(EXTRAS["server"])
    if relative(path).startswith(KAFKA):
        allowed |= named(EXTRAS["kafka"])
    if relative(path) == TRACES:
        allowed |= {*named(EXTRAS["otel"]), "opentelemetry-api"}
    if relative(path).startswith(GRAPH):
        allowed |= named(EXTRAS["graph"])
    if relative(path).startswith(SAMPLING):
        allowed |= named(EXTRAS["sample"])
    if relative(path) == PICTURES:
        allowed |= named(EXTRAS["plot"])
    if relative(path).startswith((*HTML, *GRAPH)):
        allowed |= named(EXTRAS["html"])
    if relative(path).startswith(SCRAPY):
        allowed = named(PROJECT["dependencies"]) | named(EXTRAS["html"]) | named(EXTRAS["scrapy"])
    if relative(path).startswith(CRAWLEE):
        allowed = named(PROJECT["dependencies"]) | named(EXTRAS["html"]) | named(EXTRAS["crawlee"])
    if relative(path).startswith(ARCHIVES):
        allowed |= named(EXTRAS["warc"]) | named(EXTRAS["html"])
    if relative(path).startswith(URLFRONTIER):
        allowed |= named(EXTRAS["urlfrontier"])
    if relative(path) == PARQUET:
        allowed |= named(EXTRAS["parquet"])
    assert set(packages_imported(path)) <= allowed | WHERE_INSTALLED.get(relative(path), set())


def test_all_is_every_extra() -> None:
    others = {f"opic[{name}]" for name in EXTRAS if name != "all"}
    assert closure(["opic[all]"]) == closure(sorted(others))
    assert closure(["opic"]) < closure(["opic[server]"]) < closure(["opic[kafka]"])


# The distributions.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and with the wheel made from it; the locked build backend makes them, offline."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder), str(ROOT))
    return folder


def uv(*words: str) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *words, "--offline", "--no-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def installed(built: Path, folder: Path, extras: str = "") -> Path:
    """The programs of a new virtual environment with the wheel, and with links to the packages that it asks for."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in closure([f"opic{extras}"]):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(found.locate_file(top)))
    (wheel,) = built.glob("*.whl")
    uv("pip", "install", "--no-deps", "--python", str(folder / "bin/python"), str(wheel))
    return folder / "bin"


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    return subprocess.run(
        list(map(str, command)),
        env={**inherited, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def client_only(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(built, tmp_path_factory.mktemp("client") / "env")


@pytest.fixture(scope="module")
def server_only(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(built, tmp_path_factory.mktemp("server") / "env", "[server]")


def test_wheel_installs_one_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as files:
        tops = {name.partition("/")[0] for name in files.namelist()}
    assert tops == {"opic", f"opic-{PROJECT['version']}.dist-info"}


def test_package_exports_its_names_and_imports_lazily(tmp_path: Path) -> None:
    program = """
import opic, sys
assert not {"httpx", "msgspec", "opic.client"} & set(sys.modules), "import opic is not cheap"
print(*(getattr(opic, name).__module__ for name in opic.__all__ if name != "__version__"), opic.__version__)
"""
    done = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.stderr == ""
    assert done.stdout.split() == [*["opic.client.clients"] * 2, "opic.messages.events", PROJECT["version"]]


def test_module_is_the_command(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "opic", "--version", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (0, f"opic {PROJECT['version']}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "extra"), [({}, "server"), ({"OPIC_KAFKA_BOOTSTRAP": "127.0.0.1:9"}, "kafka")])
def test_worker_in_the_repository_without_its_packages_says_which_extra_to_install(
    client_only: Path, settings: dict[str, str], extra: str
) -> None:
    done = run(client_only / "python", "-m", "consumers.crawl_events", cwd=ROOT, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"is not installed: install opic[{extra}], as in: pip install 'opic[{extra}]'")


@pytest.mark.slow
def test_the_client_alone_prints_the_version(client_only: Path, tmp_path: Path) -> None:
    done = run(client_only / "opic", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"opic {PROJECT['version']}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"), [("opic re", {"release", "renew", "replay", "restore"}), ("opic top --by", {"--by"})]
)
def test_the_shell_completes_commands_and_options(tmp_path: Path, words: str, expected: set[str]) -> None:
    asked = {"_OPIC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = run(Path(sys.executable).with_name("opic"), cwd=tmp_path, **asked)
    assert set(done.stdout.split()) == expected, done.stderr


@pytest.mark.slow
def test_types_of_the_installed_package_are_checked(client_only: Path, tmp_path: Path) -> None:
    (tmp_path / "crawler.py").write_text("from opic.client import Client\n\nn: str = Client().stats().known_pages\n")
    mypy = ["-m", "mypy", "--python-executable", client_only / "python", "crawler.py"]
    done = run(Path(sys.executable), *mypy, cwd=tmp_path)
    assert 'Incompatible types in assignment (expression has type "int"' in done.stdout, done.stdout


@pytest.mark.slow
def test_client_runs_with_its_own_packages_alone(client_only: Path, tmp_path: Path) -> None:
    program = """
from importlib.util import find_spec
from opic.client import Client, Unreachable
assert not [name for name in ("typer", "numpy", "redis", "fastapi", "kafka") if find_spec(name)]
try:
    Client("http://127.0.0.1:9", retry_seconds=0).stats()
except Unreachable as error:
    print(error)
"""
    done = run(client_only / "python", "-c", program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GET /v1/stats: ")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--help",), ("serve",), ("worker",)], ids=" ".join)
def test_command_without_the_server_extra_says_to_install_it(
    client_only: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run(client_only / "opic", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "opic: the package typer is not installed: install opic[server], as in: pip install 'opic[server]'\n"
    )


@pytest.mark.slow
def test_command_runs_with_the_server_extra(server_only: Path, tmp_path: Path) -> None:
    done = run(server_only / "opic", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "links.txt").write_text("a b\nb a\n")
    done = run(server_only / "opic", "replay", "links.txt", "--data", "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "audit\tconserved" in done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [("opic", "local-rank a.example"), ("python", "-m consumers.local_domain a.example --state state")],
)
def test_estimator_without_the_graph_extra_says_to_install_it(server_only: Path, program: str, words: str) -> None:
    done = run(server_only / program, *words.split(), cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        ": the local-domain estimator is not installed: install opic[graph], as in: pip install 'opic[graph]'\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("words", ["opic topics list", "opic serve --port 0", "opic worker", "opic dead-letters list"])
def test_command_without_the_kafka_extra_says_to_install_it(server_only: Path, tmp_path: Path, words: str) -> None:
    program, *others = words.split()
    kafka = {"OPIC_KAFKA_BOOTSTRAP": "127.0.0.1:9", "OPIC_STORE": "redis://127.0.0.1:9"}
    done = run(server_only / program, *others, cwd=tmp_path, **kafka)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line != STARTING]
    assert line.endswith(": the Kafka client is not installed: install opic[kafka], as in: pip install 'opic[kafka]'")


@pytest.mark.slow
def test_publisher_without_the_kafka_extra_says_to_install_it(server_only: Path, tmp_path: Path) -> None:
    done = run(server_only / "python", "-c", "import opic.ingest.publish", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith("opic.errors.MissingExtra: the Kafka client is not installed")
