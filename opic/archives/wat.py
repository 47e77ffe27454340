"""WAT files: each record has JSON, an envelope, that tells what a record of a WARC or ARC file has."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from opic.archives.fields import Fields
from opic.archives.records import ArchiveRecord
from opic.html.media_types import MediaType

PATHS: Final = ("A@/href", "AREA@/href")
META_NAMES: Final = ("charset", "http-equiv", "name", "content")
QUOTE: Final = '"'
ENTITY: Final = "&quot;"
LABEL: Final = re.compile(r"[\w.:-]+", re.ASCII)
NOT_ASCII: Final = re.compile("utf-?16|ucs-?2|unicode")  # Encodings in which ASCII looks otherwise.


class BadEnvelope(ValueError):
    """A record of a WAT file has no JSON that is whole."""


def is_envelope(record: ArchiveRecord) -> bool:
    """Whether a record is of a WAT file."""
    return record.kind == "metadata" and MediaType.of(record.fields.first("content-type")).essence == "application/json"


def described(record: ArchiveRecord) -> ArchiveRecord | None:
    """Return the record that one of a WAT file describes, at the position of the latter.

    Its block is what the envelope tells of it: the first line of an HTTP message, the target of a redirect, and the
    links of a page as HTML. None stands for JSON that is no envelope.

    Raises:
        BadEnvelope: there is no JSON.
    """
    try:
        envelope = _map(json.loads(record.block), "Envelope")
    except (ValueError, RecursionError):
        raise BadEnvelope from None
    if not envelope:
        return None
    fields, payload = _fields(envelope), _map(envelope, "Payload-Metadata")
    for name in ("warc-target-uri", "warc-date"):
        fields.setdefault(name, record.fields.get(name, []))
    kind = fields.first("warc-type").lower()
    block = _request(payload) if kind == "request" else _answer(_map(payload, "HTTP-Response-Metadata"))
    return replace(record, kind=kind, fields=fields, block=block)


def _fields(envelope: Mapping[str, Any]) -> Fields:
    """Return the header of the described record, with the names that WARC has."""
    if "ARC-Header-Metadata" not in envelope:
        return Fields.of(_map(envelope, "WARC-Header-Metadata").items())
    told = _map(envelope, "ARC-Header-Metadata")
    url, date = told.get("Target-URI", ""), told.get("Date", "")
    kind = "warcinfo" if str(url).startswith("filedesc:") else "response"
    return Fields.of([("warc-type", kind), ("warc-target-uri", url), ("warc-date", date)])


def _request(payload: Mapping[str, Any]) -> bytes:
    method = _map(_map(payload, "HTTP-Request-Metadata"), "Request-Message").get("Method", "")
    return f"{method} / HTTP/1.1\r\n\r\n".encode("utf-8", "replace")


def _answer(http: Mapping[str, Any]) -> bytes:
    status = _map(http, "Response-Message").get("Status")
    if status is None:
        return b""
    told = Fields.of(_map(http, "Headers").items())
    lines, body = [f"HTTP/1.1 {status}"], b""
    if location := told.first("location"):
        lines.append(f"Location: {' '.join(location.split())}")
    if (page := http.get("HTML-Metadata")) is not None:
        charset = MediaType.of(",".join(told.get("content-type", ()))).charset or ""
        named = f"; charset={charset}" if LABEL.fullmatch(charset) and not NOT_ASCII.search(charset.lower()) else ""
        lines.append(f"Content-Type: text/html{named}")
        head, links = _map(page, "Head"), (link for link in _maps(page, "Links") if link.get("path") in PATHS)
        body = as_html(links, head.get("Base"), _maps(head, "Metas"))
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + body


def as_html(links: Iterable[Mapping[str, Any]], base: object = None, metas: Iterable[Mapping[str, Any]] = ()) -> bytes:
    """Return ASCII HTML with links whose URLs are attributes as a page had them: the parser decodes their entities.

    >>> as_html([{"url": 'a?b=1&amp;c="é', "rel": "nofollow"}], "/x/")
    b'<base href="/x/"><a href="a?b=1&amp;c=&quot;&#233;" rel="nofollow"></a>'
    """
    parts = [_tag("meta", {name: meta.get(name) for name in META_NAMES}) for meta in metas]
    if isinstance(base, str):
        parts.append(_tag("base", {"href": base}))
    parts += [_tag("a", {"href": link.get("url"), "rel": link.get("rel")}) + "</a>" for link in links]
    return "".join(parts).encode("utf-8", "replace").decode().encode("ascii", "xmlcharrefreplace")


def _tag(name: str, attributes: Mapping[str, object]) -> str:
    given = [f" {k}={QUOTE}{v.replace(QUOTE, ENTITY)}{QUOTE}" for k, v in attributes.items() if isinstance(v, str)]
    return f"<{name}{''.join(given)}>"


def _map(parent: object, name: str) -> dict[str, Any]:
    value = parent.get(name) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def _maps(parent: object, name: str) -> list[dict[str, Any]]:
    value = parent.get(name) if isinstance(parent, dict) else None
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
