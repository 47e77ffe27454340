"""Reads the links of pages in a process of its own, which a hostile page may bring down alone.

Anybody may write the pages that we parse. A page that keeps the parser busy for too long, or takes too much
memory, ends that process (see `opic.html.program`); it counts as a page without links, and the next page gets a
new process. The limit of time is one of CPU time, so that a busy machine changes nothing.
"""

import asyncio
import json
import logging
import subprocess
import sys
from contextlib import suppress
from typing import Final

from opic.html import program
from opic.html.media_types import MediaType
from opic.html.program import DROP_FLAG, FRAME, TEXT_FLAG

log = logging.getLogger("opic.html")

ANSWER_BYTES_MAX: Final = 64 << 20  # With a long base, links are a multiple of their page.
PROGRAM: Final = program.__file__


def _command(flags: tuple[str, ...]) -> tuple[str, ...]:
    # -P: the modules beside it are not to be imported in place of others of the same name.
    return (sys.executable, "-P", PROGRAM, *flags)


def _parts(url: str, body: bytes, content_type: str | None) -> tuple[bytes, bytes, bytes]:
    return url.encode(), (content_type or "").encode("utf-8", "replace"), body


class LinkProcess:
    """Asks one process after another for the links of pages. All calls are made in one event loop."""

    def __init__(self, *, with_text: bool = False, drop_nofollow: bool = False) -> None:
        """Start nothing yet; `with_text`: the texts of pages are wanted as well."""
        self._flags = (TEXT_FLAG,) * with_text + (DROP_FLAG,) * drop_nofollow
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def read(self, url: str, body: bytes, content_type: str | None) -> tuple[list[str], str]:
        """Return the links and the text of a page; none where reading them takes too much time or memory.

        Args:
            url: of the page.
            body: decompressed.
            content_type: the header of the answer, None if it had none; see `opic.html.links.html_links`.
        """
        if not MediaType.of(content_type).may_have_links:
            return [], ""
        async with self._turn:
            process = self._process or await self._start()
            self._process = None  # A call that is cancelled midway leaves no process that owes an answer.
            try:
                reply = await _ask(process, *_parts(url, body, content_type))
            except (asyncio.IncompleteReadError, ConnectionError):
                log.warning("%s takes too much time or memory to parse: it counts as a page without links", url)
                await process.wait()
                return [], ""
            except BaseException:
                process.kill()
                raise
            self._process = process
            return reply

    async def aclose(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*_command(self._flags), stdin=pipe, stdout=pipe, stderr=null)


async def _ask(process: asyncio.subprocess.Process, *parts: bytes) -> tuple[list[str], str]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(FRAME.pack(*map(len, parts)) + b"".join(parts))
    await process.stdin.drain()
    size, *_ = FRAME.unpack(await process.stdout.readexactly(FRAME.size))
    links, text = json.loads(await process.stdout.readexactly(size))
    return links, text


class LinkReader:
    """Asks one process after another for the links of pages; for one thread, which waits for each answer."""

    def __init__(self, *, drop_nofollow: bool = False) -> None:
        self._flags = (DROP_FLAG,) if drop_nofollow else ()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, url: str, body: bytes, content_type: str | None) -> list[str] | None:
        """Return the links of a page; None where reading them takes too much time or memory; see `LinkProcess.read`."""
        if not MediaType.of(content_type).may_have_links:
            return []
        process = self._process or subprocess.Popen(
            _command(self._flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        parts = _parts(url, body, content_type)
        try:
            process.stdin.write(FRAME.pack(*map(len, parts)) + b"".join(parts))
            process.stdin.flush()
            head = process.stdout.read(FRAME.size)
            size, *_ = FRAME.unpack(head) if len(head) == FRAME.size else (0,)
            answer = process.stdout.read(size) if size <= ANSWER_BYTES_MAX else b""
        except BrokenPipeError:
            size, answer = 0, b""
        if not size or len(answer) < size:
            log.warning("%s takes too much time or memory to parse: it counts as a page without links", url)
            self.close()
            return None
        links: list[str] = json.loads(answer)[0]
        return links

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # What a process that ended did not read.
                        pipe.close()
