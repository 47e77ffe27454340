"""The documents keep their word: every link leads somewhere; every command, setting, path and call in them works."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from documents import (
    README_URL,
    Command,
    Service,
    commands,
    dead_links,
    fences,
    installed_help,
    links,
    opic_help,
    opic_subcommands,
    printed_as,
    spans,
    wrong,
    wrong_paths,
)
from repository import ROOT, relative, repository_files
from test_deploy import SETTINGS
from typer.main import get_command

from opic.api.app import table_of
from opic.api.calls import Calls
from opic.api.crawl_calls import CrawlCalls
from opic.api.definitions import Definitions
from opic.cli.main import app
from opic.client import AsyncClient, Client
from opic.scrapy.options import CrawlOptions
from opic.settings import Settings
from opic.urlfrontier.server import ROLE_OF
from opic.urls.traps import Traps

README = ROOT / "README.md"
README_LINES_MAX = 180
SCRAPY_SETTINGS = {f"OPIC_{field.name.upper()}" for field in fields(CrawlOptions)}  # Of a Scrapy project.
GUIDE = sorted((ROOT / "docs/guide").glob("*.md"))
OTHERS = ("docs/measurements.md", "CONTRIBUTING.md", "deploy/README.md", "benchmarks/README.md", "examples/README.md")
PAGES = [README, *GUIDE, *(ROOT / name for name in OTHERS)]  # docs/operations.md has a test file of its own.
DOCUMENTS = [path for path in repository_files() if path.suffix == ".md"]
# Defaults that depend on another setting, in the words of the page.
DEFAULTS_IN_WORDS = {
    "OPIC_KAFKA_TOPIC": "`crawl.events`, of other crawls than `default` `crawl.events.NAME`",
    "OPIC_POLICY": "`exact` where links are kept; else `static`, or `interpolation` under `continuous`",
}


@pytest.fixture
def fresh_service() -> Iterator[Service]:
    """`opic serve --embedded` over an empty data directory, for one page."""
    yield from running()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One for all tests that ask for nothing else."""
    yield from running()


def running() -> Iterator[Service]:
    service = Service()
    try:
        service.prepare()
        service.wait_until_ready()
        yield service
    finally:
        service.close()


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_relative_link_resolves(path: Path) -> None:
    assert not dead_links(path)


def test_readme_fits_on_a_few_screens() -> None:
    assert README.read_text().count("\n") <= README_LINES_MAX


def test_readme_links_every_page_of_the_guide() -> None:
    assert GUIDE
    assert {relative(page) for page in GUIDE} <= set(links(README))


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_command_exists(path: Path) -> None:
    assert not [sentence for command in commands(path) for sentence in wrong(command)]
    named = [Command(0, span.replace("…", "")) for span in spans(path) if re.match(r"(make|opic) [a-z]", span)]
    assert not [sentence for command in named for sentence in wrong(command)]


def test_readme_has_commands_to_run_and_installed_help_is_the_same() -> None:
    assert any(command.runs for command in commands(README))
    assert installed_help() == opic_help()


def test_readme_shows_the_answer_of_each_call() -> None:
    silent = [command for command in commands(README) if "/v1/" in command.text and not command.answer]
    assert silent == []


