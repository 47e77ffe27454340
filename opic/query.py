"""Answers: how important a page is, which pages are at the top, how the books stand.

A single page is read from the store, so that its numbers are of this instant. What needs all pages (the top, a rank)
comes from the mirror: exact on a quiet or small store, at most a second old on a large busy one.
"""

from collections.abc import Sequence

import numpy as np

from opic import windows
from opic.cash import CLASS_BITS, MILLION, ROUND_BITS, Books, Flag
from opic.classes import OTHERS
from opic.errors import BadInput, SettingsError
from opic.mirror import Floats, Mirror, Snapshot, View, largest
from opic.series import Window
from opic.store import Shard
from opic.store.columns import Int64s, Record
from opic.store.shard import ROWS_READ_MAX
from opic.urls import URL_BYTES_MAX, canonical_host, canonical_url, host_of, shown

POLICIES = windows.POLICIES
WINDOW_ROUNDS = 8.0


class Query:
    """What can be asked of a shard."""

    def __init__(
        self,
        shard: Shard,
        mirror: Mirror,
        url_bytes_max: int = URL_BYTES_MAX,
        policy: str | None = None,
        window_rounds: float = WINDOW_ROUNDS,
    ) -> None:
        """Answer from an open shard and its mirror; `policy` and `window_rounds` are for who names none.

        Without a policy it is the one that the store's payout wants: static under grants, else interpolation.

        Raises:
            SettingsError: the store does not keep what the policy wants.
        """
        self.shard, self.mirror, self.url_bytes_max = shard, mirror, url_bytes_max
        self.policy = policy or ("interpolation" if shard.rules.continuous else "static")
        self.window_rounds = window_rounds
        try:
            windows.check_measures(self.policy, shard.rules.measures_max)
        except BadInput as error:
            raise SettingsError(f"OPIC_POLICY: {error}") from None

    def as_of(self, policy: str | None = None) -> float:
        """Return a time (Unix seconds) that the state shown by a policy's answers from now on is no older than."""
        static = (self.policy if policy is None else policy) == "static"
        return (self.mirror.fresh() if static else self.mirror.picked()).as_of

    def never_seen(self, url: str) -> str:
        """Say that a page is not known."""
        return f"{canonical_url(url, self.url_bytes_max)} was never seen: neither fetched, nor linked to, nor a seed"

    def importance(
        self, urls: Sequence[str], policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object] | None]:
        """Estimate the importance of pages.

        By the policy static: (H + C) / sum of H + C over live pages, of whole numbers, rounded once, as of this
        instant; the rank is the mirror's. By a window policy: as `opic.windows` says, as of the mirror's instant,
        since all pages' measures go into each page's share. Cash and reads are of this instant either way.

        Args:
            urls: any number, in any form; 2,000 at a time are of one instant.
            policy: one of POLICIES; that of OPIC_POLICY if None.
            window: for the window policies, in rounds, or a text like "30d" or "12h", back from the last record;
                OPIC_WINDOW_ROUNDS if None. A round is the clock advancing by one grant for every live page, under the
                continuous payout by all cash; how far that was, and how far it moved in those days, `opic.series`
                knows.

        Returns:
            For each URL the entry that the public contract names, or None for a page never seen. A gone page has
            importance 0 and no rank, and its cash may be negative: it has given its grants back.

        Raises:
            BadUrl: one of the URLs can't be taken.
            BadInput: the policy or the window can't, or the store keeps too few measures for it.
        """
        policy, span = self._policy(policy, window)
        canonical = [canonical_url(url, self.url_bytes_max) for url in urls]
        distinct = list(dict.fromkeys(canonical))
        ids = {url: i for url, i in zip(distinct, self.shard.ids_of(distinct), strict=True) if i is not None}
        entries: dict[str, dict[str, object]] = {}
        snapshot = self.mirror.fresh() if ids else None
        found = list(ids.items())
        for at in range(0, len(found), ROWS_READ_MAX):
            entries |= self._entries(dict(found[at : at + ROWS_READ_MAX]), snapshot)
        if span is not None and entries:
            snapshot, view = self.mirror.view(policy, span)
            self._by_window({ids[url]: entry for url, entry in entries.items()}, snapshot, view)
            for entry in entries.values():
                entry |= {"policy": policy, "window": span.shown()}
        return [entries.get(url) for url in canonical]

    def _entries(self, ids: dict[str, int], snapshot: Snapshot | None) -> dict[str, dict[str, object]]:
        rules, rows = self.shard.rules, self.shard.rows(list(ids.values()))
        overdrawn = 0 if snapshot is None else snapshot.overdrawn
        total = max(rows.books.importance_total(rules.minted) + overdrawn, 1)
        bound = self.error_bound(rows.books)
        credits, teleport = rows.books.credits(), "weighted" if rows.books.weighted else "uniform"
        names = self.shard.class_names() if any(rows.books.known_by) else {}
        entries: dict[str, dict[str, object]] = {}
        scores: dict[str, int] = {}
        for url, v, spent, state, packed in zip(
            ids, rows.v.tolist(), rows.spent.tolist(), rows.state.tolist(), rows.records, strict=True
        ):
            if not state & Flag.KNOWN:
                continue
            gone, record = bool(state & Flag.GONE), Record.unpack(packed)
            slot = state & CLASS_BITS
            cash = v if gone else v + credits[slot]
            last = record.measures[-1] if record.measures else None
            entry = entries[url] = {
                "url": url,
                "importance": 0.0 if gone else min(max(spent + cash, 0) / total, 1.0),
                "cash": cash,
                "reads": record.reads,
                "last_read_clock": last.clock if last else None,
                "last_fetched_at": last.fetched_at_us / MILLION if last else None,
                "policy": "static",
                "window": None,
                "teleport": teleport,
            }
            if slot:
                entry["class"] = names.get(slot, OTHERS)
            if bound is not None:
                entry["error_bound"] = bound
            if gone:
                entry["gone"] = True
            else:
                scores[url] = max(spent + cash, 0)
        if snapshot is not None and scores:
            for url, rank in zip(scores, snapshot.ranks(list(scores.values())), strict=True):
                entries[url]["rank"] = rank
        return entries

    def _by_window(self, entries: dict[int, dict[str, object]], snapshot: Snapshot, view: View) -> None:
        """Put a window policy's estimates in the place of the static ones. The error bound is of those alone."""
        for page_id, entry in entries.items():
            entry.pop("error_bound", None)
            # A page that came after the mirror looked has its static estimate, which is what a young page has.
            if "gone" in entry or page_id >= len(snapshot) or view.scores[page_id] < 0:
                continue
            entry["importance"] = float(view.estimates[page_id])
            (entry["rank"],) = view.ranks([view.scores[page_id]])

    def history(self, url: str) -> dict[str, object] | None:
        """Return the last measures of a page as of this instant, oldest first, or None for a page never seen.

        A measure is a read: the clock after it, the grains it spent, when the page was fetched (Unix seconds).

        Raises:
            BadUrl: the URL can't be taken.
        """
        canonical = canonical_url(url, self.url_bytes_max)
        (page_id,) = self.shard.ids_of([canonical])
        rows = None if page_id is None else self.shard.rows([page_id])
        if rows is None or not rows.state[0] & Flag.KNOWN:
            return None
        measures = Record.unpack(rows.records[0]).measures
        found = [{"clock": m.clock, "cash": m.cash, "fetched_at": m.fetched_at_us / MILLION} for m in measures]
        return {"url": canonical, "measures": found}

    def top(
        self, n: int = 100, domain: str | None = None, policy: str | None = None, window: float | str | None = None
    ) -> list[dict[str, object]]:
        """Return the most important live pages, descending, ties in order of first sight.

        Importance, rank and cash are of one instant, which the mirror shows; the number of reads is of now.

        Args:
            n: how many at most.
            domain: only this host or domain with all below it; ranks stay those among all pages.
            policy: as in `importance`.
            window: as in `importance`.

        Raises:
            BadInput: a parameter can't be taken.
        """
        policy, span = self._policy(policy, window)
        if n < 1:
            raise BadInput(f"n={n}: ask for at least one page")
        within = None if domain is None else canonical_host(domain)
        if span is None:
            snapshot, view = self.mirror.fresh(), None
        else:
            snapshot, view = self.mirror.view(policy, span)
        scores: Int64s | Floats = snapshot.scores if view is None else view.scores
        if within is not None:
            inside = np.zeros(int(snapshot.host.max(initial=-1)) + 1, np.bool_)
            numbers = np.array(snapshot.table.below(within), np.int64)
            inside[numbers[numbers < len(inside)]] = True
            at = np.flatnonzero(inside[snapshot.host])
            ids = at[largest(scores[at], n)]
        else:
            ids = snapshot.top(n)[:n] if view is None else largest(scores, n)
        if not len(ids):
            return []
        found = scores[ids].tolist()
        if view is None:
            total = max(snapshot.books.importance_total(self.shard.rules.minted) + snapshot.overdrawn, 1)
            shares, ranks = [min(score / total, 1.0) for score in found], snapshot.ranks(found)
        else:
            shares, ranks = found, view.ranks(found)
        urls, records = self.shard.urls_of(ids.tolist()), self.shard.rows(ids.tolist(), states=False).records
        return [
            {
                "url": urls[i],
                "importance": share,
                "rank": rank,
                "cash": cash,
                "reads": Record.unpack(record).reads,
                "host": host_of(urls[i]),
                "policy": policy,
                "window": span and span.shown(),
            }
            for i, share, rank, cash, record in zip(
                ids.tolist(), shares, ranks, snapshot.cash[ids].tolist(), records, strict=True
            )
        ]

    def stats(self) -> dict[str, object]:
        """Return the counts of this instant. `error_bound` is left out where it says nothing."""
        books = self.shard.books()
        bound = self.error_bound(books)
        return {
            "known_pages": books.live,
            "gone_pages": books.gone,
            "read_pages": books.open,
            "clock": books.clock,
            "rounds": books.rounds / (1 << ROUND_BITS),
            "reads": books.reads,
            "failures": books.failures,
            "links": books.links,
            "bad_links": books.bad_links,
            "dead_letters": books.dead_letters,
            **({} if bound is None else {"error_bound": bound}),
            "version": books.version,
            "shards": 1,
        }

    def error_bound(self, books: Books) -> float | None:
        """Return the bound on the static estimate's error, or None where it says nothing.

        So under the continuous payout; and once a weight was cut, on a store that moves faster than the mirror: what
        pages owe is in no total, and the mirror's sum of it is of another instant then.
        """
        rules, debt = self.shard.rules, 0
        if rules.continuous:
            return None
        if books.cuts:
            snapshot = self.mirror.fresh()
            if snapshot.books.version != books.version:
                return None
            debt = snapshot.debt
        bound = books.error_bound(rules.minted, rules.q, debt)
        return bound if bound < 2 else None

    def audit(self) -> dict[str, object]:
        """Recount the books: `minted = pages + virtual + in_flight`, in grains, all of one instant."""
        found = self.shard.audit()
        sums = {"pages": found.pages, "virtual": found.virtual, "in_flight": found.in_flight}
        shard = {"shard": 0, **sums, "conserved": found.conserved, "mismatches": list(found.mismatches)}
        return {"minted": found.minted, **sums, "conserved": found.conserved, "shards": [shard]}

    def _policy(self, policy: str | None, window: float | str | None) -> tuple[str, Window | None]:
        """Return the policy that is meant, and its window; static has none."""
        policy = self.policy if policy is None else policy
        if policy not in POLICIES:
            raise BadInput(f"policy={shown(policy)} is none of {', '.join(POLICIES)}")
        span = Window.parse(self.window_rounds if window is None else window)
        if policy == "static":
            return policy, None
        windows.check_measures(policy, self.shard.rules.measures_max)
        return policy, span
