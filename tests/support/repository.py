"""The repository as the tests see it: its root, and the files that git tracks or would."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is tracked, or that is new and not ignored; without git, every file outside hidden folders."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        files = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
        ]
    return tuple(sorted(path for path in files if path.is_file()))


def relative(path: Path) -> str:
    """A file's name as a reader of the repository knows it."""
    return path.relative_to(ROOT).as_posix()
