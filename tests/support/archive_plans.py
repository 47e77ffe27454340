"""Archives planned by a seed: records for any writer, and what a replay should make of them.

Which events they have does not depend on how well a library compresses, so that samples stay comparable.
"""

import base64
import gzip
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urljoin

import brotli
import zstandard

BEGIN: Final = datetime(2024, 5, 18, 2, 1, 22, tzinfo=UTC)
SAME: Final = "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"
CODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda body: gzip.compress(body, 1, mtime=0),
    "deflate": zlib.compress,
    "br": lambda body: brotli.compress(body, quality=1),
    "zstd": lambda body: zstandard.compress(body, 1),
}
# What a capture may be: what a server can answer, what ARC files have besides, and what WARC files have.
SERVED: Final = ("page", "page", "page", "gone", "moved", "failed", "picture", "untyped")
IN_ARC: Final = (*SERVED, "interim", "dns", "garbage")
IN_WARC: Final = (
    *IN_ARC, "posted", "headed", "same", "same_other", "same_gone", "unknown", "unchanged", "resource", "segments",
    "text",
)  # fmt: skip


@dataclass(frozen=True)
class PlannedRecord:
    """A record, for a writer."""

    kind: str
    url: str
    date: datetime
    name: str  # Its id.
    content_type: str
    block: bytes
    fields: dict[str, str] = field(default_factory=dict)

    def row(self) -> str:
        """It as a line of JSON."""
        return json.dumps({
            "kind": self.kind, "url": self.url, "date": self.date.strftime("%Y-%m-%dT%H:%M:%SZ"), "name": self.name,
            "content_type": self.content_type, "block": base64.b64encode(self.block).decode(), "fields": self.fields,
        })  # fmt: skip


@dataclass(frozen=True)
class PlannedEvent:
    """The event that a capture should become."""

    url: str
    status: int
    fetched_at: float
    links: tuple[str, ...] = ()
    redirect: str | None = None


