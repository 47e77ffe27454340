"""Explain a page's score: the parts of its cash, its history, and the policy's formula with its numbers."""

from math import isnan

from opic.model import windows
from opic.model.books import Books
from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.model.classes import OTHERS
from opic.model.page_notes import depth_of, unpack_meta
from opic.query.exact_view import ExactView
from opic.query.loaded import LOADED, LoadedView
from opic.query.page_entries import EXACT, measures_of, times_of, use_exact, use_window
from opic.query.queries import Query
from opic.query.rankings import Ranking, WindowView
from opic.query.snapshots import Snapshot
from opic.replica.crawl import Place, Rows


def explain(
    query: Query, url: str, policy: str | None = None, window: float | str | None = None
) -> dict[str, object] | None:
    """Explain why a page has its score.

    The page's own values are current. Its rank and the values of a window policy are as of a snapshot, and its exact
    importance, its rank by that and whether it is gone as of one state of the crawl; so are the numbers in the formula.

    Args:
        url: the URL, in any form.
        policy: as in `Query.importance`.
        window: as in `Query.importance`.

    Returns:
        None for a page never seen. Otherwise:

        - "as_of", a time (Unix seconds) that no value is older than;
        - the page's entry in `Query.importance`, and "known_pages", the number of pages that are ranked;
        - "cash_parts", in grains, whose sum is "cash": "deposits" (v), the cash received by links minus the cash spent
          by reads, and "credit", its grants so far. Under grants also "from_links" = deposits + history, all cash ever
          received by links; under the continuous payout it can't be told from what was paid before the page was known;
        - "history": "total", the grains that its reads spent; "reads", their number; and the last "measures" with
          clock, cash and time of fetch, oldest first;
        - "estimate": the "rule" applied; its "formula" with the "numbers" in it, in grains of cash or of the clock, as
          `opic.model.windows.reason` names them; the resulting "value"; and the total that it is a share "of":
          importance is value divided by total. Under the static policy the total is all history and cash; under the
          exact one the value is the visits counted at the page, and those not moved on yet. Under a
          window policy it is the sum of all pages' rates over a window of "window_grains"; until the policy is "warm",
          the rates are over each page's whole life. None for a gone page;
        - "class" and its "weight"; "state": unread, read or gone; its "depth", None if unknown, and its "meta"; and
          whether the page is "excluded".

    Raises:
        BadUrl: the URL is invalid.
        BadInput: the policy or the window is invalid.
    """
    canonical = query.canonical(url)

    def ask(named: str | None) -> dict[str, object] | None:
        return query.crawl.steadily(lambda: _explained(query, canonical, named, window))

    return query.answered(policy, ask)


def _explained(
    query: Query, canonical: str, policy: str | None, window: float | str | None
) -> dict[str, object] | None:
    policy, span = query.policy_of(policy, window)
    exact = query.exact_view() if policy == EXACT else None  # First: the answer is as of its state.
    (shard_page,), rows = query.crawl.find_rows([canonical])
    if shard_page is None:
        return None
    ranking = query.snapshots.ranking_of(rows)
    entry = query.entries({canonical: shard_page}, rows, ranking)[canonical]
    estimate: dict[str, object] | None = _static(query, rows, ranking)
    times = [time for time in times_of(rows, ranking) if time is not None]
    if exact is not None:
        use_exact({shard_page: entry}, exact, query.crawl.loads)
        estimate = _exact(exact, shard_page)
        times.append(exact.as_of)
    if span is not None:
        snapshot, view = query.snapshots.view(policy, span)
        entry |= {"policy": policy, "window": span.shown()}
        use_window({shard_page: entry}, snapshot, view)
        estimate = _of_view(query, policy, snapshot, view, shard_page) or estimate
        times.append(snapshot.as_of)
    parts = _parts(query, rows, shard_page)
    return {"as_of": min(times), **entry, **parts, "estimate": None if "gone" in entry else estimate}


def _parts(query: Query, rows: Rows, shard_page: Place) -> dict[str, object]:
    """Return what is explained in the same way under every policy: cash, history, class and state."""
    rules, own = query.crawl.rules, rows.books[shard_page[0]]
    state, cash, spent = int(rows.state[0]), int(rows.cash[0]), int(rows.spent[0])
    slot, gone = state & CLASS_BITS, bool(state & Flag.GONE)
    credit = 0 if gone else own.credit_of(slot)
    parts = {"deposits": cash - credit, "credit": credit}
    if not rules.continuous:
        parts["from_links"] = cash - credit + spent
    return {
        "known_pages": Books.merged(rows.books, rules).live,
        "cash_parts": parts,
        "history": {"total": spent, "reads": int(rows.reads[0]), "measures": measures_of(rows)},
        "class": query.class_names().get(slot, OTHERS) if slot else OTHERS,
        "weight": 1 + own.extra[slot] / MILLION,
        "state": "gone" if gone else "read" if state & Flag.OPEN else "unread",
        "depth": depth_of(int(rows.nearness[0])),
        "meta": unpack_meta(query.crawl.metas_of(shard_page[0], [shard_page[1]])[0]),
        "excluded": bool(state & Flag.EXCLUDED),
    }


def _static(query: Query, rows: Rows, ranking: Ranking) -> dict[str, object]:
    rules, spent, cash = query.crawl.rules, int(rows.spent[0]), int(rows.cash[0])
    total = Books.merged(rows.books, rules).static_total(rules.minted, ranking.overdrawn)
    numbers = {"H": spent, "C": cash}
    return {"rule": "static", "formula": "H + C", "numbers": numbers, "value": max(spent + cash, 0), "of": total}


def _exact(exact: ExactView, shard_page: Place) -> dict[str, object]:
    moved, unmoved = exact.visits_of(shard_page)
    numbers = {"h": moved, "r": unmoved}
    return {"rule": EXACT, "formula": "h + r", "numbers": numbers, "value": moved + unmoved, "of": exact.visits}


def _of_view(
    query: Query, policy: str, snapshot: Snapshot, view: WindowView | LoadedView, shard_page: Place
) -> dict[str, object] | None:
    """Return the estimate by a view; None where it is the static one: of a page newer than the snapshot or the load."""
    position = int(snapshot.starts[shard_page[0]]) + shard_page[1]
    if position >= int(snapshot.starts[shard_page[0] + 1]) or view.scores[position] < 0:
        return None
    if isinstance(view, LoadedView):
        number = float(view.numbers[position])
        numbers = {"x": number, "s": view.scale}
        terms = {"rule": LOADED, "formula": "x * s", "numbers": numbers, "value": number * view.scale, "of": 1.0}
        return None if isnan(number) else terms
    why = windows.reason(policy, view.past, view.grains, query.crawl.rules.measures_max, position)
    return {
        "rule": why.rule,
        "formula": why.formula,
        "numbers": why.numbers,
        "value": float(view.estimates[position]) * view.rates_total,
        "of": view.rates_total,
        "window_grains": view.grains,
        "warm": view.warm,
    }
