"""URL canonicalisation, hosts, registered domains, and the shard of a host.

Crawled URLs are untrusted: they are parsed by a WHATWG parser, compared as strings, and never fetched here.
"""

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

import ada_url
from publicsuffixlist import PublicSuffixList

from opic.errors import BadInput, BadUrl
from opic.urls.normalization import PLAIN, Normalization

URL_BYTES_MAX: Final = 2_048
ROUNDS_MAX: Final = 8  # What a rule makes may be changed by another one. Only constructed URLs take over two rounds.
NOT_IN_HOST = re.compile(r"[/\\?#@\s]")
SHOWN_MAX = 80  # Characters of a bad URL that an error repeats.
# URLs that the parser would give back as they are: a host of plain lower-case labels, the last one beginning with a
# letter (no address), none of punycode; no port, no user, no fragment; no dot segment, as %2e neither; and in path and
# query only characters that are never encoded. Most links of a crawl are so; nothing else is decided here.
_is_canonical = re.compile(
    r"https?://(?:(?!xn--)[a-z0-9-]++\.)*+(?!xn--)[a-z][a-z0-9-]*+(?=/)"
    r"(?:[A-Za-z0-9_~!$&()*+,;=:@.-]++|/(?!\.)|%(?!2[eE]))*+"
    r"(?:\?[A-Za-z0-9_~!$&()*+,;=:@/?.%-]*+)?"
).fullmatch


def shown(text: str) -> str:
    """Cut a stranger's text for an error message; control characters and lone surrogates are escaped."""
    cut = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
    return ascii(cut) if not cut.isprintable() else repr(cut)


def _advice(raw: str) -> str:
    return "" if "://" in raw else ", which begins with http:// or https://"


def canonical_url(raw: str, bytes_max: int = URL_BYTES_MAX, normalization: Normalization = PLAIN) -> str:
    """Return the WHATWG serialization of an absolute http(s) URL without its fragment and password.

    Nothing else is rewritten, unless the crawl has normalization rules. A canonical URL is its own canonical form.

    Raises:
        BadUrl: relative, another scheme, not parsable, not encodable, or its canonical form is over `bytes_max`.

    >>> canonical_url("HTTP://Example.org:80/a/../b?q=1#part")
    'http://example.org/b?q=1'
    """
    href = raw if _is_canonical(raw) else _serialized(raw)
    if normalization.rules:
        href = _normalized(raw, href, normalization)
    if len(href) > bytes_max:  # A serialized URL is ASCII.
        raise BadUrl(f"{shown(raw)} is {len(href):,} bytes long, over OPIC_MAX_URL_BYTES {bytes_max:,}")
    return href


def canonical_or_none(raw: str, bytes_max: int = URL_BYTES_MAX, normalization: Normalization = PLAIN) -> str | None:
    """Return the canonical form of a URL, as `canonical_url` does; None if it has none."""
    try:
        return canonical_url(raw, bytes_max, normalization)
    except BadUrl:
        return None


def _serialized(raw: str) -> str:
    try:
        href: str = ada_url.URL(raw).href
    except ValueError:  # Lone surrogates raise its child UnicodeEncodeError.
        raise BadUrl(f"{shown(raw)} is not an absolute http(s) URL{_advice(raw)}") from None
    if "#" in href:  # A serialized URL has it nowhere else.
        href = href[: href.index("#")]
    if not href.startswith(("http://", "https://")):
        raise BadUrl(f"{shown(raw)} is not an absolute http(s) URL")
    if "@" in href:
        start = href.index("//") + 2
        user, at_sign, host = href[start : (end := href.index("/", start))].rpartition("@")
        if ":" in user:  # A password is no part of a page, and stored nowhere.
            user = user.partition(":")[0]
            href = href[:start] + (user + at_sign if user else "") + host + href[end:]
    return href


def rules_applied(raw: str, normalization: Normalization) -> tuple[str, ...]:
    """Return the rules of a crawl that change a URL, in the order in which they do.

    >>> rules_applied("http://www.a.example/", Normalization.of("www,index"))
    ('www',)
    """
    href, applied = _serialized(raw), dict[str, None]()
    while (changed := normalization.apply(href))[1] and len(applied) < len(normalization.rules):
        applied |= dict.fromkeys(changed[1])
        href = _serialized(changed[0])
    return tuple(applied)


def is_serialized(url: str) -> bool:
    """Return whether this is a serialized URL without fragment, as the store has them."""
    try:
        return bool(ada_url.URL(url).href == url) and url.startswith(("http://", "https://")) and "#" not in url
    except ValueError:
        return False


