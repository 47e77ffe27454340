"""Whatever is killed, wherever: each event takes effect once, and the books balance to the grain."""

import inspect
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from logs import NOW_US, PARTITION, pep_history
from repository import ROOT
from sameness import assert_same
from servers import Server

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


def fill(server: Server, crawl: str, values: list[bytes]) -> Shard:
    shard = Shard.open(connect(server.url), crawl)
    EventLog(shard.client, shard.keys).append(values, NOW_US)
    return shard


@pytest.mark.slow
def test_killed_before_any_of_fifty_statements_nothing_is_lost_or_doubled(
    valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history of the Python proposals, while worker and server are killed at 50 seeded statements.

    The server writes `appendfsync always`. A statement is drawn from those that such a run comes by, not from time, so
    that one which runs once a batch is as likely as one that runs for each link.
    """
    rng = random.Random(SEED)
    log = pep_history()
    values = [record.value for record in log]
    scratch = fill(valkey, "scratch", values[:800])
    seen = json.loads(run_worker(valkey, "scratch", 100, {"record": True}).stdout)
    scratch.client.close()
    statements = sorted(seen)
    # Where a crash has most to break, around the call that takes effect, each statement gets its turn first.
    lines, first = inspect.getsourcelines(Store._stream)
    near = [s for s in statements if s.startswith("step.py:") and first <= int(s[8:]) < first + len(lines)]
    turns = [(statement, on_server) for statement in near for on_server in (False, True)]
    assert len(turns) > 10

    shard = fill(valkey, "real", values)
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
    source = [type(r)(r.offset, NOW_US, r.value) for r in log]
    ledger.apply(PARTITION, source)
    assert_same(shard, ledger)
    shard.client.close()
    with capsys.disabled():
        print(f"\n{len(crashes)} crashes, seed {SEED}:")
        print("\n".join(f"  {crash}" for crash in crashes))
