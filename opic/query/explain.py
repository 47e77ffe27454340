"""Why a page has its score: its cash by its parts, its history, and the formula of the policy with its numbers."""

from typing import Any

from opic.model import windows
from opic.model.cash import CLASS_BITS, MILLION, Books, Flag
from opic.model.classes import OTHERS
from opic.query.queries import Query
from opic.replica.crawl import Place
from opic.urls.canonical import canonical_url


def explain(
    query: Query, url: str, policy: str | None = None, window: float | str | None = None
) -> dict[str, object] | None:
    """Say why a page has its score.

    What the store has of the page is of this instant; a rank, and what a window policy says, of the mirror's, whose
    numbers are then those of the formula.

    Args:
        query: of the crawl.
        url: in any form.
        policy: as in `Query.importance`.
        window: as there.

    Returns:
        None for a page never seen, else

        - what `Query.importance` says of the page, with "known_pages", among which it has its rank;
        - "cash_parts", in grains, whose sum is "cash": "deposits", v, what links brought less what its reads spent,
          and "credit", its grants so far. Under grants also "from_links" = deposits + history, all that links ever
          brought; under the continuous payout that can't be told from what was paid before the page was known;
        - "history": grains that its reads spent in "total", how many "reads", and the last "measures" with their
          clock, cash and time of fetch, oldest first;
        - "estimate": the "rule" that spoke, its "formula" with the "numbers" in it, grains of cash or of the clock, as
          `opic.model.windows.reason` names them; the "value" that comes out, and what it is a share "of": importance is
          one over the other. Static: all history and cash. A window policy: the sum of all pages' rates, by a window of
          "window_grains"; while it is not "warm" it answers by whole life. None for a gone page;
        - "class" and its "weight"; "state": unread, read or gone; and whether it is "excluded".

    Raises:
        BadUrl: the URL can't be taken.
        BadInput: the policy or the window can't.
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
        "reads": int(rows.reads[0]),  # The entry may be of a moment before.
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
        "excluded": bool(state & Flag.EXCLUDED),
    }
    if gone:
        return {**found, "estimate": None}
    if entry["policy"] == "static":
        overdrawn = query.mirror.fresh().overdrawn if books.cuts else 0
        of = max(books.importance_total(query.crawl.rules.minted) + overdrawn, 1)
        value = max(spent + cash, 0)
        estimate = {"rule": "static", "formula": "H + C", "numbers": {"H": spent, "C": cash}, "value": value, "of": of}
        return {**found, "importance": min(value / of, 1.0), "estimate": estimate}
    return {**found, "estimate": _of_window(query, entry, place)}


def _of_window(query: Query, entry: dict[str, Any], place: Place) -> dict[str, object] | None:
    policy, span = query.policy_of(entry["policy"], entry["window"])
    assert span is not None
    snapshot, view = query.mirror.view(policy, span)
    at = int(snapshot.starts[place[0]]) + place[1]
    if at >= int(snapshot.starts[place[0] + 1]) or view.scores[at] < 0:
        return None  # Known since the mirror looked: its estimate is the static one for the moment.
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
