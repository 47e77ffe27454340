"""How many links of generated pages does opic read otherwise than Chromium, and why?

It makes pages from a seed (`generated_pages` of the tests), has both read them with the same headers, and compares the
links in their order, without repetitions. Chromium runs no scripts. Its links are those of `a` and `area`, of `a` in
SVG, and where `<meta http-equiv=refresh>` would lead, as it says itself.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ada_url
from harness import write_result
from playwright.sync_api import Error

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from chromium import find_chromium, running_browser
from generated_pages import PAGE_URL, GeneratedPage, generated_pages
from servers import Missing

from opic.html.links import html_links
from opic.html.page_text import page_text

SEED = 20261127
REASONS = {  # Why links may differ. Those of a page that differ for another reason are a fault of ours, or a new one.
    "utf-8": "UTF-8 that nothing names; Chromium takes windows-1252, or guesses",
    "guess": "nothing names the encoding; Chromium guesses another than windows-1252",
    "pipe": "Chromium escapes the vertical bar in paths, the URL standard does not",
    "hosts": "Chromium takes hosts that the URL standard forbids",
    "base": "the first <base> is no URL; Chromium resolves nothing by it, the HTML standard by the page",
    "sniffing": "no Content-Type; the standard wants a whole tag to begin with, Chromium its first letters",
    "codecs": "rare characters of East Asia, which Python's codecs lack",
    "svg": "an error in SVG, which Chromium reads by another parser than XHTML",
}
COLLECT = """() => {
  const helper = document.createElementNS("http://www.w3.org/1999/xhtml", "a")
  const links = []
  for (const element of document.querySelectorAll("*")) {
    const space = element.namespaceURI, name = element.localName
    if (space == "http://www.w3.org/1999/xhtml" && (name == "a" || name == "area") && element.hasAttribute("href"))
      links.push(element.href)
    else if (space == "http://www.w3.org/2000/svg" && name == "a" && element.matches(":any-link")) {
      helper.setAttribute("href", element.href.baseVal)  // Resolved as the page's own.
      links.push(helper.href)
    }
  }
  return [document.characterSet, document.contentType, links]
}"""


@dataclass(frozen=True, slots=True)
class ChromiumPage:
    """A page as Chromium has it."""

    encoding: str
    kind: str
    links: list[str]
    refreshes: list[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the links of a page differ; `reason` is "" where they don't."""

    links: int  # Chromium's.
    extra: list[str]
    missing: list[str]
    reason: str


class Reader:
    """Has Chromium read pages."""

    def __init__(self, browser: Any) -> None:
        self._page = browser.new_context(java_script_enabled=False).new_page()
        self._answer: GeneratedPage | None = None
        self._refreshes = list[str]()
        self._page.route("**/*", self._fulfil)
        session = self._page.context.new_cdp_session(self._page)
        session.on("Page.frameScheduledNavigation", lambda told: self._refreshes.append(told["url"]))
        session.send("Page.enable")

    def _fulfil(self, route: Any) -> None:
        page, self._answer = self._answer, None
        if page is None or route.request.url != PAGE_URL:
            route.abort()
            return
        headers = {"content-type": page.content_type} if page.content_type else {}
        route.fulfill(status=200, headers=headers, body=page.body)

    def read(self, page: GeneratedPage) -> ChromiumPage:
        """Open a page."""
        self._answer = page
        self._refreshes.clear()
        try:
            self._page.goto(PAGE_URL, wait_until="domcontentloaded")
        except Error as error:
            if "Download is starting" not in str(error):
                raise
            return ChromiumPage("", "a download", [], [])
        encoding, kind, links = self._page.evaluate(COLLECT)
        return ChromiumPage(encoding.lower(), kind, links, list(self._refreshes))


@contextmanager
def reader() -> Iterator[Reader]:
    """Lend a reader; the program ends where there is no Chromium."""
    binary = find_chromium()
    if isinstance(binary, Missing):
        sys.exit(binary.reason)
    with running_browser(binary) as browser:
        yield Reader(browser)


