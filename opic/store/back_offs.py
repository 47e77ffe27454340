"""How many pages a shard remembers with their back-off and their failures in a row; see back_offs.lua."""

from typing import Final

RETRY_BYTES: Final = 64 << 20  # Memory for them, of all shards of a crawl.
WAIT_BYTES: Final = 250  # Of the server, for one page: 145 to 175, and 56 to 75 more if its last lease expired.


def waits_max(retry_bytes: int, shards: int) -> int:
    """Return the number of pages of one shard that fit into the memory for all shards.

    >>> waits_max(64 << 20, 16)
    16777
    """
    return max(1, retry_bytes // WAIT_BYTES // shards)


WAITS_MAX: Final = waits_max(RETRY_BYTES, 1)
