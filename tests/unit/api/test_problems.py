"""Every exception has one answer, and an answer in JSON is exact or none."""

import json

import msgspec
import pytest

from opic.api.bodies import ClassesGiven, Leases, ManyPages, NextRequest, PolitenessGiven, RulesGiven, Seeds
from opic.api.problems import KINDS, Json, Problem, from_error
from opic.api.request_bodies import read_asked
from opic.api.validation import ERRORS_MAX
from opic.errors import (
    BadEvent,
    BadInput,
    BadUrl,
    KafkaRefused,
    NotBuiltYet,
    OpicError,
    SettingsError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadInput("n=0"), 422, "bad-input"),
        (BadUrl("'/about' is not an absolute http(s) URL"), 422, "bad-url"),
        (BadEvent("no url"), 422, "bad-event"),
        (NotBuiltYet("windows are not built yet"), 501, "not-built-yet"),
        (KafkaRefused("Kafka has no topic crawl.events.dlq"), 503, "kafka-refused"),
        (StoreUnavailable("the store does not answer"), 503, "store-away"),
    ],
)
def test_errors_that_a_caller_can_fix_are_reported_in_full(error: OpicError, status: int, kind: str) -> None:
    answer = from_error(error).response("r-1")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in answer.headers) == (status == 503)
    assert json.loads(bytes(answer.body)) == {
        "type": f"urn:opic:problem:{kind}",
        "title": KINDS[kind][1],
        "status": status,
        "detail": str(error),
        "request_id": "r-1",
    }


@pytest.mark.parametrize("error", [StoreError("a secret"), StoreFull("a secret"), SettingsError("a secret")])
def test_internal_errors_are_not_shown_to_the_caller(error: OpicError) -> None:
    answer = from_error(error).response("r-1")
    assert answer.status_code == 500
    assert b"secret" not in bytes(answer.body)


def test_whole_numbers_are_written_exactly() -> None:
    numbers = {"clock": (1 << 62) - 1, "cash": -(1 << 53) - 1}
    assert bytes(Json(numbers).body) == b'{"clock":4611686018427387903,"cash":-9007199254740993}\n'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_cannot_represent_is_never_sent(number: float) -> None:
    assert bytes(Json({"importance": number}).body) == b'{"importance":null}\n'
    with pytest.raises(ValueError, match="JSON"):
        Json({"importance": number, "host": "\u00e9"})


def test_any_text_can_be_a_problem_detail() -> None:
    answer = Problem("bad-input", "\ud800 \x1b[31m \u202e\n").response()
    assert bytes(answer.body).isascii()
    assert json.loads(bytes(answer.body))["detail"] == "\ud800 \x1b[31m \u202e\n"


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (NextRequest, {"lease_second": 3}, "lease_second: no such field, did you mean lease_seconds?"),
        (Seeds, {"urls": [], "url": "http://a.example/"}, "url: no such field, did you mean urls?"),
        (Leases, {"leases": [], "x": 1}, "x: no such field, there are leases"),
        (ManyPages, {"urls": [], "windows": 1}, "windows: no such field, did you mean window?"),
        (
            ClassesGiven,
            {"classes": [{"name": "a", "weight": 2, "host": []}]},
            "classes.0.host: no such field, did you mean hosts?",
        ),
        (
            PolitenessGiven,
            {"hosts": {"a.example": {"delay": 3}}},
            "hosts.a.example.delay: no such field, did you mean delay_seconds?",
        ),
        (
            PolitenessGiven,
            {"hosts": {"a.example": {"pause": 3}}},
            "hosts.a.example.pause: no such field, there are delay_seconds, in_flight, revisit_seconds",
        ),
        (RulesGiven, {"rules": [{"effect": "deny", "paht": "/"}]}, "rules.0.paht: no such field, did you mean path?"),
        (RulesGiven, {"traps": {"date": 3}}, "traps.date: no such field, did you mean dates?"),
    ],
)
def test_unknown_field_of_a_body_is_refused_with_the_nearest_name(
    kind: type[msgspec.Struct], body: dict[str, object], said: str
) -> None:
    with pytest.raises(Problem) as refused:
        read_asked(json.dumps(body).encode(), kind)
    assert (refused.value.status, refused.value.detail) == (422, said)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (Seeds, '{"urls":["a",1],"trust":true}', "urls.1: {}a valid string; trust: {}a valid number"),
        (Seeds, '{"urls":[1,2,3,4]}', "; ".join([*(f"urls.{at}: {{}}a valid string" for at in range(3)), "and more"])),
        (Seeds, '{"urls":[],"trust":NaN}', "trust: {}a finite number"),
        (NextRequest, '{"crawl_delays":{"a.example":-1}}', "crawl_delays.a.example: {}greater than or equal to 0"),
        (NextRequest, '{"n":0,"domain":7}', "n: {}greater than or equal to 1; domain: {}a valid string"),
        (RulesGiven, '{"rules":[{"effect":"hide"}]}', "rules.0.effect: {}'allow' or 'deny'"),
        (ManyPages, '{"urls":[],"window":"8"}', "window: rounds are a number, not a string; "),
        (ManyPages, "[]", "the body: {}a valid object"),
        (ManyPages, "{}", "urls: field required"),
    ],
)
def test_each_wrong_value_is_reported_with_its_position(kind: type[msgspec.Struct], body: str, said: str) -> None:
    with pytest.raises(Problem) as refused:
        read_asked(body.encode(), kind)
    assert refused.value.detail.startswith(said.replace("{}", "input should be "))
    assert all(str(one["msg"]) in refused.value.detail for one in refused.value.errors[:3])


def test_list_of_mistakes_is_limited() -> None:
    with pytest.raises(Problem) as refused:
        read_asked(json.dumps({"urls": [1] * 10_000}).encode(), Seeds)
    assert [one["loc"] for one in refused.value.errors] == [["urls", at] for at in range(ERRORS_MAX)]
