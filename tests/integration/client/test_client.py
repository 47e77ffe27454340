"""The client as a crawler uses it, against a real service: every call, both ways, and through what breaks."""

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import curls
import httpx
import pytest
from ports import free_port
from processes import running, wait_until
from servers import Server
from serving import serving

from opic.api import bind, create_app, make_server
from opic.client import (
    AsyncClient,
    BadAnswer,
    BadRequest,
    CallFailed,
    Client,
    ClientError,
    Event,
    EventsRejected,
    HostPoliteness,
    NotFound,
    PageClass,
    Rule,
    SeedsRejected,
    Unauthorized,
    Unavailable,
    Unreachable,
    methods,
)
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

TOKEN = "s3cret-token-of-the-tests"
LENIENT_SECONDS = 5.0  # What a loaded machine may add to a time limit.


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    data = tmp_path_factory.mktemp("client")
    with EmbeddedService(Settings.load(data=data, host_delay_seconds=0.0, api_token=TOKEN)) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(service: EmbeddedService) -> Iterator[str]:
    with serving(service) as served:
        yield served


class Blocking:
    """An AsyncClient asked as if it were a Client: each call in one loop that goes on between them."""

    def __init__(self, client: AsyncClient, run: Callable[[Any], Any]) -> None:
        self._client, self._run = client, run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **named: self._run(getattr(self._client, name)(*args, **named))

    def after(self, position: str | None) -> "Blocking":
        return Blocking(self._client.after(position), self._run)


@pytest.fixture(params=["sync", "async"])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "sync":
        with Client(url, token=TOKEN, crawler="crawler-7") as opened:
            yield opened
        return
    with asyncio.Runner() as runner:
        client = AsyncClient(url, token=TOKEN, crawler="crawler-7")
        yield Blocking(runner.run(client.__aenter__()), runner.run)
        runner.run(client.__aexit__(None, None, None))


def settle(client: Any) -> None:
    wait_until(lambda: client.stats().lag == 0)


def test_a_page_goes_from_seed_to_history(client: Any, request: pytest.FixtureRequest) -> None:
    host = f"{request.node.callspec.id}.example"
    urls = [f"http://{host}/{n}" for n in range(3)]
    assert client.seed(urls).new == 3
    found = wait_until(lambda: client.next(2, domain=host, lease_seconds=60, mode="discover").pages)
    assert {page.url for page in found} <= set(urls)
    assert client.release(found[1:]).released == len(found) - 1
    url = found[0].url
    assert client.event(url, links=urls).accepted == 1
    settle(client)
    page = client.importance(url)
    assert (page.url, page.reads, page.policy) == (url, 1, "exact")
    assert 0 < page.importance < 1
    assert page.as_of is not None
    many = client.importances([urls[0], "http://never.example/"], policy="variable", window=2)
    assert [one.importance is None for one in many.pages] == [False, True]
    assert len(client.history(url).measures) == 1
    assert {one.url for one in client.top(10, domain=host).pages} == set(urls)
    assert client.audit().conserved


@pytest.mark.parametrize("form", ["msgpack", "json", "lines"])
def test_events_are_accepted_in_every_form(client: Any, form: str, request: pytest.FixtureRequest) -> None:
    host = f"{request.node.callspec.id}.example"
    events = [
        Event(url=f"http://{host}/", links=["http://é.example/ü"], tags=["a"]),
        {"url": f"http://{host}/2", "status": 404, "fetched_at": "2026-01-01T00:00:00Z"},
        Event(url="/about"),
    ]
    answer = client.events(events, form=form, raise_rejected=False)
    assert answer.accepted == 2
    assert [(one.index, "/about" in one.error) for one in answer.rejected] == [(2, True)]
    assert client.events([], form=form if form != "lines" else "json").accepted == 0
    settle(client)
    assert client.importance(f"http://{host}/").reads == 1


