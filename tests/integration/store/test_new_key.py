"""A new key of a shard is one row."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import ROOT
from servers import Server

LAST = "    barrier = Key("
ROW = '    remarks = Key(HASH, ANY_TIME, "page → what was remarked of it", forgets=True)\n'


def test_new_key_is_one_row_and_is_in_backup_removal_and_what_a_forgotten_page_leaves(
    valkey: Server, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "opic", tmp_path / "opic")
    schema = tmp_path / "opic/store/keys.py"
    text = schema.read_text()
    assert text.count(LAST) == 1
    schema.write_text(text.replace(LAST, ROW + LAST))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support/one_more_key.py", valkey.url, tmp_path],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["opic:{default:0}:remarks", "backup", "forgotten page", "removal"]
