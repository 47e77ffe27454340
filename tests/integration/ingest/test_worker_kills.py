"""Whatever is killed, wherever: each event takes effect once, and the books balance to the grain."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest
from append_only_file import append_only_file, cut
from crashing_worker import near_the_append, run_worker
from example_counts import part_of
from logs import NOW_US, PARTITION, pep_history
from same_state import assert_same, small_blocks
from servers import Server

from opic.ingest.event_log import EventLog
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record, encode_ids
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.store import Shard, connect

CRASHES = part_of(40)
OTHERS = part_of(25)  # Crashes anywhere, once each statement near the append had its turn.
SEED = 20030524


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """The same blocks of few pages as those of the workers."""
    with small_blocks(64, 8):
        yield


def fill(server: Server, crawl: str, log: Sequence[Record]) -> Shard:
    shard = Shard.open(connect(server.url), crawl)
    source = EventLog(shard.client, shard.keys)
    for kind, records in groupby(log, lambda record: record.kind):
        source.append([record.value for record in records], NOW_US, kind)
    return shard


def weighed_history() -> list[Record]:
    """The history of the Python proposals, in which classes are defined, changed and removed on the way."""
    history = pep_history()
    records = [("event", record.value) for record in history[: part_of(len(history))]]
    recent = {"name": "recent", "weight": 4, "contains": ["-05", "-06"]}
    for at, classes in ((part_of(9_000), [{**recent, "weight": 0.5}]), (200, [recent]), (part_of(6_000), [])):
        made = [("classes", encode_classes(check_classes(classes)))]
        records[at:at] = made + [("classify", encode_ids((first, first + 300))) for first in (0, 300, 600)]
    return [Record(offset, NOW_US, value, kind) for offset, (kind, value) in enumerate(records)]


@pytest.mark.slow
def test_worker_killed_before_any_statement_loses_and_repeats_nothing(
    valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history of the Python proposals, while worker and server are killed at seeded statements.

    The server writes `appendfsync always`. A statement is drawn from those that such a run comes by, not from time, so
    that one which runs once a batch is as likely as one that runs for each link. Blocks are few pages, each written by
    a call of its own, and the journal is trimmed all the time; some of the servers that are killed lose the end of
    their file too, be it in the middle of a call.
    """
    rng = random.Random(SEED)
    log = weighed_history()
    scratch = fill(valkey, "scratch", log[:800])
    seen = json.loads(run_worker(valkey, "scratch", 100, {"record": True}).stdout)
    scratch.client.close()
    statements = sorted(seen)
    assert {statement.partition(":")[0] for statement in statements} >= {"checkpoint.py", "url_tail.py", "follow.py"}
    near = near_the_append(seen)
    assert len(near) > 30
    turns = [(statement, at % 2 == 0) for at, statement in enumerate(rng.sample(near, part_of(len(near)) // 2))]
    crashes_max = max(CRASHES, len(turns) + OTHERS)

    shard = fill(valkey, "real", log)
    audited, crashes, behind = Crawl([shard]), list[str](), 0
    while len(crashes) < crashes_max:
        statement, on_server = turns.pop() if turns else (rng.choice(statements), rng.random() < 0.4)
        batch, victim = rng.choice([1, 7, 40]), valkey.pid if on_server else 0
        file = append_only_file(valkey)
        before, size = shard.next_offset(PARTITION), file.stat().st_size
        until = min(before + len(log) // crashes_max, len(log) - 1)  # So that the log lasts for all crashes.
        plan = {"statement": statement, "times": rng.randint(1, max(1, min(seen[statement], 40))), "victim": victim}
        found = run_worker(valkey, "real", batch, {**plan, "until": until})
        if "killed the" in found.stderr:
            crashes += [line for line in found.stderr.splitlines() if line.startswith("killed the")]
        if not valkey.alive:
            if file == append_only_file(valkey) and rng.random() < 0.8:
                whole = file.stat().st_size
                cut(file, rng.randrange(size, whole + 1))
                crashes[-1] += f" (and {whole - file.stat().st_size:,} bytes of {whole - size:,} were lost)"
                behind += 1
            valkey.restart()
        audit, _ = audited.audit()
        assert audit.conserved, (crashes[-1], audit)
    assert behind >= crashes_max // 4  # Of those on the server, which are nearly half, most.
    assert run_worker(valkey, "real", 1000, {"statement": "", "victim": 0}).returncode == 0

    ledger = Ledger()
    ledger.apply(PARTITION, log)
    assert_same(shard, ledger)
    assert len(crashes) >= CRASHES
    shard.client.close()
    with capsys.disabled():
        print(f"\n{len(crashes)} crashes, seed {SEED}:")
        print("\n".join(f"  {crash}" for crash in crashes))
