"""A step whose arguments do not have their form is refused before it writes anything."""

import time
from typing import Any

import msgpack
import pytest
import redis
from logs import PARTITION, record
from servers import Server

from opic.ingest import ShardWriter
from opic.store import Shard
from opic.store.keys import Keys, of_call

LISTS = {
    "advances": ["log/0", "0", 1],
    "totals": ["clock", "1e3"],
    "fetches": [-1, 0, 1.0],
    "letters": ["why", "log/0", "0", "", "value"],
    "outboxes": [1, "0", "", "entry"],
    "calls": ["1", "name"],
    "metas": ["meta", [0.5]],
    "senders": [1.0],
    "asked": [1, "soon"],
    "revived": [0.5],
    "forgotten": ["0"],
    "again": [0, 0],
}
OTHERS: dict[str, Any] = {"forget": "now", "since": []}


def blob(**changed: Any) -> dict[str, Any]:
    return {name: [] for name in LISTS} | {"forget": 0, "since": "", "totals": ["clock", "-1"]} | changed


def step(keys: Keys, *names: str, **changed: Any) -> list[Any]:
    fixed = [keys.head, keys.journal, keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails]
    fixed += [keys.sent, keys.seen, keys.page_meta, keys.metrics, keys.urls, keys.changes, *names]
    terms = 0, b"", 1, b"digest..", b"record", 60.0, msgpack.packb(blob(**changed), use_bin_type=False), 9, 9, 9
    return of_call("step", fixed, *terms)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        *(({name: value}, name) for name, value in LISTS.items()),
        *(({name: None}, name) for name in LISTS),
        ({"addresses": ["a.org"]}, "addresses"),
        ({"addresses": ["a.org", 1]}, "addresses"),
        *(({name: value}, "record, since, retry, limits or time") for name, value in OTHERS.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_step_with_a_list_of_another_form_is_refused(valkey: Server, changed: dict[str, Any], named: str) -> None:
    shard = Shard.open(valkey.client())
    before = {key: shard.client.dump(key) for key in shard.client.keys("*")}
    with pytest.raises(redis.ResponseError, match=f"OPICARGS bad {named}"):
        shard.client.execute_command(*step(shard.keys, **changed))
    assert {key: shard.client.dump(key) for key in shard.client.keys("*")} == before


@pytest.mark.parametrize(
    "changed",
    [
        {"forgotten": [0]},
        {"since": "entries"},
        {"outboxes": ["7", "0", "", "entry"]},
        {"senders": [1.0, ""]},
        {"addresses": ["a.org", "192.0.2.1"]},
    ],
)
def test_step_without_a_key_that_its_arguments_need_is_refused(valkey: Server, changed: dict[str, Any]) -> None:
    shard = Shard.open(valkey.client())
    with pytest.raises(redis.ResponseError, match="OPICARGS keys do not match blob"):
        shard.client.execute_command(*step(shard.keys, **changed))
    assert not shard.client.exists(shard.keys.journal, shard.keys.head)


def test_step_that_cannot_tell_of_its_changes_is_refused(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    command = step(shard.keys)
    command.remove(shard.keys.changes)
    command[2] -= 1
    with pytest.raises(redis.ResponseError, match="OPICARGS keys do not match blob"):
        shard.client.execute_command(*command)
    assert not shard.client.exists(shard.keys.journal, shard.keys.head)


def test_step_whose_arguments_have_their_form_is_taken_with_its_keys_in_any_order(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    now = time.time()
    command = step(shard.keys, shard.keys.holders, fetches=[0, 1, now], senders=[1.0, ""])
    count = command[2]
    command[3 : 3 + count] = reversed(command[3 : 3 + count])
    assert shard.client.execute_command(*command) == [b"OK"]
    assert shard.client.zscore(shard.keys.waits, 0) == pytest.approx(now + 60)
    assert shard.client.hget(shard.keys.books, "clock") == b"-1"


def test_worker_sends_arguments_of_that_form(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    ShardWriter(shard).apply(PARTITION, [record(0, "http://a.org/p", ["http://b.org/q"])])
    assert shard.client.hget(shard.keys.offsets, PARTITION) == b"1"


def test_step_with_many_failures_forgets_as_many_waits_that_are_over(valkey: Server) -> None:
    """More than Lua can unpack at once: the record must not be there without the rest of its call."""
    shard = Shard.open(valkey.client())
    now = time.time()
    shard.client.zadd(shard.keys.waits, {str(page): now - 100_000 - page for page in range(10_000, 20_000)})
    failures = [term for page in range(7_500) for term in (page, 1, now)]
    command = step(shard.keys, fetches=failures)
    command[-3] = 1_000_000  # Waits that are kept.
    assert shard.client.execute_command(*command) == [b"OK"]
    assert shard.client.hget(shard.keys.books, "clock") == b"-1"
    assert shard.client.zcard(shard.keys.waits) == 7_500 + 10_000 - 8_500


def test_more_link_segments_than_one_command_takes_are_refused_before_any_is_deleted(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    shard.client.hset(shard.keys.link_segments, mapping={"old": "segment", "v": "0"})
    values = [term for at in range(4_000) for term in (at, "segment")]
    command = of_call("links", (shard.keys.head, shard.keys.link_segments), 0, b"", "0", 1, "old", *values)
    with pytest.raises(redis.ResponseError, match="OPICARGS bad segments"):
        shard.client.execute_command(*command)
    assert shard.client.hexists(shard.keys.link_segments, "old")
