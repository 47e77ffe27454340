"""A read that is given `after=POSITION` shows that write, at any endpoint, without a wait for the lag."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import curls
import httpx
import pytest
from kafka_crawl import Topic, settings_of, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server
from serving import serving, working

import opic.service.backend
from opic.service.backend import Backend
from opic.settings import Settings

WRITES = 12


@contextmanager
def endpoints(settings: Settings, url: str, count: int) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        clients = []
        for number in range(count):
            backend = Backend(settings, url, create=not number)
            stack.callback(backend.close)
            backend.start()
            served = stack.enter_context(serving(SimpleNamespace(backend=backend, not_ready=backend.not_ready)))
            clients.append(stack.enter_context(httpx.Client(base_url=served, timeout=30)))
        yield clients


def get(client: httpx.Client, path: str, **asked: Any) -> Any:
    answer = client.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def page(number: int) -> str:
    return f"http://h{number % 5}.example/{number}"


def write_and_read(writer: httpx.Client, reader: httpx.Client, seed: int = 0) -> None:
    """Each event names a new page; the reader is asked about it at once."""
    rng = random.Random(seed)
    for number in range(WRITES):
        read, found = page(number), page(number + 1)
        links = [found, *(page(rng.randrange(number + 1)) for _ in range(3))]
        sent = writer.post("/v1/events", json={"url": read, "links": links})
        assert (sent.status_code, sent.json()["accepted"]) == (202, 1), sent.text
        after = sent.json()["position"]
        told = get(reader, "/v1/importance", url=found, after=after)
        assert (told["reads"], told["policy"]) == (0, "exact")
        assert told["importance"] > 0, number
        assert get(reader, "/v1/history", url=read, after=after)["measures"]
        every = [page(one) for one in range(number + 2)]
        answer = reader.post("/v1/importance", params={"after": after}, json={"urls": every})
        assert answer.status_code == 200, answer.text
        assert sum(one["importance"] for one in answer.json()["pages"]) == pytest.approx(1, abs=0.011)
        for policy in ("exact", "static", "interpolation"):
            top = get(reader, "/v1/top", n=1_000, policy=policy, after=after)["pages"]
            assert {one["url"] for one in top} == set(every), policy
        assert found in {one["url"] for one in get(reader, "/v1/frontier", n=100, after=after)["pages"]}
        assert get(reader, "/v1/stats", after=after)["known_pages"] == number + 2


@pytest.mark.parametrize("shards", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("quick", [True, False])
def test_answers_at_another_endpoint_show_the_write(
    valkey: Server, shards: int, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where states are kept for a moment."""
    if not quick:
        monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    settings = Settings.load(store=valkey.url, shards=shards, host_delay_seconds=0)
    with endpoints(settings, valkey.url, 2) as (writer, reader), working(Backend(settings, valkey.url)):
        write_and_read(writer, reader)
        seeded = writer.post("/v1/seeds", json={"urls": ["http://seed.example/"]}).json()
        assert get(reader, "/v1/importance", url="http://seed.example/", after=seeded["position"])["importance"] > 0
        gone = writer.delete("/v1/pages", params={"url": page(3)}).json()
        assert gone["position"].rpartition("@")[0] == seeded["position"].rpartition("@")[0]  # The era.
        assert reader.get("/v1/importance", params={"url": page(3), "after": gone["position"]}).status_code == 404
        named = {"classes": [{"name": "ours", "weight": 3.0, "hosts": ["seed.example"]}]}
        defined = writer.put("/v1/classes", json=named).json()
        assert get(reader, "/v1/importance", url="http://seed.example/", after=defined["position"])["class"] == "ours"


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_answers_show_what_is_on_a_topic(kafka: Kafka, valkey: Server, tmp_path: Path, shards: int) -> None:
    topic = Topic(kafka, 6)
    settings = settings_of(kafka, valkey, topic.name, shards=shards, host_delay_seconds=0)
    with endpoints(settings, valkey.url, 2) as (writer, reader), workers(settings, tmp_path):
        writer.post("/v1/seeds", json={"urls": [page(0)]})  # May end before the worker has joined its group.
        wait_until(lambda: get(reader, "/v1/stats")["known_pages"])
        many = writer.post("/v1/events", json=[{"url": page(n), "links": []} for n in range(40)]).json()
        assert many["position"].startswith(f"@@{topic.name}/")
        assert many["position"].count(":") > 1
        assert get(reader, "/v1/stats", after=many["position"])["read_pages"] == 40
        once = writer.post("/v1/events", json={"url": "http://once.example/"}, headers={"Idempotency-Key": "once"})
        after = once.headers["opic-position"]
        assert get(reader, "/v1/importance", url="http://once.example/", after=after)["reads"] == 1


