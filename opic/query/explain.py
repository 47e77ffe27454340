"""Explain a page's score: the parts of its cash, its history, and the policy's formula with its numbers."""

from typing import Any

from opic.model import windows
from opic.model.cash import CLASS_BITS, MILLION, Books, Flag
from opic.model.classes import OTHERS
from opic.model.page_notes import depth_of, unpack_meta
from opic.query.queries import Query
from opic.replica.crawl import Place
from opic.urls.canonical import canonical_url


def explain(
    query: Query, url: str, policy: str | None = None, window: float | str | None = None
) -> dict[str, object] | None:
    """Explain why a page has its score.

    The page's own values are current. Its rank and the values of a window policy are as of a snapshot; the
    numbers in the formula are then those of the snapshot.

    Args:
        query: the query object of the crawl.
        url: the URL, in any form.
        policy: as in `Query.importance`.
        window: as in `Query.importance`.

    Returns:
        None for a page never seen. Otherwise:

        - the page's entry in `Query.importance`, and "known_pages", the number of pages that are ranked;
        - "cash_parts", in grains, whose sum is "cash": "deposits" (v), the cash received by links minus the cash spent
          by reads, and "credit", its grants so far. Under grants also "from_links" = deposits + history, all cash ever
          received by links; under the continuous payout it can't be told from what was paid before the page was known;
        - "history": "total", the grains that its reads spent; "reads", their number; and the last "measures" with
          clock, cash and time of fetch, oldest first;
        - "estimate": the "rule" applied; its "formula" with the "numbers" in it, in grains of cash or of the clock, as
          `opic.model.windows.reason` names them; the resulting "value"; and the total that it is a share "of":
          importance is value divided by total. Under the static policy the total is all history and cash. Under a
          window policy it is the sum of all pages' rates over a window of "window_grains"; until the policy is "warm",
          the rates are over each page's whole life. None for a gone page;
        - "class" and its "weight"; "state": unread, read or gone; its "depth", None if unknown, and its "meta"; and
          whether the page is "excluded".

    Raises:
        BadUrl: the URL is invalid.
        BadInput: the policy or the window is invalid.
    """
    canonical = canonical_url(url, query.url_bytes_max)
    return query.crawl.steadily(lambda: _explained(query, canonical, policy, window))


def _explained(
    query: Query, canonical: str, policy: str | None, window: float | str | None
) -> dict[str, object] | None:
    (entry,) = query.importance([canonical], policy, window)
    (place,), rows = query.crawl.look([canonical])
    if entry is None or place is None:
        return None
    rules = query.crawl.rules
    own, books = rows.books[place[0]], Books.merged(rows.books, rules)
    state, cash, spent = int(rows.state[0]), int(rows.cash[0]), int(rows.spent[0])
    slot, gone = state & CLASS_BITS, bool(state & Flag.GONE)
    columns = (rows.measures.clock, rows.measures.cash, rows.measures.at_us)
    credit = 0 if gone else own.credit_of(slot)
    parts = {"deposits": cash - credit, "credit": credit}
    if not rules.continuous:
        parts["from_links"] = cash - credit + spent
    names = query.class_names() if slot else {}
    clocks, fetched_at = rows.measures.clock.tolist(), rows.measures.at_us.tolist()
    found: dict[str, object] = {
        **entry,
        "cash": cash,
        "reads": int(rows.reads[0]),  # The value in `entry` may be a moment older.
        "last_read_clock": clocks[-1] if clocks else None,
        "last_fetched_at": fetched_at[-1] / MILLION if fetched_at else None,
        "known_pages": books.live,
        "cash_parts": parts,
        "history": {
            "total": spent,
            "reads": int(rows.reads[0]),
            "measures": [
                {"clock": clock, "cash": spent_then, "fetched_at": at_us / MILLION}
                for clock, spent_then, at_us in zip(*(column.tolist() for column in columns), strict=True)
            ],
        },
        "class": names.get(slot, OTHERS),
        "weight": 1 + own.extra[slot] / MILLION,
        "state": "gone" if gone else "read" if state & Flag.OPEN else "unread",
        "depth": depth_of(int(rows.nearness[0])),
        "meta": unpack_meta(query.crawl.metas_of(place[0], [place[1]])[0]),
        "excluded": bool(state & Flag.EXCLUDED),
    }
    if gone:
        return {**found, "estimate": None}
    if entry["policy"] == "static":
        overdrawn = query.snapshots.fresh().overdrawn if books.cuts else 0
        of = books.static_total(query.crawl.rules.minted, overdrawn)
        value = max(spent + cash, 0)
        estimate = {"rule": "static", "formula": "H + C", "numbers": {"H": spent, "C": cash}, "value": value, "of": of}
        return {**found, "importance": min(value / of, 1.0), "estimate": estimate}
    return {**found, "estimate": _of_window(query, entry, place)}


def _of_window(query: Query, entry: dict[str, Any], place: Place) -> dict[str, object] | None:
    policy, span = query.policy_of(entry["policy"], entry["window"])
    assert span is not None
    snapshot, view = query.snapshots.view(policy, span)
    at = int(snapshot.starts[place[0]]) + place[1]
    if at >= int(snapshot.starts[place[0] + 1]) or view.scores[at] < 0:
        return None  # The page is newer than the snapshot; for now its estimate is the static one.
    why = windows.reason(policy, view.past, view.grains, query.crawl.rules.measures_max, at)
    return {
        "rule": why.rule,
        "formula": why.formula,
        "numbers": why.numbers,
        "value": float(view.estimates[at]) * view.rates_total,
        "of": view.rates_total,
        "window_grains": view.grains,
        "warm": view.warm,
    }
