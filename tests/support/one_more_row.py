"""Runs a script on a copy of the product in which one more row was declared."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import ROOT


def said_with(row: str, before: str, schema: str, folder: Path, script: str, *words: object) -> str:
    """What a script of `tests/support` prints on a copy of `opic/` in a folder, with a row in a file of it.

    Args:
        row: the lines to declare.
        before: what they stand before; it is there once.
        schema: the file.
        folder: for the copy.
        script: name of the script.
        words: its arguments.
    """
    shutil.copytree(ROOT / "opic", folder / "opic")
    file = folder / schema
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, row + before))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support" / script, *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
