"""The client without a service: what it sends, how it waits, and that its two halves are one."""

import email.utils
import inspect
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import msgspec
import pytest
from repository import ROOT
from tenacity import RetryCallState, Retrying

from opic.client import AsyncClient, Client, Event, EventsRejected, Unavailable, Unreachable, calls, errors, methods
from opic.client.answers import Accepted, Importance, NextPages, Rejected, Stats, Top
from opic.client.calls import FORMS
from opic.errors import OpicError
from opic.model.events import CrawlEvent

HEAVY = ("fastapi", "starlette", "redis", "numpy", "pydantic", "kafka")


def test_importing_the_client_imports_no_server_and_no_store() -> None:
    code = f"import sys, opic.client; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_both_clients_have_the_same_methods() -> None:
    blocking, awaited = (
        {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)
    )
    assert blocking.pop("close").__doc__ == awaited.pop("aclose").__doc__
    assert [(name, inspect.signature(one), one.__doc__) for name, one in blocking.items()] == [
        (name, inspect.signature(one), one.__doc__) for name, one in awaited.items()
    ]


def test_methods_of_the_one_client_block_and_those_of_the_other_are_coroutines() -> None:
    assert not inspect.iscoroutinefunction(Client.top)
    assert inspect.iscoroutinefunction(AsyncClient.top)
    assert inspect.signature(Client.top).return_annotation is Top


def test_an_event_has_the_fields_of_the_service() -> None:
    ours = {field.name for field in msgspec.structs.fields(Event)}
    assert ours <= {field.encode_name for field in msgspec.structs.fields(CrawlEvent)}
    assert calls.events([Event(url="http://a.example/")], "json", once=False).body == b'[{"url":"http://a.example/"}]'
    lines = calls.events([{"url": "http://a.example/"}] * 2, "lines", once=False)
    assert lines.body == b'{"url":"http://a.example/"}\n' * 2


@pytest.mark.parametrize("form", FORMS)
def test_a_call_with_events_has_an_idempotency_key_unless_told_otherwise(form: calls.Form) -> None:
    first, second = (calls.events([], form, once=True, key=None) for _ in range(2))
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert first.again
    unnamed = calls.events([], form, once=False, key=None)
    assert (unnamed.headers, unnamed.again) == ({"content-type": FORMS[form]}, False)
    mine = calls.events([], form, once=True, key="mine")
    assert (mine.headers["idempotency-key"], mine.again) == ("mine", True)


@pytest.mark.parametrize("ask", [Client.seed, Client.importances])
def test_a_string_instead_of_a_list_is_refused(ask: Callable[[Client, str], object]) -> None:
    with Client() as client, pytest.raises(TypeError, match="pass a list"):
        ask(client, "http://a.example/")


def test_nan_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        calls.post("/v1/next", NextPages, n=1, lease_seconds=float("nan"))


def answer(status: int, body: bytes = b"{}", **headers: str) -> httpx.Response:
    request = httpx.Request("GET", "http://opic.example/v1/importance")
    return httpx.Response(status, content=body, headers=headers, request=request)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.Unauthorized),
        (403, errors.Unauthorized),
        (409, errors.Conflict),
        (413, errors.BadRequest),
        (422, errors.BadRequest),
        (429, errors.Unavailable),
        (500, errors.ServiceFailed),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
    ],
)
@pytest.mark.parametrize("body", [b'{"type":"urn:x","title":"T","detail":"D","request_id":"r"}', b"<html>", b"[]", b""])
def test_each_status_has_its_own_exception(status: int, kind: type[errors.CallFailed], body: bytes) -> None:
    with pytest.raises(kind) as raised:
        calls.get("/v1/importance", Importance, url="http://a.example/").read(answer(status, body))
    assert type(raised.value) is kind
    assert isinstance(raised.value, OpicError)
    assert raised.value.status == status
    if body.startswith(b"{"):
        assert (raised.value.type, raised.value.detail, raised.value.request_id) == ("urn:x", "D", "r")


