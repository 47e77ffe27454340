"""The HTTP endpoint as a client meets it: a real store, a real worker, a real server, and the wire between.

Every answer that these tests get is checked on its way against the endpoint's own OpenAPI document: `check_answer`.
"""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import curls
import httpx
import jsonschema
import msgpack
import pytest
from openapi_spec_validator import validate
from serving import serving
from written import written

from opic.api.problems import KINDS, MEDIA_TYPE
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.settings import Settings

WAIT_SECONDS = 10.0
TOKEN = "s3cret-token-of-the-tests"
NDJSON = {"content-type": "application/x-ndjson"}
AS_JSON = {"content-type": "application/json"}
DEEP = "[" * 100_000 + "]" * 100_000
DEEP_EVENT = f'{{"url":"http://a.example/","x":{DEEP}}}'
CALLS = (
    "events",
    "seeds",
    "classes",
    "next",
    "frontier",
    "politeness",
    "release",
    "importance",
    "history",
    "top",
    "audit",
    "stats",
)
CALLS += ("hosts", "explain", "rules", "inflow", "series", "dead-letters", "search", "local", "local/{domain}")
CALLS += ("domains", "coverage", "inlinks", "leases/renew", "pages", "canonical", "crawls", "crawls/{crawl}")


@dataclass(frozen=True)
class Api:
    """A served endpoint."""

    url: str
    client: httpx.Client
    service: EmbeddedService

    def events(self, *urls: str, **fields: object) -> httpx.Response:
        return self.client.post("/v1/events", json=[{"url": url, **fields} for url in urls])

    def settle(self) -> dict[str, Any]:
        """Wait until all that was accepted has taken effect, and a view shows it."""
        told = time.time()
        return wait_for(self.stats, lambda s: s["lag"] == 0 and s["as_of"] >= told)

    def stats(self) -> dict[str, Any]:
        return dict(self.client.get("/v1/stats").raise_for_status().json())

    def importance(self, url: str) -> dict[str, Any]:
        return dict(self.client.get("/v1/importance", params={"url": url}).raise_for_status().json())


