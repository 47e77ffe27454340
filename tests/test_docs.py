"""The documents keep their word: every link leads somewhere, and every command in the README works."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import (
    README_URL,
    Command,
    Service,
    commands,
    dead_links,
    installed_help,
    opic_help,
    wrong,
)
from repository import ROOT, relative, repository_files

README = ROOT / "README.md"
DOCUMENTS = [path for path in repository_files() if path.suffix == ".md"]


def readme_commands() -> list[Command]:
    """The commands of the README."""
    if not README.is_file():
        pytest.fail("there is no README.md: it is the first thing a reader opens, and these tests run its commands")
    return commands(README)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """`opic serve --embedded` over an empty data directory."""
    service = Service()
    try:
        service.prepare()
        service.wait_until_ready()
        yield service
    finally:
        service.close()


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert not dead_links(path)


def test_every_command_in_the_readme_exists() -> None:
    found = readme_commands()
    assert any(command.runs for command in found), "the README shows no command that asks a running service"
    assert not [sentence for command in found for sentence in wrong(command)]
    assert installed_help() == opic_help()


@pytest.mark.slow
def test_every_request_in_the_readme_is_answered(service: Service) -> None:
    for command in readme_commands():
        if command.runs:
            complaint = service.run(command)
            assert not complaint, f"{complaint}\n-- the service:\n{service.last_words()}"


def test_dead_link_is_seen(tmp_path: Path) -> None:
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
def test_command_that_does_not_exist_is_seen(text: str, complaint: str) -> None:
    assert any(complaint in sentence for sentence in wrong(Command(1, text)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"curl -s {README_URL}/none", "exit 0, HTTP 404"),
        (f"curl -s {README_URL}/readyz | grep none-such", "exit 1, HTTP 200"),
        (f"curl -s {README_URL}/readyz && curl -s {README_URL}/none", "HTTP 200, 404"),
        ("curl -s http://127.0.0.1:1/", "exit 7, HTTP no answer"),
    ],
)
def test_request_that_fails_is_seen(service: Service, text: str, complaint: str) -> None:
    assert complaint in (service.run(Command(1, text)) or "")


def test_request_that_is_answered_passes(service: Service) -> None:
    assert service.run(Command(1, f"curl -s {README_URL}/readyz")) is None