def test_a_cursor_and_a_position_go_together(valkey: Server) -> None:
    settings = Settings.load(store=valkey.url)
    with endpoints(settings, valkey.url, 1) as (client,), working(Backend(settings, valkey.url)):
        sent = client.post("/v1/seeds", json={"urls": [page(n) for n in range(9)]}).json()
        assert set(sent) == {"known", "new", "position"}
        first = get(client, "/v1/top", n=4, after=sent["position"])
        both = [("n", 5), ("after", first["next"]), ("after", sent["position"])]
        for order in (both, both[::-1]):
            rest = client.get("/v1/top", params=order).json()["pages"]
            assert {one["url"] for one in [*first["pages"], *rest]} == {page(n) for n in range(9)}
        assert client.get("/v1/top", params={"after": "nonsense"}).status_code == 422  # It is no cursor.
        nothing = client.post("/v1/events", json=[{"url": "nonsense"}]).json()
        assert (nothing["accepted"], "position" in nothing) == (0, False)


def test_what_is_no_position_of_this_crawl_is_refused(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load(store=valkey.url)
    with endpoints(settings, valkey.url, 1) as (client,):
        sent = client.post("/v1/events", json={"url": page(0)}).json()["position"]
        era = sent.split("@")[1]
        for wrong, why in {
            "": "is no position",
            "@": "is no position",
            sent[:-1]: "is no position",
            f"@{era}@log/0:-1": "is no position",
            f"@{era}@log/0:{'9' * 19}": "is no position",
            f"{sent},": "is no position",
            "@@log/" + "0:1," * 2_000: "is no position",
            f"@{era}@log/0:2": "beyond the end of this crawl's log",
            f"@{era}@log/1:1": "beyond the end of this crawl's log",
            "@@other.topic/0:1": "beyond the end of this crawl's log",
            "@00@log/0:1": "a backup was restored since",
        }.items():
            answer = client.get("/v1/stats", params={"after": wrong})
            assert client.get(f"/v1/stats?%61fter={quote(wrong)}").json()["detail"] == answer.json()["detail"]
            assert (answer.status_code, why in answer.json()["detail"]) == (422, True), answer.text
            assert len(answer.content) < 1_000
        monkeypatch.setattr(opic.service.backend, "EFFECT_SECONDS", 0.1)
        late = client.get("/v1/stats", params={"after": sent})  # No worker runs.
        assert (late.status_code, "the worker lags" in late.json()["detail"]) == (503, True)
        assert int(late.headers["retry-after"]) >= 1


def test_calls_that_wait_hold_up_no_others(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opic.service.backend, "EFFECT_SECONDS", 60.0)
    settings = Settings.load(store=valkey.url)
    with endpoints(settings, valkey.url, 1) as (client,):
        sent = client.post("/v1/events", json={"url": page(0)}).json()["position"]
        asked = f"{client.base_url}/v1/stats"
        with ThreadPoolExecutor(60) as threads:
            waiting = [threads.submit(curls.get, asked, params={"after": sent}, timeout=60) for _ in range(60)]
            for _ in range(20):
                assert client.get("/v1/stats").status_code == 200
            assert not any(one.done() for one in waiting)
            with working(Backend(settings, valkey.url)):
                assert {one.result().status_code for one in waiting} == {200}
