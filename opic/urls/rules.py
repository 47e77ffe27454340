"""URL rules: allow and deny patterns, set by an operator, for the pages that may be suggested. The first match decides.

Rules affect suggestions only. A denied page remains known, keeps its cash and its links; it is just not offered while
the rule exists.

URLs are untrusted and patterns may be long, so matching never backtracks: a pattern is split at its stars, and each
piece is searched after the previous one. This is exact for patterns as in robots.txt, where the star is the only
wildcard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from opic.errors import BadInput, instead_of
from opic.messages.definitions import NOTE_CHARS_MAX, PATTERN_BYTES_MAX
from opic.messages.frontier import REVISIT_SECONDS_MAX
from opic.urls.canonical import canonical_host, host_of, shown

RULES_MAX: Final = 1_000
EFFECTS: Final = ("allow", "deny")
FIELDS: Final = ("effect", "host", "domain", "path", "query", "note", "revisit_seconds")


def pieces_of(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Split a pattern at its stars; also return whether it ends with `$`, which matches the end of the text.

    >>> pieces_of("/a**b*c$"), pieces_of("*.pdf")
    ((('/a', 'b', 'c'), True), (('', '.pdf'), False))
    """
    whole = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not others:
        return (first,), whole
    return (first, *(piece for piece in others[:-1] if piece), others[-1]), whole


def matches(pieces: Sequence[str], whole: bool, text: str) -> bool:
    """Return whether a pattern matches a prefix of a text; its stars match any characters (RFC 9309, section 2.2.3).

    Each piece is matched at its first occurrence after the previous piece. A later occurrence can't be better, because
    it leaves less text for the remaining pieces. The text is therefore scanned once, whatever the pattern.

    Args:
        pieces: the parts of the pattern between its stars.
        whole: whether the last piece must end the text.
        text: path and query of a URL.

    >>> matches(*pieces_of("/a*b$"), "/a-b-b"), matches(*pieces_of("/a*b$"), "/a-b-c")
    (True, False)
    """
    first, last = pieces[0], pieces[-1]
    if not text.startswith(first):
        return False
    position = len(first)
    if len(pieces) == 1:
        return not whole or position == len(text)
    for piece in pieces[1:-1]:
        begin = text.find(piece, position)
        if begin < 0:
            return False
        position = begin + len(piece)
    if whole:
        return len(text) - len(last) >= position and text.endswith(last)
    return text.find(last, position) >= 0


@dataclass(frozen=True, slots=True)
class UrlRule:
    """A rule: it applies to a URL that meets all given conditions; without conditions, to all URLs."""

    effect: str  # "allow" or "deny".
    host: str | None = None  # This host only.
    domain: str | None = None  # This host or domain and its subdomains.
    path: str = "/"  # Prefix of path and query; "*" matches any characters, a final "$" the end.
    query: bool | None = None  # True: only URLs with a query; False: only URLs without.
    note: str = ""  # A comment.
    revisit_seconds: float | None = None  # Minimum time from a read to the next suggestion; for allow rules only.

    def shown(self) -> dict[str, Any]:
        """Return the rule in the form accepted by `check_rules`."""
        plain = UrlRule(self.effect)
        return {
            name: value for name, value in asdict(self).items() if value != getattr(plain, name) or name == "effect"
        }