def test_a_rejected_event_is_an_error_alone_and_among_others(client: Any, request: pytest.FixtureRequest) -> None:
    good = f"http://good.{request.node.callspec.id}.example/"
    with pytest.raises(EventsRejected, match="'/about'"):
        client.event("/about")
    with pytest.raises(
        EventsRejected, match="1 of 2 events were rejected; the other 1 are accepted: event 0: "
    ) as raised:
        client.events([Event(url="/about"), Event(url=good)])
    assert (raised.value.answer.accepted, raised.value.answer.rejected[0].index) == (1, 0)
    settle(client)
    assert client.importance(good).reads == 1
    answers = [client.event("/about", raise_rejected=False), client.events([Event(url="/about")], raise_rejected=False)]
    assert [(answer.accepted, len(answer.rejected)) for answer in answers] == [(0, 1)] * 2


def test_rejected_seeds_are_an_error_and_the_others_are_added(client: Any, request: pytest.FixtureRequest) -> None:
    good = f"http://seeds.{request.node.callspec.id}.example/"
    with pytest.raises(SeedsRejected, match="1 seeds were rejected, 1 are known: seed 1: '/about'") as raised:
        client.seed([good, "/about"])
    assert (raised.value.answer.new, raised.value.answer.rejected[0].index) == (1, 1)
    assert client.seed([good, "/about"], raise_rejected=False).known == 1
    with pytest.raises(BadRequest, match="Invalid URL: '/about'"):
        client.seed(["/about"])


# Each method: the call that it sends, and how to ask it.
METHODS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "event": ("POST /v1/events", lambda client: client.event(PAGE)),
    "events": ("POST /v1/events", lambda client: client.events([Event(url=PAGE)])),
    "seed": ("POST /v1/seeds", lambda client: client.seed([PAGE])),
    "next": ("POST /v1/next", lambda client: client.next(1, domain="none.example", crawl_delays={"a.example": 5})),
    "release": ("POST /v1/release", lambda client: client.release([])),
    "forget": ("DELETE /v1/pages", lambda client: client.forget(host="none.example")),
    "canonical": ("GET /v1/canonical", lambda client: client.canonical(PAGE)),
    "renew": ("POST /v1/leases/renew", lambda client: client.renew([], lease_seconds=5)),
    "frontier": ("GET /v1/frontier", lambda client: client.frontier(1)),
    "importance": ("GET /v1/importance", lambda client: client.importance(PAGE)),
    "importances": ("POST /v1/importance", lambda client: client.importances([PAGE])),
    "top": ("GET /v1/top", lambda client: client.top(1)),
    "hosts": ("GET /v1/hosts", lambda client: client.hosts(1, policy="fixed", window="30d")),
    "domains": ("GET /v1/domains", lambda client: client.domains(1, policy="fixed", window="30d")),
    "history": ("GET /v1/history", lambda client: client.history(PAGE)),
    "explain": ("GET /v1/explain", lambda client: client.explain(PAGE, policy="variable", window=2)),
    "search": ("GET /v1/search", lambda client: client.search("methods", 3)),
    "inflow": ("GET /v1/inflow", lambda client: client.inflow("methods.example")),
    "inflows": ("POST /v1/inflow", lambda client: (client.seed([PAGE], trust=1.0), client.inflows([PAGE]))[1]),
    "inlinks": ("GET /v1/inlinks", lambda client: (client.seed([PAGE], trust=1.0), client.inlinks(PAGE, 3))[1]),
    "coverage": (
        "GET /v1/coverage",
        lambda client: (client.seed([PAGE], trust=1.0), client.coverage(0.98, delta=0.1))[1],
    ),
    "put_local": ("PUT /v1/local/{domain}", lambda client: client.put_local("methods.example", **RANKING)),
    "local_domains": ("GET /v1/local", lambda client: client.local_domains()),
    "local": ("GET /v1/local/{domain}", lambda client: client.local("methods.example", 1)),
    "classes": ("GET /v1/classes", lambda client: client.classes()),
    "define_classes": ("PUT /v1/classes", lambda client: client.define_classes([])),
    "change_classes": (
        "PATCH /v1/classes",
        lambda client: client.change_classes([PageClass(name="methods", weight=2, hosts=["methods.example"])]),
    ),
    "rules": ("GET /v1/rules", lambda client: client.rules()),
    "set_rules": ("PUT /v1/rules", lambda client: client.set_rules()),
    "change_rules": ("PATCH /v1/rules", lambda client: client.change_rules(traps={"segments": 20})),
    "politeness": ("GET /v1/politeness", lambda client: client.politeness()),
    "set_politeness": ("PUT /v1/politeness", lambda client: client.set_politeness({})),
    "crawls": ("GET /v1/crawls", lambda client: client.crawls()),
    "make_crawl": ("PUT /v1/crawls/{crawl}", lambda client: client.make_crawl("methods")),
    "remove_crawl": (
        "DELETE /v1/crawls/{crawl}",
        lambda client: (client.make_crawl("methods"), client.remove_crawl("methods"))[1],
    ),
    "audit": ("GET /v1/audit", lambda client: client.audit()),
    "stats": ("GET /v1/stats", lambda client: client.stats()),
    "series": ("GET /v1/series", lambda client: client.series(10)),
    "dead_letters": ("GET /v1/dead-letters", lambda client: client.dead_letters(1)),
    "metrics": ("GET /metrics", lambda client: client.metrics()),
    "alive": ("GET /healthz", lambda client: client.alive()),
    "ready": ("GET /readyz", lambda client: client.ready()),
}
PAGE = "http://methods.example/"
RANKING = {
    "pages": [{"url": PAGE, "importance": 1.0}],
    "outside_fetched": 0,
    "method": "paper",
    "service_coverage": 0.0,
    "as_of": 1_764_000_000.0,
}
# Of a body: what the client itself was given. A position is given to `after`, which returns another client.
NO_ARGUMENT = {"crawler", "after"}


