"""What an endpoint remembers of domains that calls named is bounded in bytes, and forgetting changes no answer."""

import pytest
from frontiers import Crawl
from servers import Server

from opic.replica import hosts
from opic.replica.hosts import HostTable

pytestmark = pytest.mark.slow

PAGES, HOSTS, SETS, BYTES = 2_000, 50, 30, 40_000


def test_cached_pages_of_domains_stay_within_the_setting(valkey: Server) -> None:
    crawl = Crawl(valkey, domain_bytes=BYTES)
    crawl.seed([f"http://h{page % HOSTS}.com/{page}" for page in range(PAGES)])
    cached = crawl.frontier._scheduler.choices._domains
    of_one = 0
    for nth in range(SETS):
        assert len(crawl.next(5, domains=["com", f"x{nth}.net"])) == 5
        of_one = of_one or cached.nbytes
        assert PAGES * 8 <= of_one <= cached.nbytes <= BYTES + of_one
    crawl.seed(["http://new.com/"])
    for domain in ("com", "new.com", "h1.com", "com", None, "new.com"):
        expected = crawl.endpoint().peek(PAGES, domain=domain).pages
        assert crawl.frontier.peek(PAGES, domain=domain).pages == expected
    assert crawl.urls(5, domains=["new.com"]) == ["http://new.com/"]


def test_cached_hosts_of_domains_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "HOSTS_KEPT_MAX", 20)
    table = HostTable()
    table.append([f"h{n}.d{n % 10}.example" for n in range(100)])
    for domain in (*(f"d{n}.example" for n in range(10)), "d3.example"):
        assert table.below(domain) == [n for n in range(100) if f"d{n % 10}.example" == domain]
        assert sum(len(numbers) for _, numbers in table._below.values()) <= 20 + 10
    assert table.below("example") == list(range(100))
    table.append(["new.d3.example"])
    assert table.below("d3.example") == [*range(3, 100, 10), 100]
