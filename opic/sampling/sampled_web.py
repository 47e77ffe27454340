"""The web as a walk of URLs sees it: pages from a recorded crawl or over HTTP, in-links as far as they are known."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from opic.client import Conflict
from opic.errors import BadEvent, OpicError
from opic.graph.focused_walk import SeenPage
from opic.local.crawl_pages import fetched_page, other_name
from opic.local.fetcher import Fetcher
from opic.local.service_view import ServiceView
from opic.model.events import CrawlEvent, EventLimits, Outcome
from opic.sampling.topics import PageContent, Topic
from opic.urls.canonical import host_of

Inlinks = Callable[[str], Sequence[str]]  # From a page to those known to link to it.

REDIRECTS_MAX: Final = 5
NO_LINKS: Final = (
    "the service keeps no links (OPIC_KEEP_LINKS=off at its workers), so in-links are known only from --crawl and from "
    "visited pages"
)


class RecordedPage(CrawlEvent, forbid_unknown_fields=True):
    """A crawl event with what the page says. Only files for samples have these fields; a service refuses them."""

    title: str = ""
    text: str = ""


def decode_recorded_page(line: bytes) -> RecordedPage:
    """Decode a line of a recorded crawl: a crawl event, with `title` and `text` if it has them.

    Raises:
        BadEvent: not decodable, or a field is missing, unknown or of the wrong type.
    """
    try:
        return msgspec.json.decode(line, type=RecordedPage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvent(f"not a crawl event, with title and text if it has them: {error}") from None


def content_of(event: CrawlEvent, text: str = "") -> PageContent:
    """Return what a topic may look at of a page whose event has its canonical URL; a RecordedPage has its own text."""
    if isinstance(event, RecordedPage):
        text = f"{event.title} {event.text}".strip()
    return PageContent(event.url, event.tags, text)


class FetchesSpent(OpicError):
    """As many pages were fetched as were asked for; what was sampled so far is good."""


def recorded_inlinks(events: Iterable[CrawlEvent], limits: EventLimits) -> Inlinks:
    """Return which pages link to a page, as far as recorded crawl events say; the last event of a page wins.

    Links to a page that moved are links to the new place. Bad events are left out.
    """
    links: dict[str, Sequence[str]] = {}
    moved: dict[str, str] = {}
    for event in events:
        try:
            page = fetched_page(event, limits)
        except BadEvent:
            continue
        links.pop(page.url, None)
        moved.pop(page.url, None)
        if page.outcome is Outcome.READ and event.status >= 300:
            moved[page.url] = page.links[0] if page.links else page.url
        elif page.outcome is Outcome.READ:
            links[page.url] = page.links
    sources: dict[str, list[str]] = {}
    for source, targets in links.items():
        for target in {_resolved(target, moved): None for target in targets}:
            sources.setdefault(target, []).append(source)
    return lambda url: sources.get(url, ())


def _resolved(url: str, moved: Mapping[str, str]) -> str:
    for _ in range(REDIRECTS_MAX):
        if (target := moved.get(url)) is None:
            break
        url = target
    return url


class ServiceInlinks:
    """The in-links that recorded events say, then those that a service knows. An answer holds for the whole walk."""

    def __init__(self, known: Inlinks, service: ServiceView, told: Callable[[str], object]) -> None:
        """Ask nothing yet.

        Args:
            known: what events say.
            service: is asked about each page once.
            told: gets a sentence, once, if the service keeps no links.
        """
        self._known, self._service, self._told = known, service, told
        self._answers: dict[str, Sequence[str]] = {}
        self._keeps = True

    def __call__(self, url: str) -> Sequence[str]:
        """Return the pages that are known to link to a page."""
        known = self._known(url)
        if url not in self._answers and self._keeps:
            try:
                sources = self._service.inlinks(url)
            except Conflict:
                self._keeps = False
                self._told(NO_LINKS)
            else:
                if sources is not None:  # If it is away, it is asked again; about a visited page never.
                    self._answers[url] = sources
        return [*known, *self._answers.get(url, ())]


class SampledWeb:
    """The pages that a walk sees. Each is fetched once; of its content, only the answers about it are kept."""

    def __init__(
        self,
        fetcher: Fetcher,
        inlinks: Inlinks,
        topic: Topic,
        wanted: Topic | None,
        *,
        limits: EventLimits,
        fetches_max: int | None = None,
        metas: Collection[str] = (),
        texts: dict[str, str] | None = None,
        took: Callable[[CrawlEvent], object] = lambda _: None,
    ) -> None:
        """Fetch nothing yet.

        Args:
            fetcher: where pages come from.
            inlinks: the in-links that are known.
            topic: that of the walk.
            wanted: the property whose share is to be estimated, if any.
            limits: of an event.
            fetches_max: number of pages after which `load_page` raises.
            metas: names in the `meta` of events whose values are kept, for `meta_of`.
            texts: where the fetcher puts the texts of pages that are no RecordedPage, by URL; taken from there.
            took: told the event of each page.
        """
        self.fetched = self.failed = 0
        self.topic = topic
        self._fetcher, self._inlinks, self._wanted = fetcher, inlinks, wanted
        self._limits, self._fetches_max, self._metas, self._took = limits, fetches_max, metas, took
        self._seen: dict[str, SeenPage[str] | None] = {}
        self._hits: dict[str, bool] = {}
        self._meta: dict[str, dict[str, str]] = {}
        self._texts = texts if texts is not None else {}

    def load_page(self, page: str) -> SeenPage[str] | None:
        """Return a page, or where it moved to; None if it can't be fetched.

        Raises:
            FetchesSpent: no more pages may be fetched.
        """
        if page not in self._seen:
            self._seen[page] = self._fetch(page, REDIRECTS_MAX)
        return self._seen[page]

    def inlinks(self, page: str) -> Sequence[str]:
        """Return the pages that are known to link to a page."""
        return self._inlinks(page)

    def host(self, page: str) -> Hashable:
        return host_of(page)

    def is_wanted(self, page: str) -> bool:
        """Tell whether a page that was looked at has the property whose share is wanted."""
        return self._hits[page]

    def meta_of(self, page: str, name: str) -> str | None:
        """Return what the event of a page that was looked at says under a name in `meta`."""
        return self._meta.get(page, {}).get(name)

    def _fetch(self, url: str, redirects: int) -> SeenPage[str] | None:
        if self.fetched == self._fetches_max:
            raise FetchesSpent(f"{self.fetched:,} pages were fetched, as many as --fetch allows,")
        events: list[CrawlEvent] = []
        self._fetcher.fetch([url], events.append, lambda: False)
        self.fetched += 1
        event = events[0]
        try:
            page = fetched_page(event, self._limits)
        except BadEvent:  # Too many tags, say.
            self.failed += 1
            return None
        self._took(event)
        if redirects and (name := other_name(event, self._limits)) is not None:
            return self._fetch(name, redirects - 1)
        if page.outcome is not Outcome.READ:
            self.failed += 1
            return None
        if event.status >= 300:
            target = page.links[0] if page.links and redirects else None
            if target is None or target == url:
                self.failed += 1
                return None
            if target not in self._seen:
                self._seen[target] = self._fetch(target, redirects - 1)
            return self._seen[target]
        content = content_of(event, self._texts.pop(url, ""))
        if self._wanted is not None:
            self._hits[page.url] = self._wanted.contains(content)
        if self._metas and event.meta:
            self._meta[page.url] = {name: event.meta[name] for name in self._metas if name in event.meta}
        return SeenPage(page.url, list(dict.fromkeys(page.links)), self.topic.contains(content))
