"""Reads the links of HTML pages in a process of its own, which a hostile page may bring down alone.

Anybody may write the pages that an estimator parses. A page that keeps the parser busy for too long, or takes too much
memory, ends that process (see `opic.local.html_links`); it counts as a page without links, and the next page gets a new
process. The limit of time is one of CPU time, so that a busy machine changes nothing.
"""

import asyncio
import json
import logging
import sys
from typing import Final

from opic.local import html_links
from opic.local.html_links import FRAME, TEXT_FLAG

log = logging.getLogger("opic.local")

PROGRAM: Final = html_links.__file__


class LinkProcess:
    """Asks one process after another for the links of pages. All calls are made in one event loop."""

    def __init__(self, *, with_text: bool = False) -> None:
        """Start nothing yet; `with_text`: the texts of pages are wanted as well."""
        self._flags = (TEXT_FLAG,) if with_text else ()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def read(self, url: str, html: bytes) -> tuple[list[str], str]:
        """Return the links and the text of a page of UTF-8; none where reading them takes too much time or memory."""
        async with self._turn:
            process = self._process or await self._start()
            self._process = None  # A call that is cancelled midway leaves no process that owes an answer.
            try:
                found = await _ask(process, url.encode(), html)
            except (asyncio.IncompleteReadError, ConnectionError):
                log.warning("%s takes too much time or memory to parse: it counts as a page without links", url)
                await process.wait()
                return [], ""
            except BaseException:
                process.kill()
                raise
            self._process = process
            return found

    async def aclose(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        # -P: the modules beside it are not to be imported in place of others of the same name.
        command = (sys.executable, "-P", PROGRAM, *self._flags)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=null)


async def _ask(process: asyncio.subprocess.Process, url: bytes, html: bytes) -> tuple[list[str], str]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(FRAME.pack(len(url), len(html)) + url + html)
    await process.stdin.drain()
    size, _ = FRAME.unpack(await process.stdout.readexactly(FRAME.size))
    links, text = json.loads(await process.stdout.readexactly(size))
    return links, text