@pytest.mark.parametrize(
    ("told", "printed", "same"),
    [
        ('{"a": 1, "b": 0.25…}', '{"a":1,"b":0.2512}\n', True),
        ('{"a": 1, …}', '{"a":1,"b":[2]}', True),
        ('{"a": 1, …}', '{"a":2,"b":[2]}', False),
        ('{"a": 1}', '{"a":1,"b":2}', False),
    ],
)
def test_answer_that_differs_from_the_document_is_detected(told: str, printed: str, same: bool) -> None:
    assert printed_as(told, printed) is same


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_path_exists(path: Path) -> None:
    words = [word for span in spans(path) for word in span.split()]
    assert not list(wrong_paths(words, ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("path", [page for page in PAGES if any(c.runs for c in commands(page))], ids=relative)
def test_every_request_is_answered(path: Path, fresh_service: Service) -> None:
    for command in commands(path):
        if command.runs:
            complaint = fresh_service.run(command)
            assert not complaint, f"{complaint}\n-- the service:\n{fresh_service.last_words()}"


# Settings.


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_setting_exists(path: Path) -> None:
    others = SCRAPY_SETTINGS if path.stem == "scrapy" else set()
    assert set(re.findall(r"\bOPIC_[A-Z_]*[A-Z]\b", path.read_text())) <= SETTINGS | others


def test_page_of_scrapy_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(OPIC_\w+)` \| (.+?) \|", (ROOT / "docs/guide/scrapy.md").read_text(), re.MULTILINE))
    assert rows.keys() == SCRAPY_SETTINGS
    assert rows["OPIC_MODE"] == f"`{CrawlOptions.mode}`"
    assert rows["OPIC_NOFOLLOW"] == f"`{CrawlOptions.nofollow}`"
    assert float(rows["OPIC_CLOSE_AFTER_IDLE"]) == CrawlOptions.close_after_idle


def documented_defaults() -> dict[str, str]:
    text = (ROOT / "docs/guide/settings.md").read_text()
    rows = re.findall(r"^\| `(OPIC_\w+)`(?: \*)? \| (.+?) \|", text, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a setting stands in two rows"
    return dict(rows)


def shown(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return {None: "none", True: "on", False: "off"}[default]
    return (
        f"{default:g}" if isinstance(default, float) else f"{default}" if isinstance(default, int) else f"`{default}`"
    )


def test_settings_page_has_every_setting_with_its_default() -> None:
    fields = {f"OPIC_{name.upper()}": shown(field.default) for name, field in Settings.model_fields.items()}
    assert documented_defaults() == fields | DEFAULTS_IN_WORDS


def test_page_of_commands_lists_those_that_ask_no_service() -> None:
    text = " ".join((ROOT / "docs/guide/cli.md").read_text().split())
    listed = re.search(r"Commands without `--service` work on the store or on Kafka themselves: (.+?)\. ", text)
    assert listed is not None
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    groups = {name: [one, *getattr(one, "commands", {}).values()] for name, one in commands.items()}
    asking = {name for name, group in groups.items() if any(p.name == "service" for one in group for p in one.params)}
    alone = commands.keys() - asking
    assert set(re.findall(r"`([\w-]+)`", listed[1])) == alone - {"topic-model", "tokens"}  # Which need neither.


def test_page_of_traps_has_every_threshold_with_its_default() -> None:
    text = (ROOT / "docs/guide/classes-and-rules.md").read_text()
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ([\d,. ]+) \|", text, re.MULTILINE)
    found = {
        name.strip("`"): default
        for names, defaults in rows
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True)
    }
    plain = {name: f"{default:,}" for name, default in Traps().shown().items() if name != "on"}
    assert found == plain


# Commands and calls.


def test_command_line_page_names_every_command() -> None:
    text = (ROOT / "docs/guide/cli.md").read_text()
    assert {name for name in opic_subcommands() if f"`opic {name}`" not in text} == set()


def test_http_page_names_every_call_and_no_other() -> None:
    served = set(re.findall(r'"(?:GET|POST|PUT|DELETE)", "(/v1/[\w/{}-]+)"', (ROOT / "opic/api/app.py").read_text()))
    assert served
    begin = {"/".join(path.split("/")[:3]) for path in served}
    text = (ROOT / "docs/guide/http.md").read_text()
    assert {path for path in served if f"{path}`" not in text} == set()
    for page in PAGES:
        named = set(re.findall(r"(?<![\w.])(?:http://127.0.0.1:8080)?(/v1/[a-z-]+)", page.read_text()))
        assert named <= begin, relative(page)


def test_table_of_roles_names_every_call_with_its_own() -> None:
    text = (ROOT / "docs/guide/http.md").read_text()
    rows = re.findall(r"^\| `(publish|crawl|read|admin)` \| .+ \| (.+) \|$", text, re.MULTILINE)
    told = {call: role for role, calls in rows for call in re.findall(r"`([A-Z]+ /[^`]+)`", calls)}
    table: Any = table_of(Calls, Definitions, CrawlCalls, None)  # type: ignore[arg-type]
    wanted = {f"{one.method} {one.path}": one.role for one in table if one.role is not None}
    assert {role for call, role in wanted.items() if call.startswith("GET ")} == {"read"}  # "each `GET`"
    assert told == {call: role for call, role in wanted.items() if not call.startswith("GET ")}


