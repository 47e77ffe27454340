"""Normalization rules make one page of several URLs; what they make is its own form, whatever the URL."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import BadInput, BadUrl
from opic.urls.canonical import ROUNDS_MAX, canonical_url, host_of, rules_applied
from opic.urls.normalization import PLAIN, RULES, Normalization

ALL = Normalization(tuple(RULES))
# What the rules look at, in places where they should and should not.
PARTS = st.sampled_from([
    *("http://", "https://", "www.", "www", "WWW.", "a.example", "example.", ".", "..", ":80", ":443", ":81"),
    *("u@", "u:p@"),
    *("1.2.3.4", "0x1.", "[::1]", "/", "//", "index.html", "INDEX.PHP", "default.aspx", "index.htm", ";jsessionid=1"),
    *("?", "&", "utm_source=x", "UTM_x", "gclid=1", "id=2", "sessionid=3", "phpsessid", "=", "#top"),
    *("|", "[", "]", "^", "`", "{", "\\", "%7c", "%7C", "%5b", "%c3"),
    *("%41", "%7e", "%2e", "%2E", "%2f", "%%34%31", "%", "%%32%65", "%25", "41", "é", " "),
])  # fmt: skip
URLS = st.one_of(
    st.lists(PARTS, max_size=12).map("".join),
    st.lists(PARTS, max_size=12).map(lambda parts: "http://www.a.example/" + "".join(parts)),
)
SETS = st.sets(st.sampled_from(list(RULES))).map(lambda names: Normalization.of(",".join(names)))


def form(url: str, rules: str) -> str:
    return canonical_url(url, normalization=Normalization.of(rules))


@pytest.mark.parametrize(
    ("rules", "url", "page"),
    [
        (
            "unreserved",
            "http://a.example/%7Eme/%41%2d%5f%2E%30?%62=%2f%c3%a9",
            "http://a.example/~me/A-_.0?b=%2F%C3%A9",
        ),
        ("unreserved", "http://a.example/%e2%82%aC%Ab%zz%?%fF#%ff", "http://a.example/%E2%82%AC%AB%zz%?%FF"),
        ("unreserved", "http://a.example/%%65%32%%61", "http://a.example/%E2%a"),
        ("unreserved", "http://a.example/€|%e2%82%ac", "http://a.example/%E2%82%AC|%E2%82%AC"),
        (
            "escape",
            "http://a.example/a|b[c]^`{d}?e|[f]^`{g}\\h#|",
            "http://a.example/a%7Cb%5Bc%5D%5E%60%7Bd%7D?e%7C%5Bf%5D%5E%60%7Bg%7D%5Ch",
        ),
        ("escape", "http://a.example/%7c%5b?%5d", "http://a.example/%7c%5b?%5d"),
        ("escape,unreserved", "http://a.example/|%7c[%5B", "http://a.example/%7C%7C%5B%5B"),
        ("escape", "http://u|@[::1]/", "http://u%7C@[::1]/"),
        ("unreserved", "http://a.example/%%34%31", "http://a.example/A"),
        ("unreserved", "http://a.example/b/%%32e%%32e/c", "http://a.example/c"),
        ("dot", "http://a.example./x.", "http://a.example/x."),
        ("dot", "http://a.example.:81/", "http://a.example:81/"),
        ("www", "http://www.a.example/www.", "http://a.example/www."),
        ("www", "http://u@WWW.www.a.example:81/", "http://u@a.example:81/"),
        ("www", "http://www.example/", "http://www.example/"),
        ("www", "http://www2.a.example/", "http://www2.a.example/"),
        ("https", "http://a.example:80/", "https://a.example/"),
        ("https", "http://a.example:81/", "http://a.example:81/"),
        ("https", "http://[::1]/", "https://[::1]/"),
        ("tracking", "http://a.example/?utm_source=x&id=1&UTM_MEDIUM&gclid=", "http://a.example/?id=1"),
        ("tracking", "http://a.example/?fbclid=1", "http://a.example/"),
        ("tracking", "http://a.example/?", "http://a.example/?"),
        ("tracking", "http://a.example/?a=utm_source&&autm_x=1", "http://a.example/?a=utm_source&&autm_x=1"),
        ("session", "http://a.example/b;jsessionid=1.x/c;v=1?PHPSESSID=2&id=3", "http://a.example/b/c;v=1?id=3"),
        ("session", "http://a.example/?ASPSESSIONIDABC=1", "http://a.example/"),
        ("index", "http://a.example/b/index.html", "http://a.example/b/"),
        ("index", "http://a.example/Default.aspx", "http://a.example/"),
        ("index", "http://a.example/index.php?id=1", "http://a.example/index.php?id=1"),
        ("index", "http://a.example/myindex.html", "http://a.example/myindex.html"),
        ("index,session", "http://a.example/index.html;jsessionid=7?sessionid=8", "http://a.example/"),
        (",".join(RULES), "http://u:p@www.a.example./%69ndex.html?utm_x=1#top", "https://u@a.example/"),
        ("none", "http://www.a.example./index.html?utm_x=1", "http://www.a.example./index.html?utm_x=1"),
    ],
)
def test_rule_gives_equivalent_urls_one_form(rules: str, url: str, page: str) -> None:
    assert form(url, rules) == page


@given(url=URLS, rules=SETS)
@example(url="http://www.a.example./%%34%31", rules=ALL)
@example(url="http://a.example/%%32%65%%32%65/index.html", rules=ALL)
def test_normalization_is_idempotent(url: str, rules: Normalization) -> None:
    try:
        once = canonical_url(url, normalization=rules)
    except BadUrl:
        return
    assert canonical_url(once, normalization=rules) == once
    assert canonical_url(once) == once
    assert rules_applied(once, rules) == ()
    assert host_of(once)


@given(url=URLS)
def test_without_rules_urls_are_unchanged(url: str) -> None:
    try:
        plain = canonical_url(url)
    except BadUrl:
        return
    assert canonical_url(url, normalization=PLAIN) == plain
    assert PLAIN.apply(plain) == (plain, ())


# What programs ask for when they follow the link /a|b[c]^d`e{f}~'(%7c%e9)?q=a|b[c]^d`e{f}~'\\%7c.
ASKED = {
    "curl 7.88, Python's urllib": "/a|b[c]^d`e{f}~'(%7c%e9)?q=a|b[c]^d`e{f}~'\\%7c",
    "wget 1.21": "/a%7Cb[c]%5Ed%60e%7Bf%7D~'(%7c%e9)?q=a%7Cb[c]%5Ed%60e%7Bf%7D~'%5C%7c",
    "Chromium 156": "/a%7Cb[c]%5Ed%60e%7Bf%7D~'(%7c%e9)?q=a|b[c]^d`e{f}~%27\\%7c",
    "httpx 0.28": "/a|b[c]^d%60e%7Bf%7D~'(%7c%e9)?q=a|b[c]^d`e{f}~'\\%7c",
    "requests 2.34, aiohttp 3.14": "/a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~'(%7C%E9)?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~'%5C%7C",
    "w3lib 2.5": "/a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~'(%7c%e9)?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~%27%5C%7c",
    "w3lib 2.5, canonicalize_url": "/a|b[c]%5Ed%60e%7Bf%7D~'(|%E9)?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~%27%5C%7c",
}


def test_link_is_one_page_however_programs_escape_it() -> None:
    assert len({form(f"http://a.example{asked}", "none") for asked in ASKED.values()}) == 6
    (page,) = {form(f"http://a.example{asked}", "unreserved,escape") for asked in ASKED.values()}
    assert page == "http://a.example/a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~'(%7C%E9)?q=a%7Cb%5Bc%5D%5Ed%60e%7Bf%7D~%27%5C%7C"


def test_repeatedly_encoded_url_is_refused_quickly() -> None:
    url = "http://a.example/" + "%" * (2 * ROUNDS_MAX) + "41"
    nested = "%" * (2 * ROUNDS_MAX) + "33" + "3" * (2 * ROUNDS_MAX - 2) + "41"  # Each round gives one less of both.
    assert form(url, "unreserved").startswith("http://a.example/%")
    with pytest.raises(BadUrl, match="is encoded over itself more than"):
        form(f"http://a.example/%{nested}", "unreserved")


def test_host_that_is_invalid_without_its_dot_is_refused() -> None:
    with pytest.raises(BadUrl, match="is not an absolute"):
        form("http://a.1../", "dot")


def test_rules_have_one_order_and_known_names() -> None:
    assert Normalization.of(" Index , www,www").text == "www,index"
    assert Normalization.of("none") == Normalization.of("") == PLAIN
    with pytest.raises(BadInput, match="no normalization rule 'wwww': did you mean www"):
        Normalization.of("wwww,index")


def test_prefix_is_normalized_only_where_more_text_may_follow() -> None:
    assert Normalization.of("www,index,tracking,https").of_prefix.text == "www,https"
