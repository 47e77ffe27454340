"""Decisions about all pages of a crawl of many shards, from the books of its shards."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from opic.model.books import BALANCE_LIMIT, Books
from opic.model.cash import CLASSES_MAX, CrawlRules, by_weight


def room_for(parts: Sequence[Books], extra: Sequence[int], rules: CrawlRules) -> bool:
    """Return whether the virtual page can pay for new weights in all shards of a crawl.

    Besides, no shard's account with it may near the end of its range.
    """
    whole = Books.merged(parts, rules)
    if not whole.reweigh(extra):
        return False
    after = [copy(part) for part in parts]
    for part in after:
        part.reweigh(extra, surely=True)
    return all(abs(part.pool) < BALANCE_LIMIT // 4 * 3 for part in after)


def same_weights(parts: Sequence[Books]) -> bool:
    """Return whether all shards have the same weights: none are on their way to a shard."""
    return len({part.extra for part in parts}) == 1


def payout_due(parts: Sequence[Books], whole: Books, rules: CrawlRules) -> int:
    """Return the grains due to every live page of a crawl of many shards, whose books merged are `whole`; 0 for none.

    Nothing is due until the last payout and the last weights have reached every shard. Cash in flight between shards
    counts as not spent yet.
    """
    if len({books.credit for books in parts}) > 1 or not same_weights(parts):
        return 0
    return replace(whole, open_cash=whole.open_cash + abs(whole.net)).due(rules)


def grants_due_of(parts: Sequence[Books]) -> int:
    """Return the grains still missing on live pages whose shard a grant has not reached yet."""
    credit = max(part.credit for part in parts)
    return sum(
        (by_weight(credit, part.extra[slot]) - part.credit_of(slot)) * part.live_of(slot)
        for part in parts
        if part.credit < credit
        for slot in range(CLASSES_MAX)
    )
