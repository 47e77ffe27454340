"""Commands without room for what they write: one line says what can't be written, and no part of it is left."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from processes import Service, environment, running, without_source

from opic.errors import BadInput
from opic.whole_files import whole_files

FILE_BYTES_MAX = 1_000
PAGES = [f"http://h{page % 50}.example/{page}" for page in range(5_000)]


def events() -> Iterator[dict[str, object]]:
    """Reads of 100 pages of one domain; with texts of two kinds."""
    for number in range(100):
        kind = ("cats", "purr") if number % 2 else ("dogs", "bark")
        yield {
            "url": f"http://a.example/{number}",
            "links": [f"http://a.example/{(7 * number + at) % 100}" for at in range(5)],
            "fetched_at": 1.7e9 + number,
            "tags": [kind[0]],
            "text": " ".join([*kind, *(f"{kind[0]}{number * at % 50}" for at in range(9))]),
        }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("no-room")
    with running(folder / "data", folder / "log") as found:
        reads = [{"url": "http://a.example/", "links": PAGES, "fetched_at": at} for at in (1.6e9, 1.7e9)]
        assert found.post("/v1/events", reads).status_code == 202
        assert found.post("/v1/seeds", {"urls": ["http://a.example/"], "trust": 1}).status_code == 200
        found.settle()
        with (folder / "texts.jsonl").open("w") as texts, (folder / "events.jsonl").open("w") as plain:
            for event in events():
                texts.write(json.dumps(event) + "\n")
                plain.write(json.dumps({name: value for name, value in event.items() if name != "text"}) + "\n")
        yield found


def limited() -> None:
    """As a full disk: a write fails in the middle."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


def run(
    arguments: Sequence[str], begin: Callable[[], None] | None = None, stdout: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *arguments]
    # Python keeps what it compiled, and doesn't see that the limit cut such a file off: later imports of it would fail.
    env = environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=begin, check=False
    )  # fmt: skip


def told(found: "subprocess.CompletedProcess[str]") -> str:
    """The one line of a command that could not be done."""
    assert found.returncode == 2, found.stderr
    lines = without_source(found.stderr)
    (line,) = [line for line in lines if line.startswith(("opic: ", "experiments: "))]
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr
    return line


COMMANDS = {
    "backup": "opic backup OUT --data DATA",
    "jsonl": "opic export OUT/pages.jsonl --links --data DATA",
    "csv": "opic export OUT/pages.csv --data DATA",
    "cc-ranks": "opic export OUT/hosts --format cc-ranks --data DATA",
    "history": "opic history http://a.example/ --plot OUT/h.svg --service URL",
    "recorded history": "opic history http://a.example/1 --recorded EVENTS --plot OUT/h.svg",
    "coverage": "opic coverage --target .5 --plot OUT/c.svg --service URL",
    "sample": "opic sample --topic tag:cats --recorded EVENTS --steps 50 --plot OUT/s.svg",
    "local-rank": "opic local-rank a.example --crawl EVENTS --recorded EVENTS --plot OUT/l.svg",
    "local-rank state": "opic local-rank a.example --recorded EVENTS --seed-url http://a.example/1 --state OUT/state",
    "topic-model": "opic topic-model OUT/model.json --recorded TEXTS --on tag:cats",
    "experiment": "experiments fig2 --quick --out OUT",
}
# Written like others of these, by the same function.
ALIKE = ("csv", "recorded history", "coverage")
KEPT = {"local-rank state": ["events.jsonl", "state.json"]}  # Whole lines, from which the same command goes on.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in ALIKE else ()) for name in COMMANDS]
)
def test_command_without_room_says_so_and_leaves_no_part_of_a_file(service: Service, tmp_path: Path, name: str) -> None:
    folder, out = service.data.parent, tmp_path / "out"
    out.mkdir()
    words = {"DATA": service.data, "URL": service.url}
    words |= {"EVENTS": folder / "events.jsonl", "TEXTS": folder / "texts.jsonl"}
    text = COMMANDS[name].replace("OUT", str(out))
    for word, value in words.items():
        text = text.replace(word, str(value))
    module, *arguments = text.split()
    line = told(run(["opic.cli.main" if module == "opic" else module, *arguments], limited))
    assert f"{out}" in line
    assert "can't be written" in line
    assert re.search("File too large|No space left", line)
    assert [path.name for path in sorted(out.rglob("*")) if path.is_file()] == KEPT.get(name, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *["--help", "top --n 1000", "top --all --json"],
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in ("series", "stats", "hosts", "history http://a.example/")
        ),
    ],
)
def test_output_that_has_no_room_is_an_error_that_says_so(service: Service, command: str) -> None:
    arguments = command.split() if command == "--help" else [*command.split(), "--service", service.url]
    with open("/dev/full", "w") as full:
        line = told(run(["opic.cli.main", *arguments], stdout=full.fileno()))
    assert line == "opic: standard output can't be written (No space left on device)"


def test_reader_of_the_output_may_go_away(service: Service) -> None:
    command = [sys.executable, "-m", "opic.cli.main", "top", "--all", "--service", service.url]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline()
        one.stdout.close()
        assert one.stderr is not None
        assert without_source(one.stderr.read()) == []
    assert one.returncode == 1


def test_files_are_there_as_a_whole_or_as_they_were(tmp_path: Path) -> None:
    one, other = tmp_path / "deep" / "one", tmp_path / "two"
    other.write_text("before")

    def write(error: BaseException | None = None) -> None:
        with whole_files([one, other]) as (first, second):
            first.write(b"1")
            second.write(b"2")
            if error is not None:
                raise error

    with pytest.raises(BadInput, match=r"one can't be written \(No space left on device\): nothing of it was kept"):
        write(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["two"]
    assert other.read_text() == "before"
    write()
    assert (one.read_bytes(), other.read_bytes()) == (b"1", b"2")
