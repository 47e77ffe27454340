"""Several crawls behind one endpoint: made, listed and removed by the API, each as if it were alone."""

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka_crawl import Topic, settings_of, workers
from kafka_server import Kafka
from migrations import moved
from processes import wait_until
from servers import Server
from serving import serving, working

from opic.api.metrics import Metrics
from opic.client import CallFailed, Client
from opic.query.saved_visits import visits_path
from opic.service import moves, open_crawls
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.service.standing import StandingService
from opic.service.stored_crawls import delete_crawl
from opic.settings import Settings
from opic.store.keys import Keys
from opic.store.recognition import MOVED

A, B, C = (f"http://{name}.example/" for name in "abc")
EVENTS = [{"url": A, "links": [B, C]}, {"url": B, "links": [A]}]
OTHERS = [{"url": A, "links": [B]}, {"url": C, "links": [B]}, {"url": B, "links": [C]}]
VARYING = ("as_of", "lease", "lease_until", "fetched_at", "last_fetched_at")
BAD_NAMES = ("%2e", "%2e%2e", "%00", "%C3%A9", "a%20b", "x" * 65, "%7Ba%7D", "a%0Ab", "*", "-%22-")


@contextmanager
def embedded(directory: Path, **settings: object) -> Iterator[tuple[EmbeddedService, httpx.Client]]:
    terms = {"host_delay_seconds": 0, **settings}
    with (
        EmbeddedService(Settings.load(data=directory, **terms)) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield service, http


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedService, httpx.Client]]:
    with embedded(tmp_path_factory.mktemp("crawls") / "data") as running:
        yield running


def make(http: httpx.Client, name: str, **rules: object) -> None:
    assert http.put(f"/v1/crawls/{name}", json=rules).status_code == 201


def feed(http: httpx.Client, path: str, events: list[dict[str, Any]]) -> dict[str, str]:
    """Send events; return the parameters of calls that show them."""
    answer = http.post(f"{path}/events", json=events)
    assert answer.status_code == 202, answer.text
    return {"after": answer.json()["position"]}


def without_times(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_times(value) for name, value in answer.items() if name not in VARYING}
    return [without_times(part) for part in answer] if isinstance(answer, list) else answer


def kind_of(answer: httpx.Response) -> str:
    return str(answer.json().get("type", "")).rpartition(":")[2]


def test_crawls_of_the_same_pages_do_not_see_each_other(served: tuple[EmbeddedService, httpx.Client]) -> None:
    _, http = served
    make(http, "again")
    make(http, "others")
    time_given = {"fetched_at": "2026-01-01T00:00:00Z"}
    paths = {"/v1": EVENTS, "/v1/crawls/again": EVENTS, "/v1/crawls/others": OTHERS}
    after = {path: feed(http, path, [event | time_given for event in events]) for path, events in paths.items()}

    def answers(path: str) -> list[Any]:
        calls = [("GET", "top", {}), ("GET", "audit", {}), ("GET", "hosts", {}), ("GET", "history", {"url": A})]
        calls += [("GET", "inlinks", {"url": B}), ("GET", "dead-letters", {})]
        got = [http.request(method, f"{path}/{call}", params={**more, **after[path]}) for method, call, more in calls]
        assert [answer.status_code for answer in got] == [200] * len(got)
        leased = http.post(f"{path}/next", json={"n": 5})  # Leases of one crawl are none of another.
        return [*(without_times(answer.json()) for answer in got), without_times(leased.json()["pages"])]

    alone, again, others = (answers(path) for path in paths)
    assert again == alone
    assert others != alone
    assert all(books["conserved"] for books in (alone[1], others[1]))
    stats = [http.get(f"{path}/stats", params=after[path]).json() for path in paths]
    assert [(one["crawl"], one["known_pages"], one["read_pages"]) for one in stats] == [
        ("default", 3, 2), ("again", 3, 2), ("others", 3, 3)
    ]  # fmt: skip
    assert http.get("/v1/crawls/default/top").json()["pages"] == http.get("/v1/top").json()["pages"]
    assert http.get("/v1/crawls/again/v1/top").json()["pages"] == http.get("/v1/crawls/again/top").json()["pages"]
    tag = http.get("/v1/crawls/others/top").headers["etag"]
    assert http.get("/v1/crawls/others/top", headers={"if-none-match": tag}).status_code == 304


