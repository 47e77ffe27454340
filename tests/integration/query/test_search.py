"""A page is found by a part of its URL, within a bounded time; the answer says how far the search got."""

from collections.abc import Iterator

import curls
import pytest
from processes import wait_until
from serving import serving

from opic.client import BadRequest, Client
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

PAGES = 300
BEST = "http://a.example/News/Best"


@pytest.fixture(scope="module", params=[1, 3], ids=["one shard", "three shards"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    folder = tmp_path_factory.mktemp("search")
    with EmbeddedService(Settings.load(data=folder, shards=request.param)) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(service: EmbeddedService) -> Iterator[Client]:
    with serving(service) as url, Client(url) as opened:
        opened.seed([f"http://{host}.example/{n}" for host in "abc" for n in range(PAGES // 3)])
        opened.seed([BEST, "http://a.example/news/other", "http://gone.example/news"])
        opened.events([{"url": f"http://b.example/{n}", "links": [BEST]} for n in range(5)])
        opened.event("http://gone.example/news", status=410)
        wait_until(lambda: opened.stats().lag == 0 and opened.search("best").pages[0].importance > 1 / PAGES)
        yield opened


def test_pages_are_found_by_a_part_of_their_url_the_best_first(client: Client) -> None:
    found = client.search("NEWS")
    assert [page.url for page in found.pages] == [BEST, "http://a.example/news/other"]
    assert found.pages[0].importance == client.importance(BEST).importance
    assert (found.found, found.next) == (2, None)
    assert found.looked_at == found.known_pages == PAGES + 2  # The gone page is none of them.
    assert [page.url for page in client.search("news", 1).pages] == [BEST]
    assert client.search("nothing has this").pages == []


def test_search_may_be_limited_to_a_host_or_domain(client: Client) -> None:
    found = client.search("/7", domain="b.example")
    assert {page.url for page in found.pages} == {"http://b.example/7"} | {f"http://b.example/7{n}" for n in range(10)}
    assert found.known_pages == PAGES // 3
    assert client.search("/7", domain="never.example").known_pages == 0


def test_search_that_has_no_time_left_says_so_and_goes_on(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opic.query.search.SECONDS_MAX", 0.0)
    monkeypatch.setattr("opic.query.search.URLS_A_READ", 50)
    urls: list[str] = []
    after, calls = None, 0
    while calls == 0 or after is not None:
        found = client.search(".example/1", 100, after=after)
        assert found.looked_at <= 50 < found.known_pages
        urls += [page.url for page in found.pages]
        after, calls = found.next, calls + 1
    assert calls == -(-(PAGES + 2) // 50)
    monkeypatch.undo()
    every = client.search(".example/1", 100)
    assert every.next is None
    assert sorted(urls) == sorted(page.url for page in every.pages)


@pytest.mark.parametrize("asked", [{"text": " "}, {"text": "a", "after": "x"}, {"text": "a", "after": "99-0"}])
def test_invalid_search_is_refused(client: Client, asked: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        client.search(**asked)


def test_search_without_a_text_is_refused(client: Client, service: EmbeddedService) -> None:
    with serving(service) as url:
        assert curls.get(f"{url}/v1/search").status_code == 422
        assert curls.get(f"{url}/v1/search", params={"text": "a", "n": 1_001}).status_code == 422
