"""What a question is answered from: the present state where keeping up is quick, else what a thread made last."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from exact_readers import asked
from linked_web import Web
from processes import wait_until
from servers import Server

from opic.model.events import CrawlEvent
from opic.query.queries import Query
from opic.replica.upkeep import AGE_SECONDS_MAX, QUICK_SECONDS

WAIT_SECONDS = 20.0
LINKS = 10_000  # Of a page, the most that an event may have.


@contextmanager
def endpoints(web: Web, count: int) -> Iterator[list[Query]]:
    """Readers of a crawl in whose processes threads follow and settle."""
    with ExitStack() as stack:
        queries = []
        for _ in range(count):
            queries.append(query := asked(web.opened()))
            assert query.exact is not None
            query.exact.view()
            query.exact.start()
            stack.callback(query.exact.close)
            query.crawl.keep_following()
            stack.callback(query.crawl.close)
        yield queries


@pytest.mark.parametrize("writes", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_each_write_is_seen_by_the_next_question_at_any_endpoint(valkey: Server, writes: int) -> None:
    web = Web(valkey, f"seen-{writes}")
    web.read("http://h0.org/0", ["http://h1.org/1"])
    with endpoints(web, 2) as queries:
        for number in range(1, writes):
            read, found = f"http://h{number % 7}.org/{number}", f"http://h{(number + 1) % 7}.org/{number + 1}"
            web.read(read, [found, "http://h0.org/0"])
            for query in queries:
                page, new = query.importance([read, found])
                assert page is not None, number
                assert new is not None, number
                assert (page["policy"], page["reads"], new["reads"]) == ("exact", 1, 0)
                assert min(float(str(page["importance"])), float(str(new["importance"]))) > 0, number
                assert float(str(new["error_bound"])) <= 0.01, number
                assert found in {top["url"] for top in query.top(1_000, policy="static")}
        assert all(query.crawl.upkeep.quick for query in queries)


@pytest.mark.slow
def test_no_question_waits_where_keeping_up_takes_long(valkey: Server) -> None:
    """On a graph of so many pages that it does, while a thread settles."""
    web = Web(valkey, "long")

    def read(number: int) -> None:
        web.apply(CrawlEvent(f"http://h.org/{number}", [f"http://h{number}.org/{page}" for page in range(LINKS)]))

    for number in range(15):
        read(number)
    with endpoints(web, 1) as (query,):
        exact, page = query.exact, "http://h.org/0"
        assert exact is not None
        events = (CrawlEvent(f"http://n{number}.org/", [page]) for number in range(10_000))

        def renewed() -> bool:
            web.apply(next(events))
            return not query.crawl.upkeep.quick

        wait_until(renewed, WAIT_SECONDS)
        assert min(query.crawl.upkeep._passes["importance"]) > QUICK_SECONDS

        def answered_while_settling() -> bool:
            with exact.flows.kept.lock, ThreadPoolExecutor(1) as pool:
                web.apply(next(events))
                before = query.crawl.as_of
                (told,) = pool.submit(query.importance, [page]).result(WAIT_SECONDS)
                (top, *_) = pool.submit(query.top, 1).result(WAIT_SECONDS)
            assert told is not None
            assert (told["policy"], top["policy"]) == ("exact", "exact")
            return query.crawl.as_of > before  # A thread followed meanwhile.

        wait_until(answered_while_settling, WAIT_SECONDS)
        wait_until(lambda: query.crawl.as_of - exact.view().as_of <= AGE_SECONDS_MAX, WAIT_SECONDS)
        web.apply(event := next(events))
        query.crawl.show()
        (shown,) = query.importance([event.url])
        assert shown is not None
        assert float(str(shown["importance"])) > 0
