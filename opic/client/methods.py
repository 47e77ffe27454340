"""A method of both clients is written once: it returns the call to make, and the client sends that.

A `Client` has it as a function that returns the answer, an `AsyncClient` as a coroutine. Type checkers see the same.
"""

import ssl
from collections.abc import Callable, Coroutine
from copy import copy
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, get_args, overload

import httpx
from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from opic.client.calls import ANOTHER_PROGRAM, Call
from opic.client.errors import BadAnswer, CallFailed, ClientError, Unavailable, Unreachable
from opic.client.host_pace import HostPace
from opic.redaction import without_secret
from opic.tls import certificate_fault

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0  # A service whose store hangs answers 503 after ten seconds.
RETRY_SECONDS: Final = 60.0  # A killed store is back within seconds, a replaced service within a minute.
FIRST_RETRY_SECONDS: Final = 5.0  # For a service that never answered: a wrong address is more likely than a restart.
TOO_MANY_REQUESTS: Final = 429
BACKOFF_FIRST_SECONDS: Final = 0.1
BACKOFF_MAX_SECONDS: Final = 10.0
PROBLEM: Final = "urn:opic:problem:"  # The type of each problem of the service begins so.
START_IT: Final = "start the service there with `opic serve`, or give the client the URL that it prints"

P = ParamSpec("P")
T = TypeVar("T")
Transport = TypeVar("Transport")


