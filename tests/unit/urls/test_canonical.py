"""A URL has one canonical form, the WHATWG serialization without the fragment, and a hostile one raises BadUrl only."""

import ada_url
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import BadInput, BadUrl
from opic.urls.canonical import SHOWN_MAX, canonical_host, canonical_url, host_of, registered_domain, shown

# Text that parsers stumble over: schemes, slashes both ways, ports, brackets, percents, controls, surrogates, dots.
PIECES = st.sampled_from(
    [
        *("http://", "https://", "HTTP:", "http:\\\\", "ftp://", "javascript:", "data:,", "//", "://", "http:///"),
        *("a", "example.org", "EXAMPLE", "xn--", "xn--nxasmq6b", "bücher", "ＧＯ", "ß", "\u200d", "。"),
        *(".", "..", "%2e", "-", "1.2.3.4", "0x7f.1", "256", "[::1]", "[", "]"),
        *(":80", ":443", ":65536", ":", "@", "user:pw@", "%00", "%zz", "%", "/", "\\", "/./", "/../"),
        *("?", "#", "#x", "?q=1", " ", "\t", "\n", "\0", "\x7f", "\ud800", "😀", "é", '"', "|"),
    ]
)
HOSTILE = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(PIECES, max_size=12).map(lambda pieces: "http://a" + "".join(pieces)),
    st.text(st.characters(codec=None), max_size=60),
    st.text(max_size=60).map(lambda rest: "https://h.example/" + rest),
)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("http://example.org", "http://example.org/"),
        ("HTTP://EXAMPLE.ORG/Path", "http://example.org/Path"),
        ("https://example.org:443/", "https://example.org/"),
        ("https://example.org:8443/", "https://example.org:8443/"),
        ("http://example.org/a/./b/../c", "http://example.org/a/c"),
        ("http://example.org/a/%2e%2e/c", "http://example.org/c"),
        ("http://example.org\\a\\b", "http://example.org/a/b"),
        ("  http://example.org/ \n", "http://example.org/"),
        ("http://exa\tmple.org/a\nb", "http://example.org/ab"),
        ("http://example.org/a b?c d", "http://example.org/a%20b?c%20d"),
        ("http://example.org/é?ü", "http://example.org/%C3%A9?%C3%BC"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://ＧＯ.com/", "http://go.com/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[0:0::1]:80/", "http://[::1]/"),
        ("http:/example.org", "http://example.org/"),
        ("http://user@example.org/", "http://user@example.org/"),
        ("http://example.org/?", "http://example.org/?"),
        ("http://example.org/%7Ea", "http://example.org/%7Ea"),
        ("http://example.org/?b=2&a=1&utm_source=x", "http://example.org/?b=2&a=1&utm_source=x"),
    ],
)
def test_the_canonical_form_is_the_whatwg_serialization_and_nothing_else_is_rewritten(raw: str, canonical: str) -> None:
    assert canonical_url(raw) == canonical


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("http://user:pw@example.org/", "http://user@example.org/"),
        ("http://:pw@example.org:81/@a?b@c", "http://example.org:81/@a?b@c"),
        ("http://user:@example.org/", "http://user@example.org/"),
        ("http://us:er:p@w@[::1]/", "http://us@[::1]/"),
        ("http://u:p%40w@a/", "http://u@a/"),
    ],
)
def test_password_is_dropped_from_a_url(raw: str, canonical: str) -> None:
    assert canonical_url(raw) == canonical


@given(raw=HOSTILE)
@example(raw="http://:@a/")
def test_canonical_form_never_contains_a_password(raw: str) -> None:
    try:
        url = ada_url.URL(canonical_url(raw))
    except BadUrl:
        return
    assert url.password == ""


@pytest.mark.parametrize(
    "raw",
    [
        "http://example.org/a",
        "http://example.org/a#",
        "http://example.org/a#part",
        "http://example.org/a##",
        "http://example.org/a#b?c=d",
        "http://example.org/a# ",
        "http://example.org/a#\n",
    ],
)
def test_a_fragment_is_dropped_even_if_empty(raw: str) -> None:
    assert canonical_url(raw) == "http://example.org/a"


@pytest.mark.parametrize(
    "raw",
    [
        *("", "   ", "/a/b", "a.html", "?q", "#x", "//example.org/", "example.org/a", "www.example.org"),
        *("javascript:alert(1)", "mailto:a@b.example", "ftp://example.org/", "file:///etc/passwd", "data:text/html,x"),
        *("about:blank", "ws://example.org/", "tel:+1", "view-source:http://example.org/", "blob:http://example.org/x"),
        *("http://", "http://?", "http://:80/", "http://exa mple.org/", "http://[::1", "http://a:65536/"),
        "http://a:x/",
        *("http://1.2.3.256/", "http://a%00b/", "http://a<b/", "http://\ud800.example/", "http://xn--\u3002/"),
    ],
)
def test_a_url_that_is_not_absolute_http_or_https_is_refused(raw: str) -> None:
    with pytest.raises(BadUrl, match=r"is not an absolute http\(s\) URL"):
        canonical_url(raw)


