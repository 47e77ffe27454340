"""Page look-up for a batch of events: resolves all its URLs and links to page ids at once.

A string that equals a known page's URL is found by its fingerprint, without parsing. Other strings are converted to
canonical form. New pages get the next ids, in the order in which the log first names them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, Uint64s, distinct
from opic.model.cash import CrawlRules, Flag
from opic.model.events import CheckedEvent, EventLimits, Outcome
from opic.model.transfer import NO_NUMBERS
from opic.replica.fingerprints import Fingerprints
from opic.replica.host_limit import REFUSED, HostPageCounts, NewPages, refuse_links
from opic.replica.index import in_order
from opic.replica.remote_pages import FAR, RemotePages
from opic.replica.replica import Replica
from opic.replica.shown_links import ShownLinks

BAD_LINK: Final = -2  # Instead of an id: the string is not the URL of a page.
UNKNOWN: Final = -1
ID_BITS: Final = 40  # Ids of a shard are smaller; the bits above hold an event's position in its batch.
ID_MASK: Final = (1 << ID_BITS) - 1


class Context(Protocol):
    """What a batch needs from its caller, the shard writer."""

    replica: Replica
    rules: CrawlRules
    limits: EventLimits
    shards: int
    far: RemotePages
    fingerprints: Fingerprints
    host_pages: HostPageCounts
    keep_links: bool | None  # Whether the shard is to keep links even if no page is trusted; None: as it does now.

    @property
    def shown(self) -> ShownLinks | None:
        """What pages showed last; None if nobody wants to know which links are new."""

    def urls_of(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the URLs of known pages."""

    def marks(self, pages: int) -> NDArray[np.bool_]:
        """Return a reusable array of `pages` flags, all False; the caller must reset the flags that it sets."""


