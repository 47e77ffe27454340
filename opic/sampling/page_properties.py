"""Properties of pages: a name or a number of each, whose shares or mean over a topic a sample estimates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opic.errors import BadInput, instead_of
from opic.sampling.sampled_web import SampledWeb
from opic.sampling.topics import PageContent
from opic.urls.canonical import host_of, registered_domain

FORMS: Final = {
    "host": "the page's host",
    "domain": "its registered domain",
    "suffix": "what its domain is registered under, such as com or co.uk",
    "links": "the number of pages that it links to",
    "links-on-topic": "the share of its links that lead to pages of the topic",
    "meta": "meta:NAME, the value of NAME in the `meta` of its crawl event",
}
NUMBERS: Final = ("links", "links-on-topic")
TENTHS: Final = 10


@dataclass(frozen=True, slots=True)
class PageProperty:
    """A property of pages, as it was written; `name` is that of `meta`."""

    written: str
    kind: str
    name: str = ""

    @property
    def may_be_number(self) -> bool:
        """Whether it may have a mean."""
        return self.kind in (*NUMBERS, "meta")

    def value_on(self, web: SampledWeb, page: str) -> str | float | None:
        """Return the property of a page that was looked at; None if it has none.

        `links-on-topic` looks at all pages that this one links to, unless the topic is told by URLs. Those that can't
        be had don't count.
        """
        host = host_of(page)
        if self.kind == "host":
            return host
        if self.kind == "domain":
            return registered_domain(host)
        if self.kind == "suffix":
            return registered_domain(host).partition(".")[2] or host
        if self.kind == "meta":
            return web.meta_of(page, self.name)
        seen = web.load_page(page)
        links = seen.links if seen is not None else ()
        return float(len(links)) if self.kind == "links" else share_on_topic(web, links)

    def bin_of(self, value: str | float | None) -> tuple[float, str | None]:
        """Return the bin of a histogram that a value is in: its place among them, and its name."""
        if not isinstance(value, float):
            return 0.0, value
        if self.kind == "links":  # 0, 1, 2-3, 4-7 and so on.
            least = 1 << (int(value).bit_length() - 1) if value else 0
            return float(least), str(least) if least < 2 else f"{least}-{2 * least - 1}"
        tenth = min(int(value * TENTHS), TENTHS - 1)
        return float(tenth), f"{tenth / TENTHS:.1f}-{(tenth + 1) / TENTHS:.1f}"


def parse_property(written: str) -> PageProperty:
    """Return the property that was written.

    Raises:
        BadInput: it has none of the forms.

    >>> parse_property("meta:price")
    PageProperty(written='meta:price', kind='meta', name='price')
    """
    kind, colon, name = written.partition(":")
    if kind not in FORMS or bool(colon) != (kind == "meta"):
        names = "; ".join(f"{name}: {what}" for name, what in FORMS.items())
        advice = "" if kind in FORMS else f" {instead_of(kind, FORMS)}"
        raise BadInput(f"{written!r} is not a property of pages:{advice} they are {names}")
    if kind == "meta" and not name.strip():
        raise BadInput(f"{written!r} names no metadata: give meta:NAME")
    return PageProperty(written, kind, name)


def share_on_topic(web: SampledWeb, links: Sequence[str]) -> float | None:
    """Return the share of links that lead to pages of the topic; None if none can be had."""
    if web.topic.by_url:
        told = [web.topic.contains(PageContent(link)) for link in links]
    else:
        told = [seen.on_topic for seen in map(web.load_page, links) if seen is not None]
    return sum(told) / len(told) if told else None


def number_of(value: str | float | None) -> float:
    """Return a value as a finite number; NaN if it is none.

    >>> number_of("12.5"), number_of("12 EUR"), number_of("inf")
    (12.5, nan, nan)
    """
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
