"""Refused events of leased pages, kept so that `explain` can say why such a page waits.

A refused event has no effect, so its page's lease expires as if the crawler had died. Each shard keeps reasons in a
hash of as many fields as its `Key` has slots; a page's field is its id modulo that number. An entry names the lease, so
it is ignored once the page is leased again or another event has taken effect. Nothing else depends on it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from opic.store.keys import Keys

REASON_CHARS_MAX: Final = 300

Ask = Callable[[Sequence[Sequence[Any]]], list[Any]]  # Sends commands, returns their replies.


def note_refusals(ask: Ask, refused: Iterable[tuple[Keys, int, str]]) -> None:
    """Keep why events of pages were refused, if these are leased.

    Args:
        ask: sends commands to the store.
        refused: the keys of each page's shard, the page's id, and the reason.
    """
    pages = list(refused)
    if not pages:
        return
    leases = ask([["ZSCORE", keys.leases, page] for keys, page, _ in pages])
    if commands := [
        ["HSET", keys.refusals, field_of(page), f"{page} {float(lease):.0f} {reason[:REASON_CHARS_MAX]}"]
        for (keys, page, reason), lease in zip(pages, leases, strict=True)
        if lease is not None
    ]:
        ask(commands)


def field_of(page: int) -> int:
    """Return the field of a page in the hash."""
    return page % Keys.refusals.slots


def read_refusal(stored: bytes | None, page: int) -> tuple[float, str] | None:
    """Return the end of the lease under which the page's last event was refused, in Unix seconds, and the reason."""
    if stored is None:
        return None
    refused_page, lease_us, reason = stored.decode().split(" ", 2)
    return (int(lease_us) / 1_000_000, reason) if int(refused_page) == page else None
