"""Rules of URLs: the first that matches decides, and no pattern is slow on any URL."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import BadInput
from opic.urls.rules import PATTERN_BYTES_MAX, RULES_MAX, RuleBook, UrlRule, check_rules, matches, pieces_of

URL_BYTES = 2_048


class Counted(str):
    """A text that counts how far it is searched, and how often."""

    searches = 0
    walked = 0

    def find(self, piece: str, start: int = 0) -> int:  # type: ignore[override]
        found = super().find(piece, start)
        self.searches += 1
        self.walked += (len(self) if found < 0 else found + len(piece)) - start
        return found


def naively(pattern: str, text: str) -> bool:
    """RFC 9309 word for word: try every length for every star."""
    if pattern == "":
        return True
    if pattern == "$":
        return text == ""
    if pattern[0] == "*":
        return any(naively(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return text[:1] == pattern[0] and naively(pattern[1:], text[1:])


def book(*rules: dict[str, Any]) -> RuleBook:
    return RuleBook(check_rules(rules))


@given(st.text("/ab*", min_size=1, max_size=9), st.booleans(), st.text("/ab", max_size=12))
@example("/a*ba", True, "/aba")
@example("/a*a", True, "/a")
@example("**", True, "")
def test_a_pattern_matches_as_the_standard_reads(pattern: str, ends: bool, text: str) -> None:
    pattern += "$" * ends
    assert matches(*pieces_of(pattern), text) == naively(pattern, text)


@pytest.mark.parametrize("tail", ["", "$", "b", "b$"])
def test_matching_a_hostile_pattern_takes_linear_time(tail: str) -> None:
    pattern = ("*a" * PATTERN_BYTES_MAX)[: PATTERN_BYTES_MAX - len(tail)] + tail
    text = Counted("/" + "a" * (URL_BYTES - 1))
    assert matches(*pieces_of(pattern), text) == ("b" not in tail)
    assert text.walked <= URL_BYTES + PATTERN_BYTES_MAX
    assert text.searches <= pattern.count("*")


def test_the_first_rule_that_matches_decides() -> None:
    rules = book(
        {"effect": "allow", "host": "a.example", "path": "/open"},
        {"effect": "deny", "domain": "a.example"},
        {"effect": "allow", "path": "*.html$"},
        {"effect": "deny", "query": True},
    )
    found = [
        rules.first(f"http://{rest}")
        for rest in (
            "a.example/open/1",
            "a.example/1",
            "b.a.example/open",
            "b.example/x.html",
            "b.example/?q",
            "c.example/",
        )
    ]
    assert found == [0, 1, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        ({"host": "Bücher.example"}, "https://xn--bcher-kva.example:81/x", "http://www.xn--bcher-kva.example/"),
        ({"domain": "example.org"}, "http://user@a.b.example.org/", "http://notexample.org/"),
        ({"domain": "example.org."}, "http://www.example.org./", "http://org./"),
        ({"domain": "org"}, "http://example.org/", "http://org.example/"),
        ({"host": "[::1]"}, "http://[::1]:80/", "http://[::2]/"),
        ({"path": "/cal"}, "http://a.example/calendar?m=1", "http://a.example/x/cal"),
        ({"path": "/*/print$"}, "http://a.example/x/y/print", "http://a.example/x/print/"),
        ({"path": "*?*session="}, "http://a.example/?a=1&session=2", "http://a.example/session=2"),
        ({"query": True}, "http://a.example/?", "http://a.example/"),
        ({"query": False}, "http://a.example/x", "http://a.example/x?y"),
        ({}, "http://a.example/", None),
    ],
    ids=str,
)
def test_a_rule_matches_the_urls_that_it_names(rule: dict[str, Any], matching: str, other: str | None) -> None:
    rules = book({"effect": "deny", **rule})
    assert rules.first(matching) == 0
    assert other is None or rules.first(other) is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "a list of rules is wanted"),
        ("deny", "a list of rules is wanted"),
        (["deny"], "rule 0: an object"),
        ([{"effect": "deny"}, {"effect": "block"}], "rule 1: effect 'block' is neither"),
        ([{"effect": "deny", "paths": "/x"}], "rule 0 has no 'paths'"),
        ([{"effect": "deny", "host": "a.example", "domain": "a.example"}], "not both"),
        ([{"effect": "deny", "host": "a.example/x"}], "rule 0: 'a.example/x' is not a host"),
        ([{"effect": "deny", "host": 3}], "host '3' is no text"),
        ([{"effect": "deny", "path": "x"}], "begins neither with / nor with"),
        ([{"effect": "deny", "path": ""}], "pattern of 1 to 512"),
        ([{"effect": "deny", "path": "/" * 513}], "pattern of 1 to 512"),
        ([{"effect": "deny", "path": "/é"}], "percent-encoded"),
        ([{"effect": "deny", "path": "/a b"}], "percent-encoded"),
        ([{"effect": "deny", "query": "no"}], "query 'no' is neither"),
        ([{"effect": "deny", "note": "x\ny"}], "note is a line"),
        ([{"effect": "deny"}] * (RULES_MAX + 1), "1,001 rules is over the limit of 1,000"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_rule_is_refused_with_the_reason(given: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        check_rules(given)


def test_rules_are_shown_as_they_were_given() -> None:
    given = [
        {"effect": "allow"},
        {"effect": "deny", "domain": "a.example", "path": "/x*", "query": False, "note": "why"},
    ]
    assert [rule.shown() for rule in check_rules(given)] == given
    assert check_rules([UrlRule("deny").shown()]) == (UrlRule("deny"),)


@given(st.lists(st.sampled_from(["a.example", "b.a.example", "c.example", None]), max_size=6), st.booleans())
def test_rules_found_by_host_equal_a_scan_of_all_rules(hosts: list[str | None], below: bool) -> None:
    rules = [{"effect": "deny", **({"domain" if below else "host": host} if host else {})} for host in hosts]
    for host in ("a.example", "b.a.example", "x.b.a.example", "c.example", "d.example"):
        fits = [i for i, h in enumerate(hosts) if h is None or h == host or (below and host.endswith("." + h))]
        assert list(book(*rules).of_host(host)) == fits
