"""A lease may be shorter than a call takes: an answer still has each page once."""

import pytest
from frontiers import Crawl, pages_of
from servers import Server

from opic.frontier import PolitenessSettings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.


@pytest.mark.parametrize("retry_seconds", [0.0, 60.0])
@pytest.mark.parametrize("share", [None, 0.5])
def test_no_answer_has_a_page_twice_though_its_lease_has_ended(
    valkey: Server, share: float | None, retry_seconds: float
) -> None:
    terms = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=retry_seconds)
    crawl = Crawl(valkey, terms, share=share)
    crawl.seed(pages_of(3, 1))  # Fewer than are asked for: an answer is filled up in several turns.
    found = list[str]()
    for _ in range(40):
        pages = crawl.urls(20, lease_seconds=0.0001)
        found += pages
        assert len(set(pages)) == len(pages)
    assert found
