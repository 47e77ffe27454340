"""The way back from a newer server to an older one: its append-only file written as commands, or a backup."""

from pathlib import Path

import pytest
from backup_crawls import filled
from conftest import want_server
from processes import wait_until
from server_process import ServerFailed
from servers import Server

from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl

WAIT_SECONDS = 30


def older_over(newer: Server) -> Server:
    """An older server over the files of a newer one."""
    older = Server(want_server("redis"))
    older.directory.rmdir()
    older.directory, older.socket_path, older.url = newer.directory, newer.socket_path, newer.url
    return older


def test_older_server_reads_the_files_of_a_newer_one_only_if_they_are_commands(tmp_path: Path) -> None:
    with Server(want_server("valkey")) as newer:
        audit = filled(newer).audit()[0]
        backup(Crawl.open(newer.client()), tmp_path / "copy")
        newer.stop()
        older = older_over(newer)
        with pytest.raises(ServerFailed):
            older.start()

        newer.start()
        client = newer.client()
        client.config_set("aof-use-rdb-preamble", "no")
        before = client.info("persistence")["aof_rewrites"]
        client.bgrewriteaof()
        wait_until(lambda: client.info("persistence")["aof_rewrites"] > before, WAIT_SECONDS)
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], WAIT_SECONDS)
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        newer.stop()
        older.start()
        try:
            assert Crawl.open(older.client(), create=False).audit()[0] == audit
            older.client().flushall()
            restore(older.client(), tmp_path / "copy", "default")
            assert Crawl.open(older.client(), create=False).audit()[0].conserved
        finally:
            older.close()
