"""The client for asyncio."""

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from tenacity import AsyncRetrying

from opic.client.calls import Call
from opic.client.crawl_methods import CrawlMethods
from opic.client.errors import ClientError
from opic.client.methods import Awaited
from opic.client.query_methods import QueryMethods

T = TypeVar("T")


class AsyncClient(CrawlMethods, QueryMethods, Awaited[httpx.AsyncBaseTransport]):
    """A client of one service. Threads may share a `Client`, tasks an `AsyncClient`.

    Calls are retried if there is no answer, or the answer is a 503: after the Retry-After of the answer plus a random
    wait that doubles, for up to `retry_seconds`. Events sent with `once=False` are never retried, since they could
    take effect twice. All other errors are raised at once.
    """

    def _connect(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        """Return the client. Leaving the context closes its connections."""
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self._http.__aexit__(kind, error, at)

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
