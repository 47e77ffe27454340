"""Web archives made for tests."""

import gzip
import json
from collections.abc import Mapping

DATE = "2024-05-18T02:01:22Z"
DATE_SECONDS = 1715997682.0


def record(kind: str, url: str, block: bytes, **headers: str) -> bytes:
    """A WARC record; names of further headers have _ for -."""
    given = {"WARC-Type": kind, "WARC-Target-URI": url, "WARC-Date": DATE, "Content-Length": str(len(block))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def answer(body: bytes = b"", status: int = 200, kind: str = "text/html", **headers: str) -> bytes:
    """An HTTP answer."""
    given = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


def page(url: str, body: bytes, name: str = "", **headers: str) -> bytes:
    """A WARC record of a page of HTML."""
    return record("response", url, answer(body, **headers), WARC_Record_ID=f"<urn:{name or url}>")


def envelope(url: str, http: Mapping[str, object], **headers: str) -> bytes:
    """A record of a WAT file."""
    told = {"WARC-Type": "response", "WARC-Target-URI": url, "WARC-Date": DATE}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    found = {"Envelope": {"WARC-Header-Metadata": told, "Payload-Metadata": {"HTTP-Response-Metadata": http}}}
    return record("metadata", url, json.dumps(found).encode(), Content_Type="application/json")


def asked(url: str, method: str = "GET", **headers: str) -> bytes:
    """A WARC record of a request."""
    return record("request", url, f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode(), **headers)


def packed(*records: bytes) -> bytes:
    """Records as the members of a gzip file."""
    return b"".join(gzip.compress(one, 1, mtime=0) for one in records)
