"""The links of a crawl are of distinct pages, and of at least one."""

import pytest

from opic.errors import BadInput
from opic.graph.crawled import CrawledLinks


@pytest.mark.parametrize(
    ("local", "links", "complaint"), [([], [], "has no page"), ([1, 1], [[], []], "fetched before")]
)
def test_domain_must_have_distinct_pages(local: list[int], links: list[list[int]], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        CrawledLinks(local, links)
