"""Asks a service about importance at every moment of crawls that change, and checks each answer against the truth.

    python tests/chaos/moments.py --answers 20000 [--seed 7] [--shards 1,2,5,16] [--result FILE]

Random graphs are read, read again, go away, come back, are forgotten, change their class, fill their hosts' limits,
while others ask without a pause, and the service and its worker are restarted. The endpoint writes down which state
each answer is of (`telling_service.py`); PageRank of that state is solved from the journals alone (`journal_truth.py`).
An answer may be no further from it than its bound, and no further from that of the last state that the endpoint knew.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import httpx
from processes import Service, children_of, wait_until

from chaos.journal_truth import JournalTruth
from chaos.report import run_facts
from chaos.telling_service import Told
from opic.replica.fingerprints import Fingerprints
from opic.urls.canonical import host_of

ROUNDING = 1e-9
PAUSE_SECONDS = 0.01
WRONG_SHOWN = 5
RESTART_SECONDS = (6.0, 12.0)
LONGER_SECONDS = 60.0  # Of a machine that is busy with other things.
CALLS: tuple[str, ...] = ("importances", "importances", "importance", "default", "top", "hosts", "explain", "inflow")
CLASSES = [
    {"name": "heavy", "weight": 4, "hosts": ["h1.example"]},
    {"name": "light", "weight": 0.25, "hosts": ["h2.example", "h3.example"]},
]


@dataclass(frozen=True)
class World:
    """How a crawl is made."""

    shards: int
    large: bool  # Whether it counts as so large that no question waits for importance to be settled.
    pages: int = 120
    settings: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        more = "".join(f", {name}={value}" for name, value in self.settings.items())
        return f"{self.shards} shards{', large' if self.large else ''}{more}"


@dataclass
class Answer:
    """An answer by exact importance: the shares that it told, by page, or by host."""

    call: str
    sent: float
    received: float
    as_of: float
    bound: float
    told: dict[str, float]
    whole: bool  # Whether pages that are not in it were told to have no importance.


@dataclass
class Found:
    """What the answers of one call were like."""

    answers: int = 0
    unknown: int = 0  # Of a state that was not written down.
    worst: float = 0.0  # The greatest error over bound, of the state that the answer is of,
    worst_known: float = 0.0  # and of the last one that the endpoint knew of.
    widened: int = 0  # How many told a bound over that wanted,
    silent: int = 0  # and one that says nothing.
    oldest: float = 0.0  # How many seconds before the question its state was, at most.
    wrong: list[str] = field(default_factory=list)


class Crowd:
    """Those who change the crawl, and those who ask. Each thread has a random generator of its own."""

    def __init__(self, service: Service, world: World, seed: int) -> None:
        self.service, self.world, self.seed = service, world, seed
        self.urls = [f"http://h{number % (world.pages // 6)}.example/{number}" for number in range(world.pages)]
        self.links: dict[str, list[str]] = {}
        self.answers: list[Answer] = []
        self.failure: BaseException | None = None
        self.refused = 0
        self._done, self._threads = threading.Event(), list[threading.Thread]()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for number, work in enumerate((self._change, self._change, self._ask, self._ask, self._ask)):
            self._threads.append(threading.Thread(target=self._run, args=(work, random.Random(8 * self.seed + number))))
            self._threads[-1].start()
        try:
            yield
        finally:
            self._done.set()
            for thread in self._threads:
                thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self, work: Callable[[httpx.Client, random.Random], None], draw: random.Random) -> None:
        try:
            with httpx.Client(base_url=self.service.url, timeout=60) as client:
                while not self._done.is_set():
                    try:
                        work(client, draw)
                    except httpx.TransportError:
                        self._done.wait(0.1)  # The service is restarted.
        except BaseException as error:
            self.failure = error
            raise

    def _change(self, client: httpx.Client, draw: random.Random) -> None:
        what, url = draw.random(), draw.choice(self.urls)
        if what < 0.05:
            client.delete("/v1/pages", params={"url": url})
        elif what < 0.06:
            client.put("/v1/classes", json={"classes": CLASSES[: draw.randint(0, 2)]})
        elif what < 0.08:
            client.post("/v1/seeds", json={"urls": [url], "trust": draw.choice([0, 1])})
        else:
            client.post("/v1/events", json=[self._event(draw) for _ in range(draw.choice([1, 1, 3, 12]))])
        self._done.wait(PAUSE_SECONDS * draw.choice([0, 1, 1, 5, 20]))

    def _event(self, draw: random.Random) -> dict[str, Any]:
        what, hub = draw.random(), draw.choice(self.urls[:4])
        url = hub if draw.random() < 0.2 else draw.choice(self.urls)
        if what < 0.15:
            return {"url": url, "status": draw.choice([404, 410, 500])}
        if what < 0.65 or url not in self.links:  # Others show the same links as before.
            self.links[url] = [hub, *draw.sample(self.urls, draw.randint(0, 8))][draw.randint(0, 1) :]
        return {"url": url, "links": self.links[url]}

    def _ask(self, client: httpx.Client, draw: random.Random) -> None:
        call, url, exact = draw.choice(CALLS), draw.choice(self.urls), {"policy": "exact"}
        sent = time.time()
        if call == "importances":
            answer = client.post("/v1/importance", json={"urls": self.urls, **exact})
        elif call == "default":
            answer = client.get("/v1/importance", params={"url": url})
        elif call in ("importance", "explain"):
            answer = client.get(f"/v1/{call}", params={"url": url, **exact})
        elif call == "inflow":
            answer = client.get("/v1/inflow", params={"domain": host_of(url), **exact})
        else:
            answer = client.get(f"/v1/{call}", params={"n": "1000", **exact})
        received = time.time()
        if answer.status_code != 200:
            assert answer.status_code in (404, 503), answer.text  # Of an unknown page, or while links are read.
            self.refused += 1
            return
        found = answer.json()
        rows = found.get("pages") or found.get("hosts") or ([found] if "importance" in found else [])
        bounds = {row["error_bound"] for row in rows if "error_bound" in row and row["policy"] == "exact"}
        if call == "inflow":
            bounds = {found["error_bound"]} if "error_bound" in found else set()
        if not bounds or not rows:
            return  # No page is known, or links are still read.
        (bound,) = bounds  # One answer has one.
        value, name = ("inflow" if call == "inflow" else "importance"), ("host" if call == "hosts" else "url")
        told = {row[name]: row[value] or 0.0 for row in rows}
        whole = call in ("importances", "top", "hosts")
        self.answers.append(Answer(call, sent, received, found["as_of"], bound, told, whole))


class Judge:
    """Compares answers with the truth."""

    def __init__(self, urls: Sequence[str], bound: float, truth: JournalTruth, told: Sequence[Told]) -> None:
        """Be told what is true, and what the endpoint wrote down; `bound` is the one wanted."""
        self._truth, self._told, self._times = truth, told, [one.at for one in told]
        prints = Fingerprints(truth.secret).hash_strings(urls).tolist()
        self._url, self._bound = dict(zip(prints, urls, strict=True)), bound

    def judge(self, answers: Sequence[Answer]) -> dict[str, Found]:
        found = defaultdict[str, Found](Found)
        pairs = [(answer, self._candidates(answer)) for answer in answers]
        heads = {tuple(at) for _, states in pairs for one in states for at in (one.settled, one.counted)}
        for at in sorted(heads, key=sum):  # In order, so that each record is applied about once.
            self._truth.shares(at)
        for answer, states in pairs:
            self._note(found[answer.call], answer, states)
        return found

    def _candidates(self, answer: Answer) -> list[Told]:
        """The views that the answer may be of: told between question and answer, with its bound.

        An answer that leaves forgotten pages out has a larger one.
        """
        first, end = bisect_left(self._times, answer.sent), bisect_left(self._times, answer.received)
        factor = self._truth.damping if answer.call == "inflow" else 1.0
        told = [one for one in self._told[first:end] if one.bound * factor <= answer.bound]
        same = [one for one in told if one.bound * factor == answer.bound]
        of_time = [one for one in told if one.as_of == answer.as_of]
        return [one for one in same if one.as_of == answer.as_of] or same or of_time

    def _note(self, found: Found, answer: Answer, states: Sequence[Told]) -> None:
        found.answers += 1
        found.widened += answer.bound > self._bound
        found.silent += answer.bound >= 1.99
        found.oldest = max(found.oldest, answer.sent - answer.as_of)
        if not states:
            found.unknown += 1
            return
        of_state, of_known = (
            min(self._error(answer, heads) for heads in some) / (answer.bound + ROUNDING)
            for some in ([one.settled for one in states], [one.counted for one in states])
        )
        found.worst, found.worst_known = max(found.worst, of_state), max(found.worst_known, of_known)
        if max(of_state, of_known) > 1:
            found.wrong.append(self._described(answer, states, max(of_state, of_known)))

    def _described(self, answer: Answer, states: Sequence[Told], ratio: float) -> str:
        """What is known of a wrong answer: the pages that it is furthest off at, as told and in truth."""
        said = {name: value for name, value in vars(answer).items() if name != "told"}
        lines = [f"{ratio:.3g} times its bound: {said}"]
        for one in states:
            for heads in (one.settled, one.counted):
                truth = self._truth_of(answer, heads)
                pairs = {name: (answer.told.get(name), truth.get(name)) for name in truth.keys() | answer.told.keys()}
                worst = sorted(pairs, key=lambda name, of=pairs: -abs((of[name][0] or 0.0) - (of[name][1] or 0.0)))
                lines.append(f"    {heads} of {one}: {[(name, *pairs[name]) for name in worst[:4]]}")
        return "\n".join(lines)

    def _error(self, answer: Answer, heads: Sequence[int]) -> float:
        truth = self._truth_of(answer, heads)
        named = truth.keys() | answer.told.keys() if answer.whole else answer.told.keys()
        error = sum(abs(answer.told.get(name, 0.0) - truth.get(name, 0.0)) for name in named)
        return min(error, 2.0)

    def truth_at(self, heads: Sequence[int]) -> dict[str, float]:
        """PageRank by URL, once these records of the shards have taken effect."""
        return {self._url[page]: share for page, share in self._truth.shares(heads).items()}

    def _truth_of(self, answer: Answer, heads: Sequence[int]) -> dict[str, float]:
        if answer.call == "inflow":
            return self._inflow(answer, heads)
        truth = self.truth_at(heads)
        return by_host(truth) if answer.call == "hosts" else truth

    def _inflow(self, answer: Answer, heads: Sequence[int]) -> dict[str, float]:
        host = host_of(next(iter(answer.told)))
        found = self._truth.inflow(heads, {page for page, url in self._url.items() if host_of(url) == host})
        return {self._url[page]: share for page, share in found.items()}


def by_host(shares: Mapping[str, float]) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for url, share in shares.items():
        found[host_of(url)] += share
    return found


class TellingService(Service):
    """A service whose endpoint writes down what it tells."""

    def __init__(self, scratch: Path, world: World) -> None:
        super().__init__(scratch / "data", scratch / "log", shards=world.shards, host_delay_seconds=0, **world.settings)
        self.told = scratch / "told"
        self.program = [str(Path(__file__).parent / "telling_service.py"), str(self.told)]
        self.program += ["--large"] if world.large else []


def ask_through(
    world: World, seconds: float, seed: int, scratch: Path, answers_min: int = 0
) -> tuple[dict[str, Found], int]:
    """Return what the answers of a world were like by call, and how many were refused.

    It goes on for longer if there were not `answers_min` by then.
    """
    service, draw = TellingService(scratch, world), random.Random(seed)
    try:
        service.start()
        damping = float(str(world.settings.get("damping", 0.85)))
        truth = JournalTruth(service.store_url(), world.shards, damping)
        truth.start()
        crowd, until = Crowd(service, world, seed), time.monotonic() + seconds
        with crowd.at_work():
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(draw.uniform(*RESTART_SECONDS), left))
                if left > RESTART_SECONDS[0]:
                    restart(service, truth, worker=draw.random() < 0.5)
            wait_until(lambda: crowd.failure is not None or len(crowd.answers) >= answers_min, LONGER_SECONDS)
        service.settle()
        wait_until(truth.has_all)
        truth.end()
        told = [Told(*json.loads(line)) for line in service.told.read_text().splitlines()]
        bound = float(str(world.settings.get("bound", 0.01)))
        found = Judge(crowd.urls, bound, truth, told).judge(crowd.answers)
        service.stop()
        return found, crowd.refused
    finally:
        if service.process is not None and service.process.poll() is None:
            for pid in (*children_of(service.process.pid), service.process.pid):
                os.kill(pid, signal.SIGKILL)
            service.process.wait()


def restart(service: Service, truth: JournalTruth, *, worker: bool) -> None:
    """Kill the worker, which is started again; or end the service and start it again."""
    if worker:
        if pid := service.pids()["worker"]:
            os.kill(pid, signal.SIGKILL)
        return
    wait_until(truth.has_all)
    service.stop()
    service.start()
    truth.url = service.store_url()


def worlds(shards: Sequence[int]) -> Iterator[World]:
    """Worlds of all kinds, again and again."""
    more: list[dict[str, object]] = [
        {},
        {"bound": 0.0001},
        {"max_pages_per_host": 3},
        {"damping": 0.5},
        {"damping": 0.95},
    ]
    while True:
        for at, (count, large) in enumerate(product(shards, (True, False))):
            yield World(count, large, settings=more[at % len(more)])
        more.append(more.pop(0))


def main() -> int:
    """Ask; return 1 if an answer was wrong."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--answers", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--shards", default="1,2,5,16")
    options.add_argument("--seconds", type=float, default=30.0, help="for each world")
    options.add_argument("--result", type=Path)
    args = options.parse_args()
    print(f"seed {args.seed}", flush=True)
    all_of, answers, wrong = list[dict[str, Any]](), 0, list[str]()
    for at, world in enumerate(worlds([int(count) for count in args.shards.split(",")])):
        if answers >= args.answers:
            break
        with tempfile.TemporaryDirectory() as scratch:
            found, refused = ask_through(world, args.seconds, args.seed + at, Path(scratch))
        print(f"{world}: {refused} calls without an answer", flush=True)
        for call, one in sorted(found.items()):
            row = {name: value for name, value in vars(one).items() if name != "wrong"}
            all_of.append({"world": str(world), "call": call, **row})
            print("   ", call, row, flush=True)
            answers, wrong = answers + one.answers, wrong + one.wrong
    worst = max((row["worst"] for row in all_of), default=0.0), max((row["worst_known"] for row in all_of), default=0.0)
    for one in wrong[:WRONG_SHOWN]:
        print(one)
    print(
        f"{answers} answers, {len(wrong)} over their bound; greatest error / bound {worst[0]:.3f}, known {worst[1]:.3f}"
    )
    if args.result:
        figures = {"answers": answers, "over": len(wrong), "worst": worst[0], "worst_known": worst[1], "rows": all_of}
        facts = {"benchmark": "moments", "date": time.strftime("%Y-%m-%d"), **run_facts(), "seed": args.seed}
        args.result.write_text(json.dumps({**facts, **figures}, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
