"""Pages are read as a real browser reads them: their links and their encodings."""

import base64
from collections import Counter
from collections.abc import Iterator

import ada_url
import pytest
from bench_page_links import REASONS, Reader, compared
from chromium import running_browser
from conftest import want_server
from example_counts import part_of
from generated_pages import generated_pages
from playwright.sync_api import Browser
from webencodings.labels import LABELS

from opic.html.encodings import WITHOUT_ENCODER, decode, encode_query

pytestmark = pytest.mark.slow

PAGES, SEED = part_of(400), 20030524
# How many of all bytes and pairs of bytes are read otherwise, and how many of the characters that pages can have are
# written otherwise in queries: rare ones, which Python's codecs lack.
READ_OTHERWISE = {"big5": 250, "euc-jp": 250, "gb18030": 50, "gbk": 50, "iso-2022-jp": 10_000}
WRITTEN_OTHERWISE = {"big5": 100, "gb18030": 50, "gbk": 50, "iso-2022-jp": 600}
CODES = (*range(0x80, 0xD800), *range(0xE000, 0x10000), 0x1F600, 0x20089)
CHARACTERS = list(map(chr, CODES[:: len(CODES) // part_of(len(CODES))]))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser(want_server("chromium")) as opened:
        yield opened


def test_links_of_generated_pages_are_those_of_the_browser(browser: Browser) -> None:
    reader = Reader(browser)
    found = [compared(page, reader.read(page)) for page in generated_pages(PAGES, SEED)]
    reasons = Counter(one.reason for one in found)
    assert set(reasons) <= {"", *REASONS}, reasons
    assert sum(one.links for one in found if not one.reason) > PAGES


@pytest.mark.parametrize("encoding", sorted(set(LABELS.values()) - set(WITHOUT_ENCODER)))
def test_encoding_is_that_of_the_browser(browser: Browser, encoding: str) -> None:
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(content_type=f"text/html; charset={encoding}", body="<a id=link>"))
    page.goto("http://a.example/")
    pieces = [bytes([byte]) for byte in range(256) if byte != 10]
    pieces += [bytes([lead, trail]) for lead in range(0x80, 256) for trail in range(256) if trail != 10]
    told = (
        "([name, data]) => new TextDecoder(name).decode(Uint8Array.from(atob(data), c => c.charCodeAt(0))).split('\\n')"
    )
    data = b"\n".join(pieces)
    theirs = page.evaluate(told, [encoding, base64.b64encode(data).decode()])
    ours = decode(data, encoding).split("\n")
    assert len(ours) == len(theirs)
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= READ_OTHERWISE.get(encoding, 0)
    readable = sorted({text for text in theirs if len(text) == 1}.intersection(CHARACTERS))
    queries = page.evaluate("all => all.map(one => { link.href = '?' + one; return link.search })", readable)
    different = [
        one
        for one, query in zip(readable, queries, strict=True)
        if ada_url.join_url("http://a.example/", f"?{encode_query(one, encoding)}") != f"http://a.example/{query}"
    ]
    assert len(different) <= WRITTEN_OTHERWISE.get(encoding, 0), different[:9]
    page.close()
