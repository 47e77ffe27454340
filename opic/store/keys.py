"""The keys of a shard: each is declared once, here: its type, what becomes of it in a backup and when a crawl is moved.

From these rows follow the names that Python and the Lua functions use, what a backup copies and a restore writes, what
a migration carries along, what is removed with a forgotten page, and the table in docs/architecture.md.

All keys of a shard have the hash tag {crawl:shard}, so that a call touches only one slot of a cluster.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, Self, overload

from opic.errors import SettingsError

FORMAT: Final = "5"  # Format version of keys, journal and checkpoint. Other versions are refused.
CRAWL_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}")  # No part of a path that clients resolve.
HASH, ZSET, SET, STREAM, STRING = "hash", "zset", "set", "stream", "string"


class Copied(Enum):
    """How a backup copies a key."""

    FILES = "in parts of the files of their own"
    AT_END = "as of the head of the copy"
    ANY_TIME = "at any time: it does not depend on records"
    OF_PAGES = "after the end, as far as its pages are known there"
    NOT = "not: it ends within minutes, or is statistics of this store; never about cash"


FILES, AT_END, ANY_TIME, OF_PAGES, NOT = Copied


class Carried(Enum):
    """How a migration to another number of shards carries a key to the new crawl."""

    MADE = "made from the pages, or from what shards know of each other"
    BY_PAGE = "each entry to the shard of its page, under the page's new number"
    BY_HOST = "each entry to the shard of its host"
    FIRST = "all entries to shard 0"
    ALL = "all entries to every shard"
    LEFT = "not: statistics, or of this store alone"


MADE, BY_PAGE, BY_HOST, FIRST, ALL, LEFT = Carried


class Key:
    """A key of a shard; an attribute of `Keys`, where it is the key's full name."""

    def __init__(
        self,
        kind: str,
        copied: Copied,
        carried: Carried,
        purpose: str,
        *,
        name: str = "",
        forgets: bool = False,
        slots: int = 0,
    ) -> None:
        """Declare a key.

        Args:
            kind: its type in Redis.
            copied: how a backup copies it.
            carried: how a migration carries it to another crawl.
            purpose: what it holds.
            name: its name; by default that of the attribute, without underscores.
            forgets: whether its members, or fields, are page ids, which are removed with a forgotten page.
            slots: these are the ids modulo this number, if it is not 0.
        """
        self.kind, self.copied, self.carried, self.purpose, self.name = kind, copied, carried, purpose, name
        self.forgets, self.slots, self._attribute = forgets, slots, ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute, self.name = attribute, self.name or attribute.replace("_", "")

    @overload
    def __get__(self, keys: None, owner: type) -> Self: ...
    @overload
    def __get__(self, keys: "Keys", owner: type) -> str: ...
    def __get__(self, keys: "Keys | None", owner: type) -> "Self | str":
        """Return the full name in a shard, which the instance keeps: it is made once, as by `cached_property`."""
        if keys is None:
            return self
        full: str = vars(keys).setdefault(self._attribute, keys.prefix + self.name)
        return full