def test_table_of_roles_names_every_call_of_urlfrontier() -> None:
    text = (ROOT / "docs/guide/urlfrontier.md").read_text()
    rows = re.findall(r"^\| `(publish|crawl|read|admin)` \| ([\w, ]+) \|$", text, re.MULTILINE)
    assert {call: role for role, calls in rows for call in calls.split(", ")} == ROLE_OF


# Python.


def wrong_python(source: str) -> Iterator[str]:
    """What is wrong with a block of Python: names that opic does not have, arguments that a call does not take."""
    tree = ast.parse(source)
    namespace: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            try:
                exec(compile(ast.Module([node], []), "document", "exec"), namespace)
            except ImportError as error:
                yield str(error)
    objects = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and isinstance(node.context_expr, ast.Call):
            made, name = namespace.get(getattr(node.context_expr.func, "id", "")), node.optional_vars
            if made is not None and isinstance(name, ast.Name):
                objects[name.id] = made
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from wrong_call(node, namespace, objects)


def wrong_call(node: ast.Call, namespace: dict[str, Any], objects: dict[str, Any]) -> Iterator[str]:
    """Whether a function of opic takes a call as it is written."""
    if isinstance(node.func, ast.Name):
        called = namespace.get(node.func.id)
    elif isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", None) in objects:
        called = getattr(objects[node.func.value.id], node.func.attr, None)  # type: ignore[attr-defined]
        if called is None:
            yield f"there is no {ast.unparse(node.func)}"
    else:
        return
    if called is None:
        return
    method = [None] if isinstance(node.func, ast.Attribute) else []
    try:
        inspect.signature(called).bind(
            *method, *([None] * len(node.args)), **{word.arg: None for word in node.keywords if word.arg}
        )
    except TypeError as error:
        yield f"{ast.unparse(node.func)}: {error}"


def test_every_python_block_calls_existing_functions() -> None:
    blocks = [(path, block) for path in PAGES for block in fences(path, "python")]
    assert len(blocks) > 3
    assert [(relative(path), sentence) for path, block in blocks for sentence in wrong_python(block)] == []


class Enough(Exception):
    """Ends a sample that would go on for ever."""


@pytest.mark.slow
def test_samples_of_the_client_run(service: Service) -> None:
    blocks = list(fences(ROOT / "docs/guide/client.md", "python"))  # The one of the README has a test of its own.
    assert len(blocks) >= 3
    for block in blocks:
        fetched: list[str] = []

        def fetch_links(url: str, fetched: list[str] = fetched) -> list[str]:
            fetched.append(url)
            if len(fetched) == 3:
                raise Enough
            return ["https://a.example/", f"https://b{len(fetched)}.example/", f"https://c{len(fetched)}.example/"]

        code = compile(block.replace(README_URL, service.url), "sample", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with suppress(Enough):
            made = eval(code, {"fetch_links": fetch_links})
            if made is not None:
                asyncio.run(made)
        assert len(fetched) == 3 or "while True" not in block


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_client_page_names_every_method(kind: type) -> None:
    methods = {name for name in vars(kind) if not name.startswith("_")} - {"close", "aclose"}
    assert methods <= set(spans(ROOT / "docs/guide/client.md"))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("client.next(10, domain='a.example')", None),
        ("client.next(10, sites=['a.example'])", "got an unexpected keyword argument 'sites'"),
        ("client.brew()", "there is no client.brew"),
        ("Event(links=[])", "missing a required argument: 'url'"),
    ],
)
def test_python_call_that_does_not_exist_is_detected(call: str, complaint: str | None) -> None:
    found = list(wrong_python(f"from opic.client import Client, Event\nwith Client() as client:\n    {call}\n"))
    assert not found if complaint is None else complaint in found[0]


# The checks themselves.


