"""A website on loopback: an HTTP server in a thread of the test's own process, with what its pages answer."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STOP_SECONDS = 10.0


@dataclass
class WebPage:
    """What a path answers, without the headers that are "".

    Attributes:
        drip_seconds: the body comes byte by byte, each after so long.
        behind: a cookie, as name=value, and what is answered to requests without it.
    """

    body: str | bytes = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_seconds: float = 0.0
    behind: "tuple[str, WebPage] | None" = None


def linking(*links: str) -> WebPage:
    """A page of HTML with links."""
    return WebPage("".join(f'<a href="{link}">x</a>' for link in links))


def redirect(target: str, cookie: str | None = None) -> WebPage:
    return WebPage(status=302, headers={"location": target} | ({} if cookie is None else {"set-cookie": cookie}))


def asking_for_pause(status: int, seconds: int, form: str) -> WebPage:
    """An answer whose Retry-After, a number or a date, ends after at least `seconds`."""
    later = str(seconds) if form == "seconds" else formatdate(time.time() + seconds + 1, usegmt=True)  # Whole seconds.
    return WebPage(status=status, headers={"retry-after": later})


def failing_first(failures: Mapping[str, WebPage], pages: Mapping[str, WebPage]) -> Callable[[str], WebPage | None]:
    """Pages, some of which fail when they are first asked for."""
    left = dict(failures)
    return lambda path: left.pop(path, None) or pages.get(path)


Pages = dict[str, WebPage] | Callable[[str], WebPage | None]


class Website:
    """A host; `asked` has the paths that were asked for, each with its time."""

    def __init__(self, address: str, pages: Pages) -> None:
        self.pages, self.asked = pages, list[tuple[str, float]]()
        site, ending = self, threading.Event()
        self._ending = ending

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, time.monotonic()))
                page = site.pages(self.path) if callable(site.pages) else site.pages.get(self.path)
                page = page or WebPage(status=404)
                if page.behind is not None and page.behind[0] not in self.headers.get("cookie", ""):
                    page = page.behind[1]
                body = page.body.encode() if isinstance(page.body, str) else page.body
                self.send_response(page.status)
                for name, value in {"content-type": "text/html; charset=utf-8", **page.headers}.items():
                    if value:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                try:
                    if not page.drip_seconds:
                        self.wfile.write(body)
                        return
                    for at in range(len(body)):
                        self.wfile.write(body[at : at + 1])
                        self.wfile.flush()
                        if ending.wait(page.drip_seconds):
                            return
                except ConnectionError:
                    self.close_connection = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://{address}:{self._server.server_port}"

    def speak_tls(self, context: ssl.SSLContext) -> None:
        """Take connections over TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_SECONDS)
        assert not self._thread.is_alive()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def kept(self, delay_seconds: float) -> bool:
        """Whether requests were so far apart, on the whole: one that came at once would make the whole shorter.

        Single gaps say little on a busy machine, where one request arrives late and the next one in time.
        """
        return self.asked[-1][1] - self.asked[0][1] > (len(self.asked) - 1.5) * delay_seconds


@contextmanager
def website(address: str, pages: Pages) -> Iterator[Website]:
    site = Website(address, pages)
    site.start()
    try:
        yield site
    finally:
        site.stop()
