"""A new column of pages is one row of the schema."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import ROOT
from servers import Server

LAST = "    links: tuple[str, ...] | None = field("
ROW = """    links_left_out: int = _column(
        SPARSE, "u4", "n", merge=int.__add__, export=("links_left_out", lambda count, _: count)
    )
"""


def test_new_column_is_one_row_and_is_in_record_undo_checkpoint_backup_audit_and_export(
    valkey: Server, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "opic", tmp_path / "opic")
    schema = tmp_path / "opic/model/ledger_page.py"
    text = schema.read_text()
    assert text.count(LAST) == 1
    schema.write_text(text.replace(LAST, ROW + LAST))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support/one_more_column.py", valkey.url, tmp_path, "links_left_out"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["record", "ledger", "undo", "checkpoint", "backup", "export", "audit"]
