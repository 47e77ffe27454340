"""A new column of pages is one row of the schema."""

from pathlib import Path

from one_more_row import said_with
from servers import Server

LAST = "    links: tuple[str, ...] | None = field("
ROW = """    links_left_out: int = _column(
        SPARSE, "u4", "n", merge=int.__add__, export=("links_left_out", lambda count, _: count)
    )
"""


def test_new_column_is_one_row_and_is_in_record_undo_checkpoint_backup_audit_and_export(
    valkey: Server, tmp_path: Path
) -> None:
    said = said_with(
        ROW, LAST, "opic/model/ledger_page.py", tmp_path, "one_more_column.py", valkey.url, tmp_path, "links_left_out"
    )
    assert said.split() == ["record", "ledger", "undo", "checkpoint", "backup", "export", "audit"]