def test_position_of_another_crawl_is_refused(served: tuple[EmbeddedService, httpx.Client]) -> None:
    _, http = served
    make(http, "positions")
    position = feed(http, "/v1/crawls/positions", [{"url": A}])
    assert http.get("/v1/crawls/positions/top", params=position).status_code == 200
    assert http.get("/v1/top", params=position).status_code == 422


def test_rules_are_those_of_the_crawl_and_stay(served: tuple[EmbeddedService, httpx.Client]) -> None:
    service, http = served
    path = "/v1/crawls/ruled"
    assert http.put(path, json={"damping": 0.5, "shards": 2, "normalize": "www"}).json() == {
        "name": "ruled", "made": True, "worker": "of the service"
    }  # fmt: skip
    assert http.put(path, json={"damping": 0.5}).json()["made"] is False
    assert (http.put(path, json={}).status_code, http.put(path, json={"normalize": "www"}).status_code) == (200, 200)
    refused = http.put(path, json={"damping": 0.6})
    assert (refused.status_code, kind_of(refused)) == (409, "refused")
    for bad in (
        {"damping": 1},
        {"damping": 1e-9},
        {"normalize": "no"},
        {"shards": 0},
        {"shards": 65},
        {"regrant": 1e-9},
        {"rules": 1},
    ):
        assert http.put("/v1/crawls/bad", json=bad).status_code == 422, bad
    assert http.get("/v1/crawls/bad/top").status_code == 404
    assert http.get(f"{path}/canonical", params={"url": "http://www.a.example/"}).json()["url"] == A
    assert http.get("/v1/canonical", params={"url": "http://www.a.example/"}).json()["url"] == "http://www.a.example/"
    (ruled,) = [crawl for crawl in http.get("/v1/crawls").json()["crawls"] if crawl["name"] == "ruled"]
    assert (ruled["shards"], ruled["open"]) == (2, True)
    assert service.crawls.first.backend.crawl.rules.q != 500_000


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_name_makes_nothing(served: tuple[EmbeddedService, httpx.Client], name: str) -> None:
    _, http = served
    before = http.get("/v1/crawls").json()
    for method, path in (("GET", f"{name}/top"), ("POST", f"{name}/events"), ("PUT", name), ("DELETE", name)):
        answer = http.request(method, f"/v1/crawls/{path}", json={} if method != "GET" else None)
        assert (answer.status_code, kind_of(answer)) == (422, "bad-input"), (path, answer.text)
    assert http.get("/v1/crawls").json() == before


@pytest.mark.parametrize("path", ["a%2Fb/top", "news/crawls", "news/crawls/x/top", "news/healthz", "", "x/"])
def test_path_that_is_no_call_of_a_crawl_is_unknown(served: tuple[EmbeddedService, httpx.Client], path: str) -> None:
    _, http = served
    answer = http.get(f"/v1/crawls/{path}")
    assert (answer.status_code, kind_of(answer)) == (404, "no-such-path")


def test_removal_names_the_crawl_again_and_spares_that_of_the_endpoint(
    served: tuple[EmbeddedService, httpx.Client],
) -> None:
    _, http = served
    make(http, "kept")
    assert http.delete("/v1/crawls/kept").status_code == 422
    assert http.delete("/v1/crawls/kept", params={"confirm": "other"}).status_code == 422
    own = http.delete("/v1/crawls/default", params={"confirm": "default"})
    assert (own.status_code, kind_of(own)) == (409, "refused")
    none = http.delete("/v1/crawls/none", params={"confirm": "none"})
    assert (none.status_code, kind_of(none)) == (404, "no-such-crawl")
    assert http.get("/v1/crawls/kept/stats").status_code == 200
    assert http.delete("/v1/crawls/kept", params={"confirm": "kept"}).json()["deleted"] == "kept"


