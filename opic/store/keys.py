"""Redis key names of a shard.

All keys of a shard have the hash tag {crawl:shard}, so that a call touches only one slot of a cluster.
"""

import re
from typing import Final

from opic.errors import SettingsError

FORMAT: Final = "5"  # Format version of keys, journal and checkpoint. Other versions are refused.
# The other keys of a shard are called as their attributes are, without underscores.
OTHER_NAMES: Final = {
    "names_block": "b:names",
    "known_since": "since",
    "link_segments": "linkseg",
    "local_lists": "local",
}
CRAWL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Keys:
    """The names of one shard's keys."""

    meta: str
    books: str
    offsets: str
    head: str
    journal: str
    names_block: str
    log: str
    end: str
    dead: str
    replayed: str
    rules: str
    calls: str
    call_ends: str
    metrics: str
    curve: str
    progress: str
    sent: str
    seen: str
    page_meta: str
    known_since: str
    urls: str
    link_segments: str
    resume: str
    leases: str
    waits: str
    fails: str
    holders: str
    refusals: str
    replays: str
    hosts: str
    freed: str
    renewed: str
    released: str
    polite: str
    crawl_delays: str
    blocks: str
    limits: str
    flights: str
    flight_ends: str
    barrier: str
    copied: str
    local_lists: str

    def __init__(self, crawl: str, shard: int) -> None:
        """Name the keys of a shard.

        Raises:
            SettingsError: the crawl's name could end the hash tag or is too long.
        """
        if not CRAWL_NAME.fullmatch(crawl):
            raise SettingsError(f"OPIC_CRAWL={crawl!r}: a crawl's name is 1 to 64 letters, digits, '_', '.' or '-'")
        self.crawl, self.shard = crawl, shard
        self.prefix = f"opic:{{{crawl}:{shard}}}:"
        for name in NAMES:
            setattr(self, name, self.prefix + OTHER_NAMES.get(name, name.replace("_", "")))

    def names(self) -> list[str]:
        """Return the names of all keys that a shard has once at most."""
        return [getattr(self, name) for name in NAMES]

    def block(self, number: int) -> str:
        """Return the key of a block of the checkpoint."""
        return f"{self.prefix}b:{number}"

    def outbox(self, to: int) -> str:
        """Return the key of the outbox for another shard, a stream."""
        return f"{self.prefix}out:{to}"


NAMES: Final = tuple(Keys.__annotations__)
