"""A new key of a shard is one row."""

from pathlib import Path

from one_more_row import said_with
from servers import Server

LAST = "    barrier = Key("
ROW = '    remarks = Key(HASH, ANY_TIME, BY_PAGE, "page → what was remarked of it", forgets=True)\n'


def test_new_key_is_one_row_and_is_in_backup_removal_and_what_a_forgotten_page_leaves(
    valkey: Server, tmp_path: Path
) -> None:
    said = said_with(ROW, LAST, "opic/store/keys.py", tmp_path, "one_more_key.py", valkey.url, tmp_path)
    assert said.splitlines() == ["opic:{default:0}:remarks", "backup", "forgotten page", "removal"]
