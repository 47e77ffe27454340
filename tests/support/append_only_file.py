"""The append-only file of a server that is down: where its calls end, and how to lose the last of them."""

from pathlib import Path

from servers import Server

MULTI, EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"


def append_only_file(server: Server) -> Path:
    """Return the one that is written to."""
    files = (server.directory / "appendonlydir").glob("*.incr.aof")
    return max(files, key=lambda file: int(file.name.split(".")[2]))


def cut(file: Path, at: int) -> None:
    """Lose what follows."""
    with file.open("r+b") as written:
        written.truncate(at)


def lose_everything(server: Server) -> None:
    """Take a stopped server's data away, also what a rewrite put into its base file."""
    for file in (server.directory / "appendonlydir").iterdir():
        file.unlink()


def boundaries(file: Path) -> list[int]:
    """Return where calls end: commands, or transactions as a whole, as which a server writes what a function did."""
    written, at, inside, found = file.read_bytes(), 0, False, [0]
    while at < len(written):
        begun = at
        count, at = _number(written, at)
        for _ in range(count):
            size, at = _number(written, at)
            at += size + 2
        command = written[begun:at]
        inside = (inside or command == MULTI) and command != EXEC
        if not inside:
            found.append(at)
    return found


def _number(written: bytes, at: int) -> tuple[int, int]:
    """Read a line as `*3` or `$14`; return its number and where the next one begins."""
    if written[at : at + 1] == b"#":  # A time, between commands.
        at = written.index(b"\n", at) + 1
    end = written.index(b"\r\n", at)
    return int(written[at + 1 : end]), end + 2