class Keys:
    """The names of one shard's keys."""

    # The state of the pages, and what keeps it exact.
    head = Key(
        HASH, FILES, MADE, "LSN and digest of the last record; `forgot`: the last one that forgot pages, see `trim`"
    )
    journal = Key(
        STREAM, FILES, MADE, "records that not every block contains, and always the last one: `<lsn>-0`, field `r`"
    )
    any_block = Key(
        HASH, FILES, MADE, "4,080 pages as of the record in `l`; see `opic/replica/checkpoint.py`", name="b:<n>"
    )
    names_block = Key(
        HASH, FILES, MADE, "what belongs to no single page, as of the record in `l`: hosts, series", name="b:names"
    )
    books = Key(HASH, AT_END, MADE, "totals after the last record, for readers that need nothing else")
    offsets = Key(HASH, AT_END, MADE, "source/partition → next offset; `hold`: until when a backup stops deliveries")
    meta = Key(HASH, AT_END, MADE, "format version, the fixed settings of the crawl, its secret; its era: see `closed`")
    any_outbox = Key(
        STREAM, FILES, MADE, "cash sent to a shard: `1-0` .., each with the digest before it", name="out:<to>"
    )
    sent = Key(HASH, AT_END, MADE, "shard → number of entries sent to it so far")
    resume = Key(
        HASH, FILES, MADE, "source/partition → where to resume; with @shard → offset there that it is based on"
    )
    link_segments = Key(
        HASH, FILES, MADE, "links of pages as last read; see `opic/replica/stored_links.py`", name="linkseg"
    )
    # What records say of pages beside their columns.
    page_meta = Key(HASH, FILES, BY_PAGE, "page → the last metadata given for it, packed; -1 - page → its other name")
    urls = Key(HASH, FILES, MADE, "page forgotten and known again → its URL, which its block may lack", forgets=True)
    known_since = Key(HASH, ANY_TIME, MADE, "number from 0 → times, and the first page known then", name="since")
    # The log, in shard 0, and what keeps each event once.
    log = Key(STREAM, FILES, FIRST, "accepted records")
    end = Key(STRING, AT_END, FIRST, "end of the log")
    calls = Key(
        HASH,
        AT_END,
        FIRST,
        "digest of an Idempotency-Key of the last day → body's digest, terms, values appended, if packed",
    )
    call_ends = Key(ZSET, AT_END, FIRST, "digest of an Idempotency-Key → when it ends")
    seen = Key(ZSET, FILES, ALL, "call with an Idempotency-Key that took effect → time of its record, for two days")
    dead = Key(STREAM, FILES, FIRST, "dead letters")
    replayed = Key(SET, ANY_TIME, FIRST, "dead letters on Kafka that were replayed, as partition-offset; in shard 0")
    replays = Key(HASH, ANY_TIME, FIRST, "digest of a replayed archive's beginning → run, offset, records; in shard 0")
    # What pages and hosts may do, by the server's clock: microseconds in leases, renewed and flightends, else seconds.
    leases = Key(ZSET, NOT, BY_PAGE, "page → end of its lease", forgets=True)
    holders = Key(
        HASH, NOT, BY_PAGE, "leased page → start, its crawler, crawlers of earlier leases without event", forgets=True
    )
    renewed = Key(
        ZSET, NOT, BY_PAGE, "page-end of a lease as it was granted → its present end; its token stays the same"
    )
    waits = Key(ZSET, OF_PAGES, BY_PAGE, "page in back-off → when it may be offered again", forgets=True)
    fails = Key(HASH, OF_PAGES, BY_PAGE, "page → failed fetches in a row", forgets=True)
    refusals = Key(
        HASH, NOT, BY_PAGE, "page modulo 10,000 → why the event of its lease was refused", forgets=True, slots=10_000
    )
    hosts = Key(ZSET, NOT, BY_HOST, "host → when its next page may be leased")
    flights = Key(HASH, NOT, BY_HOST, "host with a cap → its leased pages, with the ends of their leases")
    flight_ends = Key(ZSET, NOT, BY_HOST, "host in `flights` → the last of those ends")
    changes = Key(
        STREAM, NOT, LEFT, "what the last 2,000 calls changed of pages and hosts; see `tell` in back_offs.lua"
    )
    polite = Key(
        HASH, ANY_TIME, BY_HOST, "host → `delay cap` or `delay cap revisit` of an operator; `-` is the default"
    )
    crawl_delays = Key(HASH, ANY_TIME, BY_HOST, "host → delay from its robots.txt")
    blocks = Key(HASH, ANY_TIME, BY_HOST, "host → when its next page may be leased, as a crawler or an operator said")
    limits = Key(HASH, ANY_TIME, BY_HOST, "host → how many of its pages may be read; endpoints count them")
    addresses = Key(HASH, ANY_TIME, BY_HOST, "host → the address that an event reported last; see `OPIC_POLITENESS_BY`")
    group_times = Key(
        ZSET, NOT, BY_HOST, "politeness group of hosts, of any shard → when the next page of one of them may be leased"
    )
    # The rest.
    rules = Key(HASH, ANY_TIME, FIRST, "URL rules and trap thresholds, and their version; in shard 0")
    local_lists = Key(
        HASH, FILES, FIRST, "domain → its last ranked list; `=domain` → its counts; in shard 0", name="local"
    )
    loaded = Key(
        HASH, ANY_TIME, MADE, "importance that another engine computed, by blocks of pages; `about` in shard 0: of when"
    )
    curve = Key(HASH, ANY_TIME, FIRST, "the error bound at each sixteenth of a doubling of the rounds; in shard 0")
    progress = Key(HASH, ANY_TIME, FIRST, "the counts of pages at the same points; in shard 0")
    metrics = Key(
        HASH, NOT, LEFT, "what workers' steps took; bytes of metadata; what was dropped of it and of dead letters"
    )
    expiring = Key(STRING, NOT, LEFT, "the endpoint that forgets pages by the rule now; expires; in shard 0")
    barrier = Key(STRING, NOT, LEFT, "written before waiting for replicas")
    former = Key(
        HASH, NOT, LEFT, "lease of the crawl that was moved to this one → the same lease here; expires; in shard 0"
    )
    drain = Key(
        STRING, NOT, LEFT, "while it is there, no more records take effect: a migration waits; expires; in shard 0"
    )
    copied = Key(
        STRING, NOT, LEFT, "the last record that a running backup has copied: no later one is trimmed; expires"
    )

    def __init__(self, crawl: str, shard: int) -> None:
        """Name the keys of a shard.

        Raises:
            SettingsError: the crawl's name could end the hash tag or is too long.
        """
        if not CRAWL_NAME.fullmatch(crawl):
            raise SettingsError(f"OPIC_CRAWL={crawl!r}: a crawl's name is 1 to 64 letters, digits, '_', '.' or '-'")
        self.crawl, self.shard = crawl, shard
        self.prefix = f"opic:{{{crawl}:{shard}}}:"

    def names(self) -> list[str]:
        """Return the names of all keys that a shard has once at most."""
        return [self.prefix + key.name for key in KEYS if "<" not in key.name]

    def of_pages(self) -> list[str]:
        """Return the keys of which a forgotten page is removed."""
        return [self.prefix + key.name for key in KEYS if key.forgets]

    def block(self, number: int) -> str:
        """Return the key of a block of the checkpoint."""
        return f"{self.prefix}b:{number}"

    def outbox(self, to: int) -> str:
        """Return the key of the outbox for another shard, a stream."""
        return f"{self.prefix}out:{to}"


KEYS: Final = tuple(key for key in vars(Keys).values() if isinstance(key, Key))


def copied_as(how: Copied) -> list[Key]:
    """Return the keys that a backup copies in one way."""
    return [key for key in KEYS if key.copied is how]


def of_call(function: str, names: Iterable[str], *arguments: Any) -> list[Any]:
    """Return a call of a function of the library. Lua finds the keys by their names, in any order."""
    keys = list(names)
    return ["FCALL", f"opic_{FORMAT}_{function}", len(keys), *keys, *arguments]


def lua_tables() -> str:
    """Return what the functions know of the keys of pages: how a page is removed, and its number there, if modulo."""
    rows = [f"{key.name} = {{'{'ZREM' if key.kind == ZSET else 'HDEL'}', {key.slots}}}" for key in KEYS if key.forgets]
    return f"local OF_PAGES = {{{', '.join(rows)}}}"
