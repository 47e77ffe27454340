"""The scope of a crawl: the hosts, domains and beginnings of URLs whose pages may be offered.

Pages outside are known like others: they have cash, importance and links. They are only never offered.
"""

from dataclasses import dataclass, field
from typing import Final

from opic.errors import BadInput, BadUrl
from opic.urls.canonical import canonical_host, canonical_url, host_of, registered_domain, shown
from opic.urls.normalization import PLAIN, Normalization

ANY: Final = ("",)  # How every URL begins.


@dataclass(frozen=True)
class Scope:
    """Domains, with all below them, and beginnings of canonical URLs; without any of them, all URLs are inside."""

    domains: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    _of_host: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for prefix in self.prefixes:
            host = host_of(prefix)
            self._of_host[host] = (*self._of_host.get(host, ()), prefix)

    @classmethod
    def of(cls, text: str, normalization: Normalization = PLAIN) -> "Scope":
        """Return the scope that a list separated by commas describes; an empty text is no scope.

        Args:
            text: hosts or domains, and URLs, which stand for all that begin so.
            normalization: the rules of the crawl.

        Raises:
            BadInput: a part is neither; the message names it.

        >>> scope = Scope.of("Bücher.example, https://a.example/docs")
        >>> [scope.holds(url) for url in ("http://www.xn--bcher-kva.example:81/", "https://a.example/docs2")]
        [True, True]
        >>> scope.holds("http://a.example/docs")
        False
        """
        domains, prefixes = set[str](), dict[str, None]()
        for part in (part.strip() for part in text.split(",") if text.strip()):
            try:
                if "://" in part:
                    prefixes[canonical_url(part, normalization=normalization.of_prefix)] = None
                else:
                    domains.add(canonical_host(part, normalization).removesuffix("."))
            except (BadInput, BadUrl):
                raise BadInput(
                    f"{shown(part)} is neither a host or domain, like example.org, nor the beginning of URLs, like "
                    "https://example.org/docs/; separate several by commas"
                ) from None
        return cls(frozenset(domains), tuple(prefixes))

    def __bool__(self) -> bool:
        """Whether any page may be outside."""
        return bool(self.domains or self.prefixes)

    def __str__(self) -> str:
        """Return the parts, as `of` takes them."""
        return ",".join((*sorted(self.domains), *self.prefixes))

    def of_host(self, host: str) -> tuple[str, ...]:
        """Return how URLs of a host that are inside begin: one is inside if it begins like one of these.

        >>> scope = Scope.of("a.example,https://b.example/docs")
        >>> [scope.of_host(host) for host in ("www.a.example", "b.example", "example")]
        [('',), ('https://b.example/docs',), ()]
        """
        if not self:
            return ANY
        name = host.removesuffix(".")  # With or without the DNS root's dot, it is the same site.
        while name:
            if name in self.domains:
                return ANY
            name = name.partition(".")[2]
        return self._of_host.get(host, ())

    def names(self, host: str) -> bool:
        """Return whether a part is of the site of a host: of its registered domain, or of something below that.

        >>> scope = Scope.of("www.a.example,org")
        >>> scope.names("cdn.a.example"), scope.names("b.org")
        (True, False)
        """
        site = registered_domain(host.removesuffix("."))
        return any(registered_domain(part) == site for part in (*self.domains, *self._of_host))

    def holds(self, url: str) -> bool:
        """Return whether a canonical URL is inside."""
        return url.startswith(self.of_host(host_of(url)))