def test_dead_link_is_detected(tmp_path: Path) -> None:
    guide, other = tmp_path / "guide.md", tmp_path / "other.md"
    other.write_text("# The `opic` *heart*, twice!\n\n# The opic heart, twice\n\n<a id='x'></a><a id=\"here\"></a>\n")
    guide.write_text(
        "[a](other.md) [b](other.md#the-opic-heart-twice) [c](other.md#the-opic-heart-twice-1) [d](other.md#here)\n"
        "[e](#own) [f](https://example.org/none.md#x) ![g](none.png) [h](other.md#none) [i](../outside.md) [j](/x.md)\n"
        "\n| table |\n|---|\n| [k](none.md) |\n\n## Own\n\n```md\n[in a fence](none.md)\n```\n"
    )
    assert [line.split()[1] for line in dead_links(guide, tmp_path)] == [
        "none.png",
        "other.md#none",
        "../outside.md",
        "/x.md",
        "none.md",
    ]


SAMPLE = """\
# Sample

```sh
git clone https://example.org/opic.git && cd opic
make demo SERVE=0   # a comment
# a comment of its own
```

```console
$ curl -s http://127.0.0.1:8080/v1/events \\
>   -d '{"url": "http://a.example/",
>        "links": ["http://b.example/"]}'
{"accepted": 1}
$ curl -s 'http://127.0.0.1:8080/v1/top?n=3&policy=static' | python3 -m json.tool
$ curl -s http://127.0.0.1:8080/v1/events -d @- <<'END'
{"url": "http://b.example/; make nothing"}
END
```

```python
import opic  # not a command
```
"""


def test_commands_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    (tmp_path / "sample.md").write_text(SAMPLE)
    found = commands(tmp_path / "sample.md")
    assert [(command.line, command.runs) for command in found] == [
        (4, False),
        (5, False),
        (10, True),
        (14, True),
        (15, True),
    ]
    assert found[0].calls == [["git", "clone", "https://example.org/opic.git"], ["cd", "opic"]]
    assert found[1].text == "make demo SERVE=0"
    assert found[2].calls[0][4] == '{"url": "http://a.example/",\n       "links": ["http://b.example/"]}'
    assert [call[0] for call in found[3].calls] == ["curl", "python3"]
    assert found[4].calls == [["curl", "-s", "http://127.0.0.1:8080/v1/events", "-d", "@-"]]
    assert not [sentence for command in found for sentence in wrong(command)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("make tea", "no target tea"),
        ("make demo teapot SERVE=0", "no target teapot"),
        ("python examples/none.py", "there is no examples/none.py"),
        ("python none.py", "names no file that is here"),
        ("python -m consumers.none", "there is no module consumers.none"),
        ("curl http://127.0.0.1:9999/v1/top", "does not ask http://127.0.0.1:8080"),
        ("docker run opic", "nobody checks `docker`"),
        ("opic brew", "opic brew --help fails"),
        ("opic serve --port 8080 --teapot", "`opic serve` has no --teapot"),
        ("opic replay examples/data/none.tsv.gz", "there is no examples/data/none.tsv.gz"),
    ],
)
def test_command_that_does_not_exist_is_detected(text: str, complaint: str) -> None:
    assert any(complaint in sentence for sentence in wrong(Command(1, text)))


def test_what_a_reader_made_by_following_a_page_is_no_part_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "opic").mkdir()
    made = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if re.fullmatch(r"/[\w-]+/", line)]
    assert "python-docs" in made
    for name in made:
        (tmp_path / name).mkdir()
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    asked = [*(f"{name}/data" for name in made), "opic/none"]
    assert list(wrong_paths(asked, tmp_path)) == ["there is no opic/none"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"curl -s {README_URL}/none", "exit 0, HTTP 404"),
        (f"curl -s {README_URL}/readyz | grep none-such", "exit 1, HTTP 200"),
        (f"curl -s {README_URL}/readyz && curl -s {README_URL}/none", "HTTP 200, 404"),
        ("curl -s http://127.0.0.1:1/", "exit 7, HTTP no answer"),
    ],
)
def test_failed_request_is_detected(service: Service, text: str, complaint: str) -> None:
    assert complaint in (service.run(Command(1, text)) or "")


def test_request_that_is_answered_passes(service: Service) -> None:
    assert service.run(Command(1, f"curl -s {README_URL}/readyz")) is None
