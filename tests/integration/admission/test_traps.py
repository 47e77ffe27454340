"""Spider traps beside an honest site, through the endpoint: they get no more than their share, and it gets crawled."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from serving import serving

from opic.admission import admission
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.urls.canonical import registered_domain
from opic.urls.traps import WINDOW

pytestmark = pytest.mark.slow

SITES = [f"honest{n}.example" for n in range(5)]  # They link to each other, as no trap does to another site.
HONEST = [f"http://{site}/{n}" for site in SITES for n in range(30)]
YEAR = time.gmtime().tm_year
STARTS = [
    HONEST[0],
    "http://endless.example/1",
    "http://n1.farm.example/",
    f"http://calendar.example/view?year={YEAR}&month=1",
]
SUGGESTIONS = 300
WAIT_SECONDS = 60.0
A_CALL = 10
# So small that a small web reaches them.
TRAPS = {"host_pages": 40, "site_reads": 20, "dates": 24}


class Web:
    """A site of as many pages as it has, and three that make them up as they are asked for."""

    def __init__(self) -> None:
        rng = random.Random(5)
        self._honest = {url: rng.sample(HONEST, 12) for url in HONEST}
        self._new = itertools.count(2)

    def links(self, url: str) -> list[str]:
        parts = urlsplit(url)
        if url in self._honest:
            return [*self._honest[url], *(STARTS[1:] if url == HONEST[0] else ())]
        if parts.hostname == "endless.example":
            return [f"http://endless.example/{next(self._new)}" for _ in range(2)]
        if parts.hostname == "calendar.example":
            year, month = (int(parse_qs(parts.query)[name][0]) for name in ("year", "month"))
            months = [year * 12 + month - 1 + by for by in (-12, -1, 1, 12)]
            return [f"http://calendar.example/view?year={at // 12}&month={at % 12 + 1}" for at in months]
        return [f"http://n{next(self._new)}.farm.example/" for _ in range(2)]


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    # Hosts and sites are weighed at each call: in the tenth of a second between two looks this crawl has 60 pages.
    for name in ("WEIGH_SECONDS_MIN", "WEIGH_REST"):
        monkeypatch.setattr(admission, name, 0)
    # By cash, where traps hold most: by exact importance half of all suggestions are pages to read again.
    plain = {"strategy": "greedy", "host_delay_seconds": 0.0, "revisit_seconds": 0.0}
    settings = Settings.load(data=tmp_path_factory.mktemp("traps"), **plain)
    with EmbeddedService(settings) as service, serving(service) as url, httpx.Client(base_url=url, timeout=60) as found:
        yield found


def crawl(client: httpx.Client, traps: dict[str, Any]) -> list[str]:
    """Crawl the web as it is suggested; return what was, in order."""
    client.put("/v1/rules", json={"traps": traps}).raise_for_status()
    seed(client)
    web, suggested = Web(), list[str]()
    while len(suggested) < SUGGESTIONS:
        pages = client.post("/v1/next", json={"n": A_CALL}).raise_for_status().json()["pages"]
        assert pages, "a crawl of pages that are all free goes on"
        urls = [page["url"] for page in pages]
        suggested += urls
        events = [{"url": url, "links": web.links(url)} for url in urls]
        client.post("/v1/events", json=events).raise_for_status()
        while client.get("/v1/stats").json()["lag"]:
            time.sleep(0.005)
    return suggested


def seed(client: httpx.Client) -> None:
    """Make the starts known; a worker that has only begun may take longer to do so than the call waits."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (answer := client.post("/v1/seeds", json={"urls": STARTS})).status_code == 503:
        assert time.monotonic() < deadline, answer.text
    answer.raise_for_status()


def by_site(urls: list[str]) -> Counter[str]:
    return Counter(registered_domain(urlsplit(url).hostname or "") for url in urls)


def test_traps_get_their_share_and_the_honest_sites_are_crawled(client: httpx.Client) -> None:
    suggested = crawl(client, TRAPS)
    assert len(set(suggested) & set(HONEST)) > 0.9 * len(HONEST)
    for start in range(len(suggested) - WINDOW + 1):
        assert by_site(suggested[start : start + WINDOW])["endless.example"] <= WINDOW // 2
    last = by_site(suggested[-WINDOW:])
    assert last["farm.example"] <= WINDOW // 10
    assert last["endless.example"] <= WINDOW // 10
    calendar = {url for url in suggested if "calendar." in url}
    assert len(calendar) <= TRAPS["dates"]
    assert not any(f"year={year}" in url for url in calendar for year in range(YEAR + 3, YEAR + 9))
    # Whoever asks why is told.
    ahead = f"http://calendar.example/view?year={YEAR + 3}&month=1"
    assert f"http://calendar.example/view?year={YEAR + 2}&month=1" in calendar, "it links to the next one"
    for url, why in ((ahead, "trap: far_date"), ("http://endless.example/2", "outgrown site endless.example")):
        told = client.get("/v1/explain", params={"url": url}).raise_for_status().json()["frontier"]
        assert why in [rule["rule"] for rule in told["rules"]]
    assert client.get("/v1/audit").json()["conserved"] is True


def test_without_trap_thresholds_the_traps_swallow_the_crawl(client: httpx.Client) -> None:
    suggested = crawl(client, {"on": False})
    assert len(set(suggested) & set(HONEST)) < 0.1 * len(HONEST)
    assert by_site(suggested[-WINDOW:])["endless.example"] > 0.9 * WINDOW


def test_a_rule_of_an_operator_closes_a_trap_at_once_and_its_cash_stays(client: httpx.Client) -> None:
    seed(client)
    rules = [{"effect": "deny", "domain": "farm.example", "note": "makes up hosts"}]
    client.put("/v1/rules", json={"rules": rules}).raise_for_status()
    urls = {page["url"] for page in client.post("/v1/next", json={"n": 10}).raise_for_status().json()["pages"]}
    assert urls == set(STARTS) - {STARTS[2]}
    page = client.get("/v1/importance", params={"url": STARTS[2]}).raise_for_status().json()
    assert page["cash"] > 0
    told = client.get("/v1/explain", params={"url": STARTS[2]}).raise_for_status().json()["frontier"]
    assert told["rules"] == [{"rule": "rule 0: makes up hosts", "effect": "deny"}]
    assert told["next"] is False
    client.put("/v1/rules", json={"rules": [], "traps": {}}).raise_for_status()
    pages = client.post("/v1/next", json={"n": 10}).raise_for_status().json()["pages"]
    assert [page["url"] for page in pages] == [STARTS[2]]