def test_the_size_limit_is_on_the_bytes_of_the_canonical_form() -> None:
    start = "http://example.org/"
    at_limit = start + "a" * (2_048 - len(start))
    assert canonical_url(at_limit) == at_limit
    assert canonical_url(at_limit + "#" + "x" * 9_000) == at_limit
    with pytest.raises(BadUrl, match="2,049 bytes long, over OPIC_MAX_URL_BYTES 2,048"):
        canonical_url(at_limit + "a")
    with pytest.raises(BadUrl, match="over OPIC_MAX_URL_BYTES"):
        canonical_url(start + "é" * 400)  # Six bytes each once percent-encoded.


def test_a_url_over_the_limit_is_refused_and_never_cut_short() -> None:
    with pytest.raises(BadUrl) as refusal:
        canonical_url("http://example.org/" + "a" * 100_000)
    assert len(str(refusal.value)) < 200


@given(raw=HOSTILE)
@example(raw="http://a/# ")
@example(raw="http://a/#\0")
def test_canonicalization_is_idempotent(raw: str) -> None:
    try:
        once = canonical_url(raw)
    except BadUrl:
        return
    assert canonical_url(once) == once
    assert "#" not in once
    assert once.isascii()
    assert once.startswith(("http://", "https://"))


@given(raw=HOSTILE)
@example(raw="http://./")
@example(raw="http://../")
@example(raw="http://a..b/")
@example(raw="http://.com./")
@example(raw="http://com/")
def test_any_url_has_a_host_and_a_registered_domain_or_is_a_bad_url(raw: str) -> None:
    try:
        url = canonical_url(raw)
    except BadUrl as refusal:
        str(refusal).encode()  # It becomes a header: no lone surrogate survives.
        return
    host = host_of(url)
    assert host
    assert not set("/@?#") & set(host)
    domain = registered_domain(host)
    assert domain
    assert domain in host


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.org/", "example.org"),
        ("https://example.org:8443/a:1/@b", "example.org"),
        ("http://user:pa%40ss@example.org:81/", "example.org"),
        ("http://[2001:db8::1]/", "[2001:db8::1]"),
        ("http://[2001:db8::1]:81/", "[2001:db8::1]"),
        ("http://user@[::1]:81/", "[::1]"),
    ],
)
def test_a_host_is_named_without_user_and_port(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("example.org", "example.org"),
        ("a.b.example.org", "example.org"),
        ("www.bbc.co.uk", "bbc.co.uk"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("www.example.org.", "example.org"),
        ("www.city.kawasaki.jp", "city.kawasaki.jp"),
        ("a.b.unheard-of-suffix", "b.unheard-of-suffix"),
    ],
)
def test_a_registered_domain_is_the_public_suffix_and_one_label_more(host: str, domain: str) -> None:
    assert registered_domain(host) == domain


@given(text=st.text(st.characters(codec=None)))
def test_untrusted_text_is_shown_short_on_one_line_and_encodable(text: str) -> None:
    out = shown(text)
    assert len(out) <= 10 * SHOWN_MAX + 10  # Each character as an escape, at the worst.
    assert out.isprintable()
    out.encode()


# Hosts and paths near the edge of what is taken for canonical at a look.
HOSTS = "a.com b-c.d localhost xn--a.b a.xn--p1ai ab--c.de -x.y x-.y a_b.c 1.2.com a.b. a..b"
MORE_HOSTS = "A.com 1.2.3.4 0x7f a.0x7f a.com:80 u@a.com [::1]"
HOST = st.sampled_from([*HOSTS.split(), *MORE_HOSTS.split(), ""])
PIECES_OF_PATH = ["..", "%2e", "%2E", "%41", "%zz", "é", "/./", "/../", ".html", "/.well-known"]
PIECE = st.sampled_from([*"/.%?#&=~|'\"^{}\\ az09-_", *PIECES_OF_PATH])
PATH = st.lists(PIECE, max_size=8).map("".join)


@given(scheme=st.sampled_from(["http", "https"]), host=HOST, path=PATH)
def test_the_fast_path_for_canonical_urls_agrees_with_the_parser(scheme: str, host: str, path: str) -> None:
    raw = f"{scheme}://{host}/{path}"
    try:
        parsed = ada_url.URL(raw).href.partition("#")[0]
    except ValueError:
        with pytest.raises(BadUrl):
            canonical_url(raw)
    else:
        assert canonical_url(raw) == parsed


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.Org", "example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
    ],
)
def test_host_is_canonical_as_in_urls(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "a b",
        "a/b",
        "a?b",
        "a#b",
        "a:81",
        "u@a",
        "http://a",
        "a/",
        "a\\",
        "a:80",
        "[::1]:80",
        "a\t",
        "[a",
        "%",
        "\ud800",
    ],
)
def test_an_invalid_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a host or a domain"):
        canonical_host(text)
