"""Request coalescing: answer calls that arrive at the same time in one batch, with one round trip to the store."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

TOGETHER_MAX: Final = 64
# Turns of the event loop after a batch, in which callers that were answered can ask again: the first of them would
# otherwise be answered alone, and hold up the others.
TURNS_BETWEEN: Final = 6
GROWING_TURNS_MAX: Final = 4  # Turns in which requests for what is at hand may come to share an answer.


class _Together(Generic[Asked, Answer]):
    """Collects requests, each with a future; a subclass decides when they are answered."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []

    def ask(self, asked: Asked) -> "asyncio.Future[Answer]":
        """Return a future with the answer to one request. Cancelling it does not affect the others."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((asked, future))
        self._came(loop)
        return future

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        """See that what waits is answered."""
        raise NotImplementedError


class Coalescer(_Together[Asked, Answer]):
    """Collects requests while a thread answers the previous batch.

    >>> async def both() -> list[int]:
    ...     doubled = Coalescer[int, int](lambda asked: [2 * n for n in asked], "double")
    ...     return await asyncio.gather(doubled.ask(1), doubled.ask(2))
    >>> asyncio.run(both())
    [2, 4]
    """

    def __init__(
        self,
        work_out: Callable[[Sequence[Asked]], Sequence[Answer | Exception]],
        name: str,
        most: int = TOGETHER_MAX,
        threads: int = 1,
    ) -> None:
        """Create the thread pool.

        Args:
            work_out: answers a batch of requests, in order. An exception among the answers is raised to the caller of
                that request; an exception that it raises is raised to all callers of the batch.
            name: name prefix of the threads.
            most: maximum number of requests in a batch.
            threads: number of batches answered in parallel.
        """
        super().__init__()
        self._work_out, self._most, self._free = work_out, most, threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._running: set[asyncio.Task[None]] = set()

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._free:
            self._free -= 1
            task = loop.create_task(self._run(loop))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                batch = [entry for entry in batch if not entry[1].done()]  # Drop the cancelled ones.
                if batch:
                    asked = [request for request, _ in batch]
                    try:
                        _give(batch, await loop.run_in_executor(self._threads, self._work_out, asked))
                    except Exception as error:  # noqa: BLE001 - raised to the callers
                        _give(batch, [error] * len(batch))
                    for _ in range(TURNS_BETWEEN):
                        await asyncio.sleep(0)
        finally:
            self._free += 1

    def close(self) -> None:
        """Stop the threads after their current batches, without waiting."""
        self._threads.shutdown(wait=False)


class InLoop(_Together[Asked, Answer]):
    """Answers requests in the event loop itself: those of one turn, and of the next ones while more come, together.

    >>> async def both() -> list[int]:
    ...     doubled = InLoop[int, int](lambda asked: [2 * n for n in asked])
    ...     return await asyncio.gather(doubled.ask(1), doubled.ask(2))
    >>> asyncio.run(both())
    [2, 4]
    """

    def __init__(self, work_out: Callable[[Sequence[Asked]], Sequence[Answer | Exception]]) -> None:
        """Take a function as `Coalescer` does; it must not block."""
        super().__init__()
        self._work_out = work_out

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._waiting) == 1:
            loop.call_soon(self._turn, loop, GROWING_TURNS_MAX, 0)

    def _turn(self, loop: asyncio.AbstractEventLoop, turns: int, before: int) -> None:
        """Answer what waits, unless more has come in this turn and there are turns left."""
        if turns and len(self._waiting) > before:
            loop.call_soon(self._turn, loop, turns - 1, len(self._waiting))
            return
        batch, self._waiting = self._waiting, []
        try:
            _give(batch, self._work_out([asked for asked, _ in batch]))
        except Exception as error:  # noqa: BLE001 - raised to the callers
            _give(batch, [error] * len(batch))


def _give(batch: Sequence[tuple[Asked, "asyncio.Future[Answer]"]], answers: Sequence[Answer | Exception]) -> None:
    for (_, future), answer in zip(batch, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


async def while_connected(request: Request, answer: "asyncio.Future[Answer]", gone: threading.Event) -> Answer:
    """Return an answer; if the client disconnects first, set `gone` and give up. Read the body before this call.

    Raises:
        ClientDisconnect: the client disconnected before the answer.
    """
    left = asyncio.ensure_future(_disconnected(request))
    left.add_done_callback(lambda _: answer.cancel())
    try:
        return await answer
    except asyncio.CancelledError:
        gone.set()
        if left.done():
            raise ClientDisconnect from None
        raise
    finally:
        left.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
