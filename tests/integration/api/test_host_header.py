"""Without a token, only requests that name this machine are answered: a web page can't get here by its own name."""

from collections.abc import Iterator
from types import SimpleNamespace

import curls
import pytest
from serving import serving

from opic.settings import Settings

OURS = ["localhost", "LocalHost.:8080", "127.0.0.1", "127.8.9.10:1", "[::1]", "[::1]:8080", "opic.localhost:1"]
FOREIGN = [
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evillocalhost",
    "192.168.0.1:8080",
    "[2001:db8::1]:8080",
    "[::1.evil.example",
    "0.0.0.0",
    "",
]


def stub(**settings: object) -> SimpleNamespace:
    return SimpleNamespace(backend=SimpleNamespace(settings=Settings.load(**settings)), not_ready=lambda: None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(stub()) as url:
        yield url


@pytest.mark.parametrize("host", OURS)
def test_names_and_addresses_of_this_machine_are_accepted(url: str, host: str) -> None:
    assert curls.get(f"{url}/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/top"), ("POST", "/v1/seeds"), ("GET", "/docs")])
def test_name_of_another_machine_is_refused_with_the_setting_to_change(
    url: str, host: str, method: str, path: str
) -> None:
    origin = {"origin": f"http://{host}"} if method == "POST" else {}
    answer = curls.request(method, url + path, headers={"host": host, **origin})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:opic:problem:foreign-host")
    assert repr(host) in answer.json()["detail"]
    assert "OPIC_API_TOKEN" in answer.json()["detail"]


def test_name_given_by_the_operator_is_accepted() -> None:
    with serving(stub(host="opic.example")) as url:
        for host, status in {"opic.example": 200, "OPIC.example:80": 200, "127.0.0.1": 200, "x.example": 403}.items():
            assert curls.get(f"{url}/healthz", headers={"host": host}).status_code == status


def test_with_a_token_or_allow_open_any_name_is_accepted() -> None:
    for settings, open_to_all in (({"api_token": "secret"}, False), ({}, True)):
        with serving(stub(**settings), allow_open=open_to_all) as url:
            assert curls.get(f"{url}/healthz", headers={"host": "opic.example"}).status_code == 200
