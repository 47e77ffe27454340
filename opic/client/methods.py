"""A method of both clients is written once: it returns the call to make, and the client sends that.

A `Client` has it as a function that returns the answer, an `AsyncClient` as a coroutine. Type checkers see the same.
"""

import ssl
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args, overload

import httpx
from tenacity import AsyncRetrying, Retrying

from opic.client import calls
from opic.client.calls import Call
from opic.client.errors import ClientError

P = ParamSpec("P")
T = TypeVar("T")
Transport = TypeVar("Transport")


class Method(Generic[P, T]):
    """Decorates a function that returns a call: it becomes the method of both clients that makes the call."""

    def __init__(self, call: Callable[Concatenate[Any, P], Call[T]]) -> None:
        """Make the function of the one client, and that of the other."""

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


class Connected(Generic[Transport]):
    """A client of a service, before it is decided how it waits."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        crawler: str = "",
        timeout_seconds: float = calls.ANSWER_SECONDS,
        retry_seconds: float | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: Transport | None = None,
    ) -> None:
        """Create a client. Connections are opened when the first call needs them.

        Args:
            url: base URL of the service.
            token: the service's OPIC_API_TOKEN.
            crawler: name of this crawler, which holds the leases.
            timeout_seconds: timeout of an answer; the timeout of a connection is at most 5 s.
            retry_seconds: how long to retry a call; 0 disables retries. If None, 60 s; but 5 s until the service has
                answered this client for the first time, so that a wrong address fails soon.
            verify: TLS certificates to trust; passed to httpx.
            transport: an httpx transport to use instead of the default one.
        """
        self._crawler, self._endpoint = crawler, calls.Endpoint(url, retry_seconds)
        timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, calls.CONNECT_SECONDS))
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._connect(base_url=url, headers=headers, timeout=timeout, verify=verify, transport=transport)

    def _connect(self, **options: Any) -> None:
        """Make the client of httpx."""
        raise NotImplementedError


class Blocking(Connected[httpx.BaseTransport]):
    """A client whose methods return their answers."""

    def _connect(self, **options: Any) -> None:
        self._http = httpx.Client(**options)

    def __enter__(self) -> Self:
        """Return the client. Leaving the context closes its connections."""
        self._http.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Close all connections."""
        self._http.__exit__(*raised)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        def once() -> T:
            try:
                response = self._http.request(**call.request())
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._endpoint.no_answer(call, error) from error
            return self._endpoint.read(call, response)

        try:
            return Retrying(**self._endpoint.retrying(call))(once)
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
        """Close all connections."""
        await self._http.__aexit__(*raised)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        async def once() -> T:
            try:
                response = await self._http.request(**call.request())
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._endpoint.no_answer(call, error) from error
            return self._endpoint.read(call, response)

        try:
            return await AsyncRetrying(**self._endpoint.retrying(call))(once)
        except ClientError as error:
            return call.failed(error)
