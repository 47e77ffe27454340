"""The client that blocks."""

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from tenacity import Retrying

from opic.client.calls import Call
from opic.client.crawl_methods import CrawlMethods
from opic.client.errors import ClientError
from opic.client.methods import Blocking
from opic.client.query_methods import QueryMethods

T = TypeVar("T")


class Client(CrawlMethods, QueryMethods, Blocking[httpx.BaseTransport]):
    """A client of one service. Threads may share a `Client`, tasks an `AsyncClient`.

    Calls are retried if there is no answer, or the answer is a 503: after the Retry-After of the answer plus a random
    wait that doubles, for up to `retry_seconds`. Events sent with `once=False` are never retried, since they could
    take effect twice. All other errors are raised at once.
    """

    def _connect(self, **options: Any) -> None:
        self._http = httpx.Client(**options)

    def __enter__(self) -> Self:
        """Return the client. Leaving the context closes its connections."""
        self._http.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close all connections."""
        self._http.__exit__(kind, error, at)

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
