"""Redis key names of a shard.

All keys of a shard have the hash tag {crawl:shard}, so that a call touches only one slot of a cluster.
"""

import re
from typing import Final

from opic.errors import SettingsError

FORMAT: Final = "4"  # Format version of keys, journal and checkpoint. Other versions are refused.
FORMAT_NORMALIZED: Final = "4n"  # The same where URLs are normalized, which versions before would write otherwise.
CRAWL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def format_of(normalize: str) -> str:
    """Return the format version of a crawl, by the names of its normalization rules."""
    return FORMAT_NORMALIZED if normalize else FORMAT


class Keys:
    """The names of one shard's keys."""

    def __init__(self, crawl: str, shard: int) -> None:
        """Name the keys of a shard.

        Raises:
            SettingsError: the crawl's name could end the hash tag or is too long.
        """
        if not CRAWL_NAME.fullmatch(crawl):
            raise SettingsError(f"OPIC_CRAWL={crawl!r}: a crawl's name is 1 to 64 letters, digits, '_', '.' or '-'")
        self.crawl, self.shard = crawl, shard
        self.prefix = f"opic:{{{crawl}:{shard}}}:"
        self.meta = self.prefix + "meta"
        self.books = self.prefix + "books"
        self.offsets = self.prefix + "offsets"
        self.head = self.prefix + "head"
        self.journal = self.prefix + "journal"
        self.names_block = self.prefix + "b:names"
        self.log = self.prefix + "log"
        self.end = self.prefix + "end"
        self.dead = self.prefix + "dead"
        self.replayed = self.prefix + "replayed"
        self.rules = self.prefix + "rules"
        self.calls = self.prefix + "calls"
        self.call_ends = self.prefix + "callends"
        self.metrics = self.prefix + "metrics"
        self.curve = self.prefix + "curve"
        self.sent = self.prefix + "sent"
        self.seen = self.prefix + "seen"
        self.page_meta = self.prefix + "pagemeta"
        self.known_since = self.prefix + "since"
        self.urls = self.prefix + "urls"
        self.links = self.prefix + "links"  # Of an earlier version.
        self.link_segments = self.prefix + "linkseg"
        self.resume = self.prefix + "resume"
        self.leases = self.prefix + "leases"
        self.waits = self.prefix + "waits"
        self.fails = self.prefix + "fails"
        self.holders = self.prefix + "holders"
        self.refusals = self.prefix + "refusals"
        self.replays = self.prefix + "replays"
        self.hosts = self.prefix + "hosts"
        self.freed = self.prefix + "freed"
        self.renewed = self.prefix + "renewed"
        self.released = self.prefix + "released"
        self.polite = self.prefix + "polite"
        self.crawl_delays = self.prefix + "crawldelays"
        self.blocks = self.prefix + "blocks"
        self.limits = self.prefix + "limits"
        self.flights = self.prefix + "flights"
        self.flight_ends = self.prefix + "flightends"
        self.barrier = self.prefix + "barrier"
        self.local_lists = self.prefix + "local"

    def block(self, number: int) -> str:
        """Return the key of a block of the checkpoint."""
        return f"{self.prefix}b:{number}"

    def outbox(self, to: int) -> str:
        """Return the key of the outbox for another shard, a stream."""
        return f"{self.prefix}out:{to}"
