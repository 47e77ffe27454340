"""How the documents are checked: links by following them, commands by looking them up or running them.

The rules for a command block (a fence marked `sh`, or `console` with `$ ` before each command):

- `make X`, `opic VERB --flag`, `python FILE` and every path must exist; `git`, `cd` and `export` are taken on trust;
- a comment `# {…}` below a command is its answer; `…` in it stands for anything;
- `curl` and the `opic` verbs in RUN_VERBS are run, from the first to the last, against one fresh service, with
  http://127.0.0.1:8080 standing for its address, and each must end well.

Any other command is refused, lest a line stand in a document that nobody ever ran.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from ports import free_port
from repository import ROOT
from typer.testing import CliRunner

from opic.cli.main import app

README_URL = "http://127.0.0.1:8080"
SHELL_FENCES = ("sh", "console")
RUN_VERBS = ("top", "next", "importance", "history", "hosts", "audit", "stats", "replay")
RUN_VERBS += ("seed", "release", "frontier", "inflow", "politeness", "explain", "classes", "rules")
TRUSTED = ("git", "cd", "export")  # What a reader does once in a shell of their own.

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
COMMAND_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05

HELP_WIDTH = 78  # As wide as it gets, however wide the terminal.
PLAIN = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}

BIN = Path(sys.executable).parent


@cache
def parse(path: Path) -> list[Token]:
    """A document's tokens, with tables as GitHub has them."""
    return MarkdownIt("commonmark").enable("table").parse(path.read_text())


def plain_text(inline: Token) -> str:
    """A heading's text without its markup."""
    return "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))


def anchors(path: Path) -> set[str]:
    """The anchors of a document: its headings, named as GitHub names them, and those written as HTML."""
    seen: Counter[str] = Counter()
    found = set(re.findall(r"<[^>]+\b(?:id|name)=\"([^\"]+)\"", path.read_text()))
    tokens = parse(path)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", plain_text(inline).strip().lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def links(path: Path) -> Iterator[str]:
    """The targets of all links and images of a document."""
    for token in parse(path):
        for child in token.children or []:
            target = child.attrs.get("href" if child.type == "link_open" else "src")
            if child.type in ("link_open", "image") and isinstance(target, str):
                yield target


def dead_links(path: Path, root: Path = ROOT) -> list[str]:
    """The relative links of a document that lead nowhere, a sentence each."""
    dead = []
    for target in links(path):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        name = path.relative_to(root)
        if parts.path.startswith("/") or not goal.is_relative_to(root):
            dead.append(f"{name}: {target} leaves the repository; write it relative to {name.parent}/")
        elif not goal.exists():
            dead.append(f"{name}: {target} names no file")
        elif parts.fragment and goal.suffix == ".md" and unquote(parts.fragment) not in anchors(goal):
            dead.append(f"{name}: {target} names no heading; there are {', '.join(sorted(anchors(goal)))}")
    return dead


def spans(path: Path) -> Iterator[str]:
    """The code spans of a document's text."""
    for token in parse(path):
        yield from (child.content for child in token.children or [] if child.type == "code_inline")


def fences(path: Path, kind: str) -> Iterator[str]:
    """The code blocks of a document that are marked with a kind."""
    for token in parse(path):
        if token.type == "fence" and token.info.split()[:1] == [kind]:
            yield token.content


@dataclass(frozen=True)
class Command:
    """One command line of a document, as a reader would paste it: continued lines are one."""

    line: int
    text: str
    answer: str = ""  # What the document says that it prints, `…` for what differs; empty if it says nothing.

    @property
    def calls(self) -> list[list[str]]:
        """The programs it calls, each with its arguments: the parts between `|`, `&&`, `||` and `;`."""
        joined = re.sub(r"\\\n", " ", re.sub(r"<<.*", "", self.text, flags=re.DOTALL))
        lexer = shlex.shlex(joined, posix=True, punctuation_chars="|&;<>")
        lexer.commenters = ""
        lexer.whitespace_split = True
        calls: list[list[str]] = [[]]
        for word in lexer:
            if set(word) <= set("|&;"):
                calls.append([])
            elif not set(word) <= set("<>"):
                calls[-1].append(word)
        # `NAME=value command`: the command is what counts.
        stripped = [
            call[next((i for i, w in enumerate(call) if not re.match(r"\w+=", w)), len(call)) :] for call in calls
        ]
        return [call for call in stripped if call]

    @property
    def runs(self) -> bool:
        """Whether the tests run this command: it asks a running service, or reads recorded pages."""
        return any(program(call) == "curl" or verb(call) in RUN_VERBS or "--recorded" in call for call in self.calls)


def program(call: list[str]) -> str:
    """The program of a call, whichever way it is named: `.venv/bin/opic` is `opic`, `python3` is `python`."""
    name = call[0].removeprefix(".venv/bin/")
    return "python" if name == "python3" else name


def verb(call: list[str]) -> str | None:
    """The verb of a call of opic."""
    return call[1] if program(call) == "opic" and len(call) > 1 and not call[1].startswith("-") else None


