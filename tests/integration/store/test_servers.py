"""The servers the tests rely on: they start empty, keep what they took over a crash, and end."""

import os

import pytest
import redis
from server_process import ServerFailed
from servers import LIVE_OPTIONS, Server


def test_server_starts_empty_with_the_durable_options(servers: Server) -> None:
    client = servers.client(decode_responses=True)
    assert client.dbsize() == 0
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    for option, value in LIVE_OPTIONS.items():
        assert client.config_get(option) == {option: value}


def test_killed_server_keeps_acknowledged_writes(servers: Server) -> None:
    servers.client().hset("cash", "page", 2_097_152)
    pid = servers.pid
    servers.kill()
    assert not servers.alive
    with pytest.raises(redis.ConnectionError):
        servers.client().ping()
    servers.restart()
    assert servers.pid != pid
    assert servers.client().hget("cash", "page") == b"2097152"


def test_restart_stops_a_running_server_first(servers: Server) -> None:
    servers.client().set("clock", 7)
    pid = servers.pid
    servers.restart()
    assert servers.pid != pid
    assert servers.client().get("clock") == b"7"


def test_next_test_finds_an_empty_server(servers: Server) -> None:
    servers.client().set("left", "over")
    servers.client().function_load("#!lua name=left\nredis.register_function('over', function() return 1 end)")
    servers.client().config_set("maxmemory-policy", "allkeys-lru")
    servers.kill()
    servers.reset()
    client = servers.client(decode_responses=True)
    assert client.dbsize() == 0
    assert client.function_list() == []
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_closed_server_leaves_no_process_and_no_files(valkey: Server) -> None:
    with Server(valkey.binary) as server:
        assert server.client().ping()
        pid, directory = server.pid, server.directory
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not directory.exists()


def test_server_that_cannot_start_says_why(valkey: Server) -> None:
    server = Server(valkey.binary)
    server.socket_path.mkdir()
    try:
        with pytest.raises(ServerFailed, match="ended at its start"):
            server.start()
    finally:
        server.close()
