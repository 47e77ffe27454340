"""A call with an Idempotency-Key takes effect once: however often it comes, and whoever dies in its middle."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate, chain
from pathlib import Path
from types import SimpleNamespace

import curls
import httpx
import msgpack
import pytest
import redis
from logs import values_in
from repository import ROOT
from servers import Server
from serving import serving

from opic.errors import KeyReused, KeysFull
from opic.ingest import event_log as log_module
from opic.ingest.event_log import KEY_MEMORY_BYTES, AppendTerms, Begun, EventLog, KeyedCall
from opic.model.events import EventLimits, decode_crawl_event
from opic.service.backend import Backend
from opic.settings import Settings
from opic.store import Shard, connect

pytestmark = pytest.mark.slow

DAY_US = 86_400_000_000
NOW_US = 1_790_000_000_000_000
TERMS = AppendTerms(NOW_US, EventLimits())
VALUES = [b"value %d" % n for n in range(10)]
A_CALL = 3  # Values an append, here: so ten values need four.

# Appends VALUES in parts of A_CALL and kills itself before part number argv[3], or after it was sent and not answered.
DIES = """
import os, signal, sys
from opic.ingest import event_log as log_module
from opic.ingest.event_log import AppendTerms, EventLog, KeyedCall
from opic.model.events import EventLimits
from opic.store import Shard, connect

log_module.VALUES_A_CALL = int(sys.argv[2])
client = connect(sys.argv[1], retries=0)
log = EventLog(client, Shard.open(connect(sys.argv[1])).keys)
left, send = int(sys.argv[3]), client.execute_command

def execute(*args, **options):
    global left
    if args[:2] != ("FCALL", "opic_5_append"):
        return send(*args, **options)
    if left == 0:
        if sys.argv[4] == "sent":
            send(*args)
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return send(*args)

