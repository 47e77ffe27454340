"""Tokens with roles at a real endpoint: every call is tried with every role, and tokens change while it runs."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import wait_until
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

from opic.service.service import EmbeddedService
from opic.service.tokens import ROLES, Tokens, new_token
from opic.settings import Settings

ADMIN = "admin-token-of-the-test"
READ = ["audit", "canonical", "classes", "coverage", "dead-letters", "domains", "explain", "frontier", "history"]
READ += ["hosts", "importance", "inflow", "inlinks", "local", "local/{domain}", "politeness", "rules", "search"]
READ += ["series", "stats", "top"]
# The whole table, as docs/guide/http.md has it: a call is made with the roles that include its own, and no others.
CALLS = {
    "publish": ["POST /v1/events", "POST /v1/seeds", "PUT /v1/local/{domain}"],
    "crawl": ["POST /v1/next", "POST /v1/release", "POST /v1/leases/renew"],
    "read": ["POST /v1/importance", "POST /v1/inflow", "GET /v1/crawls", *(f"GET /v1/{name}" for name in READ)],
    "admin": ["DELETE /v1/pages", *(f"{put} /v1/{name}" for put in ("PUT", "PATCH") for name in ("classes", "rules"))],
    None: ["GET /healthz", "GET /readyz", "GET /metrics"],
}
CALLS["admin"] += ["PUT /v1/politeness", "PUT /v1/crawls/{crawl}", "DELETE /v1/crawls/{crawl}"]
OF_ANY_CRAWL = "GET /v1/crawls"  # For a token of whatever crawls, which it lists.
ROLE_OF = {call: role for role, calls in CALLS.items() for call in calls}
ROLE_TOKENS = [*ROLES, "OPIC_API_TOKEN", "reads-and-publishes", "of-another-crawl", "wrong", None]
MAY = {"publish": {"publish"}, "crawl": {"crawl", "publish"}, "read": {"read"}, "admin": set(ROLES)}


@dataclass(frozen=True)
class Guarded:
    """An endpoint with tokens: a client of it, its file, the secret of each name."""

    http: httpx.Client
    file: Path
    secrets: dict[str, str]

    def ask(self, call: str, name: str | None, **more: Any) -> httpx.Response:
        method, path = call.split(" ")
        headers = {} if name is None else {"authorization": f"Bearer {self.secrets.get(name, name)}"}
        path = path.replace("{domain}", "a.example").replace("{crawl}", "default")
        return self.http.request(method, path, headers=headers, **more)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder, secrets, lines = tmp_path_factory.mktemp("tokens"), {"OPIC_API_TOKEN": ADMIN}, ""
    for name, roles, crawls in (
        *((role, [role], ["default", "other"]) for role in ROLES),
        ("reads-and-publishes", ["read", "publish"], []),
        ("of-another-crawl", ["admin"], ["other", "more"]),
    ):
        secrets[name], more = new_token(name, roles, crawls)
        lines += more
    (folder / "tokens.toml").write_text(lines)
    settings = Settings.load(data=folder / "data", api_token=ADMIN, tokens_file=folder / "tokens.toml")
    tokens = Tokens(settings)
    with (
        pytest.MonkeyPatch.context() as patch,
        EmbeddedService(settings) as service,
        serving(service, tokens=tokens) as url,
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        patch.setattr("opic.service.tokens.LOOK_SECONDS", 0.02)
        for crawl in ("other", "more"):
            made = http.put(f"/v1/crawls/{crawl}", json={}, headers={"authorization": f"Bearer {ADMIN}"})
            assert made.status_code == 201
        with tokens.watched():
            yield Guarded(http, folder / "tokens.toml", secrets)


def test_document_has_the_role_of_every_call(guarded: Guarded) -> None:
    document = guarded.http.get("/openapi.json").json()
    calls = {
        f"{method.upper()} {path}": call["security"]
        for path, by_method in document["paths"].items()
        for method, call in by_method.items()
    }
    assert calls == {call: [] if role is None else [{"token": [role]}] for call, role in ROLE_OF.items()}
    assert all(role in document["components"]["securitySchemes"]["token"]["description"] for role in ROLES)
    named = [call["responses"] for by_method in document["paths"].values() for call in by_method.values()]
    assert sum("not-allowed" in json.dumps(one.get("403", "")) for one in named) == len(calls) - 3


@pytest.mark.parametrize("role", ROLE_TOKENS)
def test_every_call_is_made_with_the_roles_that_include_its_own_alone(guarded: Guarded, role: str | None) -> None:
    may = {**MAY, "OPIC_API_TOKEN": set(ROLES), "reads-and-publishes": {"read", "publish"}}.get(str(role), set())
    for call, wanted in ROLE_OF.items():
        for asked in (call, call.replace("GET", "HEAD")):
            answer = guarded.ask(asked, role)
            if wanted is None or wanted in may or (call, role) == (OF_ANY_CRAWL, "of-another-crawl"):
                assert answer.status_code not in (401, 403), (asked, answer.text)
                continue
            assert answer.status_code == (401 if role in ("wrong", None) else 403), (asked, role, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            if answer.status_code == 403:
                assert answer.headers["www-authenticate"].endswith(f'error="insufficient_scope", scope="{wanted}"')
            if answer.status_code == 403 and not asked.startswith("HEAD"):
                problem = answer.json()
                assert problem["type"] == "urn:opic:problem:not-allowed"
                assert f"the role {wanted}" in problem["detail"]
                assert f"the token {role}" in problem["detail"]


@pytest.mark.parametrize("role", ROLE_TOKENS)
def test_every_call_is_made_on_the_crawls_of_the_token_alone(guarded: Guarded, role: str | None) -> None:
    may = {**MAY, "OPIC_API_TOKEN": set(ROLES), "reads-and-publishes": {"read", "publish"}}.get(str(role), set())
    crawls = {"default", "other"}
    if role in ("OPIC_API_TOKEN", "reads-and-publishes"):
        crawls |= {"more", "nowhere"}
    if role == "of-another-crawl":
        may, crawls = set(ROLES), {"other", "more"}
    for call, wanted in ROLE_OF.items():
        if wanted is None or call == OF_ANY_CRAWL:
            continue
        refused = {}
        for crawl in ("default", "other", "more", "nowhere"):
            about_it = "{crawl}" in call
            asked = call.replace("{crawl}", crawl) if about_it else call.replace("/v1", f"/v1/crawls/{crawl}")
            answer = guarded.ask(asked, role)
            if crawl not in crawls or wanted not in may:
                assert answer.status_code == (401 if role in ("wrong", None) else 403), (asked, role, answer.text)
                problem = answer.json()
                del problem["request_id"]
                refused[crawl] = json.dumps(problem).replace(crawl, "NAME")
            elif crawl == "nowhere" and not about_it:
                assert answer.json()["type"] == "urn:opic:problem:no-such-crawl", (asked, role, answer.text)
            else:
                assert answer.status_code not in (401, 403), (asked, role, answer.text)
                assert "no-such-crawl" not in answer.text
        if {"more", "nowhere"} <= refused.keys():  # Nothing tells which of them is there.
            assert refused["more"] == refused["nowhere"]


def test_list_has_the_crawls_of_the_token(guarded: Guarded) -> None:
    def listed(name: str) -> list[str]:
        return [crawl["name"] for crawl in guarded.ask(OF_ANY_CRAWL, name).json()["crawls"]]

    assert listed("OPIC_API_TOKEN") == ["default", "more", "other"]
    assert listed("read") == ["default", "other"]
    assert listed("of-another-crawl") == ["more", "other"]


def test_token_of_another_crawl_is_told_which(guarded: Guarded) -> None:
    said = guarded.ask("GET /v1/top", "of-another-crawl").json()["detail"]
    assert said == "this call wants the role read on crawl default, and the token of-another-crawl is for more, other"


def test_a_refused_event_takes_no_effect(guarded: Guarded) -> None:
    event = {"url": "http://refused.example/"}
    assert guarded.ask("POST /v1/events", "read", json=event).status_code == 403
    answer = guarded.ask("POST /v1/events", "publish", json={"url": "http://taken.example/"})
    assert answer.status_code == 202
    after = {"after": answer.json()["position"]}
    assert guarded.ask("GET /v1/importance", "read", params={"url": event["url"], **after}).status_code == 404
    assert guarded.ask("GET /v1/importance", "read", params={"url": "http://taken.example/", **after}).is_success


def test_unknown_paths_and_methods_tell_nothing_without_a_token(guarded: Guarded) -> None:
    for call in ("GET /v1/none", "DELETE /v1/top", "GET /docs/none"):
        assert guarded.ask(call, None).status_code == 401
        assert guarded.ask(call, "publish").status_code in (404, 405)


def test_a_token_comes_and_goes_without_a_restart(guarded: Guarded) -> None:
    before = guarded.file.read_text()
    secret, lines = new_token("late", ["read"], [])
    assert guarded.ask("GET /v1/stats", secret).status_code == 401
    guarded.file.write_text(before + lines)
    wait_until(lambda: guarded.ask("GET /v1/stats", secret).status_code == 200)
    guarded.file.write_text(before + "[tokens.late")
    wait_until(lambda: metric(guarded, "opic_tokens_file_ok") == 0)
    assert guarded.ask("GET /v1/stats", secret).status_code == 200
    guarded.file.write_text(before)
    wait_until(lambda: guarded.ask("GET /v1/stats", secret).status_code == 401)
    assert (metric(guarded, "opic_tokens_file_ok"), metric(guarded, "opic_tokens")) == (1, len(guarded.secrets))


def metric(guarded: Guarded, name: str) -> float:
    families = text_string_to_metric_families(guarded.ask("GET /metrics", None).text)
    (value,) = (sample.value for family in families for sample in family.samples if sample.name == name)
    return float(value)


def test_log_has_the_names_of_tokens_and_no_token(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    answers = []
    with caplog.at_level(logging.DEBUG):
        for name, secret in guarded.secrets.items():
            for given in (name, secret[:-1], secret + "x"):
                answers += [guarded.ask("GET /v1/stats", given), guarded.ask("POST /v1/events", given)]
    lines = [record.getMessage() for record in caplog.records if record.name == "opic.api"]
    assert any(line.startswith("GET /v1/stats 200 ") and line.endswith(" token=read") for line in lines)
    said = caplog.text + "".join(map(str, lines)) + "".join(answer.text + str(answer.headers) for answer in answers)
    assert not [secret for secret in guarded.secrets.values() if secret[:-1] in said]
