"""Conversion of URLFrontier's items to crawl events, and of pages to its messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ada_url

from opic.errors import BadInput, BadUrl
from opic.model.events import CrawlEvent
from opic.urlfrontier.urlfrontier_pb2 import KnownURLItem, StringList, URLInfo
from opic.urls.canonical import canonical_url, host_of, is_address, shown
from opic.urls.normalization import PLAIN, Normalization

LINKS: Final = "opic.links"  # Metadata: all links of the page.
BASE: Final = "opic.base"  # Metadata: the base of relative links; the page's URL if absent.
PATH: Final = "url.path"  # Metadata: the path of pages to this one; the last of them links to it.
STATUS: Final = "fetch.statusCode"
ERRORS: Final = "fetch.error.count"
CAUSE: Final = "error.cause"
REDIRECTED: Final = "_redirTo"
ROBOTS: Final = "robots.txt"
ABSOLUTE: Final = ("http://", "https://")
SPACE: Final = " \t\r\n\f"
# What tells of one fetch, or has its place elsewhere: a client that got it back would report it with the next fetch.
NOT_STORED: Final = (LINKS, BASE, PATH, STATUS, CAUSE, REDIRECTED)
NO_KEY: Final = "_DEFAULT_"  # StormCrawler's, for a URL of which it finds no host or address.
NEVER: Final = 4_070_908_800  # Unix seconds, 2099-01-01: the refetch date of pages that are done.
Metadata = Mapping[str, StringList]


def check_key(url: str, key: str, normalization: Normalization = PLAIN) -> None:
    """Check the queue that an item names for its URL: the host, in any spelling, a domain above it, or its IP address.

    Domains are not looked up, since the client's list of public suffixes, with or without private ones, may be another.

    Raises:
        BadInput: it is something else.
    """
    host = host_of(url)
    if key in ("", host, NO_KEY):
        return
    named = _host_of_key(key, normalization)
    above = "." in named and host.rstrip(".").endswith(f".{named}")
    if named != host.rstrip(".") and not above and (is_address(host) or not is_address(named)):
        raise BadInput(f"key={shown(key)} is neither the host {host} of its URL nor a domain above it")


def _host_of_key(key: str, normalization: Normalization) -> str:
    """Return the host that a key names, without a dot at its end; "" if it names none.

    Clients cut their keys out of URLs in ways of their own: a port, or what the rest of the URL hides, may be left.
    """
    for authority in (key, f"[{key}]"):
        try:
            return host_of(canonical_url(f"http://{authority}/", normalization=normalization)).rstrip(".")
        except BadUrl:
            continue
    return ""


def is_read(metadata: Metadata) -> bool:
    """Return whether a Known item alone shows that its page was fetched."""
    return STATUS in metadata or LINKS in metadata


def links_of(url: str, metadata: Metadata) -> list[str]:
    """Return the links of the page that an item reports, as absolute URLs."""
    if LINKS not in metadata:
        return []
    named = _absolute(url, _first(metadata, BASE) or "")
    base = named if named.startswith(ABSOLUTE) else url
    return [link if link.startswith(ABSOLUTE) else _absolute(base, link) for link in metadata[LINKS].values]


def parent_of(metadata: Metadata, batch: str) -> str | None:
    """Return the URL of the page that links to a discovered page; None if the item names none."""
    path = metadata[PATH].values if PATH in metadata else ()
    if path:
        return path[-1]
    return batch if batch.startswith(ABSOLUTE) else None


def event_of(url: str, known: KnownURLItem, links: Sequence[str]) -> CrawlEvent:
    """Return the event of a page that was fetched.

    Raises:
        BadInput: the status is no number.
    """
    metadata = known.info.metadata
    code, target, cause = (_first(metadata, name) for name in (STATUS, REDIRECTED, CAUSE))
    if code is not None and not code.isdecimal():
        raise BadInput(f"{STATUS}={shown(code)} is no number")
    status = None if code is None else int(code)
    event = CrawlEvent(url, meta=meta_of(metadata), not_before=refetched_from(known))
    failed = cause is not None or (_first(metadata, ERRORS) or "0") != "0"
    if cause is not None and ROBOTS in cause:
        event.status, event.excluded = 0, True
    elif target is not None:
        event.status = status if status is not None and 300 <= status <= 399 else 301
        event.redirect = _absolute(url, target)
    elif status is None:
        event.status = 0 if failed else 200
    else:
        event.status = 0 if failed and status <= 399 else status
    if 200 <= event.status <= 299:
        event.links = list(links)
    return event


def refetched_from(known: KnownURLItem) -> float:
    """Return the time from which a page may be fetched again, in Unix seconds."""
    return float(min(known.refetchable_from_date or NEVER, NEVER))


def meta_of(metadata: Metadata) -> dict[str, str] | None:
    """Return an item's metadata in the form stored with its page; None if there is none.

    A list of one string is stored as that string, any other list as JSON.

    >>> meta_of({"a": StringList(values=["x"]), "b": StringList(values=["y", "z"]), "url.path": StringList()})
    {'a': 'x', 'b': '["y", "z"]'}
    """
    kept = {name: list(entry.values) for name, entry in metadata.items() if name not in NOT_STORED}
    packed = {
        name: values[0] if len(values) == 1 and values[0][:1] != "[" else json.dumps(values)
        for name, values in kept.items()
    }
    return packed or None


def info_of(url: str, key: str, crawl: str, meta: Mapping[str, Any] | None) -> URLInfo:
    """Return the message for a page, with its stored metadata."""
    info = URLInfo(url=url, key=key, crawlID=crawl)
    for name, value in (meta or {}).items():
        info.metadata[name].values.extend(_unpacked(str(value)))
    return info


def _unpacked(value: str) -> list[str]:
    if value[:1] == "[":
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return [value]  # Another client's.
        if isinstance(decoded, list) and all(isinstance(item, str) for item in decoded):
            return decoded
    return [value]


def _first(metadata: Metadata, name: str) -> str | None:
    values = metadata[name].values if name in metadata else ()
    return values[0] if values else None


def _absolute(base: str, link: str) -> str:
    """Return a link resolved against an absolute URL; unchanged if it can't be, as events leave out bad links."""
    try:
        resolved: str = ada_url.join_url(base, link.strip(SPACE))
    except ValueError:
        return link
    return resolved