def is_http(link: str) -> bool:
    return link.startswith(("http://", "https://"))


def compared(page: GeneratedPage, theirs: ChromiumPage) -> Comparison:
    """Compare the links of a page."""
    links, refreshes = (
        [link for link in dict.fromkeys(found) if is_http(link)]
        for found in (theirs.links, (link for link in theirs.refreshes if link != PAGE_URL))
    )
    ours = html_links(PAGE_URL, page.body, content_type=page.content_type or None)
    extra, missing = set(ours) - {*links, *refreshes}, {*links, *refreshes} - set(ours)
    if extra or missing:
        if escaped(ours) == escaped([*links, *refreshes]):
            reason = "pipe"
        elif not extra and not any(map(ada_url.check_url, missing)):
            reason = "hosts"
        else:
            reason = reason_of(page, theirs)
    else:
        reason = "" if [link for link in ours if link in links] == links or theirs.refreshes else "order"
    return Comparison(len({*links, *refreshes}), sorted(extra), sorted(missing), reason)


def escaped(links: list[str]) -> set[str]:
    """Escape what Chromium escapes and the URL standard does not."""
    return {re.sub(r"^[^?#]*", lambda path: path[0].replace("|", "%7C"), link) for link in links}


def reason_of(page: GeneratedPage, theirs: ChromiumPage) -> str:
    """Say why the links of a page differ, as far as a program can."""
    ours = page_text(page.body, page.content_type)
    if ours is None or ours.xml != (theirs.kind != "text/html"):
        if not page.content_type:
            return "sniffing"
        return f"media type: {'none' if ours is None else 'XML' if ours.xml else 'HTML'}, and {theirs.kind}"
    if ours.encoding != theirs.encoding:
        if ours.encoding == "utf-8" and theirs.encoding.startswith("windows-125"):
            return "utf-8"
        if ours.encoding == "windows-1252":
            return "guess"
        return f"encoding: {ours.encoding}, and {theirs.encoding}"
    if b'<base href="http://["' in page.body:
        return "base"
    if ours.encoding in ("big5", "euc-jp", "gb18030", "gbk", "iso-2022-jp", "shift_jis"):
        return "codecs"
    without = [
        {*html_links(PAGE_URL, ours.text.replace("refresh", "none").replace("Refresh", "none"))},
        {*filter(is_http, theirs.links)},
    ]
    if without[0] == without[1]:
        return "refresh"
    if theirs.kind == "image/svg+xml":
        return "svg"
    return "XML" if ours.xml else "HTML"


def main() -> None:
    """Compare, print the reasons with the number of links, and write the result."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pages", type=int, default=300)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--show", type=int, default=0, help="print so many pages of each reason")
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    links, pages, counts, shown = 0, Counter[str](), Counter[str](), Counter[str]()
    with reader() as chromium:
        for page in generated_pages(given.pages, given.seed):
            found = compared(page, chromium.read(page))
            links += found.links
            if not found.reason:
                continue
            pages[found.reason] += 1
            counts[found.reason] += max(len(found.extra), len(found.missing))
            shown[found.reason] += 1
            if shown[found.reason] <= given.show:
                print(found.reason, page, f"ours alone: {found.extra}, Chromium's alone: {found.missing}", sep="\n  ")
    for reason, count in pages.most_common():
        print(f"{count:6,} pages {counts[reason]:6,} links  {reason}: {REASONS.get(reason, 'unexplained')}")
    print(
        f"{given.pages:,} pages, {links:,} links in Chromium; {pages.total():,} pages, {counts.total():,} links differ"
    )
    reasons = {reason: {"pages": pages[reason], "links": counts[reason]} for reason in pages}
    write_result(
        "page-links", {"pages": given.pages, "links": links, "seed": given.seed, "differ": reasons}, given.result
    )


if __name__ == "__main__":
    main()
