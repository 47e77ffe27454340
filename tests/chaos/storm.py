"""Breaks running crawls in every way we can think of, again and again, and has the books inspected after each spell.

    python tests/chaos/storm.py --minutes 60 [--seed 7] [--world log,failover] [--only report_late] [--result FILE]

Real servers as deploy/ starts them, real Kafka, workers and endpoints; events keep coming and pages are leased while
things break. After each spell all is healed, what is under way arrives, and the inspector (bank.py) holds the store to
what was confirmed. What breaks, in which order, follows from the seed, which is printed; when exactly it hits, from the
machine.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import httpx
import redis
from kafka.errors import KafkaError
from kafka_server import Kafka, find_kafka
from server_process import ServerFailed
from servers import Binary

from chaos import crawl_actions, kafka_actions, moving_actions  # noqa: F401 - actions are known by their import
from chaos.actions import ACTIONS, Deck
from chaos.bank import shown
from chaos.report import Report, WorldReport
from chaos.scene import Scene
from chaos.secured import KafkaOverTls
from chaos.worlds import WORLDS, World
from opic.errors import OpicError

SPELL_SECONDS = 20.0
FAULT_SECONDS = (0.3, 2.0)  # Between a fault and the next.
WHERE_LINES = 5
FAILURES = (AssertionError, OpicError, OSError, redis.RedisError, httpx.HTTPError, ServerFailed, KafkaError)


def break_it(scene: Scene, deck: Deck) -> None:
    """Do the next action, and heal what it broke."""
    action, report = deck.draw(), scene.report
    say(f"{scene.world.name}: {action.name.replace('_', ' ')}")
    begun = time.monotonic()
    try:
        action.do(scene)
    except (OpicError, httpx.HTTPError, redis.RedisError) as error:
        say(f"  which another fault kept from its work: {error}")
        report.hindered[action.name] += 1
    else:
        report.actions[action.name] += 1
    finally:
        time.sleep(scene.rng.uniform(*FAULT_SECONDS))
        scene.heal()
    if action.store_away:
        scene.await_ready()
        scene.away.append((begun, time.monotonic()))
    if action.goes_back:
        report.wrong += scene.inspect_importance()


def spell(scene: Scene, deck: Deck, seconds: float) -> bool:
    """Let events come and things break, heal all, and inspect; return whether the world may be used on."""
    until, before = time.monotonic() + seconds, len(scene.report.wrong)
    scene.resume()
    while time.monotonic() < until:
        break_it(scene, deck)
    scene.report.wrong += scene.inspect()
    if scene.copies:
        scene.report.wrong += crawl_actions.inspect_copies(scene)
    scene.report.spells += 1
    return len(scene.report.wrong) == before


def weather(
    world: World, seed: int, seconds: float, kafka: Kafka | None, directory: Path, only: Sequence[str], report: Report
) -> None:
    """Break one world for some time; what was wrong is in the report."""
    mine = WorldReport(world.name)
    report.worlds.append(mine)
    names = tuple(name for name in world.actions if not only or name in only)
    if not names:
        say(f"{world.name} has none of these actions")
        return
    began = time.monotonic()
    try:
        with Scene(world, seed, seconds, kafka, directory, mine) as scene:
            deck, began = Deck(names, scene.rng), time.monotonic()
            while (left := began + seconds - time.monotonic()) > 0:
                if not spell(scene, deck, min(SPELL_SECONDS, left)):
                    break
                say(f"{world.name}: {mine.confirmed:,} events, {mine.actions.total()} actions survived")
    except FAILURES as error:
        where = traceback.extract_tb(error.__traceback__)[-WHERE_LINES:]
        path = " < ".join(f"{Path(at.filename).name}:{at.lineno}" for at in reversed(where))
        mine.wrong.append(f"{type(error).__name__}: {str(error)[:3_000]} ({path})")
    mine.seconds = time.monotonic() - began
    if mine.wrong:
        say(f"{world.name} failed:\n{shown(mine.wrong)}")


@contextmanager
def a_kafka() -> Iterator[Kafka]:
    """A broker of our own, which may be killed."""
    found = find_kafka()
    assert isinstance(found, Binary), found.reason
    with KafkaOverTls(found) as kafka:
        yield kafka


def run(
    worlds: Sequence[World],
    seed: int,
    seconds: float,
    kafka: Kafka | None,
    directory: Path,
    only: Sequence[str] = (),
) -> Report:
    """Break worlds, each for its part of the time; the report has what was wrong."""
    report = Report(seed)
    for world in worlds:
        if kafka is not None and world.feed == "kafka" and not kafka.alive:
            kafka.start()
        weather(world, seed, seconds / len(worlds), kafka, directory, only, report)
    return report


def say(text: str) -> None:
    """Tell what goes on, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all worlds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--world", default=",".join(WORLDS), help=f"some of {', '.join(WORLDS)}")
    parser.add_argument("--only", default="", help=f"some of {', '.join(sorted(ACTIONS))}")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes there")
    parser.add_argument("--result", type=Path, help="write the figures there, as JSON")
    given = parser.parse_args()
    worlds, only = [WORLDS[name] for name in given.world.split(",")], [one for one in given.only.split(",") if one]
    if odd := sorted(set(only) - ACTIONS.keys()):
        parser.error(f"no action is called {', '.join(odd)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Our processes end with us.
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="opic-storm-") as scratch:
        directory = given.logs or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        if any(world.feed == "kafka" for world in worlds):
            with a_kafka() as kafka:
                report = run(worlds, given.seed, given.minutes * 60, kafka, directory, only)
        else:
            report = run(worlds, given.seed, given.minutes * 60, None, directory, only)
    print(report.text())
    if given.result:
        report.write(given.result)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
