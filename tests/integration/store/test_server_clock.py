"""The clock of the store's server is set back while an endpoint runs."""

import time

import pytest
from frontiers import Crawl, pages_of
from servers import Server

from opic.frontier import PolitenessSettings

HOSTS, DELAY_SECONDS = 150, 60.0
CALLS_MAX = 12


@pytest.mark.parametrize("back_seconds", [2.0, 30.0, 3_600.0, 86_400.0])
def test_choice_ends_soon_and_keeps_delays_after_the_clock_was_set_back(valkey: Server, back_seconds: float) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=DELAY_SECONDS))
    crawl.seed(pages_of(HOSTS, 5))
    assert len(crawl.urls(HOSTS - 50)) == HOSTS - 50

    def function_calls() -> int:
        stats = crawl.store.shard.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("fcall", "fcall_ro"))

    for hot in crawl.frontier._scheduler.hot.shards:
        hot.hear_time(time.time() + back_seconds)  # As the server told before its clock was set back.
    before = function_calls()
    assert len(crawl.urls(HOSTS)) == 50
    answer = crawl.frontier.next(HOSTS)
    assert answer.pages == []
    assert function_calls() - before <= CALLS_MAX
    assert 0 < answer.retry_after <= DELAY_SECONDS + 1  # type: ignore[operator]
