"""Normalization rules: which URLs that are written differently are one page of a crawl.

By default there are none: different URLs are different pages. The rules of a crawl are fixed when it is made, since
pages are known by their canonical URLs. What a rule does is fixed as well, its lists of names included: another list
gets another name, or two versions of this program would disagree on what a page is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from opic.errors import BadInput, instead_of

NONE: Final = "none"
TRACKING: Final = frozenset({
    "_ga", "_gl", "_hsenc", "_hsmi", "dclid", "fbclid", "gad_source", "gbraid", "gclid", "gclsrc", "igshid",
    "li_fat_id", "mc_cid", "mc_eid", "mkt_tok", "msclkid", "oly_anon_id", "oly_enc_id", "srsltid", "ttclid", "twclid",
    "vero_id", "wbraid", "wickedid", "yclid",
})  # fmt: skip
TRACKING_PREFIX: Final = "utm_"
SESSION: Final = frozenset({
    "cfid", "cftoken", "jsessionid", "oscsid", "phpsessid", "sessid", "session_id", "sessionid", "zenid",
})  # fmt: skip
SESSION_PREFIX: Final = "aspsessionid"
_session_in_path = re.compile(r";(?:jsessionid|phpsessid)=[^/;]*", re.IGNORECASE)
_index_page = re.compile(r"(?<=/)(?:index\.(?:html?|shtml|php|aspx?|jsp)|default\.(?:html?|aspx?))$", re.IGNORECASE)
# Letters, digits and -._~ (RFC 3986, 2.3).
_unreserved = re.compile(r"%(?:2[DE]|3[0-9]|[46][1-9A-F]|5[0-9AF]|7[0-9AE])", re.IGNORECASE)
_lower_case = re.compile(r"%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f])")
# What the URL standard leaves in a path or a query, and RFC 3986 does not.
_unsafe = re.compile(r"[\[\\\]^`{|}]")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a canonical URL, which has a path."""

    scheme: str
    user: str  # With its @.
    host: str
    port: str  # With its colon.
    path: str
    query: str  # With its question mark.

    @classmethod
    def of(cls, url: str) -> "_Parts":
        start = url.index("://") + 3
        slash = url.index("/", start)
        user, at_sign, authority = url[start:slash].rpartition("@")
        host_end = authority.rfind("]") + 1 or authority.find(":") % (len(authority) + 1)
        path, mark, query = url[slash:].partition("?")
        return cls(url[: start - 3], user + at_sign, authority[:host_end], authority[host_end:], path, mark + query)

    def url(self) -> str:
        return f"{self.scheme}://{self.user}{self.host}{self.port}{self.path}{self.query}"


def _without(query: str, names: frozenset[str], prefix: str) -> str:
    if len(query) < 2:
        return query
    parameters = query[1:].split("&")
    kept = [
        parameter
        for parameter in parameters
        if (name := parameter.partition("=")[0].lower()) not in names and not name.startswith(prefix)
    ]
    return query if len(kept) == len(parameters) else f"?{'&'.join(kept)}" if kept else ""


def _unescaped(parts: _Parts) -> _Parts:
    """Decode escapes that need not be, and write the others in upper case (RFC 3986, 6.2.2)."""
    if "%" not in parts.path and "%" not in parts.query:
        return parts
    path, query = (
        _lower_case.sub(lambda match: match[0].upper(), _unreserved.sub(lambda match: chr(int(match[0][1:], 16)), text))
        for text in (parts.path, parts.query)
    )
    return replace(parts, path=path, query=query)


def _escaped(parts: _Parts) -> _Parts:
    path, query = (_unsafe.sub(lambda match: f"%{ord(match[0]):02X}", text) for text in (parts.path, parts.query))
    return replace(parts, path=path, query=query)


def _without_www(parts: _Parts) -> _Parts:
    if not parts.host.startswith("www."):
        return parts
    host = parts.host
    while host.startswith("www.") and "." in host[4:].rstrip("."):
        host = host[4:]
    return replace(parts, host=host)


def _without_session(parts: _Parts) -> _Parts:
    if not parts.query and ";" not in parts.path:
        return parts
    path = _session_in_path.sub("", parts.path)
    return replace(parts, path=path, query=_without(parts.query, SESSION, SESSION_PREFIX))


# In this order; a name is what OPIC_NORMALIZE has.
RULES: Final[dict[str, Callable[[_Parts], _Parts]]] = {
    "unreserved": _unescaped,
    "escape": _escaped,
    "dot": lambda parts: replace(parts, host=parts.host.rstrip(".") or ".") if parts.host.endswith(".") else parts,
    "www": _without_www,
    "https": lambda parts: parts if parts.port or parts.scheme == "https" else replace(parts, scheme="https"),
    "tracking": lambda parts: (
        replace(parts, query=_without(parts.query, TRACKING, TRACKING_PREFIX)) if parts.query else parts
    ),
    "session": _without_session,
    "index": lambda parts: (
        parts if parts.query or parts.path.endswith("/") else replace(parts, path=_index_page.sub("", parts.path))
    ),
}
OF_PREFIXES: Final = ("unreserved", "escape", "dot", "www", "https")  # A prefix of a URL has them too.


@dataclass(frozen=True, slots=True)
class Normalization:
    """The rules of a crawl, in the order in which they are applied; () for none."""

    rules: tuple[str, ...] = ()

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, text: str) -> "Normalization":
        """Parse names of rules, separated by commas; "none" and "" are no rules.

        Raises:
            BadInput: there is no such rule.

        >>> Normalization.of("www, https").text
        'www,https'
        """
        names = {name.strip().lower() for name in text.split(",")} - {"", NONE}
        if unknown := sorted(names - RULES.keys()):
            raise BadInput(f"there is no normalization rule {unknown[0][:40]!r}: {instead_of(unknown[0], RULES)}")
        return cls(tuple(name for name in RULES if name in names))

    @property
    def text(self) -> str:
        """The names, as a store keeps them: the same rules are the same text."""
        return ",".join(self.rules)

    @property
    def of_prefix(self) -> "Normalization":
        """The rules that apply to the beginning of a URL alike."""
        return Normalization(tuple(name for name in self.rules if name in OF_PREFIXES))

    def apply(self, url: str) -> tuple[str, tuple[str, ...]]:
        """Apply each rule once to a canonical URL; also return the rules that changed it.

        The result may be no canonical URL any more, and another rule, or the same, may apply to it.

        >>> Normalization.of("www,tracking,index").apply("http://www.a.example/index.html?utm_source=x")
        ('http://a.example/', ('www', 'tracking', 'index'))
        """
        parts, applied = _Parts.of(url), []
        for name in self.rules:
            changed = RULES[name](parts)
            if changed is not parts and changed != parts:
                applied.append(name)
                parts = changed
        return (parts.url(), tuple(applied)) if applied else (url, ())


PLAIN: Final = Normalization()