def is_complete(text: str) -> bool:
    """Whether a shell would run this, or wait for more lines."""
    if text.endswith("\\"):
        return False
    heredoc = re.search(r"<<-?\s*(['\"]?)(\w+)\1", text)
    if heredoc:
        return heredoc[2] in [line.strip() for line in text.splitlines()[1:]]
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def commands(path: Path) -> list[Command]:
    """All commands in the shell blocks of a document, in their order."""
    found = []
    for token in parse(path):
        if token.type != "fence" or token.map is None:
            continue
        kind = (token.info.split() or [""])[0]
        assert kind not in ("bash", "shell", "zsh"), f"{path.name}:{token.map[0] + 1}: mark the block sh or console"
        if kind not in SHELL_FENCES:
            continue
        open_line, text = 0, ""
        for number, line in enumerate(token.content.splitlines(), token.map[0] + 2):
            if text:
                text += "\n" + (line.removeprefix("> ") if kind == "console" else line)
            elif kind == "console" and not line.startswith("$ "):
                continue  # What the command before printed.
            else:
                open_line, text = number, line.removeprefix("$ ").strip()
            if text.startswith("#"):
                if found and text.startswith("# {"):
                    found[-1] = replace(found[-1], answer=text.removeprefix("# "))
                text = ""
            elif text and is_complete(without_comment(text)):
                found.append(Command(open_line, without_comment(text)))
                text = ""
        assert not text, f"{path.name}:{open_line}: this command does not end within its block: {text}"
    return found


def without_comment(text: str) -> str:
    """Cut a comment off a command of one line."""
    return text if "\n" in text else re.sub(r"\s+# [^'\"]*$", "", text)


@cache
def make_targets(makefile: Path) -> set[str]:
    """The targets of a Makefile that have a name of their own."""
    return set(re.findall(r"^([a-z][\w-]*):", makefile.read_text(), re.MULTILINE))


@cache
def opic_help(*words: str) -> str:
    """What `opic VERB --help` says; in this process, since there are dozens to ask."""
    done = CliRunner().invoke(app, [*words, "--help"], env=PLAIN, prog_name="opic", terminal_width=HELP_WIDTH)
    if done.exit_code != 0:
        raise LookupError(f"opic {' '.join(words)} --help fails: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def installed_help() -> str:
    """What the program that is installed says when asked for help."""
    command, env = [BIN / "opic", "--help"], os.environ | PLAIN
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True).stdout


def opic_flags(*words: str) -> set[str]:
    """The flags that `opic VERB --help` tells of."""
    return set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", opic_help(*words)))


def opic_subcommands(*words: str) -> set[str]:
    """The verbs below a verb, as `create` and `list` are below `topics`."""
    return set(re.findall(r"^  ([a-z][\w-]*)", opic_help(*words).partition("Commands:")[2], re.MULTILINE))


def wrong_opic(call: list[str]) -> Iterator[str]:
    """What is wrong with a call of opic: a verb or a flag that it has not."""
    words = [call[1]] if verb(call) else []
    try:
        known = opic_flags(*words)
        if words and opic_subcommands(*words) and len(call) > 2 and not call[2].startswith("-"):
            words.append(call[2])
            known = opic_flags(*words)
    except LookupError as error:
        yield str(error)
        return
    for word in call[1:]:
        flag = word.split("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", flag) and flag not in known:
            yield f"`opic {' '.join(words)}` has no {flag}" + ("; flags go after the verb" if not words else "")


def ignored(root: Path) -> set[str]:
    """The directories at the top that git passes over, as what a reader made by following a page."""
    file = root / ".gitignore"
    return {line.strip("/") for line in file.read_text().split()} if file.exists() else set()


def wrong_paths(call: list[str], root: Path) -> Iterator[str]:
    """The paths of a call that begin in the repository and lead nowhere."""
    top = {path.name for path in root.iterdir()} - {".venv", ".git", "data", *ignored(root)}
    for word in call:
        path = word.removeprefix("@").removeprefix("./")
        if "://" not in path and "/" in path and path.split("/")[0] in top and not any(root.glob(path)):
            yield f"there is no {path}"


def wrong(command: Command, root: Path = ROOT) -> list[str]:
    """What a reader who pastes this command would trip over, a sentence each."""
    found: list[str] = []
    for call in command.calls:
        name = program(call)
        found += wrong_paths(call, root)
        if name == "make":
            targets = [word for word in call[1:] if "=" not in word and not word.startswith("-")]
            unknown = set(targets) - make_targets(root / "Makefile")
            found += [f"the Makefile has no target {target}" for target in sorted(unknown)]
        elif name == "opic":
            found += wrong_opic(call)
        elif name == "python" and call[1:2] == ["-m"]:
            module = root.joinpath(*call[2].split("."))
            if call[2].split(".")[0] in ("opic", "consumers") and not (
                module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
            ):
                found.append(f"there is no module {call[2]}")
        elif name == "python":
            if not (len(call) > 1 and (root / call[1]).is_file()):
                found.append(f"`{' '.join(call)}` names no file that is here")
        elif name == "curl":
            if not any(word.startswith(README_URL) for word in call):
                found.append(f"this curl does not ask {README_URL}")
        elif not command.runs and name not in TRUSTED and not (root / name).is_file():
            found.append(f"nobody checks `{name}`: the tests know make, opic, python, curl, {', '.join(TRUSTED)}")
    return [f"line {command.line}: {sentence}" for sentence in found]


