"""The ranked list of a local domain: its estimator sends it, whoever asks gets the last one, over restarts too."""

import time
from collections.abc import Iterator
from pathlib import Path

import curls
import pytest
from serving import serving

from opic.client import Client, Conflict, NotFound
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import local_lists

pytestmark = pytest.mark.slow

PAGES = [{"url": f"http://www.a.example/{n}", "importance": (5 - n) / 15} for n in range(5)]
PAGES_OF_B = [{"url": "http://b.example/", "importance": 1.0}]
RANKING = {"outside_fetched": 7, "method": "combined", "service_coverage": 0.25, "as_of": 1_764_000_000.0}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with EmbeddedService(Settings.load(data=tmp_path, max_urls=5, max_n=100)) as service, serving(service) as served:
        yield served


def test_last_list_is_kept_and_its_first_pages_are_returned(url: str) -> None:
    with Client(url) as client:
        client.put_local("A.example", PAGES[:1], **RANKING)
        assert client.put_local("a.example", PAGES, **RANKING).pages == 5
        found = client.local("a.EXAMPLE", 2)
    assert [(page.url, page.rank) for page in found.pages] == [(PAGES[0]["url"], 1), (PAGES[1]["url"], 2)]
    assert (found.domain, found.outside_fetched, found.method) == ("a.example", 7, "combined")
    assert (found.service_coverage, found.as_of) == (0.25, 1_764_000_000.0)


def test_domain_without_an_estimator_is_not_found(url: str) -> None:
    with Client(url) as client, pytest.raises(NotFound, match=r"no estimator has sent a list of b\.example"):
        client.local("b.example")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pages": [*PAGES, PAGES[4]]}, "6 pages is over OPIC_MAX_URLS 5"),
        ({"pages": PAGES[::-1]}, "not in descending order"),
        ({"pages": [{"url": "http://nota.example/", "importance": 1}]}, "is not a page of a.example"),
        ({"pages": [{"url": "/about", "importance": 1}]}, "not an absolute http"),
        ({"pages": [{"url": "http://a.example/", "importance": 2}]}, "less than or equal to 1"),
        ({"outside_fetched": -1}, "outside_fetched"),
        ({"methods": "paper"}, "did you mean method?"),
    ],
)
def test_invalid_list_is_refused(url: str, change: dict[str, object], complaint: str) -> None:
    answer = curls.put(f"{url}/v1/local/a.example", json={**RANKING, "pages": PAGES, **change})
    assert answer.status_code == 422
    assert complaint in answer.json()["detail"]
    assert curls.get(f"{url}/v1/local/a.example").status_code == 404


def test_invalid_domain_is_refused(url: str) -> None:
    assert curls.get(f"{url}/v1/local/a.example:80").status_code == 422
    assert curls.get(f"{url}/v1/local/a.example", params={"n": 101}).json()["detail"] == "n=101 is over OPIC_MAX_N 100"


def test_lists_of_domains_are_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_lists, "LISTS_MAX", 1)
    with Client(url) as client:
        client.put_local("a.example", [], **RANKING)
        client.put_local("a.example", PAGES, **RANKING)
        with pytest.raises(Conflict, match="the lists of 1 domains, its limit"):
            client.put_local("b.example", [], **RANKING)


def test_bytes_of_all_lists_are_limited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(url) as client:
        client.put_local("a.example", PAGES, **RANKING)
        monkeypatch.setattr(local_lists, "BYTES_MAX", 200)
        with pytest.raises(Conflict, match="exceed 200 bytes: send fewer pages"):
            client.put_local("b.example", PAGES_OF_B, **RANKING)
        client.put_local("a.example", PAGES[:1], **RANKING)  # It takes the place of the one before.


def test_domains_with_a_list_are_listed_the_newest_first(url: str) -> None:
    changes = [{"outside_fetched": 5, "change": 0.5}, {"outside_fetched": 7, "change": 0.25}]
    with Client(url) as client:
        assert client.local_domains().domains == []
        client.put_local("a.example", PAGES, **RANKING, changes=changes)
        client.put_local("b.example", PAGES_OF_B, **RANKING)
        found = client.local_domains().domains
        assert [(one.domain, one.pages, one.outside_fetched) for one in found] == [
            ("b.example", 1, 7),
            ("a.example", 5, 7),
        ]
        whole = client.local("a.example")
    assert [(one.outside_fetched, one.change) for one in whole.changes] == [(5, 0.5), (7, 0.25)]
    assert whole.expires_at == found[1].expires_at > time.time()


def test_list_that_is_not_renewed_expires_and_makes_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_lists, "LISTS_MAX", 1)
    with Client(url) as client:
        client.put_local("a.example", PAGES, **RANKING)
        monkeypatch.setattr(local_lists, "KEPT_SECONDS", 0)
        assert client.local_domains().domains == []
        with pytest.raises(NotFound, match=r"no estimator has sent a list of a\.example"):
            client.local("a.example")
        client.put_local("b.example", PAGES_OF_B, **RANKING)
        monkeypatch.setattr(local_lists, "KEPT_SECONDS", 1_000)
        assert [one.domain for one in client.local_domains().domains] == ["b.example"]


def test_other_methods_are_refused_with_the_allowed_ones(url: str) -> None:
    answer = curls.delete(f"{url}/v1/local/a.example")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PUT")