class PageLookup:
    """The pages, seeds and links of a batch. Attributes:

    own             per event: the id of its page, BAD_LINK if it has none
    seeds           by position of the event: the ids of the pages that a record of seeds names
    links           per event: distinct ids of other pages of this shard, increasing; concatenated, shape (links,)
    event_of        per link: the position of its event
    edges           per event: the start of its links in `links`; then the end of the last
    across          per link: whether it comes from another registered domain
    far_links       per event: numbers of pages in other shards; empty with one shard
    far_edges       per event: the start of its digests in `packed_far`; then the end of the last
    packed_far      per event: the digests of `far_links`, increasing, eight bytes each; concatenated
    order           by position of an event that brings deposits: the order of its URLs by increasing id
    bad_links       per event: how many of its links are not URLs of pages
    refused         by position of the event: how many of its links lead to pages that are not known, on full hosts
    forgotten       the ids of the pages that are to be forgotten
    again           by id of a page that was forgotten: its URL, as it would be known again
    first, new_*    the id of the first new page; URLs, fingerprints and hosts of new pages; number of them per event
    """

    def __init__(self, context: Context, events: Sequence[CheckedEvent], repeats: Sequence[bool]) -> None:
        """Look up the pages of all events, except those that repeat another event."""
        self.context = context
        self._resolve(events, repeats)
        self._gather(events, repeats)

    def _resolve(self, events: Sequence[CheckedEvent], repeats: Sequence[bool]) -> None:
        """Find the ids of all URLs; new pages get the next ids, in order of first appearance."""
        raw: list[str] = []  # Each event's own URL or its seeds, and its links.
        ends: list[int] = []  # End of each event's part of `raw`.
        self.forgotten = NO_NUMBERS
        for event, repeat in zip(events, repeats, strict=True):
            if repeat:
                pass
            elif event.url:
                raw.append(event.url)
                raw += event.links
            elif event.transfer is not None:
                raw += event.transfer.urls
            elif event.outcome is Outcome.FORGET:  # It stands alone, and makes no page known.
                self.forgotten = self._to_forget(event)
            else:
                raw += event.seeds
            ends.append(len(raw))
        self.ends = np.array(ends, np.int64)
        context, replica = self.context, self.context.replica
        fingerprints = context.fingerprints.hash_strings(raw)
        self.ids = ids = replica.index.find(fingerprints)
        self.looked_up, self.new_urls = len(raw), list[str]()
        self.new_fingerprints: Uint64s = np.empty(0, np.uint64)
        self.again = dict[int, str]()
        missing = np.flatnonzero(ids < 0)
        if replica.books.forgotten:
            self._note_forgotten(ids, raw)
        self.hits = len(raw) - len(missing)
        first_seen, self.refused = np.empty(0, np.int64), dict[int, int]()
        if len(missing) and context.shards > 1:
            ids[missing] = context.far.find(fingerprints[missing], replica.shard)
            missing = missing[ids[missing] < 0]
        if len(missing):
            first_seen = self._resolve_missing(raw, fingerprints, missing)
        if context.limits.host_pages_max:
            first_seen = self._refuse_links(events, first_seen)
        self.first = replica.pages
        count = len(self.new_urls)
        event_of = np.searchsorted(self.ends, first_seen, side="right")
        self.new_by_event = np.bincount(event_of, minlength=len(events)).tolist()
        replica.columns.reserve(self.first + count + 1)
        numbers, self.host_names = replica.hosts.resolve(self.new_urls)
        # These rows lie past the known pages: only the rest of this look-up reads them.
        replica.columns.host[self.first : self.first + count] = numbers
        self.new_hosts = numbers

    def _to_forget(self, event: CheckedEvent) -> Int64s:
        """Return the ids of the pages that an event forgets."""
        replica = self.context.replica
        pages = replica.find(self.context.fingerprints.hash_strings(event.seeds))
        pages = pages[pages >= 0]
        return pages[replica.may_expire(pages)] if event.expires else pages

    def _resolve_missing(self, raw: Sequence[str], fingerprints: Uint64s, missing: Int64s) -> Int64s:
        """Find the ids of strings that do not equal a known URL; return the first position of each new page."""
        context, replica, shards = self.context, self.context.replica, self.context.shards
        once, same_as = in_order(fingerprints[missing])
        positions = missing[once]
        texts = [raw[i] for i in positions.tolist()]
        urls = replica.hosts.canonical_urls(texts, context.limits.url_bytes_max, context.limits.normalization)
        hashed, pages = fingerprints[positions], np.full(len(positions), UNKNOWN)
        rewritten = [i for i, (text, url) in enumerate(zip(texts, urls, strict=True)) if url is not text]
        if rewritten:
            bad = [i for i in rewritten if urls[i] is None]
            pages[bad] = BAD_LINK
            good = [i for i in rewritten if urls[i] is not None]
            hashed[good] = context.fingerprints.hash_strings([urls[i] or "" for i in good])
            pages[good] = known = replica.index.find(hashed[good])
            if replica.books.forgotten:
                self._note_forgotten(known, [urls[i] or "" for i in good])
        unknown = np.flatnonzero(pages == UNKNOWN)
        if shards > 1 and len(unknown):
            named = [urls[i] or "" for i in unknown.tolist()]
            pages[unknown] = context.far.resolve(named, hashed[unknown], replica.shard)
            unknown = unknown[pages[unknown] == UNKNOWN]
        new, number = (np.arange(len(unknown)),) * 2
        if rewritten:  # Two strings may have the same canonical form.
            new, number = in_order(hashed[unknown])
        pages[unknown] = replica.pages + number
        new = unknown[new]
        self.new_urls = [urls[i] or "" for i in new.tolist()]
        self.new_fingerprints = hashed[new]
        self.ids[missing] = pages[same_as]
        if shards > 1 and rewritten:
            far = np.array([i for i in rewritten if pages[i] >= FAR], np.int64)
            context.far.put(fingerprints[positions[far]], pages[far])
        return positions[new]

    def _refuse_links(self, events: Sequence[CheckedEvent], first_seen: Int64s) -> Int64s:
        """Refuse the links that lead to further pages of full hosts; return where each of the other new pages is named.

        Crawl events, and seeds, make their own pages known all the same.
        """
        replica, starts = self.context.replica, np.concatenate(([0], self.ends[:-1]))
        explicit = np.zeros(len(self.ids), np.bool_)
        for event, start, end in zip(events, starts.tolist(), self.ends.tolist(), strict=True):
            explicit[start : end if event.seeds else min(start + bool(event.url), end)] = True
        kept, first_seen, pairs = refuse_links(
            self.ids,
            explicit,
            np.searchsorted(self.ends, np.arange(len(self.ids)), side="right"),
            NewPages(replica.pages, first_seen, replica.hosts.resolve(self.new_urls)[0]),
            {page: int(replica.columns.host[page]) for page in self.again},
            self.context.host_pages.counts(),
            self.context.limits.host_pages_max,
        )
        self.new_urls = [self.new_urls[i] for i in kept.tolist()]
        self.new_fingerprints = self.new_fingerprints[kept]
        for index, _ in pairs:
            self.refused[index] = self.refused.get(index, 0) + 1
        return first_seen

    def _note_forgotten(self, ids: Int64s, urls: Sequence[str]) -> None:
        """Note the URLs of the pages that were forgotten, and are named again; -1 is no page."""
        state = np.where(ids < 0, Flag.KNOWN, self.context.replica.columns.state[ids])
        for i in np.flatnonzero((state & Flag.KNOWN) == 0).tolist():
            self.again[int(ids[i])] = urls[i]

    def _gather(self, events: Sequence[CheckedEvent], repeats: Sequence[bool]) -> None:
        """Split the ids into pages, seeds, links and deposits; remove repeated links and links of a page to itself."""
        count, ids = len(events), self.ids
        ends = self.ends
        starts = np.concatenate(([0], ends[:-1]))
        paged = np.array([bool(e.url) and not r for e, r in zip(events, repeats, strict=True)], np.bool_)
        brings = np.array([e.transfer is not None for e in events], np.bool_)
        own = np.full(count, BAD_LINK)
        own[paged] = ids[starts[paged]]
        self.own = own.tolist()
        self.seeds = {
            index: ids[starts[index] : ends[index]].tolist()
            for index in np.flatnonzero(~paged & ~brings & (ends > starts)).tolist()
        }
        event = np.repeat(np.arange(count), ends - starts)
        # The pages of a transfer are distinct. Its amounts are sorted by page id.
        self.order = {index: _order(ids[starts[index] : ends[index]]) for index in np.flatnonzero(brings).tolist()}
        linked = (paged | brings)[event]
        linked[starts[paged]] = False
        bad = linked & (ids == BAD_LINK)
        self.bad_links = np.bincount(event[bad], minlength=count).tolist()
        linked &= ~bad & (ids != REFUSED) & (ids != own[event])
        pairs = distinct(event[linked] << ID_BITS | ids[linked])
        self.far_links: list[Int64s] = []
        if self.context.shards > 1:
            away = (pairs & FAR) != 0
            far, far_events = pairs[away] & (FAR - 1), pairs[away] >> ID_BITS
            pairs = pairs[~away]
            edges = np.searchsorted(far_events, np.arange(count + 1))
            self.far_links = [far[a:b] for a, b in pairwise(edges.tolist())]
            digests = self.context.far.digest[far]
            self.far_edges, self.packed_far = (
                edges.tolist(),
                digests[np.lexsort((digests, far_events))].astype("<i8").tobytes(),
            )
        self.links, self.event_of = pairs & ID_MASK, pairs >> ID_BITS
        self.edges = np.searchsorted(self.event_of, np.arange(count + 1)).tolist()
        self.packed_links = self.links.astype("<i8").tobytes()
        if self.context.rules.inflow:
            domains = self.context.replica.hosts.domains_with(self.host_names)
            host = self.context.replica.columns.host
            own_host = host[np.where(own >= 0, own, 0)][self.event_of]
            self.across = domains[host[self.links]] != domains[own_host]


def _order(ids: Int64s) -> Int64s:
    """Return the order of ids, without those that are none."""
    order: Int64s = np.argsort(ids)
    return order[ids[order] >= 0]