def documented(url: str) -> dict[str, set[str]]:
    """The calls of the OpenAPI document, each with the names of its parameters and of the fields of its JSON body."""
    document = curls.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).raise_for_status().json()
    found = {}
    for path, by_method in document["paths"].items():
        for method, call in by_method.items():
            body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            names = {one["name"] for one in call.get("parameters", []) if one["in"] == "query"}
            found[f"{method.upper()} {path}"] = names | set(body.get("properties", {}))
    return found


def test_every_call_has_a_method_and_every_parameter_an_argument(url: str) -> None:
    calls = documented(url)
    assert set(calls) == {call for call, _ in METHODS.values()}
    assert {name for name in dir(Client) if not name.startswith("_")} - {"close", "call", "after"} == set(METHODS)
    calls["PUT /v1/crawls/{crawl}"] = {"name"}  # And any rule, by its name in the document.
    calls["DELETE /v1/crawls/{crawl}"] = {"name"}  # Which confirms itself.
    missing = {
        name: calls[call] - NO_ARGUMENT - set(inspect.signature(getattr(Client, name)).parameters)
        for name, (call, _) in METHODS.items()
    }
    assert {name: names for name, names in missing.items() if names} == {}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_sends_its_call_and_reads_the_answer(url: str, name: str) -> None:
    wire, (call, ask) = Noted(), METHODS[name]
    with Client(url, token=TOKEN, crawler="crawler-7", transport=wire) as client:
        client.seed([PAGE])
        assert ask(client) is not None
    assert wire.paths[-1] == call.format(domain="methods.example", crawl="methods")


def test_rules_and_politeness_are_set_and_read_back(client: Any) -> None:
    denied = client.set_rules([Rule(effect="deny", host="a.example", path="/calendar/")], traps={"segments": 20})
    assert denied.rules == client.rules().rules == [Rule(effect="deny", host="a.example", path="/calendar/")]
    assert (denied.traps["segments"], denied.traps["on"]) == (20, True)
    more = client.change_rules([Rule(effect="allow", host="b.example")], first=True, if_version=denied.version)
    assert [rule.effect for rule in more.rules] == ["allow", "deny"]
    assert client.change_rules(remove=denied.rules).rules == more.rules[:1]
    assert client.set_rules().rules == []
    polite = client.set_politeness({"a.example": HostPoliteness(delay_seconds=7), "b.example": {"in_flight": 1}})
    assert polite.hosts == {"a.example": HostPoliteness(7), "b.example": HostPoliteness(None, 1)}
    assert client.politeness().hosts == polite.hosts
    assert client.set_politeness({}).hosts == {}