@pytest.mark.parametrize(("status", "kind"), [(404, errors.NotFound), (405, errors.BadRequest), (501, errors.NotBuilt)])
def test_an_error_status_is_the_services_own_only_with_a_problem_body(
    status: int, kind: type[errors.CallFailed]
) -> None:
    call = calls.get("/v1/importance", Importance, url="http://a.example/")
    with pytest.raises(kind) as raised:
        call.read(answer(status, b'{"type":"urn:x","title":"T","detail":"D"}'))
    assert type(raised.value) is kind
    with pytest.raises(errors.BadAnswer, match=f": unexpected answer {status} .* another program listens there"):
        call.read(answer(status, b"<html>"))


def test_a_redirect_is_an_error_that_names_its_target() -> None:
    with pytest.raises(errors.BadAnswer, match=r"redirects to https://opic\.example/: give the client the URL"):
        calls.get("/v1/stats", Stats).read(answer(301, b"", location="https://opic.example/"))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"url": 7, "importance": 1}', b"\xff"])
def test_an_answer_of_another_program_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(
        errors.BadAnswer,
        match=r"GET http://opic\.example/v1/importance: unexpected answer, so another program listens there",
    ):
        calls.get("/v1/importance", Importance, url="http://a.example/").read(answer(200, body))


def test_rejected_events_are_counted_and_the_first_ones_listed() -> None:
    several = EventsRejected(Accepted(6, [Rejected(n, f"reason {n}") for n in range(5)]))
    assert several.detail == (
        "5 of 11 events were rejected; the other 6 are accepted: "
        "event 0: reason 0; event 1: reason 1; event 2: reason 2; and 2 more"
    )
    assert len(several.answer.rejected) == 5
    alone = EventsRejected(Accepted(0, [Rejected(0, "too old")]))
    assert (alone.status, str(alone)) == (422, "422 Event refused: too old")
    assert isinstance(alone, errors.BadRequest)


def test_fields_of_a_newer_service_are_ignored() -> None:
    body = b'{"url":"http://a.example/","importance":0.5,"class":"trusted","novel":[1]}'
    found = calls.get("/v1/importance", Importance, url="http://a.example/").read(answer(200, body))
    assert found == Importance("http://a.example/", 0.5, page_class="trusted")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float | None) -> None:
    with pytest.raises(Unavailable) as raised:
        calls.get("/v1/stats", Stats).read(answer(503, **{"retry-after": header}))
    assert raised.value.retry_after == (None if seconds is None else pytest.approx(seconds, abs=5))


def test_retry_after_may_be_a_date_in_the_future() -> None:
    in_an_hour = email.utils.formatdate(time.time() + 3_600, usegmt=True)
    with pytest.raises(Unavailable) as raised:
        calls.get("/v1/stats", Stats).read(answer(503, **{"retry-after": in_an_hour}))
    assert raised.value.retry_after == pytest.approx(3_600, abs=5)


def test_a_retry_waits_as_long_as_asked_plus_a_random_part_that_doubles() -> None:
    state = RetryCallState(Retrying(), None, (), {})
    for attempt in (1, 2, 5, 50):
        state.attempt_number = attempt
        state.set_exception((Unavailable, Unavailable(503, {}, 2.0), None))  # type: ignore[arg-type]
        longest = min(methods.BACKOFF_FIRST_SECONDS * 2 ** (attempt - 1), methods.BACKOFF_MAX_SECONDS)
        waits = {methods._wait(state) for _ in range(100)}
        assert 2.0 <= min(waits) < max(waits) <= 2.0 + longest


@pytest.mark.parametrize("url", ["ftp://a.example", "a.example"])
def test_an_invalid_service_url_is_reported_at_once(url: str) -> None:
    began = time.monotonic()
    with Client(url) as client, pytest.raises(errors.ClientError) as raised:
        client.stats()
    assert not isinstance(raised.value, Unreachable)
    assert time.monotonic() - began < methods.FIRST_RETRY_SECONDS
