"""The two clients: all methods, sent by one that blocks or by one for asyncio."""

from opic.client.crawl_methods import CrawlMethods
from opic.client.methods import Awaited, Blocking
from opic.client.query_methods import QueryMethods


class Client(CrawlMethods, QueryMethods, Blocking):
    """A client of one service. Threads may share a `Client`, tasks an `AsyncClient`.

    Calls are retried if there is no answer, or the answer is a 503, or a 429 for being over a rate: after the
    Retry-After of the answer plus a random wait that doubles, for up to `retry_seconds`. Events sent with `once=False`
    are retried after a 429 alone, since they could take effect twice. All other errors are raised at once.
    """


class AsyncClient(CrawlMethods, QueryMethods, Awaited):
    """A client of one service for asyncio: the methods of `Client` as coroutines, which retry calls as it does."""