def test_next_passes_over_a_host_that_asked_for_a_pause(client: Any, request: pytest.FixtureRequest) -> None:
    domain = f"{request.node.callspec.id}.pause.example"
    hosts = [f"{name}.{domain}" for name in ("told", "batch", "refused", "open", "failed")]
    client.seed([f"http://{host}/{page}" for host in hosts for page in "ab"])
    client.event(f"http://{hosts[0]}/a", status=503, retry_after=60)
    told = [
        Event(url=f"http://{hosts[1]}/a", status=429, retry_after=60),
        {"url": f"http://{hosts[2]}/a", "status": 429, "retry_after": -1},
        {"url": f"http://{hosts[4]}/a", "status": 500, "retry_after": 60},
    ]
    client.events(told, raise_rejected=False)
    wait_until(lambda: client.stats().lag == 0)
    found = {httpx.URL(page.url).host for page in client.next(20, domain=domain).pages}
    assert found == set(hosts[2:])
    assert client.next(20, domain=hosts[0]).waiting.host_delay == 1


def test_a_reported_crawl_delay_is_kept(client: Any, request: pytest.FixtureRequest) -> None:
    host = f"slow.{request.node.callspec.id}.example"
    client.seed([f"http://{host}/"])
    wait_until(lambda: client.next(1, domain=host, crawl_delays={host: 250}).pages)
    assert client.explain(f"http://{host}/").frontier.host_delay_seconds == 250


def test_frontier_dead_letters_series_and_metrics_are_answered(client: Any, request: pytest.FixtureRequest) -> None:
    host = f"told.{request.node.callspec.id}.example"
    client.seed([f"http://{host}/"])
    found = wait_until(lambda: client.frontier(5, domain=host, mode="discover").pages)
    assert [(page.url, page.host, page.fetched_before) for page in found] == [(f"http://{host}/", host, False)]
    assert client.dead_letters(5).dead_letters == []
    assert client.series(10).series[-1].clock == client.stats().clock
    assert "opic_known_pages" in client.metrics()


def test_answers_after_a_position_show_the_write(client: Any, request: pytest.FixtureRequest) -> None:
    for number in range(5):
        url = f"http://after.{request.node.callspec.id}.example/{number}"
        after = client.after(client.event(url, ["http://after.example/"]).position)
        assert after.importance(url).reads == 1
        assert after.top(1_000).pages
        assert url not in {page.url for page in after.next(50).pages}
    with pytest.raises(EventsRejected) as none:
        client.event("nonsense")
    assert none.value.answer.position is None
    assert client.after(None).stats().read_pages >= 5
    assert client.after("@@log/0:999999").alive()
    with pytest.raises(BadRequest, match="beyond the end of this crawl's log"):
        client.after("@@log/0:999999").stats()


def test_classes_are_defined_and_read_back(client: Any) -> None:
    assert client.define_classes([PageClass(name="trusted", weight=2, hosts=["a.example"])]).reclassified is not None
    assert [one.name for one in client.classes().classes] == ["trusted"]
    version = client.classes().version
    changed = client.change_classes([PageClass(name="spam", weight=0.5, tags=["spam"])], remove=["trusted"])
    assert [one.name for one in changed.classes] == ["spam"]
    with pytest.raises(CallFailed, match="read them again") as refused:
        client.define_classes([], if_version=version)
    assert refused.value.status == 412
    assert client.define_classes([], if_version=changed.version).classes == []


