"""The rights that deploy/users.acl gives to the service's user are those that the service needs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from repository import ROOT, relative, repository_files
from servers import Server

SERVICE_FILES = [path for path in repository_files() if relative(path).startswith("opic/")]
# These remove keys, as the user `admin`, or send commands to a server of their own.
AS_ADMIN = ("opic/ops/restore.py", "opic/service/stored_crawls.py", "opic/service/embedded.py", "opic/migration/")
# Names of commands that are methods of other objects too, and that no client of ours is asked for.
OTHER_METHODS = {"dump", "publish", "rename", "reset", "restore", "save", "shutdown", "subscribe", "unlink"}
OTHER_METHODS |= {name for kind in (str, list, dict, set) for name in dir(kind)}


def commands_in_python(text: str) -> Iterator[str]:
    """Names of methods that are called, and first words of lists in capitals: ["HSET", key, ..]."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name not in OTHER_METHODS:
                yield name
            case ast.List(elts=[ast.Constant(value=str(first)), *_]) if first.isupper():
                yield first.split()[0].lower()


def commands_in(path: Path) -> Iterator[str]:
    if path.suffix == ".lua":
        yield from map(str.lower, re.findall(r"redis\.p?call\('(\w+)'", path.read_text()))
    elif path.suffix == ".py" and not relative(path).startswith(AS_ADMIN):
        yield from commands_in_python(path.read_text())


def test_service_may_run_each_command_that_it_sends(valkey: Server) -> None:
    of_server = {name.decode() for name in valkey.client().execute_command("COMMAND LIST")}
    (line,) = [line for line in (ROOT / "deploy/users.acl").read_text().splitlines() if line.startswith("user opic ")]
    granted = {right.split("|")[0] for right in re.findall(r" \+(\S+)", line)}
    sent = {(name, relative(path)) for path in SERVICE_FILES for name in commands_in(path) if name in of_server}
    assert {name for name, _ in sent} > {"hset", "zadd", "fcall", "hlen", "xadd"}
    assert [f"{path} sends {name}" for name, path in sorted(sent) if name not in granted] == []
