"""A TCP proxy on the loopback whose connections can be cut, delayed, or left without an answer."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from certificates import Certificate

PIECE_BYTES = 65_536
CLOSE_SECONDS_MAX = 10.0


class Proxy:
    """Passes bytes between its port and a server's Unix socket, as faithfully as it is told to.

    >>> with Proxy(socket_path) as proxy:
    ...     proxy.delay(0.2)   # each piece comes that much later
    ...     proxy.hold()       # nothing comes any more, and nobody is told
    ...     proxy.cut()        # all connections end
    ...     proxy.heal()
    ...     proxy.before(b"HSCAN", 3, restart)  # the server restarts before it gets its third HSCAN
    """

    def __init__(self, upstream: Path, certificate: Certificate | None = None) -> None:
        """Accept nothing yet; with a certificate, clients must speak TLS."""
        self.upstream = upstream
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate.file, certificate.key)
        self.port = 0
        self._late_seconds = 0.0
        self._awaited: tuple[bytes, int, Callable[[], object]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS_MAX)
        self._loop.close()

    def delay(self, seconds: float) -> None:
        """Let every piece wait."""
        self._late_seconds = seconds

    def hold(self) -> None:
        """Let nothing pass: a network that lost its way."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        self._run(self._cut())

    def heal(self) -> None:
        """Pass everything at once again."""
        self._late_seconds = 0.0
        self._loop.call_soon_threadsafe(self._flowing.set)

    def before(self, word: bytes, count: int, do: Callable[[], object]) -> None:
        """Call `do` once, before the `count`-th piece from a client that has a word is passed on."""
        self._awaited = (word, count, do)

    def never(self) -> bool:
        """Forget what `before` was told; return whether it had not happened yet."""
        waiting, self._awaited = self._awaited is not None, None
        return waiting

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(CLOSE_SECONDS_MAX)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            back, there = await asyncio.open_unix_connection(str(self.upstream))
            writers.append(there)
            # Whichever side ends first ends both: a connection is cut as a whole.
            ends = [asyncio.create_task(self._pass(reader, there, asked=True))]
            ends.append(asyncio.create_task(self._pass(back, writer)))
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # The server is away, or we were told to cut: the client sees its connection end.
        finally:
            self._tasks.discard(task)
            for one in writers:
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asked: bool = False) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if asked and self._awaited is not None and self._awaited[0] in piece:
                word, count, do = self._awaited
                self._awaited = (word, count - 1, do) if count > 1 else None
                if count == 1:
                    await asyncio.get_running_loop().run_in_executor(None, do)
            if self._late_seconds:
                await asyncio.sleep(self._late_seconds)
            await self._flowing.wait()
            writer.write(piece)
            await writer.drain()