def wait_for(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not good(found := ask()):
        assert time.monotonic() < deadline, f"after {WAIT_SECONDS} s still {found}"
        time.sleep(0.02)
    return found


@cache
def openapi(url: str, token: str | None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return dict(curls.get(f"{url}/openapi.json", headers=headers).raise_for_status().json())


def fits(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@contextmanager
def checking(service: Any, token: str | None = None) -> Iterator[Api]:
    """Serve on a free port, and check every answer."""

    def check_answer(answer: httpx.Response) -> None:
        answer.read()
        document = openapi(url, token)
        assert len(answer.headers["x-request-id"]) >= 8
        kind, status = answer.headers.get("content-type", ""), answer.status_code
        operation = document["paths"].get(answer.request.url.path, {}).get(answer.request.method.lower())
        if kind == "application/problem+json":
            problem = json.loads(answer.content)
            fits(document, {"$ref": "#/components/schemas/Problem"}, problem)
            assert problem["status"] == status >= 400
            assert problem["request_id"] == answer.headers["x-request-id"]
            assert "Traceback" not in problem["detail"]
            assert (status == 503) == ("retry-after" in answer.headers)
            assert not operation or str(status) in operation["responses"], f"{status} is not described"
        elif kind == "application/json" and operation:
            described = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            fits(document, described, json.loads(answer.content, parse_constant=no_constant))
        else:
            assert status < 400, f"{status} with {kind}: {answer.text[:200]}"

    hooks = {"response": [check_answer]}
    with serving(service) as url, httpx.Client(base_url=url, timeout=30, event_hooks=hooks) as client:
        if token:
            client.headers["authorization"] = f"Bearer {token}"
        yield Api(url, client, service)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    settings = Settings.load(data=tmp_path_factory.mktemp("api"), host_delay_seconds=0.0, keep_links=False)
    with EmbeddedService(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def api(service: EmbeddedService) -> Iterator[Api]:
    with checking(service) as served:
        yield served


@contextmanager
def with_settings(service: EmbeddedService, token: str | None = None, **settings: object) -> Iterator[Api]:
    """Serve the same store with other settings."""
    plain = {"host_delay_seconds": 0.0, "keep_links": False}
    loaded = Settings.load(data=service.settings.data_dir(), api_token=token, **{**plain, **settings})
    backend = Backend(loaded, service.server.url, create=False)
    try:
        with checking(SimpleNamespace(backend=backend, not_ready=service.not_ready), token) as served:
            yield served
    finally:
        backend.close()


@pytest.fixture(scope="module")
def guarded(service: EmbeddedService) -> Iterator[Api]:
    with with_settings(service, TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def narrow(service: EmbeddedService) -> Iterator[Api]:
    with with_settings(service, max_body_bytes=2_000, max_n=5, max_urls=3, max_links=4, max_url_bytes=64) as served:
        yield served


def problem(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The problem that an answer is; its detail holds the words."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    found = dict(answer.json())
    for word in words:
        assert word in found["detail"], found["detail"]
    return found


# Events.


def test_an_accepted_event_takes_effect(api: Api) -> None:
    before = api.settle()
    answer = api.client.post("/v1/events", json={"url": "http://one.example/", "links": ["http://two.example/"]})
    assert (answer.status_code, written(answer)) == (202, {"accepted": 1, "rejected": []})
    after = api.settle()
    assert (after["known_pages"] - before["known_pages"], after["read_pages"] - before["read_pages"]) == (2, 1)
    page = api.importance("HTTP://one.example:80/#top")
    assert (page["url"], page["reads"], page["policy"], page["window"]) == ("http://one.example/", 1, "static", None)
    assert 0 < page["importance"] < 1
    assert api.importance("http://two.example/")["reads"] == 0


def test_good_elements_of_an_array_are_accepted_and_the_others_listed(api: Api) -> None:
    before = api.settle()
    good = '{"url":"http://mixed.example/%d"}'
    bad = [
        "7",
        '{"url":"/about"}',
        '{"url":"http://a.example/","fetched_at":1e999}',
        '{"url":"http://a.example/","status":99999999999999999999999}',
    ]
    body = f"[{good % 0},{','.join(bad)},{good % 1}]"
    answer = api.client.post("/v1/events", content=body, headers=AS_JSON).json()
    assert answer["accepted"] == 2
    assert [r["index"] for r in answer["rejected"]] == [1, 2, 3, 4]
    assert "'/about' is not an absolute http(s) URL" in answer["rejected"][1]["error"]
    assert api.settle()["read_pages"] - before["read_pages"] == 2


def test_an_array_that_is_not_well_formed_is_refused_whole(api: Api) -> None:
    good = '{"url":"http://whole.example/"}'
    bads = [DEEP_EVENT, "{", '{"url":"http://a.example/" "v":1}', "nul", '{"url":"http://a.example/\xff"}']
    bads += ['{"url":"http://a.example/\\ud800"}', '{"url":"http://a.example/","fetched_at":NaN}']
    for bad in bads:
        body = f"[{good},{bad},{good}]".encode("latin-1")
        answer = api.client.post("/v1/events", content=body, headers=AS_JSON)
        found = problem(answer, 400, "the body is not a decodable array of events")
        assert found["type"] == "urn:opic:problem:not-json"
        assert "none of it was taken" in found["detail"]
    packed = msgpack.packb({"url": "http://whole.example/"})
    answer = api.client.post(
        "/v1/events", content=b"\x93" + packed + b"\xc1" + packed, headers={"content-type": "application/msgpack"}
    )
    problem(answer, 400, "the body is not a decodable array of events: MessagePack data is malformed: invalid opcode")
    api.settle()
    assert api.client.get("/v1/importance", params={"url": "http://whole.example/"}).status_code == 404


def test_lines_are_accepted_one_by_one_and_blank_ones_do_not_count(api: Api) -> None:
    before = api.settle()
    lines = b'\n{"url":"http://lines.example/1"}\r\n\n  \nnot json\n{"url":"http://lines.example/\xff"}\n'
    answer = api.client.post("/v1/events", content=lines + b'{"url":"http://lines.example/2"}', headers=NDJSON)
    assert answer.status_code == 202
    assert answer.json()["accepted"] == 2
    assert [r["index"] for r in answer.json()["rejected"]] == [1, 2]
    assert api.settle()["read_pages"] - before["read_pages"] == 2


@pytest.mark.parametrize("kind", ["application/msgpack", "application/x-msgpack", "application/vnd.msgpack"])
def test_packed_events_are_accepted_like_those_in_json(api: Api, kind: str) -> None:
    before = api.settle()
    events = [{"url": f"http://packed.example/{kind}", "links": ["http://packed.example/é"]}, 7, {"url": b"http://a/"}]
    answer = api.client.post("/v1/events", content=msgpack.packb(events), headers={"content-type": kind})
    assert (answer.status_code, answer.json()["accepted"]) == (202, 1)
    assert [r["index"] for r in answer.json()["rejected"]] == [1, 2]
    one = api.client.post("/v1/events", content=msgpack.packb(events[0]), headers={"content-type": kind})
    assert written(one) == {"accepted": 1, "rejected": []}
    assert api.settle()["read_pages"] - before["read_pages"] == 1
    assert api.importance(f"http://packed.example/{kind}")["reads"] == 2
    bad = api.client.post("/v1/events", content=msgpack.packb(events[2]), headers={"content-type": kind})
    assert problem(bad, 422, "Expected `str`, got `bytes`")["type"] == "urn:opic:problem:bad-event"
    cut = api.client.post("/v1/events", content=msgpack.packb(events)[:-1], headers={"content-type": kind})
    assert problem(cut, 400, "truncated; none of it was taken")["type"] == "urn:opic:problem:not-msgpack"
    empty = api.client.post("/v1/events", content=b"", headers={"content-type": kind})
    assert problem(empty, 400, "send MessagePack")["type"] == "urn:opic:problem:not-msgpack"
    problem(api.client.post("/v1/seeds", content=b"\x80", headers={"content-type": kind}), 415, "application/json")


def test_an_empty_array_is_accepted(api: Api) -> None:
    assert api.client.post("/v1/events", json=[]).json() == {"accepted": 0, "rejected": []}


def test_a_body_without_a_type_is_json(api: Api) -> None:
    answer = api.client.post("/v1/events", content=b'\xef\xbb\xbf {"url":"http://untyped.example/"}')
    assert "content-type" not in answer.request.headers
    assert answer.status_code == 202


def test_duplicate_links_and_self_links_count_for_nothing(api: Api) -> None:
    before = api.settle()
    links = ["http://twice.example/b#1", "http://twice.example/b", "http://twice.example/", "mailto:me@a.example", ""]
    assert api.events("http://twice.example/", links=links).json()["accepted"] == 1
    assert api.settle()["known_pages"] - before["known_pages"] == 2


BAD_EVENTS: dict[str, tuple[str | bytes, str]] = {
    "no url": ('{"links":[]}', "url"),
    "url is null": ('{"url":null}', "url"),
    "a relative URL": ('{"url":"/about"}', "not an absolute http(s) URL"),
    "a URL of another scheme": ('{"url":"javascript:alert(1)"}', "not an absolute http(s) URL"),
    "a URL that is too long": (json.dumps({"url": "http://a.example/" + "a" * 100_000}), "OPIC_MAX_URL_BYTES 2,048"),
    "an unknown field": ('{"url":"http://a.example/","link":[]}', "unknown field 'link': did you mean links?"),
    "a time before the web": ('{"url":"http://a.example/","fetched_at":"1900-01-01T00:00:00Z"}', "1990"),
    "a time to come": ('{"url":"http://a.example/","fetched_at":4102444800}', "day ahead of now"),
    "a time without end": ('{"url":"http://a.example/","fetched_at":1e999}', "fetched_at"),
    "links of a wrong type": ('{"url":"http://a.example/","links":"http://b.example/"}', "links"),
    "a link of a wrong type": ('{"url":"http://a.example/","links":[7]}', "links"),
    "a status of a wrong type": ('{"url":"http://a.example/","status":"200"}', "status"),
    "a status that is true": ('{"url":"http://a.example/","status":true}', "status"),
    "a status that is none": ('{"url":"http://a.example/","status":1000}', "status"),
    "an unknown version": ('{"url":"http://a.example/","v":99}', "v=99"),
    "nesting without end": (DEEP_EVENT, "nested too deeply"),
    "a number": ("7", "object"),
    "a text": ('"http://a.example/"', "object"),
    "null": ("null", "object"),
}


@pytest.mark.parametrize(("body", "word"), BAD_EVENTS.values(), ids=BAD_EVENTS)
def test_a_bad_event_is_refused_with_its_reason(api: Api, body: str | bytes, word: str) -> None:
    found = problem(api.client.post("/v1/events", content=body, headers=AS_JSON), 422, word)
    assert found["type"] == "urn:opic:problem:bad-event"
    assert len(found["detail"]) < 1_000
    in_lines = api.client.post("/v1/events", content=body, headers=NDJSON)
    assert in_lines.status_code == 202
    assert (in_lines.json()["accepted"], len(in_lines.json()["rejected"])) == (0, 1)


NOT_JSON: dict[str, str | bytes] = {
    "nothing": b"",
    "white space": b" \r\n\t ",
    "text": "hello",
    "half an object": '{"url":"http://a.example/"',
    "half an array": '[{"url":"http://a.example/"},',
    "two objects": '{"url":"http://a.example/"}{"url":"http://b.example/"}',
    "XML": "<url>http://a.example/</url>",
    "brackets without end": "[" * 100_000,
    "MessagePack": b"\x81\xa3url\xb1http://a.example/",
    "UTF-16": '{"url":"http://a.example/"}'.encode("utf-16"),
}


@pytest.mark.parametrize("path", ["/v1/events", "/v1/seeds"])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_json_is_refused_as_such(api: Api, body: str | bytes, path: str) -> None:
    found = problem(api.client.post(path, content=body, headers=AS_JSON), 400)
    assert found["type"] == "urn:opic:problem:not-json"


@pytest.mark.parametrize("bad", [b'"fetched_at":NaN', b'"x":"\xff\xfe"', b'"links":["\\ud800"]'])
def test_an_event_that_is_not_well_formed_is_refused_as_such(api: Api, bad: bytes) -> None:
    body = b'{"url":"http://a.example/",%s}' % bad
    found = problem(api.client.post("/v1/events", content=body, headers=AS_JSON), 400, "none of it was taken")
    assert found["type"] == "urn:opic:problem:not-json"
    in_lines = api.client.post("/v1/events", content=body, headers=NDJSON).json()
    assert (in_lines["accepted"], [r["index"] for r in in_lines["rejected"]]) == (0, [0])


@pytest.mark.parametrize(
    ("headers", "status", "word"),
    [
        ({"content-type": "text/plain"}, 415, "application/json"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"content-type": "application/json; charset=latin-1"}, 415, "UTF-8"),
        ({"content-type": "application/json", "content-encoding": "br"}, 415, "Content-Encoding"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 400, "not gzip"),
        ({"content-type": "application/json", "content-encoding": "zstd"}, 400, "not zstd"),
        ({"content-type": "application/msgpack"}, 400, "MessagePack data is malformed: trailing characters (byte 1)"),
        ({"content-type": "application/json", "idempotency-key": ""}, 422, "Idempotency-Key"),
        ({"content-type": "application/json", "idempotency-key": "k" * 256}, 422, "1 to 255 printable ASCII"),
        ({"content-type": "application/json", "idempotency-key": "a\tb"}, 422, "1 to 255 printable ASCII"),
        ({"content-type": "application/json", "idempotency-key": b"caf\xe9"}, 422, "1 to 255 printable ASCII"),
    ],
)
def test_an_unsupported_body_type_is_refused_with_the_supported_ones(
    api: Api, headers: dict[str, str], status: int, word: str
) -> None:
    problem(api.client.post("/v1/events", content=b'{"url":"http://a.example/"}', headers=headers), status, word)


@pytest.mark.parametrize("kind", ['application/json; charset="UTF-8"', "Application/JSON", "application/json;x=1"])
def test_a_type_may_be_written_in_many_ways(api: Api, kind: str) -> None:
    body = b'{"url":"http://kinds.example/"}'
    assert api.client.post("/v1/events", content=body, headers={"content-type": kind}).status_code == 202


def test_a_body_over_the_limit_is_refused_as_soon_as_that_is_known(narrow: Api) -> None:
    problem(narrow.client.post("/v1/events", content=b" " * 2_001), 413, "OPIC_MAX_BODY_BYTES 2,000")
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1_000
            yield b" " * 1_000
            time.sleep(0.001)

    # The server answers while we are still sending; a client that looks stops.
    with socket.create_connection(("127.0.0.1", narrow.client.base_url.port or 0)) as wire:
        wire.sendall(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.settimeout(0.01)
        for part in endless():
            wire.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            try:
                answer = wire.recv(10_000)
                break
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 100_000


def test_a_large_body_is_refused_before_it_is_read(api: Api) -> None:
    problem(api.client.post("/v1/events", content=b" " * ((16 << 20) + 1)), 413, "OPIC_MAX_BODY_BYTES 16,777,216")
    for length, status in ((b"9" * 18, b"413"), (b"9" * 30, b"400")):  # The parser's own lengths end at 2^64.
        with socket.create_connection(("127.0.0.1", api.client.base_url.port or 0), timeout=WAIT_SECONDS) as wire:
            wire.sendall(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n" % length)
            assert wire.recv(100).startswith(b"HTTP/1.1 %s " % status)


def test_limits_come_from_the_settings(narrow: Api) -> None:
    post, get = narrow.client.post, narrow.client.get
    problem(post("/v1/events", json={"url": "http://a.example/" + "a" * 50}), 422, "OPIC_MAX_URL_BYTES 64")
    many = {"url": "http://a.example/", "links": [f"http://b.example/{n}" for n in range(5)]}
    assert written(post("/v1/events", json=many)) == {"accepted": 1, "rejected": [], "links_left_out": 1}
    for name, path in (("urls", "/v1/seeds"), ("urls", "/v1/importance"), ("leases", "/v1/release")):
        problem(post(path, json={name: ["http://a.example/"] * 4}), 422, f"4 {name} is over OPIC_MAX_URLS 3")
    problem(post("/v1/next", json={"n": 6, "crawler": "c"}), 422, "n=6 is over OPIC_MAX_N 5")
    problem(post("/v1/next", json={"n": 1, "crawler": "c", "busy_hosts": ["a"] * 4}), 422, "OPIC_MAX_URLS 3")
    problem(get("/v1/top", params={"n": 6}), 422, "n=6 is over OPIC_MAX_N 5")


def test_a_full_backlog_is_reported(service: EmbeddedService) -> None:
    with with_settings(service, max_lag=2) as served:
        answer = served.events(*[f"http://full.example/{n}" for n in range(3)])
        problem(answer, 503, "OPIC_MAX_LAG")


# Seeds, next and release.


def test_seeds_become_known_at_once(api: Api) -> None:
    urls = ["http://seed.example/1", "http://seed.example/2", "http://seed.example/1#again"]
    assert written(api.client.post("/v1/seeds", json={"urls": urls})) == {"known": 0, "new": 2}
    more = api.client.post("/v1/seeds", json={"urls": [*urls, "http://seed.example/3"]})
    assert written(more) == {"known": 2, "new": 1}
    assert api.client.post("/v1/seeds", json={"urls": []}).json() == {"known": 0, "new": 0}


def test_bad_seeds_are_listed_and_the_others_accepted(api: Api) -> None:
    before = api.settle()
    urls = ["/about", "http://seed.example/9", "http://seed.example/9#again", "mailto:a@b.example"]
    answer = api.client.post("/v1/seeds", json={"urls": urls})
    assert answer.status_code == 200
    assert (answer.json()["known"], answer.json()["new"]) == (0, 1)
    rejected = answer.json()["rejected"]
    assert [(one["index"], urls[one["index"]] in one["error"]) for one in rejected] == [(0, True), (3, True)]
    assert api.settle()["known_pages"] == before["known_pages"] + 1
    none = api.client.post("/v1/seeds", json={"urls": ["/a", "/b"]}).json()
    assert (none["known"], none["new"], len(none["rejected"])) == (0, 0, 2)


def test_single_bad_seed_is_refused(api: Api) -> None:
    before = api.settle()
    problem(api.client.post("/v1/seeds", json={"urls": ["/about"]}), 422, "'/about'")
    bad_field = {"urls": ["http://seed.example/10", "/about"], "not_before": "tomorrow"}
    problem(api.client.post("/v1/seeds", json=bad_field), 422, "not_before 'tomorrow'")
    assert api.settle()["known_pages"] == before["known_pages"]


@pytest.mark.parametrize("trust", ["-1", "1e10", "NaN", '"1"', "Infinity"])
def test_invalid_trust_is_refused_and_no_seed_is_added(api: Api, trust: str) -> None:
    before = api.settle()
    body = f'{{"urls": ["http://untrusted.example/"], "trust": {trust}}}'
    answer = api.client.post("/v1/seeds", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert api.settle()["known_pages"] == before["known_pages"]


def test_a_page_is_leased_to_one_crawler_until_it_is_released(api: Api) -> None:
    urls = [f"http://{name}.lease.example/" for name in "abc"]
    api.client.post("/v1/seeds", json={"urls": urls})
    api.settle()
    asked = {"n": 10, "crawler": "one", "domain": "lease.example", "lease_seconds": 60}
    first = wait_for(lambda: api.client.post("/v1/next", json=asked).json(), lambda found: found["pages"])
    pages = first["pages"]
    assert {page["url"] for page in pages} <= set(urls)
    for page in pages:
        assert page["cash"] > 0
        assert not page["fetched_before"]
        assert 0 < page["importance"] < 1
        assert 50 < page["lease_until"] - time.time() < 70
    assert [p["cash"] for p in pages] == sorted((p["cash"] for p in pages), reverse=True)
    others = api.client.post("/v1/next", json={**asked, "crawler": "two"}).json()
    assert not {p["url"] for p in others["pages"]} & {p["url"] for p in pages}
    assert api.client.post("/v1/release", json={"leases": [p["lease"] for p in pages]}).json() == {
        "released": len(pages)
    }
    again = wait_for(
        lambda: api.client.post("/v1/next", json={**asked, "crawler": "two"}).json()["pages"],
        lambda found: {p["url"] for p in found} & {p["url"] for p in pages},
    )
    assert len({p["lease"] for p in again} | {p["lease"] for p in pages}) == len(again) + len(pages)


def test_peeking_at_the_frontier_leases_nothing(api: Api) -> None:
    api.client.post("/v1/seeds", json={"urls": ["http://look.example/a", "http://b.look.example/"]}).raise_for_status()
    for _ in range(2):
        shown = api.client.get("/v1/frontier", params={"domain": "look.example", "n": 5}).raise_for_status().json()
        assert [(page["url"], page["host"]) for page in shown["pages"]] == [
            ("http://look.example/a", "look.example"),
            ("http://b.look.example/", "b.look.example"),
        ]
    asked = {"domain": "look.example", "n": 1}
    (leased,) = api.client.post("/v1/next", json=asked).raise_for_status().json()["pages"]
    assert leased["url"] == shown["pages"][0]["url"]
    left = api.client.get("/v1/frontier", params=asked).raise_for_status().json()["pages"]
    assert [page["url"] for page in left] == ["http://b.look.example/"]
    for wrong in ({"n": 0}, {"n": 1_001}, {"mode": "new"}, {"domain": "a/b"}, {"crawler": "x"}):
        problem(api.client.get("/v1/frontier", params=wrong), 422)


def test_politeness_of_hosts_is_set_and_shown(api: Api) -> None:
    before = api.client.get("/v1/politeness").raise_for_status().json()
    assert (before["host_delay_seconds"], before["host_in_flight"], before["hosts"]) == (0.0, None, {})
    hosts = {
        "B\u00fccher.spare.example": {"delay_seconds": 30, "revisit_seconds": 60},
        "one.spare.example": {"delay_seconds": 0, "in_flight": 2},
    }
    shown = api.client.put("/v1/politeness", json={"hosts": hosts}).raise_for_status().json()
    assert shown["hosts"] == {
        "one.spare.example": {"delay_seconds": 0, "in_flight": 2, "revisit_seconds": None},
        "xn--bcher-kva.spare.example": {"delay_seconds": 30, "in_flight": None, "revisit_seconds": 60},
    }
    urls = [f"http://one.spare.example/{i}" for i in range(4)]
    api.client.post("/v1/seeds", json={"urls": urls}).raise_for_status()
    asked = {"n": 10, "domain": "spare.example", "crawl_delays": {"one.spare.example": 9.5}}
    found = api.client.post("/v1/next", json=asked).raise_for_status().json()["pages"]
    assert [page["url"] for page in found] == urls[:2]  # No delay, as was set; two in flight.
    assert api.client.put("/v1/politeness", json={"hosts": {}}).raise_for_status().json()["hosts"] == {}
    for wrong in ({"a/b": {}}, {"a.example": {"delay": 1}}, {"a.example": {"delay_seconds": -1}}):
        problem(api.client.put("/v1/politeness", json={"hosts": wrong}), 422)
    problem(api.client.post("/v1/next", json={"crawl_delays": {"a.example": -1}}), 422)


def test_an_empty_answer_says_when_to_come_back(api: Api) -> None:
    answer = api.client.post("/v1/next", json={"n": 1, "crawler": "c", "domain": "no-such.example"}).json()
    assert answer["pages"] == []
    assert answer["retry_after"] > 0


def test_an_empty_answer_says_what_holds_pages_back_and_whether_the_crawl_is_exhausted(api: Api) -> None:
    names = ["a.wait.example", "b.wait.example"]
    api.client.post("/v1/seeds", json={"urls": [f"http://{name}/" for name in (*names, "c.wait.example")]})

    def asked(mode: str) -> dict[str, Any]:
        answer = api.client.post("/v1/next", json={"domains": names, "mode": mode}).raise_for_status().json()
        return {**answer, "waiting": {kind: count for kind, count in answer["waiting"].items() if count}}

    first = asked("any")
    assert sorted(page["url"] for page in first["pages"]) == [f"http://{name}/" for name in names]
    assert (first["exhausted"], first["waiting"]) == (False, {"leased": 2})
    assert asked("discover") | {"as_of": 0, "retry_after": 0} == {
        **{"pages": [], "retry_after": 0, "exhausted": False, "waiting": {"leased": 2}, "as_of": 0},
        "policy": first["policy"],
    }
    api.events("http://a.wait.example/")
    api.events("http://b.wait.example/", status=403)
    api.settle()
    assert asked("any")["waiting"] == {"revisit": 1, "denied": 1}
    assert not asked("refresh")["exhausted"]
    over = asked("discover")
    assert (over["pages"], over["waiting"], over["exhausted"]) == ([], {"denied": 1}, True)
    problem(api.client.post("/v1/next", json={"domains": ["a.example"] * 101}), 422, "domains")


def test_busy_hosts_are_skipped(api: Api) -> None:
    api.client.post("/v1/seeds", json={"urls": ["http://busy.pass.example/", "http://idle.pass.example/"]})
    api.settle()
    asked = {"n": 5, "crawler": "c", "domain": "pass.example", "busy_hosts": ["busy.pass.example"]}
    pages = wait_for(lambda: api.client.post("/v1/next", json=asked).json()["pages"], bool)
    assert [page["url"] for page in pages] == ["http://idle.pass.example/"]


def test_null_is_taken_as_absent(api: Api) -> None:
    """As Go writes empty slices and maps: of events in each form, and where pages are asked for."""
    nulls = dict.fromkeys(("links", "tags", "status", "excluded", "give_up", "depth", "meta", "v"))
    pages = [{"url": f"http://null.example/{form}", **nulls} for form in ("one", "array", "line", "packed", "each")]
    bodies: list[tuple[Any, str]] = [
        (json.dumps(pages[0]), "application/json"),
        (json.dumps([pages[1]]), "application/json"),
        (json.dumps(pages[2]) + "\n", "application/x-ndjson"),
        (msgpack.packb(pages[3]), "application/msgpack"),
        (msgpack.packb([pages[4]]), "application/msgpack"),
    ]
    for body, kind in bodies:
        sent = api.client.post("/v1/events", content=body, headers={"content-type": kind})
        assert (sent.status_code, written(sent)) == (202, {"accepted": 1, "rejected": []})
    api.settle()
    for page in pages:
        assert api.client.get("/v1/importance", params={"url": page["url"]}).json()["reads"] == 1
    asked = {"n": 1, "crawler": "c", "domain": "null.example", "domains": None, "busy_hosts": None}
    assert api.client.post("/v1/next", json={**asked, "crawl_delays": None}).status_code == 200


def test_releasing_an_ended_lease_does_nothing_and_a_malformed_one_is_refused(api: Api) -> None:
    over = "0-1-1700000000000000"
    assert api.client.post("/v1/release", json={"leases": [over]}).json() == {"released": 0}
    assert api.client.post("/v1/release", json={"leases": []}).json() == {"released": 0}
    problem(api.client.post("/v1/release", json={"leases": [over, "nonsense"]}), 422, "'nonsense' is not a lease")


def test_next_needs_no_parameters(api: Api) -> None:
    answer = api.client.post("/v1/next", json={})
    assert answer.status_code == 200
    assert len(answer.json()["pages"]) <= 10


BAD_ASKED: dict[str, tuple[str, object, str]] = {
    "n is negative": ("/v1/next", {"n": -1, "crawler": "c"}, "n: "),
    "n is 0": ("/v1/next", {"n": 0, "crawler": "c"}, "n: "),
    "n is true": ("/v1/next", {"n": True, "crawler": "c"}, "n: "),
    "n is a text": ("/v1/next", {"n": "10", "crawler": "c"}, "n: "),
    "n is no whole number": ("/v1/next", {"n": 1.5, "crawler": "c"}, "n: "),
    "n is over the limit": ("/v1/next", {"n": 1_001, "crawler": "c"}, "n=1,001 is over OPIC_MAX_N 1,000"),
    "n is far over the limit": ("/v1/next", {"n": 10**30, "crawler": "c"}, "OPIC_MAX_N 1,000"),
    "the crawler is a number": ("/v1/next", {"n": 1, "crawler": 7}, "crawler: "),
    "the crawler's name is long": ("/v1/next", {"n": 1, "crawler": "c" * 201}, "crawler: "),
    "a field nobody knows": ("/v1/next", {"n": 1, "crawler": "c", "lease_second": 5}, "lease_second: no such field"),
    "a mode nobody knows": ("/v1/next", {"n": 1, "crawler": "c", "mode": "all"}, "mode: "),
    "a recrawl policy nobody knows": (
        "/v1/next",
        {"n": 1, "crawler": "c", "mode": "refresh", "policy": "YDU"},
        "policy: input should be 'U', 'OR', 'YR', 'YRU', 'LDU', 'GAI' or 'AI'",
    ),
    "a recrawl policy of another mode": (
        "/v1/next",
        {"n": 1, "crawler": "c", "mode": "any", "policy": "U"},
        "policy='U' is about pages read before",
    ),
    "a lease of no time": ("/v1/next", {"n": 1, "crawler": "c", "lease_seconds": 0}, "lease_seconds: "),
    "a lease without end": ("/v1/next", {"n": 1, "crawler": "c", "lease_seconds": 1e9}, "lease_seconds: "),
    "a domain that is none": ("/v1/next", {"n": 1, "crawler": "c", "domain": "a b/c"}, ""),
    "an array": ("/v1/next", [], "the body: "),
    "urls are missing": ("/v1/seeds", {}, "urls: "),
    "urls is a text": ("/v1/seeds", {"urls": "http://a.example/"}, "urls: "),
    "a URL is a number": ("/v1/seeds", {"urls": [7]}, "urls.0: "),
    "a URL can't be taken": ("/v1/seeds", {"urls": ["javascript:1"]}, "'javascript:1'"),
    "too many seeds": ("/v1/seeds", {"urls": ["http://a.example/"] * 10_001}, "OPIC_MAX_URLS 10,000"),
    "leases are numbers": ("/v1/release", {"leases": [1]}, "leases.0: "),
    "a policy nobody knows": ("/v1/importance", {"urls": [], "policy": "best"}, "policy: "),
    "a window of nothing": ("/v1/importance", {"urls": [], "window": 0}, "window: 0 is neither a positive number of"),
    "a window of no unit": (
        "/v1/importance",
        {"urls": [], "window": "3w"},
        "window: '3w' is neither a positive number",
    ),
    "a window of rounds as a text": ("/v1/importance", {"urls": [], "window": "3"}, "window: rounds are a number"),
    "a window that is true": ("/v1/importance", {"urls": [], "window": True}, "window: true is neither"),
    "a window far too long": ("/v1/importance", {"urls": [], "window": 10**400}, "window: "),
    "a bad URL asked about": ("/v1/importance", {"urls": ["http://a.example/", "/about"]}, "'/about'"),
    "too many URLs asked about": ("/v1/importance", {"urls": ["http://a.example/"] * 10_001}, "OPIC_MAX_URLS 10,000"),
}


@pytest.mark.parametrize(("path", "body", "word"), BAD_ASKED.values(), ids=BAD_ASKED)
def test_an_invalid_request_is_refused_with_its_field(api: Api, path: str, body: object, word: str) -> None:
    found = problem(api.client.post(path, json=body), 422, word)
    assert found["type"] in ("urn:opic:problem:bad-input", "urn:opic:problem:bad-url")
    if ": " in word:
        assert found["errors"][0]["msg"] in found["detail"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_refused_everywhere(api: Api, value: str) -> None:
    bodies = {
        "/v1/next": '{"n":1,"crawler":"c","lease_seconds":%s}',
        "/v1/importance": '{"urls":[],"window":%s}',
    }
    for path, body in bodies.items():
        assert api.client.post(path, content=body % value, headers=AS_JSON).status_code in (400, 422)
    assert api.client.get("/v1/top", params={"window": value}).status_code == 422


@pytest.mark.parametrize(
    "body",
    ['{"urls":["\\ud800"]}', '{"urls":["http://a.example/\\udfff"]}', b'{"urls":["\xff"]}', f'{{"urls":{DEEP}}}'],
)
def test_malformed_texts_are_refused_everywhere(api: Api, body: str | bytes) -> None:
    for path in ("/v1/seeds", "/v1/importance"):
        assert api.client.post(path, content=body, headers=AS_JSON).status_code in (400, 422)


# Importance, top, audit and stats.


def test_importance_is_answered_for_one_page_or_many(api: Api) -> None:
    api.events("http://many.example/", links=["http://many.example/child"])
    api.settle()
    urls = ["http://many.example/child", "http://never.example/", "http://MANY.example"]
    answer = api.client.post("/v1/importance", json={"urls": urls}).json()
    child, never, parent = answer["pages"]
    assert (child["url"], parent["url"]) == ("http://many.example/child", "http://many.example/")
    assert (never["url"], never["importance"]) == ("http://never.example/", None)
    assert time.time() - 2 < answer["as_of"] <= time.time()
    one = api.importance("http://many.example/")
    assert (one["cash"], one["reads"], one["last_read_clock"]) == (
        parent["cash"],
        parent["reads"],
        parent["last_read_clock"],
    )
    assert one["last_read_clock"] > 0
    assert isinstance(one["cash"], int)
    assert time.time() - 2 < one["as_of"] <= time.time()
    assert api.client.post("/v1/importance", json={"urls": []}).json()["pages"] == []


def test_a_page_that_is_gone_says_so(api: Api) -> None:
    api.events("http://gone.example/")
    api.events("http://gone.example/", status=410)
    api.settle()
    page = api.importance("http://gone.example/")
    assert (page["gone"], page["importance"]) == (True, 0)


def test_an_unknown_page_is_not_found_and_a_bad_url_is_refused(api: Api) -> None:
    unknown = api.client.get("/v1/importance", params={"url": "http://never.example/#x"})
    assert problem(unknown, 404, "http://never.example/ was never seen")["type"] == "urn:opic:problem:unknown-page"
    problem(api.client.get("/v1/importance", params={"url": "/about"}), 422, "'/about'")
    long = "/v1/importance?url=http://a.example/" + "a" * 60_000
    problem(api.client.get(long), 422, "60,017 bytes long, over OPIC_MAX_URL_BYTES 2,048")
    # httpx sends no longer ones.
    with pytest.raises(urllib.error.HTTPError, match="414"):
        urllib.request.urlopen(f"{api.url}{long}{'a' * 40_000}")
    problem(api.client.get("/v1/importance"), 422, "url: ")
    assert api.client.get("/v1/importance?url=http://a.example/%ff%00%ed%a0%80").status_code in (404, 422)


def test_top_is_descending_and_may_be_of_one_domain(api: Api) -> None:
    api.events("http://www.best.example/", links=["http://best.example/a", "http://notbest.example/"])
    api.settle()
    pages = api.client.get("/v1/top", params={"n": 1_000}).json()["pages"]
    values = [page["importance"] for page in pages]
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1, abs=1e-6)
    of_domain = api.client.get("/v1/top", params={"domain": "best.example"}).json()["pages"]
    assert {p["url"] for p in of_domain} == {"http://www.best.example/", "http://best.example/a"}
    assert len(api.client.get("/v1/top", params={"n": 2}).json()["pages"]) == 2


def test_a_host_in_unicode_and_the_same_in_punycode_are_one(api: Api) -> None:
    page, child = "http://xn--bcher-kva.example/%C3%BC", "http://www.xn--bcher-kva.example/%C3%A9?%C3%9F=1"
    links = ["http://www.bücher.example/é?ß=1", child, "http://bücher.example/ü#ü"]
    assert written(api.events("http://bücher.example/ü", links=links)) == {"accepted": 1, "rejected": []}
    assert api.events("http://umlaut.example/", links=["http://BÜCHER.example/ü", page]).status_code == 202
    api.settle()
    for url in ("http://bücher.example/ü", "http://BÜCHER.example:80/ü#ü", page):
        found = api.importance(url)
        assert (found["url"], found["reads"]) == (page, 1)
        assert api.client.get("/v1/explain", params={"url": url}).raise_for_status().json()["url"] == page
        assert len(api.client.get("/v1/history", params={"url": url}).raise_for_status().json()["measures"]) == 1
    for domain in ("bücher.example", "BÜCHER.Example", "xn--bcher-kva.example"):
        top = api.client.get("/v1/top", params={"domain": domain}).raise_for_status().json()["pages"]
        assert {found["url"] for found in top} == {page, child}
        inflow = api.client.get("/v1/inflow", params={"domain": domain}).raise_for_status().json()["pages"]
        assert {found["url"]: found["inflow"] > 0 for found in inflow} == {page: True, child: False}
        asked = {"n": 1, "domain": domain, "mode": "discover"}
        (leased,) = wait_for(lambda asked=asked: api.client.post("/v1/next", json=asked).json()["pages"], bool)
        assert leased["url"] == child
        assert api.client.post("/v1/release", json={"leases": [leased["lease"]]}).json() == {"released": 1}


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"n": "0"}, "n: "),
        ({"n": "-1"}, "n: "),
        ({"n": "true"}, "n: "),
        ({"n": "ten"}, "n: "),
        ({"n": "1001"}, "n=1,001 is over OPIC_MAX_N 1,000"),
        ({"n": "9" * 5_000}, "n"),
        ({"policy": "best"}, "policy: "),
        (
            {"window": "-1"},
            "window: '-1' is neither a positive number of rounds, such as 0.5, nor a duration, such as 30d or 12h",
        ),
        ({"window": "30w"}, "window: '30w' is neither a positive number of rounds, such as 0.5, nor a duration"),
        ({"window": "0d"}, "window: '0d' is neither"),
        ({"window": "{d}"}, "window: '{d}' is neither"),
        ({"domian": "a.example"}, "domian: no such field"),
        ({"domain": ""}, "domain: "),
        ({"domain": "a b/c"}, ""),
    ],
)
def test_a_bad_parameter_is_refused_by_name(api: Api, parameters: dict[str, str], word: str) -> None:
    problem(api.client.get("/v1/top", params=parameters), 422, word)


@pytest.mark.parametrize("window", [0.5, "30d", "0.5h"])
@pytest.mark.parametrize("policy", ["interpolation", "fixed", "variable", "improved"])
def test_a_window_policy_gives_shares_and_is_named_in_the_answer(api: Api, policy: str, window: float | str) -> None:
    links = ["http://two.windows.example/", "http://three.windows.example/"]
    for _ in range(3):
        api.events("http://one.windows.example/", links=links)
        api.events(links[0], links=["http://one.windows.example/"])
    api.settle()
    asked = {"policy": policy, "window": window}
    pages = api.client.get("/v1/top", params={"n": 1_000, **asked}).json()["pages"]
    assert sum(page["importance"] for page in pages) == pytest.approx(1, abs=1e-9)
    assert {(page["policy"], page["window"]) for page in pages} == {(policy, window)}
    values = {page["url"]: page["importance"] for page in pages}
    one = api.client.get("/v1/importance", params={"url": links[0], **asked}).json()
    many = api.client.post("/v1/importance", json={"urls": [links[0], "http://never.example/"], **asked}).json()
    for page in (one, many["pages"][0]):
        assert (page["policy"], page["window"]) == (policy, window)
        assert page["importance"] == values[links[0]]
        assert "error_bound" not in page
    assert many["pages"][1]["importance"] is None


def test_a_window_is_only_for_policies_that_have_one(api: Api) -> None:
    api.events("http://static.example/")
    api.settle()
    asked: dict[str, Any] = {"url": "http://static.example/", "policy": "static", "window": 8}
    assert api.client.get("/v1/importance", params=asked).json()["window"] is None
    assert api.client.get("/v1/top", params={"policy": "static", "window": 8}).status_code == 200
    for given, shown in (("8", 8), ("030.0d", "30d"), ("1e1h", "10h")):
        answer = api.client.get("/v1/importance", params=asked | {"policy": "fixed", "window": given}).json()
        assert answer["window"] == shown


def test_a_window_is_described_in_both_forms(api: Api) -> None:
    document = api.client.get("/openapi.json").json()
    parameters = {p["name"]: p for p in document["paths"]["/v1/top"]["get"]["parameters"]}
    body = document["paths"]["/v1/importance"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    asked = body["properties"]["window"]
    for schema in (parameters["window"]["schema"], asked):
        number, text = next(part["anyOf"] for part in schema["anyOf"] if "anyOf" in part)
        assert number == {"type": "number", "exclusiveMinimum": 0}
        assert re.search(text["pattern"], "30d")
        assert re.search(text["pattern"], "1.5h")
        assert not re.search(text["pattern"], "30")
    shown = document["components"]["schemas"]["TopPage"]["properties"]["window"]["anyOf"]
    assert [part["type"] for part in shown] == ["number", "string", "null"]


# History.


def test_history_lists_the_reads_of_a_page_oldest_first(api: Api) -> None:
    url = "http://read.example/"
    for at in (1_700_000_000.25, 1_700_000_100.5):
        api.events(url, links=["http://linked.example/"], fetched_at=at)
        api.events("http://linked.example/", links=[url])
    api.settle()
    answer = api.client.get("/v1/history", params={"url": "HTTP://read.example:80"}).json()
    assert answer["url"] == url
    assert [measure["fetched_at"] for measure in answer["measures"]] == [1_700_000_000.25, 1_700_000_100.5]
    clocks = [measure["clock"] for measure in answer["measures"]]
    assert clocks == sorted(set(clocks))
    page = api.importance(url)
    assert (page["last_read_clock"], page["last_fetched_at"]) == (clocks[-1], 1_700_000_100.5)
    assert answer["as_of"] > time.time() - WAIT_SECONDS


def test_history_keeps_the_last_measures_only(api: Api) -> None:
    url = "http://often.example/"
    for _ in range(6):
        api.events(url, links=["http://other.example/"])
    api.settle()
    assert len(api.client.get("/v1/history", params={"url": url}).json()["measures"]) == 4
    assert api.client.get("/v1/history", params={"url": "http://other.example/"}).json()["measures"] == []


def test_history_of_an_unknown_or_bad_url_is_a_problem(api: Api) -> None:
    problem(api.client.get("/v1/history", params={"url": "http://never.example/"}), 404, "was never seen")
    problem(api.client.get("/v1/history", params={"url": "/about"}), 422, "/about")
    problem(api.client.get("/v1/history"), 422, "url: ")


def test_the_audit_adds_up_exactly(api: Api) -> None:
    api.settle()
    audit = api.client.get("/v1/audit").json()
    assert audit["conserved"] is True
    assert audit["minted"] == audit["pages"] + audit["virtual"] + audit["in_flight"] == 1 << 62
    assert len(audit["shards"]) == 1


def test_stats_count_pages_and_rounds(api: Api) -> None:
    event = {"url": "http://counted.example/", "links": ["http://counted.example/a"]}
    assert api.client.post("/v1/events", json=event).status_code == 202
    stats = api.settle()
    assert 0 < stats["read_pages"] <= stats["known_pages"]
    assert stats["clock"] > 0
    assert stats["rounds"] > 0
    assert time.time() - 2 < stats["as_of"] <= time.time()
    problem(api.client.get("/v1/stats?n=1"), 422, "n: no such field")


# The endpoint as a whole.


@pytest.mark.parametrize(
    "path", ["/console/", "/v1", "/v1/nope", "/v1/top/", "/docs/files/nope.js", "/docs/files/../x", "//v1/top"]
)
def test_an_unknown_path_is_a_problem_too(api: Api, path: str) -> None:
    problem(api.client.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/events", "POST"),
        ("DELETE", "/v1/importance", "GET, HEAD, POST"),
        ("POST", "/v1/top", "GET, HEAD"),
        ("OPTIONS", "/v1/next", "POST"),
        ("PUT", "/healthz", "GET, HEAD"),
        ("POST", "/docs/files/swagger-ui.css", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_refused_with_the_allowed_ones(api: Api, method: str, path: str, allowed: str) -> None:
    answer = api.client.request(method, path)
    problem(answer, 405, allowed)
    assert answer.headers["allow"] == allowed


def test_probes_are_answered(api: Api) -> None:
    assert api.client.get("/healthz").json()["status"] == "ok"
    assert api.client.get("/readyz").json() == {"status": "ready", "warnings": []}
    head = api.client.head("/healthz")
    assert (head.status_code, head.content) == (200, b"")


def test_the_document_is_valid_openapi_and_names_every_call(api: Api) -> None:
    document = openapi(api.url, None)
    validate(document)
    assert document["openapi"].startswith("3.1")
    assert {f"/v1/{name}" for name in CALLS} | {"/healthz", "/readyz", "/metrics"} == document["paths"].keys()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            fits(document, {"$ref": f"#/components/schemas/{name}"}, example)


def references(part: object) -> Iterator[str]:
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for one in parts:
        yield from references(one)
    if isinstance(part, dict) and isinstance(part.get("$ref"), str):
        yield part["$ref"]


def test_every_call_in_the_document_is_in_one_described_group(api: Api) -> None:
    document = openapi(api.url, None)
    named = {tag["name"]: tag["description"] for tag in document["tags"]}
    used = [call["tags"] for calls in document["paths"].values() for call in calls.values()]
    assert all(len(tags) == 1 for tags in used)
    assert {tags[0] for tags in used} == set(named)


def test_every_reference_in_the_document_resolves(api: Api) -> None:
    document = openapi(api.url, None)  # The validator does not follow those in a body.
    found = set(references(document))
    assert found <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert "#/components/schemas/CrawlEvent" in found


def test_the_documentation_pages_need_no_internet(api: Api) -> None:
    page = api.client.get("/docs").text
    assert "https://" not in page
    assert '"/docs/files/swagger-ui-bundle.js"' in page
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert len(api.client.get(f"/docs/files/{name}").content) > 100_000


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic " + TOKEN, TOKEN, "Bearer " + TOKEN + "x", "Bearer \xe9"]
)
def test_without_the_token_only_probes_are_answered(guarded: Api, given: str) -> None:
    headers = {"authorization": given.encode("latin-1")}
    paths = [f"/v1/{name}" for name in CALLS] + ["/docs/", "/docs/none", "/openapi.json/", "/nope"]
    with httpx.Client(base_url=guarded.url, headers=headers) as client:  # type: ignore[arg-type]
        for path in paths:
            for method in ("GET", "POST"):
                answer = client.request(method, path)
                problem(answer, 401, "OPIC_API_TOKEN")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        assert client.get("/metrics").status_code == 200
        for path in ("/", "/docs", "/openapi.json", "/docs/files/swagger-ui.css"):  # They hold no data.
            assert client.get(path).status_code == 200


def test_each_error_is_described_with_an_example_of_its_own(api: Api) -> None:
    document, found = openapi(api.url, None), 0
    for call in (call for calls in document["paths"].values() for call in calls.values()):
        for status, answer in call["responses"].items():
            for kind, example in answer.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {}).items():
                assert example["value"]["status"] == int(status)
                assert (int(status), example["value"]["title"]) == KINDS[kind]
                fits(document, document["components"]["schemas"]["Problem"], example["value"])
                found += 1
            assert int(status) < 400 or answer["content"][MEDIA_TYPE]["examples"], f"{status} has no example"
    assert found > 50


def test_with_the_token_every_call_is_answered(guarded: Api) -> None:
    assert guarded.events("http://token.example/").json()["accepted"] == 1
    assert guarded.client.get("/docs").status_code == 200
    document = openapi(guarded.url, TOKEN)
    validate(document)
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    answer = curls.get(f"{guarded.url}/v1/stats", headers={"authorization": f"bearer  {TOKEN}"})
    assert answer.status_code == 200


def test_a_foreign_web_page_cannot_send_events(api: Api, guarded: Api) -> None:
    body = b'{"url":"http://forged.example/"}'
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        problem(api.client.post("/v1/events", content=body, headers={"origin": origin}), 403, "OPIC_API_TOKEN")
    assert api.client.post("/v1/events", content=body, headers={"origin": api.url}).status_code == 202
    assert guarded.client.post("/v1/events", content=body, headers={"origin": "https://ui.example"}).status_code == 202


def test_the_log_has_one_line_per_request_and_no_text_from_the_caller(
    api: Api, guarded: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        api.client.get("/v1/top%0AERROR%20forged%1b[31m?n=%0Aforged&key=hunter2", headers={"x-request-id": "mine-1234"})
        api.client.get("/v1/importance", params={"url": "http://a.example/\nERROR forged"})
        api.client.post("/v1/events", json={"url": "\nERROR forged\x1b[31m"})
        api.client.get("/v1/top", headers={"x-request-id": "a" * 100})
        guarded.client.get("/v1/stats")
        curls.get(guarded.url + "/v1/stats", headers={"authorization": f"Bearer {TOKEN}x"})
        curls.request("FORGED", guarded.url + "/" + "a" * 10_000)

        def logged() -> list[str]:
            lines = [r.getMessage() for r in caplog.records if r.name.startswith("opic.api")]
            lines = [line for line in lines if "/openapi.json" not in line]  # Which the client checks answers against.
            first = next((i for i, line in enumerate(lines) if line.endswith("id=mine-1234")), len(lines))
            return lines[first:]  # Without that of a request of the test before, for the reason below.

        # A line is written once its answer is sent, which may be after we have it.
        lines = wait_for(logged, lambda found: len(found) >= 7)
    assert len(lines) == 7
    for line in lines:
        assert line.isprintable()
        assert len(line) < 400
        for secret in ("hunter2", TOKEN, "ERROR forged"):
            assert secret not in line
    assert lines[0].startswith("GET /v1/top%0AERROR%20forged%1b[31m 404 ")
    assert lines[0].endswith(" ms id=mine-1234")
    assert lines[3].startswith("GET /v1/top 200 ")
    assert "a" * 100 not in lines[3]


def test_a_request_that_succeeds_has_no_line_in_the_log_by_default(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        api.client.get("/v1/top", headers={"x-request-id": "succeeds"})
        lines = wait_for(lambda: [r for r in caplog.records if "id=succeeds" in r.getMessage()], bool)
    assert [line.levelno for line in lines] == [logging.DEBUG]


# When things break.


def test_an_unavailable_store_is_a_503_until_it_is_back(api: Api) -> None:
    def answer_without_store() -> httpx.Response:
        assert api.service.server.process is not None
        os.kill(api.service.server.process.pid, signal.SIGKILL)
        return api.events("http://while-away.example/")

    # On a busy machine the store may be back before the call arrives.
    down = wait_for(answer_without_store, lambda answer: answer.status_code != 202)
    problem(down, 503)
    assert int(down.headers["retry-after"]) > 0
    wait_for(lambda: api.events("http://while-away.example/").status_code, lambda status: status == 202)
    wait_for(lambda: api.client.get("/readyz").status_code, lambda status: status == 200)
    api.settle()
    assert api.importance("http://while-away.example/")["reads"] >= 1
    assert api.client.get("/v1/audit").json()["conserved"] is True


def test_a_service_that_is_not_ready_says_why(service: EmbeddedService) -> None:
    with checking(SimpleNamespace(backend=service.backend, not_ready=lambda: "the worker is being started")) as served:
        problem(served.client.get("/readyz"), 503, "the worker is being started")
        assert served.client.get("/healthz").status_code == 200


def test_an_internal_error_is_a_500_without_a_trace(service: EmbeddedService, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        backend = service.backend

        def not_ready(self) -> str | None:
            raise RuntimeError("the secret cause")

    with checking(Broken()) as served:
        answer = curls.get(f"{served.url}/readyz")
    found = problem(answer, 500, "its log says why")
    assert "secret" not in answer.text
    told = [r for r in caplog.records if r.exc_info and found["request_id"] in r.getMessage()]
    assert len(told) == 1


ENDS_IN_ORDER = """
import logging, sys, time
from types import SimpleNamespace
from opic.api import bind, create_app, serve
from opic.settings import Settings

def slow():
    time.sleep(0.5)

backend = SimpleNamespace(settings=Settings.load(), warnings=list)
listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
serve(create_app(SimpleNamespace(backend=backend, not_ready=slow)), sockets=[listener])
print("closed in order", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_on_shutdown_running_calls_are_answered_and_connections_closed(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", ENDS_IN_ORDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        found: list[int] = []
        with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as idle:
            assert idle.get("/healthz").status_code == 200
            asking = threading.Thread(target=lambda: found.append(curls.get(f"{url}/readyz").status_code))
            asking.start()
            time.sleep(0.25)
            process.send_signal(number)
            started = time.monotonic()
            assert process.wait(WAIT_SECONDS) == 0
            assert time.monotonic() - started < 4
            asking.join()
        assert found == [200]
        assert process.stdout.read() == "closed in order\n"