def test_refused_removal_leaves_the_worker_alone(served: tuple[EmbeddedService, httpx.Client]) -> None:
    service, http = served
    make(http, "target")
    worker, client = service._workers.process("target"), service.backend.crawl.client
    client.hset(Keys("former", 0).meta, MOVED, "target")
    refused = http.delete("/v1/crawls/target", params={"confirm": "target"})
    assert (refused.status_code, kind_of(refused)) == (409, "refused")
    assert worker is service._workers.process("target")
    assert worker.poll() is None
    client.delete(Keys("former", 0).meta)
    assert http.delete("/v1/crawls/target", params={"confirm": "target"}).status_code == 200


def test_crawl_removed_under_load_ends_calls_in_order_and_can_be_made_again(
    served: tuple[EmbeddedService, httpx.Client],
) -> None:
    service, http = served
    make(http, "loaded")
    statuses, done = Counter[tuple[str, int, str]](), threading.Event()
    base = str(http.base_url)

    def load(number: int) -> None:
        with httpx.Client(base_url=base, timeout=60) as own:
            turn = 0
            while not done.is_set():
                turn += 1
                for method, call, body in (
                    ("POST", "events", [{"url": f"http://h{number}.example/{turn}", "links": [A, f"{B}{turn}"]}]),
                    ("POST", "next", {"n": 3}),
                    ("GET", f"importance?url={A}", None),
                    ("GET", "top", None),
                    ("POST", "seeds", {"urls": [f"http://s{number}.example/{turn}"]}),
                    ("PUT", "politeness", {"hosts": {}}),
                ):
                    answer = own.request(method, f"/v1/crawls/loaded/{call}", json=body)
                    statuses[call.partition("?")[0], answer.status_code, kind_of(answer)] += 1

    with ThreadPoolExecutor(6) as threads:
        loads = [threads.submit(load, number) for number in range(6)]
        wait_until(lambda: statuses["seeds", 200, ""] > 20 or any(one.done() for one in loads))
        gone = http.delete("/v1/crawls/loaded", params={"confirm": "loaded"})
        before = statuses["top", 404, "no-such-crawl"]
        wait_until(lambda: statuses["top", 404, "no-such-crawl"] > before + 6 or any(one.done() for one in loads))
        done.set()
        for one in loads:
            one.result()
    assert gone.status_code == 200, gone.text
    assert {status for _, status, _ in statuses} <= {200, 202, 404, 409}, statuses
    assert {kind for _, status, kind in statuses if status == 404} <= {"no-such-crawl", "unknown-page"}, statuses
    keys = service.backend.crawl.client.keys("opic:{loaded:*")
    assert keys == []
    make(http, "loaded", damping=0.5)
    after = feed(http, "/v1/crawls/loaded", EVENTS)
    assert http.get("/v1/crawls/loaded/stats", params=after).json()["known_pages"] == 3


def test_first_calls_at_once_open_a_crawl_once_and_it_closes_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Counter[str]()

    class Counted(Backend):
        def __init__(self, settings: Settings, url: str, **more: Any) -> None:
            opened[settings.crawl] += 1
            super().__init__(settings, url, **more)

    monkeypatch.setattr(open_crawls, "Backend", Counted)
    with embedded(tmp_path / "data") as (_, http):
        make(http, "news")
        after = feed(http, "/v1/crawls/news", EVENTS)
        assert http.get("/v1/crawls/news/stats", params=after).json()["read_pages"] == 2
    opened.clear()
    with embedded(tmp_path / "data") as (service, http):  # After a restart it is there, and opened when it is named.
        assert [crawl["open"] for crawl in http.get("/v1/crawls").json()["crawls"]] == [True, False]
        with ThreadPoolExecutor(20) as threads:
            calls = [threads.submit(http.get, "/v1/crawls/news/stats") for _ in range(20)]
            assert {call.result().json()["read_pages"] for call in calls} == {2}
        assert opened == {"news": 1}
        worker = service._workers.process("news")
        monkeypatch.setattr(open_crawls, "IDLE_SECONDS", 0.1)
        wait_until(lambda: not service.crawls.opened)
        assert [crawl["open"] for crawl in http.get("/v1/crawls").json()["crawls"]] == [True, False]
        wait_until(lambda: worker.poll() is not None)
        monkeypatch.setattr(open_crawls, "IDLE_SECONDS", 3_600.0)
        after = feed(http, "/v1/crawls/news", [{"url": C}])
        assert http.get("/v1/crawls/news/stats", params=after).json()["read_pages"] == 3
        assert opened == {"news": 2}


