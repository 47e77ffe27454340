"""robots.txt: marks, wildcards, the longest match, and what a hostile one may cost."""

import time

import pytest

from opic.robots import ROBOTS_BYTES_MAX, robots_rules

GROUP = "User-agent: *\nDisallow: /private/\n"


def allowed(robots: str, path: str, agent: str = "bot/1") -> bool:
    return bool(robots_rules(robots.encode()).can_fetch(f"http://a.example{path}", agent))


@pytest.mark.parametrize("mark", ["", "\ufeff", "\ufeff\ufeff", "\ufeff\n", "# \ufeff\n", "\n\n"])
def test_first_group_counts_whatever_comes_before_it(mark: str) -> None:
    assert not allowed(mark + GROUP, "/private/1")
    assert allowed(mark + GROUP, "/public")


@pytest.mark.parametrize(
    ("rules", "path", "free"),
    [  # RFC 9309, 2.2.2 and 2.2.3.
        ("Disallow: /a\nAllow: /a/b", "/a/b/c", True), ("Allow: /a\nDisallow: /a/b", "/a/b/c", False),
        ("Disallow: /a/b\nAllow: /a/b", "/a/b", True), ("Disallow: /*.gif$", "/x/y.gif", False),
        ("Disallow: /*.gif$", "/x/y.gif?z", True), ("Disallow: /x*y*z", "/x1y2z3", False),
        ("Disallow: /x*y*z", "/x1z2", True),
        ("Disallow: /a%2Fb", "/a/b", True), ("Disallow: /caf\u00e9", "/caf%C3%A9", False), ("Disallow:", "/", True),
        ("Disallow: /%7ejoe", "/~joe/", False), ("Disallow: /a$b", "/a$b", False), ("Disallow: *", "/x", False),
    ],
)  # fmt: skip
def test_longest_pattern_counts_and_stars_match_anything(rules: str, path: str, free: bool) -> None:
    for line_end in ("\n", "\r\n", "\r"):
        assert allowed(f"User-agent: *\n{rules}\n".replace("\n", line_end), path) == free


def test_own_group_counts_instead_of_that_of_all() -> None:
    groups = ["*\nDisallow: /\n", "BOT\nDisallow: /mine", "other", "bot\nDisallow: /too"]
    robots = "\n".join(f"User-agent: {group}" for group in groups)
    assert [allowed(robots, path) for path in ("/x", "/mine", "/too")] == [True, False, False]
    assert not allowed(robots, "/x", "unnamed/1")


def test_whole_lines_within_the_limit_count() -> None:
    long = GROUP + "#" * (ROBOTS_BYTES_MAX - len(GROUP) - 30) + "\nDisallow: /a\nDisallow: /both\nDisallow: /c\n"
    assert len(long) > ROBOTS_BYTES_MAX > long.index("/both")
    assert [allowed(long, path) for path in ("/private/1", "/a", "/b", "/c")] == [False, False, True, True]


def test_many_agents_with_many_rules_forbid_all_and_take_no_time() -> None:
    agents = "".join(f"User-agent: a{n}\n" for n in range(10_000))
    rules = "".join(f"Disallow: /{n}\n" for n in range(10_000))
    began = time.thread_time()
    for robots in (agents + rules, f"{agents}Disallow: /\n{agents}Disallow: /x\n"):
        assert len(robots) < ROBOTS_BYTES_MAX
        assert not allowed(robots, "/x", "a1/1")
    assert time.thread_time() - began < 1
    assert allowed("".join(f"User-agent: a{n}\nDisallow: /{n}\n\n" for n in range(500)), "/1", "a2/1")
