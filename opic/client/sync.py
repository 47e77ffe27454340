"""The client that blocks. Generated from aio.py: edit that file, then run `make client`."""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx
from tenacity import Retrying

from opic.client import answers, calls
from opic.client.errors import CallFailed, ClientError

T = TypeVar("T")


class Client:
    """A service, for as long as the client is open. Threads may share a `Client`, tasks an `AsyncClient`.

    A call that may be sent twice (all may, but events with `once=False`) is sent again where no answer came, or a 503:
    after what Retry-After says and a random wait that doubles, until `retry_seconds` would have passed. An answer with
    another error is raised at once.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        crawler: str = "",
        timeout_seconds: float = calls.ANSWER_SECONDS,
        retry_seconds: float = calls.RETRY_SECONDS,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            url: of the service.
            token: its OPIC_API_TOKEN.
            crawler: who asks; holds the leases.
            timeout_seconds: how long the service may stay silent; a connection gets 5 s.
            retry_seconds: how long a call is tried again; 0 tries once.
            verify: certificates, as httpx has it.
            transport: of httpx, in the place of its own.
        """
        self._crawler, self._retry_seconds = crawler, retry_seconds
        timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, calls.CONNECT_SECONDS))
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify, transport=transport)

    def __enter__(self) -> "Client":
        """Open connections as calls need them."""
        self._http.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close them."""
        self._http.__exit__(kind, error, at)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def event(self, url: str, links: Iterable[str] = (), *, once: bool = True, **fields: Any) -> answers.Accepted:
        """Report one fetched page; once it is accepted it is durable.

        Args:
            url: the page.
            links: its out-links, absolute.
            once: name the call by an Idempotency-Key, so that it may be sent again and takes effect once.
            fields: others of `Event`: status, redirect, excluded, fetched_at, tags.

        Raises:
            BadRequest: it can't be taken, and why.
        """
        event = {"crawler": self._crawler or None, **fields, "url": url, "links": calls.texts(links)}
        given = {name: value for name, value in event.items() if value is not None}
        return self._do(calls.events(calls.encoded_one(given, "msgpack"), "msgpack", once=once, key=None))

    def events(
        self, events: calls.Events, *, form: calls.Form = "msgpack", once: bool = True, key: str | None = None
    ) -> answers.Accepted:
        """Report fetched pages in one call: some hundred at a time are ten times as fast as one by one.

        Args:
            events: `Event`s, or mappings of the same fields.
            form: how they are sent: an array in MessagePack or JSON, or JSON Lines.
            once: as in `event`. The service remembers some 10^6 of these names for a day, so send batches.
            key: the name, if the call is one that you began earlier.

        Returns:
            How many are durable, and those that can't be taken: the others are.
        """
        return self._do(calls.events(calls.encoded(events, form), form, once=once, key=key))

    def seed(self, urls: Iterable[str]) -> answers.Seeded:
        """Make pages known. Sent again, what the first try made known counts as known."""
        return self._do(calls.seeds(urls))

    def next(
        self,
        n: int = 10,
        *,
        lease_seconds: float | None = None,
        domain: str | None = None,
        mode: answers.Mode | None = None,
        busy_hosts: Iterable[str] = (),
    ) -> answers.NextPages:
        """Take the pages to fetch next, the best first: each is this crawler's own until its lease ends.

        Sent again, what an answer that got lost had leased comes back when those leases end.

        Args:
            n: how many at most.
            lease_seconds: how long they are yours; OPIC_LEASE_SECONDS if None.
            domain: only pages of this host or registered domain, with all below it.
            mode: any page, never read ones (discover), or read ones (refresh).
            busy_hosts: hosts to pass over.
        """
        return self._do(
            calls.next_pages(
                n, self._crawler, lease_seconds=lease_seconds, domain=domain, mode=mode, busy_hosts=busy_hosts
            )
        )

    def release(self, leases: Iterable[str | answers.Page]) -> answers.Released:
        """Give pages back unread."""
        return self._do(calls.release(leases))

    def importance(
        self, url: str, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Importance:
        """Return what is known of a page.

        Raises:
            NotFound: it was never seen.
        """
        return self._do(calls.importance(url, policy, window))

    def importances(
        self, urls: Iterable[str], *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Importances:
        """Return what is known of pages, in the order given; None is the importance of one never seen."""
        return self._do(calls.importances(urls, policy, window))

    def top(
        self,
        n: int | None = None,
        *,
        domain: str | None = None,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
    ) -> answers.Top:
        """Return the most important pages, 100 if `n` is None."""
        return self._do(calls.top(n, domain, policy, window))

    def hosts(self, n: int | None = None) -> answers.Hosts:
        """Return the most important sites, 100 if `n` is None."""
        return self._do(calls.hosts(n))

    def history(self, url: str) -> answers.History:
        """Return the last reads of a page."""
        return self._do(calls.history(url))

    def explain(self, url: str) -> dict[str, Any]:
        """Return why a page has its score, and is next or not."""
        return self._do(calls.explain(url))

    def inflow(self, domain: str, *, after: str | None = None, n: int | None = None) -> answers.Inflows:
        """Return what came to the pages of a domain from outside, in parts: `after` is the `next` of the one before."""
        return self._do(calls.inflow(domain, after, n))

    def audit(self) -> answers.Audit:
        """Have the books recounted."""
        return self._do(calls.audit())

    def stats(self) -> answers.Stats:
        """Return counts."""
        return self._do(calls.stats())

    def classes(self) -> answers.Classes:
        """Return the classes of pages that hold."""
        return self._do(calls.classes())

    def define_classes(self, classes: Sequence[answers.PageClass | Mapping[str, Any]]) -> answers.Classes:
        """Define the classes of pages, in the place of those before."""
        return self._do(calls.define_classes(classes))

    def alive(self) -> bool:
        """Tell whether the process answers; asked once."""
        try:
            self._do(calls.healthz())
        except ClientError:
            return False
        return True

    def ready(self) -> answers.Ready:
        """Say whether calls are welcome, else why not; asked once."""
        try:
            self._do(calls.readyz())
        except CallFailed as error:
            return answers.Ready(False, error.detail)
        except ClientError as error:
            return answers.Ready(False, str(error))
        return answers.Ready(True)

    def _do(self, call: calls.Call[T]) -> T:
        def once() -> T:
            try:
                response = self._http.request(**call.request())
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise calls.no_answer(call, error) from error
            return call.read(response)

        return Retrying(**calls.retrying(call, self._retry_seconds))(once)
