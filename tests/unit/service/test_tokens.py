"""Tokens: what a file of them says, who gets in by it, and how it is read again."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from processes import wait_until
from starlette.requests import Request

from opic.api.access import Access
from opic.api.problems import Problem
from opic.errors import BadInput, SettingsError
from opic.service import tokens as service_tokens
from opic.service.tokens import FILE_BYTES_MAX, INCLUDED, OWN_NAME, ROLES, Tokens, new_token, parse_tokens
from opic.settings import Settings

WRITTEN = (
    "[tokens.x]\nsha256 = 'hidden'\nroles = ['read']",
    "[tokens.x]\nsha256 = '" + "0" * 63 + "'\nroles = ['read']",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "\\n'\nroles = ['read']",
    "[tokens.x]\nsha256 = 3\nroles = ['read']",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nroles = []",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nroles = ['hidden']",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nroles = 'read'",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nroles = ['read']\ncrawls = []",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nroles = ['read']\ncrawls = ['hidden hidden']",
    "[tokens.x]\nsha256 = '" + "0" * 64 + "'\nrole = ['read']",
    "[tokens.'a b']\nsha256 = '" + "0" * 64 + "'\nroles = ['read']",
    '[tokens."a\\n"]\nsha256 = "' + "0" * 64 + "\"\nroles = ['read']",
    "[token.x]\nsha256 = '" + "0" * 64 + "'\nroles = ['read']",
    "tokens = 3",
    "[tokens.x\n",
    "\xff",
    "#" * (FILE_BYTES_MAX + 1),
)


def token(name: str, *roles: str, crawls: tuple[str, ...] = ()) -> tuple[bytes, str]:
    made, lines = new_token(name, roles, crawls)
    return made.encode(), lines


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_tokens, "LOOK_SECONDS", 0.02)


@contextmanager
def watching(path: Path, **settings: object) -> Iterator[Tokens]:
    tokens = Tokens(Settings.load(tokens_file=path, **settings))
    with tokens.watched():
        yield tokens


def test_new_token_has_256_random_bits_and_its_lines_name_it_by_its_digest_alone() -> None:
    secret, lines = token("crawler.7", "crawl", "read", "crawl", crawls=("news", "shop"))
    (read,) = parse_tokens(lines.encode(), "file")
    assert secret.startswith(b"opic_")
    assert len(secret) == len("opic_") + 43  # 32 bytes in base64.
    assert secret.decode() not in lines
    assert read.digest == sha256(secret).digest()
    assert (read.name, read.may) == ("crawler.7", {"crawl", "publish", "read"})
    assert read.crawls == {"news", "shop"}
    assert read.shown_roles() == "crawl, read"
    assert new_token("a", ["read"], [])[0] != new_token("a", ["read"], [])[0]


def test_crawl_includes_publish_and_admin_everything() -> None:
    assert INCLUDED["crawl"] == {"crawl", "publish"}
    assert INCLUDED["admin"] == set(ROLES)
    assert INCLUDED["publish"] == {"publish"}
    assert INCLUDED["read"] == {"read"}


@pytest.mark.parametrize("text", WRITTEN, ids=range(len(WRITTEN)))
def test_file_that_is_not_as_wanted_is_refused_by_name_and_shows_no_value(text: str) -> None:
    with pytest.raises(SettingsError, match="OPIC_TOKENS_FILE=f") as refused:
        parse_tokens(text.encode("latin-1"), "OPIC_TOKENS_FILE=f")
    assert "hidden" not in str(refused.value)


def test_two_names_for_one_token_are_refused() -> None:
    _, lines = token("one", "read")
    with pytest.raises(SettingsError, match="one and two have the same sha256"):
        parse_tokens((lines + lines.replace("tokens.one", "tokens.two")).encode(), "file")


@pytest.mark.parametrize(("name", "role", "crawl"), [("a b", "read", "c"), ("a", "reed", "c"), ("a", "read", "c c")])
def test_new_token_of_bad_names_is_refused(name: str, role: str, crawl: str) -> None:
    with pytest.raises(BadInput):
        new_token(name, [role], [crawl])


def test_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        Tokens(Settings.load(tokens_file=tmp_path / "none"))


def test_tokens_come_and_go_while_the_endpoint_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, (first, lines), (second, more) = tmp_path / "tokens.toml", token("first", "read"), token("second", "crawl")
    path.write_text(lines)
    with watching(path, api_token="own") as tokens, caplog.at_level("INFO"):
        assert tokens.holder(second) is None
        path.write_text(lines + more)
        wait_until(lambda: tokens.holder(second) is not None)
        path.write_text(more)
        wait_until(lambda: tokens.holder(first) is None)
        for broken in ("[tokens.second", ""):
            path.write_text(broken)
            if broken:
                wait_until(lambda: tokens.problem != "")
                assert tokens.holder(second) is not None  # What was good stays.
            else:
                wait_until(lambda: tokens.holder(second) is None)  # An empty file has no tokens.
                assert tokens.problem == ""
        path.unlink()
        wait_until(lambda: "No such file" in tokens.problem)
        own = tokens.holder(b"own")
    assert own is not None
    assert (own.name, own.may, own.crawls) == (OWN_NAME, set(ROLES), None)
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 2  # One for each time that it broke.
    assert not [word for word in (first.decode(), second.decode(), '"own"') if word in caplog.text]


def test_a_mounted_secret_is_followed_where_its_link_is_swapped(tmp_path: Path) -> None:
    """As Kubernetes does: a rename makes `..data` lead to a new directory, and the file's link leads through it."""
    (old, before), (new, after) = token("one", "read"), token("one", "read")
    for name, lines in (("..old", before), ("..new", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens.toml").write_text(lines)
        os.utime(tmp_path / name / "tokens.toml", (1, 1))  # Neither time nor size tell them apart.
    (tmp_path / "..data").symlink_to("..old")
    (tmp_path / "tokens.toml").symlink_to("..data/tokens.toml")
    with watching(tmp_path / "tokens.toml") as tokens:
        assert tokens.holder(old) is not None
        (tmp_path / "..data_tmp").symlink_to("..new")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        wait_until(lambda: tokens.holder(new) is not None)
        assert tokens.holder(old) is None
        (tmp_path / "..data").unlink()  # The secret is gone for a moment, and comes back as it was.
        wait_until(lambda: tokens.problem != "")
        (tmp_path / "..data").symlink_to("..new")
        wait_until(lambda: tokens.problem == "")


def mutated(rng: random.Random, real: bytes) -> bytes:
    """A token that is near a real one, and another."""
    at = rng.randrange(len(real))
    other = bytes([rng.choice([one for one in range(33, 256) if one != real[at]])])
    found = rng.choice((
        real[:at] + other + real[at + 1 :],
        real[:at],
        real[:at] + real[at + 1 :],
        real[:at] + other + real[at:],
        real + real,
        real + b"\0",
        real.swapcase(),
        real.removeprefix(b"opic_"),
        sha256(real).hexdigest().encode(),
        sha256(real).digest(),
    ))  # fmt: skip
    return found if found != real else b"opic_" + real


def headers(rng: random.Random, real: bytes) -> list[tuple[bytes, bytes]]:
    """Headers that give no access: a wrong token, or a right one at a wrong place."""
    name, scheme, given = b"authorization", rng.choice((b"Bearer", b"bearer", b"BEARER")), mutated(rng, real)
    kind = rng.randrange(8)
    if kind == 0:
        name, given = rng.choice((b"authorisation", b"x-authorization", b"proxy-authorization", b"cookie", b"")), real
    elif kind == 1:
        scheme, given = rng.choice((b"Basic", b"Bearer:", b"Token", b"", b"Bear er", b"\xe9")), real
    elif kind == 2:
        given = rng.randbytes(rng.randrange(200))
    elif kind == 3:
        given = rng.choice((b"one", b"two", b"default", b"news", b"admin", b"OPIC_API_TOKEN", b"*", b"null", b""))
    if kind == 4:  # The first header counts.
        return [(name, scheme + b" " + given), (name, b"Bearer " + real)]
    return [(name, scheme + b" " + given)]


@pytest.mark.parametrize("calls", [100_000, pytest.param(400_000, marks=pytest.mark.thorough)])
def test_no_fuzzed_token_name_or_header_gets_in(calls: int) -> None:
    (one, lines), (two, more) = token("one", "read", crawls=("news",)), token("two", "admin")
    settings = Settings.load(api_token="a-token-of-settings")
    tokens, rng = Tokens(settings), random.Random(calls)
    tokens._take((lines + more).encode())
    access, real = Access(tokens, {"default"}), (one, two, b"a-token-of-settings")
    assert all(tokens.holder(given) is not None for given in real)
    for number in range(calls):
        given = headers(rng, real[number % len(real)])
        request = Request({"type": "http", "method": "GET", "path": "/v1/top", "headers": given})
        with pytest.raises(Problem) as refused:
            access.holder(request, is_open=False)
        assert refused.value.status == 401
        assert not any(secret.decode() in refused.value.detail for secret in real)