def test_a_problem_is_raised_at_once_with_a_remedy(client: Any) -> None:
    began = time.monotonic()
    with pytest.raises(NotFound, match=r"http://never\.example/ was never seen") as unknown:
        client.importance("http://never.example/")
    assert unknown.value.type == "urn:opic:problem:unknown-page"
    assert len(unknown.value.request_id or "") >= 8
    with pytest.raises(BadRequest, match="'/about'"):
        client.event("/about")
    with pytest.raises(BadRequest, match="n: ") as bad:
        client.next(-1)
    assert bad.value.errors[0]["loc"] == ["n"]
    assert time.monotonic() - began < 5


def test_explain_hosts_and_inflow_are_answered(client: Any) -> None:
    client.seed(["http://new.example/"])
    assert client.explain("http://new.example/").url == "http://new.example/"
    found = wait_until(lambda: client.hosts(1_000).hosts)
    assert [one.importance for one in found] == sorted((one.importance for one in found), reverse=True)
    assert wait_until(lambda: client.inflow("new.example", n=10).pages)[0].url == "http://new.example/"


def test_classes_are_defined_in_a_crawl_of_two_shards(tmp_path: Path) -> None:
    trusted = PageClass(name="trusted", weight=2, hosts=["a.example"])
    with (
        EmbeddedService(Settings.load(data=tmp_path, shards=2)) as two_shards,
        serving(two_shards) as url,
        Client(url) as client,
    ):
        assert [one.name for one in client.define_classes([trusted]).classes] == ["trusted"]


def test_a_wrong_token_raises_its_own_exception(url: str) -> None:
    for token in (None, "wrong"):
        with Client(url, token=token) as client:
            with pytest.raises(Unauthorized, match="OPIC_API_TOKEN"):
                client.stats()
            assert client.alive()
            assert client.ready().ready


def test_a_call_repeated_with_its_key_takes_effect_once(client: Any, request: pytest.FixtureRequest) -> None:
    page = f"http://named.{request.node.callspec.id}.example/"
    for _ in range(2):
        assert client.events([{"url": page}], key=f"mine-{page}").accepted == 1
    settle(client)
    assert client.importance(page).reads == 1
    with pytest.raises(CallFailed, match="Idempotency-Key"):
        client.events([{"url": "http://other.example/"}], key=f"mine-{page}")


# What breaks.


