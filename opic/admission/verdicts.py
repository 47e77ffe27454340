"""The verdicts of rules and trap detection on a shard's pages, one byte each.

When rules change, every page is judged again, in the order in which the pages became known. Until its turn, or until
it is chosen, a page keeps its former verdict: so a change costs no call more than a few pages, and a denied page that
stays denied never comes back into the order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from opic.arrays import Bools, Int64s, Uint8s, grown, values_at
from opic.replica import Crawl
from opic.replica.checkpoint import URLS_A_FIELD
from opic.urls.rules import RuleBook
from opic.urls.traps import Shapes, Traps, Verdict

URLS_AT_ONCE: Final = URLS_A_FIELD  # Judging this many takes 1 to 2 ms.
JUDGED: Final = np.uint8(0x80)  # Marks a verdict by the present rules,
VERDICT: Final = np.uint8(0x7F)  # which the other bits are: 0 for a page that was never judged.
DENIED: Final = np.uint8(Verdict.DENIED)
TERMS_MAX: Final = 1 << 15  # With more revisit times, of former rules too, those of no page are forgotten.
NONE: Final = np.empty(0, np.int64)
OUTSIDE: Final = np.uint8(Verdict.OUTSIDE)


class HostTerms(NamedTuple):
    """What is asked of the URLs of a host."""

    inside: tuple[str, ...]  # How those in the crawl's scope begin.
    rules: Sequence[int]  # The numbers of the rules that may match.


TermsOf = Callable[[int], HostTerms]  # Takes the number of a host.


class Verdicts:
    """The verdicts on a shard's pages, by id. Only one thread at a time may judge; any thread may read verdicts."""

    def __init__(
        self, crawl: Crawl, shard: int, book: RuleBook, traps: Traps, year: int, *, scoped: bool = False
    ) -> None:
        """Start with no verdict; `scoped`: the crawl has a scope."""
        self._scoped = scoped
        self._crawl, self._shard, self._replica = crawl, shard, crawl.replicas[shard]
        self._of_page = np.zeros(0, np.uint8)
        # The revisit time that a rule sets for each page, as an index; empty if no rule ever set one.
        self._term_of_page = np.zeros(0, np.uint16)
        self._terms = np.array([np.nan])
        self._retold = 0  # Number of pages with a verdict by former rules when the rules last changed.
        self.turn(book, traps, year)

    def turn(self, book: RuleBook, traps: Traps, year: int) -> None:
        """Judge all pages anew, by other rules; until then they keep their verdicts."""
        self._book, self._traps, self._shapes = book, traps, Shapes(traps, year)
        if len(self._terms) > TERMS_MAX:
            used = np.bincount(self._term_of_page, minlength=len(self._terms)) > 0
            used[0] = True
            self._term_of_page = (np.cumsum(used) - 1).astype(np.uint16)[self._term_of_page]
            self._terms = self._terms[used]
        asked = {rule.revisit_seconds for rule in book.rules if rule.revisit_seconds is not None}
        self._terms = np.append(self._terms, sorted(asked - set(self._terms.tolist())))
        self._term_of = {seconds: index for index, seconds in enumerate(self._terms.tolist())}
        self._revisiting = bool(asked) or len(self._term_of_page) > 0
        self._retold = min(len(self._of_page), len(self._replica))
        self.pages = 0  # Number of pages judged in order so far.
        self._of_page &= VERDICT

    @property
    def turning(self) -> bool:
        """Whether pages have a verdict by former rules."""
        return self.pages < self._retold

    @property
    def behind(self) -> bool:
        """Whether there are pages whose turn has not come."""
        return self.pages < self._replica.pages

    def verdicts_of(self, ids: Int64s) -> Uint8s:
        """Return the verdicts on pages, those by former rules included; 0 for pages never judged."""
        return values_at(self._of_page, ids, 0) & VERDICT

    def shut(self, ids: Int64s) -> Bools:
        """Return a mask of the pages that must not be offered; pages never judged are not among them."""
        shut: Bools = (values_at(self._of_page, ids, 0) & VERDICT) >= DENIED
        return shut

    def revisit_seconds(self, ids: Int64s) -> Any:
        """Return the revisit times that rules set for pages, NaN where none does; None if no rule sets any."""
        column, terms = self._term_of_page, self._terms
        return terms[values_at(column, ids, 0)] if len(column) else None

    def outside(self) -> int:
        """Count the pages outside the scope, as far as judged."""
        return int(np.count_nonzero((self._of_page & VERDICT) == OUTSIDE)) if self._scoped else 0

    def all(self, pages: int) -> Uint8s:
        """Return the verdicts on the first `pages` pages."""
        verdicts, known = np.zeros(pages, np.uint8), self._of_page[:pages]
        verdicts[: len(known)] = known & VERDICT
        return verdicts

    def go_on(self, terms_of: TermsOf) -> Int64s:
        """Judge the next pages, at most URLS_AT_ONCE; return those whose verdict or revisit time changed."""
        pages = len(self._replica)
        if self.pages >= pages:
            return NONE
        first, last = self.pages, min(pages, (self.pages // URLS_AT_ONCE + 1) * URLS_AT_ONCE)
        by_page = zip(range(first, last), self._crawl.urls_in(self._shard, range(first, last)), strict=True)
        self.pages = last
        return self.judge(dict(by_page), terms_of, in_turn=True)

    def unjudged(self, ids: Int64s) -> list[int]:
        """Return those pages that have no verdict by the present rules."""
        pages: list[int] = ids[values_at(self._of_page, ids, 0) < JUDGED].tolist()
        return pages

    def judge(self, by_page: Mapping[int, str], terms_of: TermsOf, *, in_turn: bool = False) -> Int64s:
        """Judge pages by their URLs, whose dates count only in turn; return what `go_on` does.

        Forgotten pages have no URL, and get no verdict: those that are known again are judged when they are chosen.
        """
        known = {page: url for page, url in by_page.items() if url}
        if not known:
            return NONE
        ids, urls, shapes = np.array(list(known), np.int64), list(known.values()), self._shapes
        if not self._traps.on:
            said = bytearray(len(urls))
        else:
            said = shapes.judge_all(urls) if in_turn else bytearray(shapes.judge(url, count=False) for url in urls)
        return self._note(urls, ids, said, terms_of)

    def _note(self, urls: Sequence[str], ids: Int64s, said: bytearray, terms_of: TermsOf) -> Int64s:
        """Note what the shapes of URLs said, unless the scope or a rule decides; return what `go_on` does."""
        book, terms = self._book, np.zeros(len(ids), np.uint16)
        if book.rules or self._scoped:
            hosts = (self._replica.columns.host[ids].astype(np.int64) * len(self._crawl) + self._shard).tolist()
            for index, (url, host) in enumerate(zip(urls, hosts, strict=True)):
                inside, among = terms_of(host)
                if not url.startswith(inside):
                    said[index] = Verdict.OUTSIDE
                elif among and (number := book.first(url, among)) is not None:
                    rule = book.rules[number]
                    said[index] = Verdict.ALLOWED if rule.effect == "allow" else Verdict.DENIED
                    if rule.revisit_seconds is not None:
                        terms[index] = self._term_of[rule.revisit_seconds]
        verdicts = np.frombuffer(said, np.uint8)
        changed = self.shut(ids) != (verdicts >= DENIED)
        # A column that grows is a new array. Other threads may still read the old one; they hear of the change later.
        pages = int(ids.max()) + 1
        if self._revisiting:
            if pages > len(self._term_of_page):
                self._term_of_page = grown(self._term_of_page, max(pages, len(self._replica)))
            changed |= self._term_of_page[ids] != terms
            self._term_of_page[ids] = terms
        if pages > len(self._of_page):
            self._of_page = grown(self._of_page, max(pages, len(self._replica)))
        self._of_page[ids] = verdicts | JUDGED
        changed_ids: Int64s = ids[changed]
        return changed_ids
