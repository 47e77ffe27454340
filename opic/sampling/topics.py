"""Topics: what tells whether a page is on one. `url:TEXT`, `host:H`, `tag:T`, `word:W`, `text:MODEL`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opic.errors import BadInput, instead_of
from opic.local.crawl_pages import is_of
from opic.sampling.text_model import TextModel
from opic.urls.canonical import canonical_host, host_of

FORMS: Final = {
    "url": "TEXT, which the URL contains",
    "host": "H, the page's host or a domain that it is in",
    "tag": "T, a tag of its crawl event",
    "word": "W, which the page's text contains; case does not matter",
    "text": "MODEL, a file that `opic topic-model` wrote: a classifier of texts",
}
NEEDS_TEXT: Final = ("word", "text")
BY_URL: Final = ("url", "host")


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a topic may look at: the canonical URL, the tags of the crawl event, title and text."""

    url: str
    tags: Sequence[str] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """A property of pages, as it was written: `kind:value`."""

    written: str
    kind: str
    value: str
    contains: Callable[[PageContent], bool]

    @property
    def needs_text(self) -> bool:
        """Whether it looks at the text of a page."""
        return self.kind in NEEDS_TEXT

    @property
    def by_url(self) -> bool:
        """Whether the URL of a page alone tells if the page is on it."""
        return self.kind in BY_URL


def parse_topic(written: str) -> Topic:
    """Return the topic that was written.

    Raises:
        BadInput: it has none of the forms, or its value is invalid.

    >>> parse_topic("host:Example.org").contains(PageContent("http://www.example.org/a"))
    True
    """
    kind, colon, value = written.partition(":")
    if not colon or kind not in FORMS:
        names = "; ".join(f"{name}:{what}" for name, what in FORMS.items())
        advice = f" {instead_of(kind, FORMS)}" if colon else ""
        raise BadInput(f"{written!r} is not a topic:{advice} topics are {names}")
    if not value.strip():
        raise BadInput(f"topic {written!r} is empty: give {kind}:{FORMS[kind]}")
    return Topic(written, kind, value, _test_of(kind, value))


def _test_of(kind: str, value: str) -> Callable[[PageContent], bool]:
    if kind == "url":
        return lambda page: value in page.url
    if kind == "host":
        host = canonical_host(value)
        return lambda page: is_of(host_of(page.url), host)
    if kind == "tag":
        return lambda page: value in page.tags
    if kind == "word":
        word = value.lower()
        return lambda page: word in page.text.lower()
    model = TextModel.load(Path(value))
    return lambda page: model.on_topic(page.text)
