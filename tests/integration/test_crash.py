"""Whatever is killed, wherever: each event takes effect once, and the books balance to the grain."""

import inspect
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from logs import NOW_US, PARTITION, pep_history
from repository import ROOT
from sameness import assert_same
from servers import Server

from opic.classes import check_classes, encode_classes
from opic.events import Record, encode_ids
from opic.ledger import Ledger
from opic.log import EventLog
from opic.store import Shard, Store, connect

CRASHES = 50
SEED = 20030524
WORKER_SECONDS_MAX = 120


def run_worker(server: Server, crawl: str, batch: int, plan: dict[str, object]) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "crashing_worker.py"
    command = [sys.executable, str(script), server.url, crawl, str(batch), json.dumps(plan)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WORKER_SECONDS_MAX, check=False
    )


def fill(server: Server, crawl: str, log: Sequence[Record]) -> Shard:
    shard = Shard.open(connect(server.url), crawl)
    source = EventLog(shard.client, shard.keys)
    for kind, records in groupby(log, lambda record: record.kind):
        source.append([record.value for record in records], NOW_US, kind)
    return shard


def weighed_history() -> list[Record]:
    """The history of the Python proposals, in which classes are defined, changed and removed on the way."""
    records = [("event", record.value) for record in pep_history()]
    recent = {"name": "recent", "weight": 4, "contains": ["-05", "-06"]}
    for at, classes in ((9_000, [{**recent, "weight": 0.5}]), (200, [recent]), (6_000, [])):
        made = [("classes", encode_classes(check_classes(classes)))]
        records[at:at] = made + [("classify", encode_ids((first, first + 300))) for first in (0, 300, 600)]
    return [Record(offset, NOW_US, value, kind) for offset, (kind, value) in enumerate(records)]


@pytest.mark.slow
def test_killed_before_any_of_fifty_statements_nothing_is_lost_or_doubled(
    valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history of the Python proposals, while worker and server are killed at 50 seeded statements.

    The server writes `appendfsync always`. A statement is drawn from those that such a run comes by, not from time, so
    that one which runs once a batch is as likely as one that runs for each link.
    """
    rng = random.Random(SEED)
    log = weighed_history()
    scratch = fill(valkey, "scratch", log[:800])
    seen = json.loads(run_worker(valkey, "scratch", 100, {"record": True}).stdout)
    scratch.client.close()
    statements = sorted(seen)
    # Where a crash has most to break, around the call that takes effect, each statement gets its turn first.
    lines, first = inspect.getsourcelines(Store._stream)
    near = [s for s in statements if s.startswith("step.py:") and first <= int(s[8:]) < first + len(lines)]
    turns = [(statement, on_server) for statement in near for on_server in (False, True)]
    assert len(turns) > 10

    shard = fill(valkey, "real", log)
    crashes: list[str] = []
    while len(crashes) < CRASHES:
        statement, on_server = turns.pop() if turns else (rng.choice(statements), rng.random() < 0.4)
        batch, victim = rng.choice([1, 7, 40]), valkey.pid if on_server else 0
        before = shard.next_offset(PARTITION)
        until = min(before + len(log) // CRASHES, len(log) - 1)  # So that the log lasts for all crashes.
        plan = {"statement": statement, "times": rng.randint(1, max(1, min(seen[statement], 40))), "victim": victim}
        found = run_worker(valkey, "real", batch, {**plan, "until": until})
        if "killed the" in found.stderr:
            crashes.append(found.stderr.split("\n")[0])
        if not valkey.alive:
            valkey.restart()
        audit = shard.audit()
        assert audit.conserved, (crashes[-1], audit)
    assert run_worker(valkey, "real", 1000, {"statement": "", "victim": 0}).returncode == 0

    ledger = Ledger()
    ledger.apply(PARTITION, log)
    assert_same(shard, ledger)
    shard.client.close()
    with capsys.disabled():
        print(f"\n{len(crashes)} crashes, seed {SEED}:")
        print("\n".join(f"  {crash}" for crash in crashes))
