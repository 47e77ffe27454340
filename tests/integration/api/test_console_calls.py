"""The calls that the console was made for, and the page itself as a browser gets it."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from opic.api.console import PAGE_PATHS
from opic.query.convergence import POINTS_MAX, step_of
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

TOKEN = "s3cret-token-of-the-tests"
WAIT_SECONDS = 15.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    folder = tmp_path_factory.mktemp("console")
    with EmbeddedService(Settings.load(data=folder, host_delay_seconds=0.0, api_token=TOKEN)) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(service: EmbeddedService) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with serving(service) as url, httpx.Client(base_url=url, headers=headers, timeout=30) as opened:
        yield opened


def wait_for(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not good(found := ask()):
        assert time.monotonic() < deadline, f"after {WAIT_SECONDS} s still {found}"
        time.sleep(0.02)
    return found


def get(client: httpx.Client, path: str, **parameters: object) -> dict[str, Any]:
    return dict(client.get(path, params={name: str(value) for name, value in parameters.items()}).json())


def test_dead_letters_come_newest_first_and_shortened(client: httpx.Client, service: EmbeddedService) -> None:
    assert get(client, "/v1/dead-letters")["dead_letters"] == []
    long = b'{"url": 7, "x": "' + b"y" * 3_000 + b'"}'
    before = time.time()
    service.backend.accept([b"nonsense %d" % n for n in range(30)] + [b"\x81\xa3url\xff", long])
    found = wait_for(lambda: get(client, "/v1/dead-letters", n=25), lambda a: len(a["dead_letters"]) == 25)
    first, second, third = found["dead_letters"][:3]
    assert (first["value_bytes"], first["value"]) == (len(long), long[:500].decode())
    assert "Expected `str`, got `int`" in first["error"]
    assert second["value"] == "\\x81\\xa3url\\xff"
    assert third["value"] == "nonsense 29"
    assert [letter["offset"] for letter in found["dead_letters"]] == list(range(31, 6, -1))
    assert all(before - 1 < letter["at"] < time.time() + 1 for letter in found["dead_letters"])
    assert found["as_of"] >= before
    assert len(get(client, "/v1/dead-letters", n=100)["dead_letters"]) == 32


@pytest.mark.parametrize("asked", ["/v1/dead-letters?n=0", "/v1/dead-letters?n=101", "/v1/dead-letters?n=x"])
@pytest.mark.parametrize("more", ["", "&offset=3"])
def test_bad_parameters_are_refused(client: httpx.Client, asked: str, more: str) -> None:
    for path in (asked, asked.replace("dead-letters", "series").replace("101", "1001")):
        answer = client.get(path + more)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:opic:problem:bad-input")


def test_series_and_curve_end_at_the_present_state(client: httpx.Client, service: EmbeddedService) -> None:
    pages = [f"http://h{n}.example/" for n in range(60)]
    for turn in range(12):
        links = [pages[(n * 7 + 1) % 60] for n in range(60)]
        events = [{"url": page, "links": [link]} for page, link in zip(pages, links, strict=True)]
        assert client.post("/v1/events", json=events).status_code == 202, turn
        wait_for(lambda: get(client, "/v1/stats")["lag"], lambda lag: lag == 0)
        service.backend.curve.note()
    wait_for(lambda: get(client, "/v1/stats").get("error_bound", 2), lambda bound: bound <= 0.01)
    stats, found = get(client, "/v1/stats"), get(client, "/v1/series")
    for line in found["series"], found["convergence"]:
        assert line[-1]["clock"] == stats["clock"]
        assert line[-1]["rounds"] == pytest.approx(stats["rounds"])
        assert all(a["clock"] <= b["clock"] and a["rounds"] <= b["rounds"] for a, b in pairwise(line))
    books, curve = service.backend.crawl.totals(), found["convergence"]
    assert (curve[-1]["error_bound"], curve[-1]["unspent"]) == (pytest.approx(stats["error_bound"]), books.open_cash)
    assert 5 <= len(curve) <= 1 + 12 + 5
    assert curve[-1]["error_bound"] <= 0.01
    assert [entry["rounds"] for entry in found["series"][:2]] == [0.0, pytest.approx(0.25, abs=0.3)]
    few = get(client, "/v1/series", n=5)["series"]
    assert len(few) <= 6
    assert few[-1] == found["series"][-1]


def test_progress_counts_pages_at_the_points_of_the_curve(client: httpx.Client, service: EmbeddedService) -> None:
    stats, found = get(client, "/v1/stats"), get(client, "/v1/series")
    last = found["progress"][-1]
    assert last["read_pages"] == stats["read_pages"]
    assert last["read_pages"] + last["to_fetch_pages"] == stats["known_pages"]
    reads = [counts["read_pages"] for counts in found["progress"]]
    assert reads == sorted(reads)
    assert len(reads) > 5
    client.post("/v1/events", json={"url": "http://h1.example/shut", "status": 403}).raise_for_status()
    client.post("/v1/events", json={"url": "http://h1.example/bad", "status": 500, "give_up": True}).raise_for_status()
    wait_for(lambda: get(client, "/v1/stats")["lag"], lambda lag: lag == 0)
    after = get(client, "/v1/series")["progress"][-1]
    assert (after["denied_pages"] - last["denied_pages"], after["failed_pages"] - last["failed_pages"]) == (1, 1)
    assert after["to_fetch_pages"] == last["to_fetch_pages"]


def test_next_pages_come_with_the_key_that_orders_them(client: httpx.Client) -> None:
    client.post("/v1/seeds", json={"urls": [f"http://key{n}.example/" for n in range(5)]}).raise_for_status()
    found = wait_for(lambda: get(client, "/v1/frontier", n=50), lambda found: found["order"] == "exact")
    keys = [page["key"] for page in found["pages"]]
    assert len(keys) >= 5
    assert keys == sorted(keys, reverse=True)
    assert found["waiting"]["denied"] >= 1
    assert any("may not be fetched" in sentence for sentence in found["held_back"])


def test_what_links_give_a_page_is_its_share_of_their_importance(client: httpx.Client) -> None:
    target, sources = "http://given.example/", [f"http://giver{n}.example/" for n in range(3)]
    events = [
        {"url": source, "links": [target, *(f"http://else{m}.example/" for m in range(n))]}
        for n, source in enumerate(sources)
    ]
    client.post("/v1/events", json=[*events, {"url": target}]).raise_for_status()
    wait_for(lambda: get(client, "/v1/stats")["lag"], lambda lag: lag == 0)
    get(client, "/v1/top")  # Settles importance further.
    given = get(client, "/v1/explain", url=target)["given_by"]
    own = get(client, "/v1/importance", url=target)["importance"]
    expected = {
        source: 0.85 * get(client, "/v1/importance", url=source)["importance"] / (n + 1) / own
        for n, source in enumerate(sources)
    }
    assert {page["url"]: page["share"] for page in given["pages"]} == pytest.approx(expected, rel=1e-3)
    assert [page["url"] for page in given["pages"]] == sources
    assert (given["known"], given["jump"] + sum(expected.values())) == (3, pytest.approx(1, abs=1e-3))


def test_sixteen_points_are_kept_per_doubling(service: EmbeddedService, client: httpx.Client) -> None:
    client.post("/v1/events", json={"url": "http://h0.example/", "links": ["http://h1.example/"]})
    wait_for(lambda: get(client, "/v1/stats")["lag"], lambda lag: lag == 0)
    curve = service.backend.curve
    curve.note()
    assert not curve.note()
    assert [step_of(rounds << 32) - step_of(1 << 32) for rounds in (1, 2, 4)] == [0, 16, 32]
    assert step_of(0) == -1
    assert step_of((1 << 62) - 1) < POINTS_MAX


def test_a_full_disk_gets_no_point(service: EmbeddedService, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = service.backend.curve
    monkeypatch.setattr(curve, "_noted", -1)
    monkeypatch.setattr(curve, "_disk_full", lambda: "the disk is full")
    assert not curve.note()


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_only_the_page_itself_needs_no_token(client: httpx.Client, path: str) -> None:
    answer = client.get(path, headers={"authorization": ""})
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    again = client.get(path, headers={"if-none-match": f'"other", {answer.headers["etag"]}', "authorization": ""})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/v1/series", "/v1/dead-letters", "/v1/stats", "/console", "/console/__init__.py"])
def test_all_that_holds_data_needs_the_token(client: httpx.Client, path: str) -> None:
    assert client.get(path, headers={"authorization": ""}).status_code == 401


def test_every_file_of_the_page_is_served() -> None:
    import opic.api.console as console

    folder = Path(console.__file__).parent
    served = {name for name, _ in console.FILES.values()}
    assert served == {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