def _normalized(raw: str, href: str, normalization: Normalization) -> str:
    """Apply the rules of a crawl to a canonical URL, until none changes it."""
    for _ in range(ROUNDS_MAX):
        changed, applied = normalization.apply(href)
        if not applied:
            return href
        href = _serialized(changed)
    raise BadUrl(f"{shown(raw)} is encoded over itself more than {ROUNDS_MAX} times")


def host_of(url: str) -> str:
    """Return the host of a canonical URL, without user and port.

    >>> host_of("https://user:pw@example.org:8443/a@b"), host_of("http://[::1]:81/")
    ('example.org', '[::1]')
    """
    start = url.index("//") + 2
    authority = url[start : url.index("/", start)]
    host = authority[authority.rfind("@") + 1 :]
    if host.endswith("]"):
        return host
    return host.rpartition(":")[0] if ":" in host else host


def canonical_host(text: str, normalization: Normalization = PLAIN) -> str:
    """Return the host that a name stands for, as it stands in canonical URLs: lower case, IDNA, by the crawl's rules.

    Raises:
        BadInput: it is no host, or more than one: a port, a path, a user.

    >>> canonical_host("Bücher.example")
    'xn--bcher-kva.example'
    """
    try:
        if NOT_IN_HOST.search(text) or (":" in text and not text.endswith("]")):
            raise BadUrl(text)
        return host_of(canonical_url(f"http://{text}/", normalization=normalization))
    except BadUrl:
        message = f"{shown(text)} is not a host or a domain: give a name like example.org, without port or path"
        raise BadInput(message) from None


def canonical_address(text: str) -> str:
    """Return an IP address in its canonical form; an IPv4 address that is written as IPv6 is the IPv4 address.

    Raises:
        BadInput: it is none, or names an interface of one machine (`%eth0`).

    >>> canonical_address("2001:DB8:0::1"), canonical_address("::ffff:192.0.2.1")
    ('2001:db8::1', '192.0.2.1')
    """
    try:
        address = ip_address("" if "%" in text else text)
    except ValueError:
        raise BadInput(f"{shown(text)} is not an IP address: give one like 192.0.2.1 or 2001:db8::1") from None
    return str(getattr(address, "ipv4_mapped", None) or address)


@lru_cache(maxsize=2)
def _suffixes(*, only_icann: bool = False) -> PublicSuffixList:
    return PublicSuffixList(only_icann=only_icann)


def is_address(host: str) -> bool:
    """Return whether the host of a canonical URL is an IP address."""
    return host.endswith("]") or host.rsplit(".", 1)[-1].isdigit()


@lru_cache(maxsize=32_768)  # 10 MB. A host table asks for each new host, twice in a row.
def registered_domain(host: str) -> str:
    """Return the registered domain of a host: its public suffix and one label more; the host itself if there is none.

    >>> registered_domain("www.bbc.co.uk"), registered_domain("localhost"), registered_domain("127.0.0.1")
    ('bbc.co.uk', 'localhost', '127.0.0.1')
    """
    if is_address(host):
        return host  # It has no domain.
    domain = _suffixes().privatesuffix(host.rstrip("."))
    return host if not domain or domain == host else domain  # Not a second string of the same text.


def icann_domain(host: str) -> str:
    """Return the domain of a host below ICANN's suffixes: that of a site on `github.io` is `github.io`.

    >>> icann_domain("a.github.io"), registered_domain("a.github.io"), icann_domain("www.bbc.co.uk")
    ('github.io', 'a.github.io', 'bbc.co.uk')
    """
    if is_address(host):
        return host
    return _suffixes(only_icann=True).privatesuffix(host.rstrip(".")) or host


@lru_cache(maxsize=262_144)
def shard_of(host: str, shards: int) -> int:
    """Return the shard of a host's pages: Kafka's own hash of the key, murmur2, modulo the number of shards.

    So a topic keyed by host has all of a shard's events in one partition, where the number of shards is a multiple of
    that of partitions, whichever client published them.

    >>> [shard_of(host, 16) for host in ("example.org", "www.example.org", "localhost")]
    [1, 3, 4]
    """
    return (_murmur2(host.encode()) & 0x7FFFFFFF) % shards


def _murmur2(key: bytes) -> int:
    """Return what org.apache.kafka.common.utils.Utils.murmur2 does, as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    end = len(key) & ~3
    for begin in range(0, end, 4):
        k = int.from_bytes(key[begin : begin + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if tail := key[end:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