@dataclass(frozen=True)
class RuleBook:
    """Rules in order, indexed by host: most rules are for one site, and cost nothing for other URLs."""

    rules: tuple[UrlRule, ...] = ()
    _hosts: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _domains: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _everywhere: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _pieces: list[tuple[tuple[str, ...], bool]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number, rule in enumerate(self.rules):
            self._pieces.append(pieces_of(rule.path))
            if rule.host is not None:
                self._hosts.setdefault(rule.host, []).append(number)
            elif rule.domain is not None:
                self._domains.setdefault(rule.domain, []).append(number)
            else:
                self._everywhere.append(number)

    def of_host(self, host: str) -> tuple[int, ...]:
        """Return the numbers of the rules that may match URLs of a host, in order."""
        host = host.removesuffix(".")  # With or without the DNS root's dot, it is the same site.
        numbers = [*self._everywhere, *self._hosts.get(host, ())]
        if self._domains:
            name = host
            while True:
                numbers += self._domains.get(name, ())
                _, dot, name = name.partition(".")
                if not dot:
                    break
        return tuple(sorted(numbers))

    def allows_all(self, host: str) -> bool:
        """Return whether the first rule for the whole host allows it."""
        whole = (self.rules[number] for number in self.of_host(host))
        return next((rule.effect == "allow" for rule in whole if rule.path == "/" and rule.query is None), False)

    def first(self, url: str, among: Sequence[int] | None = None) -> int | None:
        """Return the number of the first rule that matches a canonical URL, or None.

        Args:
            url: a canonical URL.
            among: the numbers of the rules of its host, if known already.
        """
        numbers = self.of_host(host_of(url)) if among is None else among
        if not numbers:
            return None
        text = url[url.index("/", url.index("//") + 2) :]
        has_query = "?" in text
        for number in numbers:
            wanted = self.rules[number].query
            if (wanted is None or wanted == has_query) and matches(*self._pieces[number], text):
                return number
        return None


def check_rules(given: object) -> tuple[UrlRule, ...]:
    """Check rules as they come from JSON, in their order.

    Raises:
        BadInput: something is invalid; it names the rule, the value and the limit.

    >>> check_rules([{"effect": "deny", "domain": "Example.org", "path": "/cal*"}])[0].shown()
    {'effect': 'deny', 'domain': 'example.org', 'path': '/cal*'}
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise BadInput("rules: a list of rules is wanted, each with effect and what it is for")
    if len(given) > RULES_MAX:
        raise BadInput(f"{len(given):,} rules is over the limit of {RULES_MAX:,}")
    return tuple(_check_rule(f"rule {number}", raw) for number, raw in enumerate(given))


def _check_rule(name: str, given: object) -> UrlRule:
    if not isinstance(given, Mapping):
        raise BadInput(f"{name}: an object with effect and what it is for is wanted")
    if unknown := [str(key) for key in given if key not in FIELDS]:
        raise BadInput(f"{name} has no {shown(unknown[0])}: {instead_of(unknown[0], FIELDS)}")
    if (effect := given.get("effect")) not in EFFECTS:
        raise BadInput(f"{name}: effect {shown(str(effect))} is neither allow nor deny")
    host, domain = (_host(name, kind, given.get(kind)) for kind in ("host", "domain"))
    if host is not None and domain is not None:
        raise BadInput(f"{name}: give host, which is one host alone, or domain, with all below it, not both")
    query, note = given.get("query"), given.get("note", "")
    if query is not None and not isinstance(query, bool):
        raise BadInput(f"{name}: query {shown(str(query))} is neither true (with one) nor false (without)")
    if not isinstance(note, str) or len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise BadInput(f"{name}: note is a line of up to {NOTE_CHARS_MAX} characters")
    revisit = given.get("revisit_seconds")
    if revisit is not None:
        if effect == "deny":
            raise BadInput(f"{name}: revisit_seconds is for allow rules: what a deny rule matches is never offered")
        revisit = check_revisit(name, revisit)
    return UrlRule(effect, host, domain, _path(name, given.get("path", "/")), query, note, revisit)


def check_revisit(name: str, seconds: object) -> float:
    """Return a revisit time in seconds.

    Raises:
        BadInput: not a number from 0 to REVISIT_SECONDS_MAX.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= REVISIT_SECONDS_MAX:
        raise BadInput(
            f"{name}: revisit_seconds {shown(str(seconds))} is not a number from 0 to {REVISIT_SECONDS_MAX:,}, a year"
        )
    return float(seconds)


def _host(name: str, kind: str, given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise BadInput(f"{name}: {kind} {shown(str(given))} is no text")
    try:
        return canonical_host(given).removesuffix(".")
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def _path(name: str, given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= PATTERN_BYTES_MAX:
        raise BadInput(f"{name}: path is a pattern of 1 to {PATTERN_BYTES_MAX} characters")
    if given[0] not in "/*":
        raise BadInput(f"{name}: path {shown(given)} begins neither with / nor with *, so no URL would match")
    if not given.isascii() or not given.isprintable() or " " in given or "#" in given:
        raise BadInput(
            f"{name}: path {shown(given)}: write it as in a canonical URL, percent-encoded and without fragment"
        )
    return given
