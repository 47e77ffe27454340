"""How far does one value go? Counts what each of six ways through the product calls.

Every call of a function of ours is recorded while one way is walked, in all threads of the process, on a crawl of 140
pages that was warmed up. Comprehensions and generator expressions belong to the function that has them. A folder change
is a call in another folder of `opic/` than the call before it in the same thread. The counts say how much a reader has
to know who follows one value; the time it takes is measured by the other files here.

    python benchmarks/walks.py
    python benchmarks/walks.py --show next
"""

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from harness import RECORD_TIME_US, embedded_server, write_result
from workloads import REPOSITORY

from opic.api import create_app
from opic.ingest import Writer
from opic.ingest.worker import LogSource, WorkerWatch, _Loop
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import connect

PAGES = 140
LINKS = 10
SHARDS = 4
IDLE_SECONDS = 1.0
SOURCE = str(REPOSITORY / "opic") + "/"


@dataclass
class Walk:
    """What was called on one way."""

    calls: int = 0
    functions: int = 0
    files: int = 0
    folder_changes: int = 0
    path: list[str] = field(default_factory=list)  # The calls in order.


@dataclass
class Recorder:
    """Records calls in all threads that start after it was set up."""

    on: bool = False
    frames: dict[int, FrameType] = field(default_factory=dict)  # Kept, so that no other frame gets the same id.
    seen: list[tuple[int, str, str]] = field(default_factory=list)  # Thread, file, function.

    def set_up(self) -> None:
        """Have all calls of this thread, and of those that start from now on, pass by."""
        threading.setprofile(self._pass)
        sys.setprofile(self._pass)

    def _pass(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        # A generator or coroutine that goes on is no new call.
        if id(frame) in self.frames or frame.f_code.co_name in {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}:
            return
        self.frames[id(frame)] = frame
        self.seen.append((threading.get_ident(), frame.f_code.co_filename, frame.f_code.co_qualname))

    @contextmanager
    def walk(self) -> Iterator[Walk]:
        """Record what is called in the block."""
        found = Walk()
        self.frames.clear()
        self.seen.clear()
        self.on = True
        try:
            yield found
        finally:
            self.on = False
        found.path = [f"{file.removeprefix(SOURCE)} {name}" for _, file, name in self.seen]
        found.calls = len(self.seen)
        found.functions = len({(file, name) for _, file, name in self.seen})
        found.files = len({file for _, file, _ in self.seen})
        last = dict[int, str]()
        for thread, file, _ in self.seen:
            folder = file.rpartition("/")[0]
            found.folder_changes += last.setdefault(thread, folder) != folder
            last[thread] = folder


def page(number: int) -> str:
    """The URL of a page, on one of ten hosts."""
    return f"http://host{number % 10}.example/{number % PAGES}"


def event(number: int) -> CrawlEvent:
    """A fetch of a page, with links."""
    links = [page(number * LINKS + link) for link in range(1, LINKS + 1)]
    return CrawlEvent(page(number), links, fetched_at=1.7e9 + number)


async def post(client: httpx.AsyncClient, path: str, body: object) -> Any:
    """Return what a call is answered."""
    answer = await client.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


class Endpoint:
    """An endpoint and the loop of its worker, both in this process, on a crawl of one shard."""

    def __init__(self, recorder: Recorder, stack: ExitStack) -> None:
        """Start both, with an empty crawl."""
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="opic-walks-"))
        service = stack.enter_context(EmbeddedService(Settings.load(data=folder), worker=False))
        self._recorder, self._log = recorder, service.backend.log
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(service)), base_url="http://127.0.0.1"
        )
        writer = Writer.of(Crawl.open(connect(service.server.url)), service.backend.settings)
        self._loop = _Loop(writer, LogSource(self._log, writer.resume), lambda: None, WorkerWatch(), None)
        self._sent = 0

    async def walks(self) -> dict[str, Walk]:
        """Walk all ways three times, and return the last."""
        found = dict[str, Walk]()
        walk = self._recorder.walk
        for count in (PAGES, 2, 2):
            await self._send(count)
            with walk() as found["worker, 2 events, 1 shard"]:
                self._loop.turn(lambda: False)
            with walk() as found["POST /v1/events"]:
                await self._send(1)
            self._loop.turn(lambda: False)
            await self._await_effect()
            with walk() as found["GET /v1/importance"]:
                await self._importance(1)
            with walk() as found["POST /v1/next"]:
                pages = (await post(self._client, "/v1/next", {"n": 3}))["pages"]
            assert len(pages) == 3, pages
        found["idle, 1 second"] = await self._idle()
        await self._client.aclose()
        return found

    async def _send(self, count: int) -> None:
        events = [event(number) for number in range(self._sent, self._sent + count)]
        body = [{"url": one.url, "links": one.links, "fetched_at": one.fetched_at} for one in events]
        await post(self._client, "/v1/events", body)
        self._sent += count

    async def _importance(self, number: int) -> int:
        return (await self._client.get("/v1/importance", params={"url": page(number)})).status_code

    async def _await_effect(self) -> None:
        while (await self._importance(1)) != 200:
            await asyncio.sleep(0.01)

    async def _idle(self) -> Walk:
        """Count the calls of both while nothing is asked."""
        ends = threading.Event()
        worker = threading.Thread(target=lambda: [self._loop.turn(ends.is_set) for _ in iter(ends.is_set, True)])
        worker.start()
        await asyncio.sleep(IDLE_SECONDS)
        with self._recorder.walk() as found:
            await asyncio.sleep(IDLE_SECONDS)
        ends.set()
        worker.join()
        return found


def shards_walks(recorder: Recorder, stack: ExitStack) -> dict[str, Walk]:
    """Walk with a record through a crawl of several shards: its step, and the delivery of what it paid."""
    server, found = stack.enter_context(embedded_server()), dict[str, Walk]()
    writer = Writer(Crawl.open(connect(server.url), "walks", {"shards": SHARDS}))
    records = [Record(at, RECORD_TIME_US, encode_crawl_event(event(at))) for at in range(PAGES + 3)]
    writer.apply("walks/0", records[:PAGES])
    writer.drain()
    for one in records[PAGES:]:
        with recorder.walk() as found[f"routed record, {SHARDS} shards: step"]:
            writer.apply("walks/0", [one], since=one.offset)
        with recorder.walk() as found[f"routed record, {SHARDS} shards: deliver"]:
            assert writer.deliver()
    return found


def main() -> int:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--show", metavar="WALK", help="print the calls of the walk whose name has this in it, in order"
    )
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    recorder = Recorder()
    recorder.set_up()
    with ExitStack() as stack:
        endpoint = Endpoint(recorder, stack)
        found = asyncio.run(endpoint.walks()) | shards_walks(recorder, stack)
    print(f"{'walk':36}{'calls':>7}{'functions':>11}{'files':>7}{'folder changes':>16}")
    for name, walk in found.items():
        print(f"{name:36}{walk.calls:>7}{walk.functions:>11}{walk.files:>7}{walk.folder_changes:>16}")
        if args.show and args.show in name:
            print(*walk.path, sep="\n")
    counts = {name: {key: n for key, n in asdict(walk).items() if key != "path"} for name, walk in found.items()}
    write_result("walks", {"pages": PAGES, "walks": counts}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
