"""Several workers append to one shard: each is refused now and then, none loses anything, none starves."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from logs import PARTITION, pep_history, record
from repository import ROOT
from same_state import assert_same, assert_same_replica, small_batches, small_blocks
from servers import NAMES, Server

from opic.ingest import ShardWriter
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.store import Shard
from opic.store.connection import Line

WORKERS = 4
SECONDS = 6.0
OTHER = "log/other"


@contextmanager
def workers(server: Server, crawl: str, count: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start workers of one shard, each with a partition of its own."""
    script = ROOT / "tests/support/sharing_worker.py"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), server.url, crawl, str(number)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def work(server: Server, crawl: str, count: int) -> list[dict[str, Any]]:
    """Let workers append at once for some seconds; return what each did."""
    Shard.open(server.client(), crawl).client.close()
    with workers(server, crawl, count) as started:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        said = []
        for _ in range(2):  # Begin; end.
            for process in started:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            time.sleep(SECONDS if not said else 0)
            said.append(True)
        return [json.loads(process.communicate(timeout=60)[0]) for process in started]


@pytest.mark.slow
def test_four_workers_of_one_shard_keep_most_of_the_throughput_and_none_starves(
    valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journal and checkpoint are then those of their reads, each once, by whoever."""
    (alone,) = work(valkey, "alone", 1)
    together = work(valkey, "together", WORKERS)
    rates = [one["events"] / one["seconds"] for one in together]
    with capsys.disabled():
        print(f"\nevents/s: one worker {alone['events'] / alone['seconds']:,.0f}; {WORKERS} of one shard ", end="")
        print(f"{sum(rates):,.0f}: {', '.join(f'{rate:,.0f}' for rate in rates)}; longest call, s: ", end="")
        print(f"{alone['longest_call']:.2f}; {', '.join(format(one['longest_call'], '.2f') for one in together)}")
    crawl = Crawl.open(valkey.client(), "together")
    assert crawl.totals().reads == sum(one["events"] for one in together)
    audit, _ = crawl.audit()
    assert audit.conserved, audit.mismatches
    for number, one in enumerate(together):
        assert crawl.shards[0].next_offset(f"log/{number}") == one["events"]
    assert min(rates) > 0.02 * sum(rates), "one of them starved"
    assert sum(rates) > 0.3 * alone["events"] / alone["seconds"]


@contextmanager
def another_appends(other: ShardWriter, log: Sequence[Record], each: int) -> Iterator[list[int]]:
    """Let another worker append a record just before every `each`-th of somebody's is sent; yield how often it did."""
    send, counts = Line.send, [0, 0]
    mine = {"sending": False}

    def sending(line: Line, *commands: Sequence[Any]) -> None:
        if not mine["sending"] and commands and list(commands[0][:2]) == ["FCALL", "opic_5_step"]:
            counts[0] += 1
            if counts[0] % each == 0 and counts[1] < len(log):
                mine["sending"] = True
                other.apply(OTHER, log[: counts[1] + 1])
                mine["sending"] = False
                counts[1] += 1
        send(line, *commands)

    with patch.object(Line, "send", sending):
        yield counts


CHECKPOINTS = {4_000: "checkpoints all the time", 1 << 20: "none"}  # By the bytes that the journal may take.
EACH = [1, 2, 3, 7]
QUICK = [("redis", 1 << 20, 2)]


def is_alike(server: str, journal_bytes: int, each: int) -> bool:
    """Half the cases; the others have each server, size and number with each of the other two."""
    return (NAMES.index(server) + list(CHECKPOINTS).index(journal_bytes) + EACH.index(each)) % 2 == 0


def marks(*case: Any) -> list[pytest.MarkDecorator]:
    return [] if case in QUICK else [pytest.mark.slow, *([pytest.mark.thorough] if is_alike(*case) else [])]


@pytest.mark.parametrize(
    ("servers", "journal_bytes", "each"),
    [
        pytest.param(*one, id=f"{one[0]}-{CHECKPOINTS[one[1]]}-{one[2]}", marks=marks(*one))
        for one in product(NAMES, CHECKPOINTS, EACH)
    ],
    indirect=["servers"],
)  # fmt: skip
def test_worker_after_refused_appends_has_the_state_of_an_undisturbed_one(
    servers: Server, journal_bytes: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided, applied and took back each of those records; new pages, hosts and series among what they did."""
    # Nobody takes a turn while it waits for one: both workers are this thread.
    monkeypatch.setattr("opic.ingest.shard_writer.TURN_SECONDS", 0)
    log = list(pep_history()[:800])
    log += [record(800 + i, f"http://new{i}.org/", [f"http://new{i + 1}.org/"]) for i in range(99)]
    between = [record(i, f"http://h{i}.org/", [f"http://h{i + 1}.org/p", "http://new7.org/"]) for i in range(60)]
    order: list[tuple[str, list[Record]]] = []
    confirm = ShardWriter._confirm

    def confirming(store: ShardWriter, line: Line, sent: Any, *args: Any) -> Any:
        since = confirm(store, line, sent, *args)
        order.extend((one.partition, [one.record]) for one in sent.batch.inputs)
        return since

    shard = Shard.open(servers.client())
    store, other = (ShardWriter(Shard.open(servers.client()), journal_bytes=journal_bytes) for _ in range(2))
    reader = Crawl([shard])
    with small_batches(40), small_blocks(16, 4):
        with patch.object(ShardWriter, "_confirm", confirming), another_appends(other, between, each) as counts:
            for at in range(100, len(log) + 100, 100):
                store.apply(PARTITION, log[:at])
                reader.follow()
        assert counts[1] > 10
        ledger = Ledger()
        for partition, records in order:
            ledger.apply(partition, records)
        assert ledger.next_offset(PARTITION) == len(log)
        undisturbed = Crawl([shard])
        undisturbed.follow()
        assert_same(shard, ledger)
        store.follower.catch_up()
        other.follower.catch_up()
        for replica in (store.replica, other.replica, reader.follow()[0]):
            assert_same_replica(replica, undisturbed.replicas[0])
        store.checkpointer.budget = 64
        store.checkpoint()
        assert shard.client.xlen(shard.keys.journal) == 1
        assert_same(shard, ledger)