class Noted(httpx.HTTPTransport):
    """The wire, and when what was sent over it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[float, str, int]] = []
        self.paths: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        at, name = time.monotonic(), request.headers.get("idempotency-key", "")
        self.paths.append(f"{request.method} {request.url.path}")
        response = super().handle_request(request)
        self.sent.append((at, name, response.status_code))
        return response


def worker_of(service: EmbeddedService) -> int:
    return service._workers.process(service.settings.crawl).pid


@pytest.mark.slow
def test_a_retry_waits_as_long_as_a_503_asks(tmp_path: Path) -> None:
    with EmbeddedService(Settings.load(data=tmp_path, max_lag=10)) as service, serving(service) as url:
        wire = Noted()
        with Client(url, transport=wire) as client:
            worker = worker_of(service)
            os.kill(worker, signal.SIGSTOP)
            try:
                assert client.events([{"url": f"http://full.example/{n}"} for n in range(10)]).accepted == 10
                with pytest.raises(Unavailable, match="OPIC_MAX_LAG") as unnamed:
                    client.event("http://full.example/unnamed", once=False)
                assert unnamed.value.retry_after == 1
                sending = threading.Thread(target=lambda: client.event("http://full.example/named"))
                sending.start()
                wait_until(lambda: [status for _, _, status in wire.sent].count(503) >= 3)
            finally:
                os.kill(worker, signal.SIGCONT)
            sending.join()
            settle(client)
            assert client.importance("http://full.example/named").reads == 1
    (unnamed_at,) = [sent for sent in wire.sent if not sent[1] and sent[2] == 503]
    tries = [sent for sent in wire.sent if sent[1] and sent[0] > unnamed_at[0]]
    assert [status for _, _, status in tries] == [503] * (len(tries) - 1) + [202]
    assert len({name for _, name, _ in tries}) == 1
    waits = [after[0] - before[0] for before, after in pairwise(tries)]
    assert min(waits) >= 1


@pytest.mark.slow
def test_a_killed_store_that_comes_back_costs_only_time(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as service:
        with Client(service.url, crawler="one") as client:
            urls = [f"http://a.example/{n}" for n in range(300)]
            for number in range(3):
                os.kill(service.store_pid(), signal.SIGKILL)
                part = urls[number::3]
                assert client.events([Event(url=url, links=urls[:5]) for url in part]).accepted == len(part)
                assert client.importances(part[:1]).pages
            settle(client)
            assert service.reads(urls) == [1] * len(urls)

        async def many() -> list[int]:
            async with AsyncClient(service.url) as client:
                os.kill(service.store_pid(), signal.SIGKILL)
                answers = await asyncio.gather(*[client.event(f"http://b.example/{n}") for n in range(20)])
                return [answer.accepted for answer in answers]

        assert asyncio.run(many()) == [1] * 20
        service.settle()
        assert service.reads([f"http://b.example/{n}" for n in range(20)]) == [1] * 20


def test_a_missing_service_is_reported_after_the_retry_time() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", retry_seconds=0.3) as client:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="GET /v1/stats: "):
            client.stats()
        assert time.monotonic() - began < 0.3 + LENIENT_SECONDS
        assert not client.alive()
        assert not client.ready().ready


def test_a_service_that_starts_late_is_waited_for(service: EmbeddedService) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", token=TOKEN) as client:
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(client.stats().known_pages))
        asking.start()
        time.sleep(0.3)  # It has asked in vain by then, or asks at once: both are right.
        with bind("127.0.0.1", port) as listener:
            server = make_server(create_app(service))
            serves = threading.Thread(target=server.run, args=([listener],))
            serves.start()
            asking.join()
            server.should_exit = True
            serves.join()
    assert len(found) == 1


# A wrong address.


def at_a_wrong_port(url: str, kind: type[ClientError], text: str) -> None:
    """A client with the settings of its own says within seconds that `url` is wrong, and what to do."""
    began = time.monotonic()
    with Client(url) as client, pytest.raises(kind, match=text):
        client.stats()
    with Client(url) as client, pytest.raises(kind):
        client.event("http://a.example/")
    assert time.monotonic() - began < 2 * (methods.FIRST_RETRY_SECONDS + LENIENT_SECONDS)


def test_a_closed_port_is_reported_within_seconds() -> None:
    at_a_wrong_port(
        f"http://127.0.0.1:{free_port()}", Unreachable, "nothing answers at http://127.0.0.1:.*start the service there"
    )


def test_another_http_server_at_the_port_is_reported_at_once(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        at_a_wrong_port(f"http://127.0.0.1:{server.server_port}", BadAnswer, "404 .*another program listens there")
        server.shutdown()
        thread.join()


def test_a_store_at_the_port_is_reported_within_seconds(servers: Server) -> None:
    port, store = free_port(), servers.client()
    store.config_set("port", port)
    try:
        at_a_wrong_port(
            f"http://127.0.0.1:{port}", ClientError, f"at http://127.0.0.1:{port}.*opic serve|does not speak HTTP"
        )
    finally:
        store.config_set("port", 0)


def test_a_service_that_answered_once_is_waited_for_longer(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as service,
        Client(service.url) as client,
    ):
        assert client.stats().known_pages == 0
        service.stop()
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(client.stats().known_pages))
        began = time.monotonic()
        asking.start()
        asking.join(methods.FIRST_RETRY_SECONDS + 2)  # Longer than a wrong address is asked.
        assert (asking.is_alive(), found) == (True, [])
        service.start()
        asking.join()
        assert found == [0]
        assert time.monotonic() - began < methods.RETRY_SECONDS


def test_a_silent_service_is_given_up() -> None:
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, timeout_seconds=0.2, retry_seconds=0) as client, pytest.raises(Unreachable, match="timed out"):
            client.stats()