def printed_as(told: str, printed: str) -> bool:
    """Whether a command printed what a document says; blanks behind commas and colons do not count."""
    told, printed = (text.replace(", ", ",").replace(": ", ":").strip() for text in (told, printed))
    return re.fullmatch(".*".join(map(re.escape, told.split("…"))), printed, re.DOTALL) is not None


class ServiceFailed(RuntimeError):
    """The service, or what it takes to ask it, is not there; the message says why."""


class Service:
    """`opic serve --embedded` as a reader starts it, on a free port and with a new data directory."""

    def __init__(self) -> None:
        # Not pytest's tmp_path: its names are too long for a Unix socket below it.
        self.home = Path(tempfile.mkdtemp(prefix="opic-docs-"))
        self.data = self.home / "data"
        self.place = self.home / "repository"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.home / "serve.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [BIN / "opic", "serve", "--embedded", "--data", self.data, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=self.environment(),
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        """A reader's environment: the virtual environment on the PATH, and no setting but where the data is."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
        path = os.pathsep.join([str(self.home / "bin"), str(BIN), clean.get("PATH", os.defpath)])
        return clean | {
            "PATH": path,
            "OPIC_STORE": f"embedded:{self.data}",
            "OPIC_DATA": str(self.data),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }

    def wait_until_ready(self) -> None:
        """Return once the service says that it is ready."""
        deadline_s = time.monotonic() + READY_SECONDS_MAX
        answer = "no answer"
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise ServiceFailed(f"opic serve ended with {self.process.returncode}:\n{self.last_words()}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):
                    return
            except urllib.error.HTTPError as error:
                with error:
                    answer = f"{error.code} {error.read(500)!r}"
            except OSError as error:
                answer = str(error)
            time.sleep(POLL_SECONDS)
        raise ServiceFailed(f"not ready after {READY_SECONDS_MAX:g} s, {answer}:\n{self.last_words()}")

    def wait_until_applied(self) -> None:
        """Return once all accepted events have taken effect."""
        deadline_s = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline_s:
            with urllib.request.urlopen(f"{self.url}/v1/stats", timeout=10) as answer:
                if json.load(answer)["lag"] == 0:
                    return
            time.sleep(POLL_SECONDS)
        raise ServiceFailed(f"events wait after {READY_SECONDS_MAX:g} s:\n{self.last_words()}")

    def prepare(self, root: Path = ROOT) -> None:
        """Make a folder to run commands in: the repository as links, and a curl that keeps what it was answered."""
        real_curl = shutil.which("curl")
        if real_curl is None:
            raise ServiceFailed("curl commands can't be run without curl; Debian, Ubuntu: apt-get install curl")
        place, tools = self.place, self.home / "bin"
        for folder in (place, tools, self.home / "answers"):
            folder.mkdir()
        for path in root.iterdir():
            (place / path.name).symlink_to(path)
        (tools / "curl").write_text(
            f'#!/bin/sh\nexec {shlex.quote(real_curl)} --max-time 60 --dump-header "{self.home}/answers/$$" "$@"\n'
        )
        (tools / "curl").chmod(0o755)

    def run(self, command: Command) -> str | None:
        """Run a command as the README has it, but for the address; return what went wrong, if anything."""
        if command.answer:
            self.wait_until_applied()
        text = command.text.replace(README_URL, self.url)
        text = re.sub(r"embedded:[\w./-]+", f"embedded:{self.data}", text).replace(".venv/bin/", "")
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", text],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS_MAX,
                cwd=self.place,
                env=self.environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"line {command.line}: `{command.text}` runs for more than {COMMAND_SECONDS_MAX:g} s"
        statuses = []
        for answer in sorted((self.home / "answers").iterdir(), key=lambda path: path.stat().st_mtime_ns):
            statuses += re.findall(r"^HTTP/\S+ (\d+)", answer.read_text(), re.MULTILINE)[-1:]
            answer.unlink()
        if done.returncode == 0 and all(status.startswith("2") for status in statuses):
            if not command.answer or printed_as(command.answer, done.stdout):
                return None
            return f"line {command.line}: `{command.text}` is said to answer {command.answer}, and does\n{done.stdout}"
        came = f"exit {done.returncode}, HTTP {', '.join(statuses) or 'no answer'}"
        said = f"{done.stdout[-1000:]}{done.stderr[-1000:]}".strip()
        return f"line {command.line}: `{command.text}`: {came}:\n{said}"

    def last_words(self) -> str:
        """The end of what the service logged."""
        return self.log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End the service as Ctrl-C in a terminal does, and what it started with it."""
        try:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=STOP_SECONDS_MAX)
            raise ServiceFailed(f"opic serve runs {STOP_SECONDS_MAX:g} s after SIGTERM:\n{self.last_words()}") from None
        finally:
            shutil.rmtree(self.home, ignore_errors=True)