class ArchivePlan:
    """The records of an archive. `events` and `reasons` are what a replay should make of them."""

    def __init__(self, seed: int, captures: int = 12, *, kinds: Sequence[str] = IN_WARC, origin: str = "") -> None:
        """Plan an archive of that many captures; where `origin` is given, all URLs are of that."""
        self.records, self.events, self.reasons = list[PlannedRecord](), list[PlannedEvent](), Counter[str]()
        self._rng, self._alone, self._origin = random.Random(seed), kinds is not IN_WARC, origin
        self._seed, self._number = seed, 0
        self._pages = list[tuple[PlannedRecord, str, list[str]]]()  # Record, digest, links as they stand there.
        for _ in range(captures):
            getattr(self, f"_{self._rng.choice(kinds)}")()

    def rows(self) -> str:
        """The records as lines of JSON."""
        return "".join(record.row() + "\n" for record in self.records)

    def _next(self) -> tuple[str, datetime, str]:
        self._number += 1
        host, path = (
            self._rng.choice(["a", "b.b", "xn--mgbh0fb"]),
            self._rng.choice(["", "x/", "x/y", "%C3%A9?q=1&r=2"]),
        )
        origin = self._origin or f"{self._rng.choice(['http', 'https'])}://{host}.example"
        url = f"{origin}/{self._seed}/{self._number}/{path}"
        name = f"urn:uuid:00000000-0000-0000-{self._seed:04d}-{self._number:012d}"
        return url, BEGIN + timedelta(seconds=self._number), name

    def _add(
        self, kind: str, block: bytes, content_type: str = "application/http;msgtype=response", **fields: str
    ) -> PlannedRecord:
        url, date, name = self._next()
        record = PlannedRecord(kind, fields.pop("url", url), date, name, content_type, block, fields)
        self.records.append(record)
        return record

    def _head(self, status: int, *lines: str | bytes) -> bytes:
        end = self._rng.choice([b"\r\n", b"\r\n", b"\n"])
        first = f"HTTP/{self._rng.choice(['1.0', '1.1', '1.1'])} {status} {self._rng.choice(['OK', 'X Y', ''])}"
        rows = [first, "Server: x", *lines]
        return b"".join((row.encode() if isinstance(row, str) else row) + end for row in rows) + end

    def _body(self) -> tuple[bytes, list[str]]:
        pool = ["1", "../2", "/3", "?q=4", "//c.example/5", "http://d.example/6?a=1&b=2", "7#x", "x%20y"]
        links = self._rng.sample(pool, self._rng.randrange(len(pool)))
        parts = [
            f'<p>{"word " * self._rng.randrange(40)}<a href="{link.replace("&", "&amp;")}">x</a>' for link in links
        ]
        return f"<!DOCTYPE html><title>{self._number}</title>{''.join(parts)}".encode(), links

    def _answer(self, status: int = 200, media: str | None = "text/html") -> tuple[bytes, list[str]]:
        body, links = self._body()
        lines = list[str | bytes]()
        if media is not None:
            name = self._rng.choice(["Content-Type", "content-type", "CONTENT-TYPE"])
            lines += [f"{name}:", f" {media};", "\tcharset=utf-8"] if self._rng.random() < 0.2 else [f"{name}: {media}"]
        used = self._rng.choices(list(CODINGS), k=self._rng.choice([0, 0, 0, 1, 1, 2]))
        for coding in used:
            body = CODINGS[coding](body)
        # Crawlers refuse answers whose codings are those of their transfer.
        choice = ["Content-Encoding"] if self._origin else ["Content-Encoding", "Content-Encoding", "Transfer-Encoding"]
        moved = self._rng.choice(choice)
        if used and self._rng.random() < 0.5:
            lines.append(f"{moved}: {', '.join(used)}")
        else:
            lines += [f"{moved}: {coding}" for coding in used]
        if self._rng.random() < 0.3:
            cut = int(len(body) * self._rng.random())
            body = (
                b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
                + b"0\r\n\r\n"
            )
            lines.append("Transfer-Encoding: chunked")
        return self._head(status, *lines) + body, links

    def _request(self, method: str, of: PlannedRecord, *, before: bool) -> None:
        """Add a request; the answer is the last record, and names it or is named by it."""
        _, _, name = self._next()
        named = {"WARC-Concurrent-To": f"<{of.name}>"}
        block = f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        asked = PlannedRecord("request", of.url, of.date, name, "application/http;msgtype=request", block, named)
        if before and self._rng.random() < 0.5:  # As wget does.
            self.records[-1] = PlannedRecord(
                of.kind,
                of.url,
                of.date,
                of.name,
                of.content_type,
                of.block,
                of.fields | {"WARC-Concurrent-To": f"<{name}>"},
            )
            asked = PlannedRecord(asked.kind, asked.url, asked.date, asked.name, asked.content_type, asked.block)
        self.records.insert(len(self.records) - before, asked)
        self.reasons["requests"] += 1

    def _event(self, record: PlannedRecord, status: int, links: list[str] = [], redirect: str | None = None) -> None:  # noqa: B006
        found = tuple(dict.fromkeys(urljoin(record.url, link) for link in links))
        self.events.append(PlannedEvent(record.url, status, record.date.timestamp(), found, redirect))
        if not self._alone and record is self.records[-1] and self._rng.random() < 0.7:
            self._request("GET", record, before=self._rng.random() < 0.5)

    def _page(self) -> None:
        block, links = self._answer()
        digest = f"sha1:{self._number:032d}"
        record = self._add("response", block, **{} if self._alone else {"WARC-Payload-Digest": digest})
        self._pages.append((record, digest, links))
        self._event(record, 200, links)

    def _untyped(self) -> None:
        block, links = self._answer(media=None)
        self._event(self._add("response", block), 200, links)

    def _picture(self) -> None:
        self._event(self._add("response", self._answer(media="image/png")[0]), 200)

    def _gone(self) -> None:
        status = self._rng.choice([404, 410])
        self._event(self._add("response", self._answer(status)[0]), status)

    def _failed(self) -> None:
        status = self._rng.choice([400, 403, 429, 500, 503])
        self._event(self._add("response", self._answer(status)[0]), status)

    def _moved(self) -> None:
        status = self._rng.choice([301, 302, 303, 307, 308])
        raw, escaped = self._rng.choice([
            ("/there", "/there"), ("http://c.example/", "http://c.example/"),
            ("/stra\u00dfe", "/stra%C3%9Fe"), ("../up?x=\u00e9", "../up?x=%C3%A9"),
        ])  # fmt: skip
        record = self._add("response", self._head(status, b"Location: " + raw.encode(), "Content-Length: 0"))
        self._event(record, status, redirect=urljoin(record.url, escaped))

    def _interim(self) -> None:
        block, links = self._answer()
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n"
        self._event(
            self._add("response", self._rng.choice([hints, b"HTTP/1.1 100 Continue\r\n\r\n"]) + block), 200, links
        )

    def _dns(self) -> None:
        self._add("response", b"20240518020122\na.example. 60 IN A 192.0.2.1\n", "text/dns", url="dns:a.example")
        self.reasons["not_web"] += 1

    def _garbage(self) -> None:
        self._add("response", b"SSH-2.0-OpenSSH_9.2\r\n")
        self.reasons["not_http"] += 1

    def _posted(self) -> None:
        self._request(
            self._rng.choice(["POST", "PUT"]), self._add("response", self._answer()[0]), before=self._rng.random() < 0.5
        )
        self.reasons["not_get"] += 1

    def _headed(self) -> None:
        head = self._answer()[0]
        self._request(
            self._rng.choice(["HEAD", "OPTIONS"]), self._add("response", head), before=self._rng.random() < 0.5
        )
        self.reasons["not_get"] += 1

    def _revisit(self, status: int, of: PlannedRecord, digest: str, url: str) -> PlannedRecord:
        named = self._rng.choice([
            {"WARC-Refers-To": f"<{of.name}>"},
            {"WARC-Refers-To-Target-URI": of.url, "WARC-Refers-To-Date": of.date.strftime("%Y-%m-%dT%H:%M:%SZ")},
            {},
        ])  # fmt: skip
        fields = {"WARC-Profile": SAME, "WARC-Payload-Digest": digest} | named
        return self._add("revisit", self._head(status, "Content-Type: text/html"), url=url, **fields)

    def _same(self) -> None:
        if not self._pages:
            return self._page()
        of, digest, links = self._rng.choice(self._pages)
        self._event(self._revisit(200, of, digest, of.url), 200, links)
        return None

    def _same_other(self) -> None:
        if not self._pages:
            return self._page()
        of, digest, links = self._rng.choice(self._pages)
        url = f"http://e.example/{self._seed}/{self._number}/other/"
        self._event(self._revisit(200, of, digest, url), 200, links)
        return None

    def _same_gone(self) -> None:
        if not self._pages:
            return self._gone()
        of, digest, _ = self._rng.choice(self._pages)
        self._event(self._revisit(404, of, digest, of.url), 404)
        return None

    def _unknown(self) -> None:
        self._add("revisit", self._head(200), **{"WARC-Profile": SAME, "WARC-Payload-Digest": "sha1:NONE"})
        self.reasons["revisits_skipped"] += 1

    def _unchanged(self) -> None:
        self._add("response", self._head(304))
        self.reasons["revisits_skipped"] += 1

    def _resource(self) -> None:
        body, links = self._body()
        self._event(self._add("resource", body, "text/html"), 200, links)

    def _segments(self) -> None:
        block, links = self._answer()
        at = 1 + int((len(block) - 1) * self._rng.random())
        first = self._add("response", block[:at], **{"WARC-Segment-Number": "1"})
        self.events.append(
            PlannedEvent(
                first.url, 200, first.date.timestamp(), tuple(dict.fromkeys(urljoin(first.url, link) for link in links))
            )
        )
        fields = {
            "WARC-Segment-Number": "2",
            "WARC-Segment-Origin-ID": f"<{first.name}>",
            "WARC-Segment-Total-Length": str(len(block)),
        }
        self._add("continuation", block[at:], url=first.url, **fields)
        self.reasons["continuations"] += 1

    def _text(self) -> None:
        self._add("conversion", b"text", "text/plain")
        self.reasons["conversions"] += 1