class Method(Generic[P, T]):
    """Decorates a function that returns a call: it becomes the method of both clients that makes the call."""

    def __init__(self, call: Callable[Concatenate[Any, P], Call[T]]) -> None:
        def blocking(client: "Blocking", *args: P.args, **kwargs: P.kwargs) -> T:
            return client._send(call(client, *args, **kwargs))

        async def awaited(client: "Awaited", *args: P.args, **kwargs: P.kwargs) -> T:
            return await client._send(call(client, *args, **kwargs))

        shown = signature(call)
        (answer,) = get_args(shown.return_annotation)
        functions: list[Any] = [blocking, awaited]
        for function in functions:
            update_wrapper(function, call)
            function.__signature__ = shown.replace(return_annotation=answer)
        self._blocking, self._awaited = functions

    @overload
    def __get__(self, client: None, owner: "type[Blocking]") -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(
        self, client: None, owner: "type[Awaited]"
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: "Blocking", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "Awaited", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        """Return the function of a client, bound to it."""
        return (self._blocking if issubclass(owner, Blocking) else self._awaited).__get__(client, owner)


_backoff = wait_random_exponential(multiplier=BACKOFF_FIRST_SECONDS, max=BACKOFF_MAX_SECONDS)


def _wait(state: RetryCallState) -> float:
    """Return the service's Retry-After plus the random back-off, so that many clients do not return all at once."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    return float(asked + _backoff(state))


class Connected(Generic[Transport]):
    """A client of a service, before it is decided how it waits.

    A service that has answered is known to be there, and comes back after a restart. One that never did is most likely
    at another address, which its user should hear within seconds.

    Attributes:
        crawler: name of this crawler.
        pace: when the hosts may be asked again that asked for a wait.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        crawl: str | None = None,
        crawler: str = "",
        timeout_seconds: float = ANSWER_SECONDS,
        retry_seconds: float | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: Transport | None = None,
    ) -> None:
        """Create a client. Connections are opened when the first call needs them.

        Args:
            url: base URL of the service.
            token: the service's OPIC_API_TOKEN, or one of its tokens with roles.
            crawl: the crawl of the calls; None is OPIC_CRAWL of the service.
            crawler: name of this crawler, which holds the leases.
            timeout_seconds: timeout of an answer; the timeout of a connection is at most 5 s.
            retry_seconds: how long to retry a call; 0 disables retries. If None, 60 s; but 5 s until the service has
                answered this client for the first time, so that a wrong address fails soon.
            verify: TLS certificates to trust; passed to httpx.
            transport: an httpx transport to use instead of the default one.
        """
        self.crawler, self._url, self._retry_seconds = crawler, without_secret(url), retry_seconds
        self._answered = False  # Whether the service ever did.
        self._crawl = crawl
        self._after: str | None = None  # A position.
        self.pace = HostPace()
        timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_SECONDS))
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._connect(base_url=url, headers=headers, timeout=timeout, verify=verify, transport=transport)

    def _connect(self, **options: Any) -> None:
        """Make the client of httpx."""
        raise NotImplementedError

    def after(self, position: str | None) -> Self:
        """Return a client with the same connections, whose answers show the effect of a write, at any endpoint.

        A call of it waits until the write has taken effect, which takes milliseconds unless the workers lag.

        Args:
            position: of the answer to the write; None, as where nothing was accepted: no call waits.
        """
        client = copy(self)
        client._after = position
        return client

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        try:
            answer = call.read(response)
        except CallFailed as error:
            self._answered |= error.type.startswith(PROBLEM)
            raise
        self._answered = True
        return answer

    def _no_answer(self, call: Call[Any], error: httpx.HTTPError | httpx.InvalidURL) -> ClientError:
        """Return the exception that says why httpx has no answer, and what to do about it."""
        why = str(error) or type(error).__name__
        said = f"{call.method} {call.path}: "
        if isinstance(error, httpx.DecodingError):
            return BadAnswer(said + why)
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or not isinstance(
            error, httpx.TransportError
        ):
            return ClientError(said + why)  # The request was never sent, and never will be.
        if isinstance(error, httpx.RemoteProtocolError) and why.startswith("illegal"):
            return BadAnswer(f"{said}{self._url} does not speak HTTP ({why}), so {ANOTHER_PROGRAM}")
        if self._answered:
            return Unreachable(f"{said}no answer from {self._url}: {why}")
        if (fault := certificate_fault(why, "SSL_CERT_FILE")) is not None:
            return ClientError(f"{said}the certificate of {self._url} is refused ({why}): {fault}")  # For good.
        if why.startswith("[SSL"):
            return Unreachable(f"{said}no TLS with {self._url} ({why}): is that an address for http:// instead?")
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"{said}nothing answers at {self._url} ({why}): {START_IT}")
        return Unreachable(f"{said}what listens at {self._url} gives no answer ({why}): {START_IT}")

    def _retrying(self, call: Call[Any]) -> dict[str, Any]:
        """Return how tenacity repeats a call: not at all, or with back-off until the time for it has passed."""

        def worth_it(error: BaseException) -> bool:
            refused = isinstance(error, Unavailable) and error.status == TOO_MANY_REQUESTS  # It took no effect.
            return refused or (call.again and isinstance(error, (Unreachable, Unavailable)))

        def late(state: RetryCallState) -> bool:
            return (state.seconds_since_start or 0.0) + state.upcoming_sleep >= self._patience()

        return {"retry": retry_if_exception(worth_it), "wait": _wait, "stop": late, "reraise": True}

    def _patience(self) -> float:
        if self._retry_seconds is not None:
            return self._retry_seconds
        return RETRY_SECONDS if self._answered else FIRST_RETRY_SECONDS


class Blocking(Connected[httpx.BaseTransport]):
    """A client whose methods return their answers."""

    def _connect(self, **options: Any) -> None:
        self._http = httpx.Client(**options)

    def __enter__(self) -> Self:
        """Return the client. Leaving the context closes its connections."""
        self._http.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._http.__exit__(*raised)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        def once() -> T:
            try:
                response = self._http.request(**call.request(self._after, self._crawl))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._no_answer(call, error) from error
            return self._read(call, response)

        try:
            return Retrying(**self._retrying(call))(once)
        except ClientError as error:
            return call.failed(error)


class Awaited(Connected[httpx.AsyncBaseTransport]):
    """A client whose methods are coroutines."""

    def _connect(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        """Return the client. Leaving the context closes its connections."""
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._http.__aexit__(*raised)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        async def once() -> T:
            try:
                response = await self._http.request(**call.request(self._after, self._crawl))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._no_answer(call, error) from error
            return self._read(call, response)

        try:
            return await AsyncRetrying(**self._retrying(call))(once)
        except ClientError as error:
            return call.failed(error)
