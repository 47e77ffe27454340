"""The scope of a crawl: which canonical URLs are inside hosts, domains and beginnings of URLs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadInput, SettingsError
from opic.settings import Settings
from opic.urls.canonical import canonical_host, canonical_url
from opic.urls.normalization import Normalization
from opic.urls.scope import Scope

LABELS = st.sampled_from(["a", "b", "www", "Example", "bücher", "straße", "org", "co", "uk"])
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
ADDRESSES = st.sampled_from(["127.0.0.1", "[::1]", "10.0.0.1"])
PORTS = st.sampled_from(["", ":80", ":443", ":8080"])
PATHS = st.sampled_from(["", "/", "/docs", "/docs/", "/docs/b?q=1", "/docs2", "/Docs", "/d%6fcs/", "/x"])
SCHEMES = st.sampled_from(["http", "https", "HTTP"])
URLS = st.builds(lambda s, h, p, path: f"{s}://{h}{p}{path}", SCHEMES, HOSTS | ADDRESSES, PORTS, PATHS)


def is_inside(url: str, parts: list[str]) -> bool:
    """What the documentation says, part by part, in the order of the words."""
    if not parts:
        return True
    url = canonical_url(url)
    host = url.split("/")[2]
    host = host.split("]")[0] + "]" if host.startswith("[") else host.split(":")[0]
    for part in parts:
        if "://" in part:
            if url.startswith(canonical_url(part)):
                return True
        elif host == canonical_host(part) or host.endswith(f".{canonical_host(part)}"):
            return True
    return False


@given(URLS, st.lists(HOSTS | ADDRESSES | URLS, max_size=4))
def test_scope_holds_what_a_part_names(url: str, parts: list[str]) -> None:
    scope = Scope.of(", ".join(parts))
    assert scope.holds(canonical_url(url)) == is_inside(url, parts)
    assert bool(scope) == bool(parts)
    assert Scope.of(str(scope)) == scope


@given(URLS, st.lists(HOSTS | URLS, min_size=1, max_size=4), HOSTS | URLS)
def test_wider_scope_holds_no_less(url: str, parts: list[str], more: str) -> None:
    assert Scope.of(",".join([*parts, more])).holds(canonical_url(url)) >= Scope.of(",".join(parts)).holds(
        canonical_url(url)
    )


@pytest.mark.parametrize(
    ("text", "url", "inside"),
    [
        ("example.org", "https://example.org:8443/", True),
        ("example.org", "https://www.example.org./", True),
        ("example.org.", "https://example.org/", True),
        ("example.org", "https://badexample.org/", False),
        ("example.org", "https://example.org.evil.example/", False),
        ("example.org", "https://example.org@evil.example/", False),
        ("EXAMPLE.org", "https://example.org/", True),
        ("https://example.org", "http://example.org/", False),
        ("https://example.org", "https://www.example.org/", False),
        ("https://example.org:8443/", "https://example.org/", False),
        ("https://example.org:443/", "https://example.org/a", True),
        ("https://example.org/a/../b/", "https://example.org/b/c", True),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
        ("127.0.0.1", "http://127.0.0.1:8000/", True),
        ("0.0.1", "http://127.0.0.1:8000/", False),
        ("[::1]", "http://[::1]:81/", True),
    ],
)
def test_borders(text: str, url: str, inside: bool) -> None:
    assert Scope.of(text).holds(canonical_url(url)) is inside


def test_rules_of_the_crawl_apply_to_a_scope() -> None:
    rules = Normalization.of("www,https")
    assert Scope.of("www.a.example", rules).holds("https://a.example/")
    assert Scope.of("http://www.a.example/docs", rules).holds("https://a.example/docs/1")


@pytest.mark.parametrize("text", ["example.org/docs", "example.org:80", ",", "a.example,,b.example", "ftp://a/", "a b"])
def test_part_that_is_neither_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="is neither a host or domain"):
        Scope.of(text)
    with pytest.raises(SettingsError, match=f"OPIC_SCOPE={text}: .*neither a host"):
        Settings.load(scope=text)