client.execute_command = execute
call, terms = KeyedCall.of("key", "json", b"body"), AppendTerms(int(sys.argv[5]), EventLimits())
log.append_once(call, [b"value %d" % n for n in range(10)], log.begun(call), terms)
"""


@pytest.fixture
def log(servers: Server, monkeypatch: pytest.MonkeyPatch) -> EventLog:
    monkeypatch.setattr(log_module, "VALUES_A_CALL", A_CALL)
    client = servers.client()
    return EventLog(client, Shard.open(client).keys)


def once(log: EventLog, values: list[bytes] = VALUES, key: str = "key", body: bytes = b"body") -> bool:
    call = KeyedCall.of(key, "json", body)
    begun = log.begun(call)
    return log.append_once(call, values, begun, begun.terms if begun else TERMS)


def in_log(log: EventLog) -> list[bytes]:
    records = log.read(0, 1_000)
    values = [values_in(record) for record in records]
    assert [record.offset + 1 for record in records] == list(accumulate(map(len, values)))
    assert sum(map(len, values)) == log.end()
    return list(chain(*values))


# The log.


def test_repeated_call_is_appended_once(log: EventLog) -> None:
    log.append([b"before"], NOW_US)
    for _ in range(3):
        assert once(log)
        log.append([b"other"], NOW_US)
    assert in_log(log) == [b"before", *VALUES, b"other", b"other", b"other"]


def test_call_without_values_takes_no_room(log: EventLog) -> None:
    for _ in range(2):
        assert once(log, [])
    assert (in_log(log), log.client.hlen(log.keys.calls)) == ([], 0)
    assert once(log)
    assert once(log)
    assert in_log(log) == VALUES


def test_key_with_another_body_is_refused_before_and_in_the_append(log: EventLog) -> None:
    once(log)
    with pytest.raises(KeyReused):
        log.begun(KeyedCall.of("key", "json", b"else"))
    with pytest.raises(KeyReused):
        log.begun(KeyedCall.of("key", "lines", b"body"))
    with pytest.raises(KeyReused):
        log.append_once(KeyedCall.of("key", "json", b"else"), VALUES, None, TERMS)
    assert in_log(log) == VALUES


def test_repeat_is_told_the_terms_of_the_first_call(log: EventLog) -> None:
    once(log)
    call = KeyedCall.of("key", "json", b"body")
    assert log.begun(call) == Begun(TERMS, len(VALUES))
    later = AppendTerms(NOW_US + 1, EventLimits(links_max=1))
    assert not log.append_once(call, VALUES, None, later)  # As one who looked just before the other began.
    assert in_log(log) == VALUES


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unsent", "sent"])
@pytest.mark.parametrize("at", range(4))
def test_repeat_completes_a_call_killed_between_two_appends(log: EventLog, at: int, how: str) -> None:
    command = [sys.executable, "-c", DIES, _url(log), str(A_CALL), str(at), how, str(NOW_US)]
    for _ in range(2):  # The second one goes on where the first one died, and dies in its turn.
        died = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        assert died.returncode in (-9, 0)
    begun = log.begun(KeyedCall.of("key", "json", b"body"))
    assert (begun.done if begun else 0) == log.end()
    assert once(log)
    assert in_log(log) == VALUES


def _url(log: EventLog) -> str:
    return f"unix://{log.client.connection_pool.connection_kwargs['path']}"


def test_concurrent_callers_append_each_value_once(log: EventLog) -> None:
    url, barrier, said = _url(log), threading.Barrier(6), []

    def repeat() -> None:
        mine = EventLog(connect(url, retries=0), log.keys)
        barrier.wait()
        call = KeyedCall.of("key", "json", b"body")
        said.append(mine.append_once(call, VALUES, None, TERMS))
        mine.client.close()

    threads = [threading.Thread(target=repeat) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [{log.partition: len(VALUES)}] * 6
    assert in_log(log) == VALUES


def pass_time(log: EventLog, us: int) -> None:
    """Let the times at which keys end come nearer: the server's clock decides, and can't be set."""
    for key, ends in log.client.zrange(log.keys.call_ends, 0, -1, withscores=True):
        log.client.zadd(log.keys.call_ends, {key: ends - us})


def test_key_is_free_again_after_a_day_and_takes_no_room(log: EventLog) -> None:
    for n in range(250):
        assert log.remember(KeyedCall.of(str(n), "json", b"body"), (), None, TERMS)
    once(log)
    pass_time(log, DAY_US - 60_000_000)
    once(log)
    assert in_log(log) == VALUES
    pass_time(log, 60_000_000)
    assert log.begun(KeyedCall.of("key", "json", b"else")) is None
    once(log, [b"new"], body=b"else")
    assert in_log(log) == [*VALUES, b"new"]
    log.append([b"a", b"b"], NOW_US)  # A hundred go at each call, whoever makes it.
    log.append([b"c"], NOW_US)
    assert log.client.hlen(log.keys.calls) == log.client.zcard(log.keys.call_ends) == 1


def test_too_many_keys_are_refused_and_none_is_forgotten(log: EventLog) -> None:
    log.keys_max = 2
    once(log, key="1")
    pass_time(log, 1_000_000)
    once(log, key="2")
    with pytest.raises(KeysFull, match="OPIC_MAX_KEYS_BYTES") as raised:
        once(log, key="3")
    assert 86_390 <= raised.value.retry_seconds <= 86_399
    assert once(log, key="1")
    assert once(log, [], key="empty")
    assert log.end() == 2 * len(VALUES)
    log.append([b"no key"], NOW_US)
    pass_time(log, DAY_US - 1_000_000)
    assert once(log, key="3")


def test_memory_of_a_key_is_within_the_estimate(log: EventLog) -> None:
    for n in range(6_000):
        log.remember(KeyedCall.of(str(n), "json", b"%d" % n), (), None, TERMS)
    names = (log.keys.calls, log.keys.call_ends)
    each = sum(log.client.memory_usage(name, samples=0) for name in names) / 6_000
    assert KEY_MEMORY_BYTES / 2 < each < KEY_MEMORY_BYTES


# The endpoint.


@pytest.fixture
def post(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Post to an endpoint over the store, `restart` it with other settings, and see the log."""
    monkeypatch.setattr(log_module, "VALUES_A_CALL", A_CALL)
    made = SimpleNamespace()
    stack = ExitStack()

    def restart(**settings: object) -> None:
        stack.close()
        backend = Backend(Settings.load(store=valkey.url, **settings), valkey.url)
        stack.callback(backend.close)
        made.url = stack.enter_context(serving(SimpleNamespace(backend=backend, not_ready=lambda: None)))
        made.log = backend.log

    def send(body: object, key: str = "key", kind: str = "application/json") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": kind, "idempotency-key": key}
        return curls.post(made.url + "/v1/events", content=content, headers=headers, timeout=30)

    made.restart, made.send = restart, send
    restart()
    with stack:
        yield made


EVENTS: list[dict[str, object]] = [{"url": f"http://a.example/{n}"} for n in range(10)]


def urls(post: SimpleNamespace) -> list[str]:
    return [decode_crawl_event(value).url for value in in_log(post.log)]


def test_repeated_request_takes_effect_once_and_gets_the_same_answer(post: SimpleNamespace, valkey: Server) -> None:
    body = [*EVENTS[:4], {"url": "/about"}, *EVENTS[4:], 7]
    first = post.send(body)
    assert (first.status_code, first.json()["accepted"], len(first.json()["rejected"])) == (202, 10, 2)
    post.restart()
    valkey.kill()
    valkey.start()
    again = post.send(body)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert urls(post) == [event["url"] for event in EVENTS]
    assert post.send(body, key="another").json() == first.json()
    assert post.log.end() == 20


