"""Why a page is not offered: one table, which the order of pages, their counts, answers, metrics and sentences read.

A new reason is one row. Its condition is a mask of pages, or a time until which pages are held back; both take the
columns of a shard (`opic.frontier.page_keys.OrderColumns`) and page ids. `opic.frontier.page_counts` says which row
counts where several apply.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Hindrance(NamedTuple):
    """A reason not to offer a page.

    Attributes:
        kind: its kind in the metrics; "" if it holds back hosts, whose pages are counted apart.
        word: what `waiting` counts it as, and `held_back` calls it; "" if both leave it out.
        why: says of a page, by its `opic.frontier.standing.PageStanding`, why it is held back.
        about: description of the word in the API's document, given by one row of each word.
        counted: sentence about one page, and about several, without the number.
        mask: returns a mask of the pages that it holds back for as long as the columns are so; None if there are none.
        until: returns until when it holds pages back, in Unix seconds, 0 for not; None if there are none. It may change
            only for pages that are read or that an event or a seed speaks of, or the caller notes their terms again.
        flag: name of the bit of the state byte (`opic.model.cash.Flag`) that all its pages have.
        holds: whether it holds a page back, by its standing; if None, by `mask`, `until` or `flag`.
        for_good: whether waiting alone does not end it.
    """

    kind: str
    word: str
    why: Callable[[Any], str]
    about: str = ""
    counted: tuple[str, str] = ("", "")
    mask: Callable[[Any, Any], Any] | None = None
    until: Callable[[Any, Any], Any] | None = None
    flag: str = ""
    holds: Callable[[Any], bool] | None = None
    for_good: bool = False


def _refused(page: Any) -> str:
    return "" if page.refused is None else f"its event was refused: {page.refused}; "


def _failed(page: Any) -> str:
    times = "once" if page.failures == 1 else f"{page.failures} times"
    why = _refused(page) or f"its fetch failed, or its lease expired without an event, {times}; "
    return f"{why}it waits for another {page.waits_until - page.now:.1f} s"


def _read(page: Any) -> str:
    ago, wait = page.now - (page.revisit_at - page.revisit_seconds), page.revisit_at - page.now
    return f"it was read {ago:.1f} s ago; it is offered again {page.revisit_seconds:g} s after a read, in {wait:.1f} s"


def _given_up(page: Any) -> str:
    if page.silence.given_up:
        return (
            f"its host {page.host} is given up: it did not answer {page.silence.times} times in a row; an answer, or a "
            "seed of one of its pages, brings it back"
        )
    times = "its crawler said so" if page.failed_fetches is None else f"{page.failed_fetches} in a row"
    return f"it is given up after failed fetches ({times}): a successful fetch or a seed brings it back"


def _host_rests(page: Any) -> str:
    why = f"did not answer {page.silence.times} times in a row, and rests" if page.silence.until else "is delayed"
    if page.group_delays:
        why = f"is delayed with all hosts of {page.group.name}"
    return f"its host {page.host} {why} for another {page.host_free_at - page.now:.1f} s"


HINDRANCES: tuple[Hindrance, ...] = (
    Hindrance(
        kind="leased",
        word="leased",
        about="Leased to crawlers; of any mode, since their events may bring new pages.",
        counted=(
            "page is leased to a crawler: its event, or the end of its lease, frees it",
            "pages are leased to crawlers: their events, or the ends of their leases, free them",
        ),
        holds=lambda page: page.lease_until is not None,
        why=lambda page: f"{_refused(page)}it is leased to a crawler for another {page.lease_until - page.now:.1f} s",
    ),
    Hindrance(
        kind="",
        word="host_delay",
        about="Of hosts that are delayed, have too many pages in flight, or are called busy.",
        counted=(
            "page waits for its host, which was asked a moment ago, has too many pages in flight or is blocked",
            "pages wait for their hosts, which were asked a moment ago, have too many pages in flight or are blocked",
        ),
        holds=lambda page: page.host_free_at is not None,
        why=_host_rests,
    ),
    Hindrance(
        kind="",
        word="host_cap",
        holds=lambda page: bool(page.cap) and page.in_flight >= page.cap,
        why=lambda page: f"{page.in_flight} pages of its host {page.host} are in flight, {page.cap} may be",
    ),
    Hindrance(
        kind="revisit",
        word="revisit",
        about="Read less than OPIC_REVISIT_SECONDS ago.",
        counted=(
            "page was read a short time ago (OPIC_REVISIT_SECONDS)",
            "pages were read a short time ago (OPIC_REVISIT_SECONDS)",
        ),
        until=lambda pages, ids: pages.revisit_at(ids),
        why=_read,
    ),
    Hindrance(
        kind="retry",
        word="retry",
        about="In the back-off after a failed fetch or an expired lease.",
        counted=(
            "page waits after a failed fetch, or a lease that expired (OPIC_RETRY_SECONDS)",
            "pages wait after failed fetches, or leases that expired (OPIC_RETRY_SECONDS)",
        ),
        holds=lambda page: page.waits_until is not None,
        why=_failed,
    ),
    Hindrance(
        kind="not_before",
        word="not_before",
        about="Not to be offered yet, as an event or a seed said.",
        counted=(
            "page is not to be offered yet, as an event or a seed said",
            "pages are not to be offered yet, as events or seeds said",
        ),
        until=lambda pages, ids: pages.not_before(ids),
        why=lambda page: (
            f"it is not to be offered for another {page.not_before - page.now:.1f} s, as an event or seed said"
        ),
    ),
    Hindrance(
        kind="excluded",
        word="denied",
        flag="EXCLUDED",
        for_good=True,
        why=lambda _: "its site does not let crawlers read it: a read or a seed of the page ends that",
    ),
    Hindrance(
        kind="gone",
        word="",
        flag="GONE",
        why=lambda _: "the page is gone: a read, a seed or, after a while, a link brings it back",
    ),
    Hindrance(
        kind="denied",
        word="denied",
        about="Not to be fetched: 401, 403, 451, robots.txt, the scope, a rule, a trap.",
        counted=(
            "page may not be fetched: 401, 403, 451, robots.txt, a rule, or it looks like a trap",
            "pages may not be fetched: 401, 403, 451, robots.txt, a rule, or they look like traps",
        ),
        mask=lambda pages, ids: pages.ruled_out(ids),
        holds=lambda page: page.is_ruled_out and not page.is_trap,
        for_good=True,
        why=lambda page: "it is outside the crawl's scope" if page.is_outside else "a rule keeps it from being fetched",
    ),
    Hindrance(
        kind="",
        word="trap",
        holds=lambda page: page.is_trap,
        why=lambda _: "its URL looks like a crawler trap",
    ),
    Hindrance(
        kind="denied",
        word="denied",
        mask=lambda pages, ids: pages.host_full(ids),
        for_good=True,
        why=lambda page: f"{page.host_limit:,} pages of its host {page.host} may be read, and were",
    ),
    Hindrance(
        kind="given_up",
        word="given_up",
        about="After OPIC_MAX_FAILURES failures of the page or its host, or by an event.",
        counted=(
            "page is given up after failed fetches (OPIC_MAX_FAILURES)",
            "pages are given up after failed fetches (OPIC_MAX_FAILURES)",
        ),
        mask=lambda pages, ids: pages.given_up(ids),
        for_good=True,
        why=_given_up,
    ),
    Hindrance(
        kind="spent",
        word="",
        holds=lambda page: not page.is_gone and not (page.cash > 0 or (page.cash < 0 and page.was_read)),
        why=lambda _: "it has no cash: it received none since it was read",
    ),
)


def words() -> dict[str, Hindrance]:
    """Return the words that answers count pages by, each with the row that describes it."""
    return {row.word: row for row in HINDRANCES if row.about}