def test_closed_crawls_leave_no_memory_behind(
    served: tuple[EmbeddedService, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector counts objects: the columns of a crawl, gigabytes in a few objects, would stay for hours."""
    _, http = served
    monkeypatch.setattr(moves, "CLOSE_SECONDS", 0.1)
    for name in (f"brief-{number}" for number in range(6)):
        make(http, name)
        feed(http, f"/v1/crawls/{name}", EVENTS)
        assert http.post(f"/v1/crawls/{name}/next", json={"n": 1}).status_code == 200
        assert http.delete(f"/v1/crawls/{name}", params={"confirm": name}).status_code == 200

    def open_backends() -> list[Backend]:
        gc.unfreeze()  # Objects that are excluded are not among those listed.
        backends = [one for one in gc.get_objects() if isinstance(one, Backend)]
        return [one for one in backends if one.settings.crawl.startswith("brief-")]

    gc.disable()
    try:
        wait_until(lambda: len(open_backends()) <= 2)  # An idle thread keeps its last call until it has another one.
    finally:
        gc.enable()


def test_no_more_crawls_are_open_than_the_setting_allows(tmp_path: Path) -> None:
    with embedded(tmp_path / "data", max_crawls=2) as (_, http):
        make(http, "news")
        over = http.put("/v1/crawls/more", json={})
        assert (over.status_code, kind_of(over), over.headers["retry-after"]) == (503, "too-many-crawls", "10")
        assert "as many are open as OPIC_MAX_CRAWLS allows, 2;" in over.json()["detail"]
        assert "news" not in over.json()["detail"]  # Its token may be for `more` alone.
        assert [crawl["name"] for crawl in http.get("/v1/crawls").json()["crawls"]] == ["default", "news"]
        assert http.get("/v1/crawls/news/top").status_code == 200


@contextmanager
def endpoint(server: str, **settings: object) -> Iterator[tuple[StandingService, httpx.Client]]:
    with (
        StandingService(Settings.load(store=server, host_delay_seconds=0, **settings)) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield service, http


def test_other_endpoints_notice_that_a_crawl_is_made_removed_and_made_again(valkey: Server, tmp_path: Path) -> None:
    with (
        endpoint(valkey.url, data=tmp_path / "here") as (here, first),
        endpoint(valkey.url, data=tmp_path / "there") as (there, second),
    ):
        assert second.get("/v1/crawls/news/stats").status_code == 404
        assert "OPIC_CRAWL=news opic worker" in first.put("/v1/crawls/news", json={}).json()["worker"]
        after = feed(second, "/v1/crawls/news", EVENTS)
        assert "no worker" in str(second.get("/v1/crawls/news/stats").json()["warnings"])
        with working(here.crawls.opened[0].backend):
            assert first.get("/v1/crawls/news/stats", params=after).json()["read_pages"] == 2
        assert first.delete("/v1/crawls/news", params={"confirm": "news"}).status_code == 200
        wait_until(lambda: second.get("/v1/crawls/news/stats").status_code == 404)
        wait_until(lambda: not there.crawls.opened)
        wait_until(lambda: not any(visits_path(tmp_path / where, "news").exists() for where in ("here", "there")))
        make(second, "news", damping=0.5)
        assert first.put("/v1/crawls/news", json={}).json()["made"] is False
        with working(here.crawls.opened[0].backend):
            after = feed(second, "/v1/crawls/news", [{"url": A}])
            assert first.get("/v1/crawls/news/stats", params=after).json()["read_pages"] == 1


def test_crawl_whose_worker_runs_elsewhere_is_not_removed(valkey: Server) -> None:
    with endpoint(valkey.url) as (service, http):
        make(http, "news")
        beats = service.crawls.opened[0].backend.shard.keys.metrics
        valkey.client().hset(beats, "worker:1", "9999999999")
        refused = http.delete("/v1/crawls/news", params={"confirm": "news"})
        assert (refused.status_code, kind_of(refused)) == (409, "refused")
        assert http.get("/v1/crawls/news/audit").json()["conserved"]  # It is opened again.
        valkey.client().hdel(beats, "worker:1")
        assert http.delete("/v1/crawls/news", params={"confirm": "news"}).status_code == 200


def test_store_user_who_may_not_remove_keys_is_told(valkey: Server) -> None:
    with ExitStack() as stack:
        valkey.client().acl_setuser(
            "careful", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-del", "-unlink"]
        )
        stack.callback(valkey.client().acl_deluser, "careful")
        _, http = stack.enter_context(endpoint(valkey.url.replace("unix://", "unix://careful:secret@")))
        make(http, "news")
        refused = http.delete("/v1/crawls/news", params={"confirm": "news"})
        assert (refused.status_code, kind_of(refused)) == (409, "refused")
        assert "run this as `admin`" in refused.json()["detail"]
        assert http.get("/v1/crawls/news/audit").json()["conserved"]


def test_moved_crawl_is_followed(valkey: Server) -> None:
    with endpoint(valkey.url) as (service, http):
        make(http, "news")
        with working(service.crawls.opened[0].backend):
            after = feed(http, "/v1/crawls/news", EVENTS)
            assert http.get("/v1/crawls/news/stats", params=after).json()["read_pages"] == 2
        moved(valkey, "news", "news-2", shards=2)
        wait_until(lambda: http.get("/v1/crawls/news/stats").json().get("shards") == 2)  # Until then 503.
        assert http.get("/v1/crawls/news/stats").json()["read_pages"] == 2
        listed = {crawl["name"]: crawl.get("moved_to") for crawl in http.get("/v1/crawls").json()["crawls"]}
        assert listed == {"default": None, "news": "news-2", "news-2": None}
        assert http.get("/v1/crawls/news-2/stats").json()["read_pages"] == 2
        assert http.put("/v1/crawls/news-2", json={}).status_code == 200
        assert len(service.crawls.opened) == 1  # It takes memory once, no matter by which name it is asked.
        same, other = (http.put("/v1/crawls/news", json={"shards": shards}) for shards in (2, 1))
        assert (same.status_code, same.json()["made"], other.status_code) == (200, False, 409)
        target = http.delete("/v1/crawls/news-2", params={"confirm": "news-2"})
        assert target.status_code == 409  # The name of the former one leads to it.


def test_moved_crawl_is_open_once_if_its_new_name_is_asked_first(valkey: Server) -> None:
    with endpoint(valkey.url) as (_, http):
        make(http, "news")
    moved(valkey, "news", "news-2", shards=2)
    for settings, opened in (({}, 1), ({"crawl": "news-2"}, 0)):
        with endpoint(valkey.url, **settings) as (service, http):
            answers = [http.get(f"/v1/crawls/{name}/stats").json() for name in ("news-2", "news", "news-2")]
            assert {answer["crawl"] for answer in answers} == {"news-2"}
            assert http.put("/v1/crawls/news", json={}).status_code == 200
            assert len(service.crawls.opened) == opened


def test_name_of_a_moved_crawl_is_free_once_it_is_removed(valkey: Server) -> None:
    with endpoint(valkey.url) as (_, http):
        client = valkey.client()
        for name in ("news", "other"):
            make(http, name)
            moved(valkey, name, f"{name}-2", shards=2)
        wait_until(lambda: http.get("/v1/crawls/other/stats").json().get("crawl") == "other-2")
        wait_until(lambda: http.get("/v1/crawls/news/stats").json().get("crawl") == "news-2")
        delete_crawl(client, "news")  # By another process.
        make(http, "news", shards=3)
        assert http.get("/v1/crawls/news/stats").json()["crawl"] == "news"
        delete_crawl(client, "other")
        wait_until(lambda: http.get("/v1/crawls/other/stats").status_code == 404)
        assert http.get("/v1/crawls/other-2/stats").json()["shards"] == 2


def test_client_of_a_crawl_makes_its_calls_there(served: tuple[EmbeddedService, httpx.Client]) -> None:
    _, http = served
    with Client(str(http.base_url)) as client, Client(str(http.base_url), crawl="typed") as typed:
        assert client.make_crawl("typed", damping=0.5).made
        sent = typed.event(A, [B])
        seen = typed.after(sent.position)
        assert seen.stats().crawl == "typed"
        assert [page.url for page in seen.next(1).pages] == [B]
        assert typed.ready().ready
        assert "typed" in {crawl.name for crawl in typed.crawls().crawls}
        based = Client(str(http.base_url.join("/v1/crawls/typed")))  # As a generated client is told.
        assert based.importance(A).reads == 1
        assert client.remove_crawl("typed").deleted == "typed"
        with pytest.raises(CallFailed, match="there is no crawl 'typed'"):
            typed.stats()


def test_metrics_have_open_crawls_by_name(served: tuple[EmbeddedService, httpx.Client]) -> None:
    service, http = served
    make(http, "counted")
    after = feed(http, "/v1/crawls/counted", EVENTS)
    assert len(http.post("/v1/crawls/counted/next", params=after, json={"n": 1}).json()["pages"]) == 1
    metrics = Metrics(service.backend)
    metrics.show_crawls(service.crawls)
    lines = [line.rpartition(" ") for line in metrics.scrape("")[0].decode().splitlines() if line.startswith("opic_")]
    told = {name: float(value) for name, _, value in lines}
    assert told['opic_crawl_calls_total{crawl="counted"}'] == 2
    assert told['opic_crawl_suggestions_total{crawl="counted"}'] == 1
    assert told['opic_crawl_pages{crawl="counted"}'] == 3
    assert told["opic_open_crawls"] == len(service.crawls.opened) + 1
    assert http.delete("/v1/crawls/counted", params={"confirm": "counted"}).status_code == 200
    assert b'crawl="counted"' not in metrics.scrape("")[0]


def test_crawl_on_kafka_needs_its_topic_and_a_worker_of_its_own(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    own = Topic(kafka)
    name = f"news-{own.name}"
    topic, path = f"crawl.events.{name}", f"/v1/crawls/{name}"
    with (
        StandingService(settings_of(kafka, valkey, own.name)) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        refused = http.put(path, json={})
        assert (refused.status_code, kind_of(refused)) == (503, "kafka-refused")
        assert "opic topics create" in refused.json()["detail"]
        assert [crawl["name"] for crawl in http.get("/v1/crawls").json()["crawls"]] == [own.name]
        Topic(kafka, name=topic)
        made = http.put(path, json={}).json()
        assert (made["made"], made["topic"]) == (True, topic)
        assert f"OPIC_CRAWL={name} opic worker" in made["worker"]
        with workers(settings_of(kafka, valkey, topic, crawl=name), tmp_path):
            after = feed(http, path, EVENTS)
            assert http.get(f"{path}/stats", params=after).json()["read_pages"] == 2
        assert http.get("/v1/stats").json()["known_pages"] == 0
        moved(valkey, name, f"{name}-2", shards=1)  # It is asked by its new name alone.
        after = feed(http, f"{path}-2", [{"url": "http://later.example/"}])
        with workers(settings_of(kafka, valkey, topic, crawl=f"{name}-2"), tmp_path):
            assert http.get(f"{path}-2/stats", params=after).json()["read_pages"] == 3
        assert http.put(f"{path}-2", json={}).json()["topic"] == topic
        assert http.put(f"/v1/crawls/{own.name}", json={}).json()["topic"] == own.name