def test_key_with_another_body_is_a_422(post: SimpleNamespace) -> None:
    assert post.send(EVENTS[0]).status_code == 202
    for body, kind in (
        (EVENTS[1], "application/json"),
        (EVENTS[0], "application/x-ndjson"),
        (b"{", ""),
        (b"\x80", "application/msgpack"),
    ):
        refused = post.send(body, kind=kind)
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:opic:problem:key-reused")
    assert post.log.end() == 1


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/msgpack"])
def test_key_is_remembered_over_restarts_in_every_form(post: SimpleNamespace, valkey: Server, kind: str) -> None:
    encode = msgpack.packb if kind == "application/msgpack" else lambda event: json.dumps(event).encode()
    first = post.send(encode(EVENTS[0]), kind=kind)
    assert first.status_code == 202
    for _ in range(2):
        other = post.send(encode(EVENTS[1]), kind=kind)
        assert (other.status_code, other.json()["type"]) == (422, "urn:opic:problem:key-reused")
        same = post.send(encode(EVENTS[0]), kind=kind)
        assert (same.status_code, same.content) == (202, first.content)
        post.restart()
        valkey.kill()
        valkey.start()
    assert urls(post) == ["http://a.example/0"]


def test_refused_call_leaves_its_key_free(post: SimpleNamespace) -> None:
    assert post.send({"url": "/about"}).status_code == 422
    assert post.send(b"{").status_code == 400
    assert post.send(EVENTS[0]).status_code == 202
    assert post.send([]).status_code == 422


def test_repeat_is_judged_as_the_call_was_though_settings_changed(post: SimpleNamespace) -> None:
    body = [{"url": "http://a.example/".ljust(100 + n, "x")} for n in range(5)]
    post.restart(max_url_bytes=len(body[2]["url"]))
    first = post.send(body)
    assert first.json()["accepted"] == 3
    post.restart()
    assert post.send(body).content == first.content
    assert post.log.end() == 3


def test_repeat_of_an_interrupted_call_appends_the_rest_only(
    post: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opic.model.packed_events.EVENTS_A_PACK", 1)
    send, sent = post.log.client.execute_command, 0

    def break_off(*args: object, **options: object) -> object:
        nonlocal sent
        sent += args[:2] == ("FCALL", "opic_5_append")
        if sent == 3:
            sent += 1
            raise redis.ConnectionError("cut")
        return send(*args, **options)

    post.log.client.execute_command = break_off
    assert post.send(EVENTS).status_code == 503
    assert post.log.end() == 2 * A_CALL
    assert post.send(EVENTS).json() == {"accepted": 10, "rejected": []}
    assert urls(post) == [event["url"] for event in EVENTS]


def test_full_backlog_refuses_a_new_call_but_not_the_repeat_of_an_accepted_one(post: SimpleNamespace) -> None:
    post.restart(max_lag=10)
    assert post.send(EVENTS).status_code == 202
    assert post.send(EVENTS).status_code == 202
    assert post.send(EVENTS, key="another").status_code == 503
    assert post.log.end() == 10


def test_too_many_keys_are_a_503_that_says_when(post: SimpleNamespace) -> None:
    post.restart(max_keys_bytes=4 * KEY_MEMORY_BYTES)
    assert [post.send([], key=f"empty {n}").status_code for n in range(5)] == [202] * 5
    assert [post.send(EVENTS[2], key=f"key {n}").status_code for n in range(3)] == [202] * 3
    assert post.send(EVENTS[0]).status_code == 202
    full = post.send(EVENTS[1], key="another")
    assert (full.status_code, full.json()["type"]) == (503, "urn:opic:problem:keys-full")
    assert 86_390 <= int(full.headers["retry-after"]) <= 86_400
    assert post.send(EVENTS[0]).status_code == 202


def test_clock_of_an_endpoint_that_is_a_day_ahead_ends_no_key_and_dates_no_record(
    post: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post.send(EVENTS).status_code == 202
    now_us, ahead = time.time_ns() // 1000, 25 * 3_600 * 1_000_000_000
    ours, ours_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: ours() + ahead / 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: ours_ns() + ahead)
    post.restart()
    unkeyed = curls.post(post.url + "/v1/events", json=EVENTS[0])
    far = curls.post(post.url + "/v1/events", json={**EVENTS[0], "fetched_at": now_us / 1e6 + 25 * 3_600})
    assert (unkeyed.status_code, far.status_code) == (202, 422)
    assert post.send(EVENTS[0], key="other").status_code == 202
    monkeypatch.undo()
    assert post.send(EVENTS).status_code == 202
    records = post.log.read(0, 100)
    assert len(in_log(post.log)) == len(EVENTS) + 2
    assert all(abs(record.time_us - now_us) < 600_000_000 for record in records)


def test_concurrent_requests_take_effect_once(post: SimpleNamespace) -> None:
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(post.send(EVENTS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(a.status_code, a.content) for a in answers} == {(202, b'{"accepted":10,"rejected":[]}\n')}
    assert urls(post) == [event["url"] for event in EVENTS]
