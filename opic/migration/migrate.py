"""Migration of a living crawl into a new one, with another number of shards or other rules.

The steps, each of which may be the last of a process:

1. The migration is noted in the crawl, with all that it needs to be repeated. The new crawl is claimed.
2. URLs and links are copied while the crawl goes on, and then those that have come since.
3. A crawl of many shards is drained, then all shards are stopped: nothing is written to them.
4. The numbers of pages and all else are copied. The new crawl still can't be opened.
5. The stop is renewed if nothing was written since, and the crawl ends: its meta names the new one. This is one write;
   before it the old crawl is whole, and after it the new one.
6. The new crawl is opened. Workers and endpoints of the old one go on with it.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from opic.arrays import Int64s
from opic.errors import BadInput, Refused, SettingsError, StoreError, StoreUnavailable
from opic.migration.entries import MovedEntries
from opic.migration.links import MovedLinks
from opic.migration.loaded import move_importance
from opic.migration.pages import MovedPages
from opic.migration.places import Places
from opic.migration.source import FOREVER_SECONDS, Source, forget_note, shards_of, stop
from opic.migration.target import Target
from opic.model.cash import FORGOTTEN, CrawlRules
from opic.model.events import LOG_PARTITION
from opic.model.page_links import PageLinks
from opic.replica.crawl import Crawl
from opic.replica.effect import Effect
from opic.replica.stored_links import read_links
from opic.service.stored_crawls import check_may_remove, remove_keys
from opic.store.connection import Client, Line, ask, store_errors
from opic.store.durability import Durability, await_durable
from opic.store.keys import CRAWL_NAME, Keys
from opic.store.library import primaries
from opic.store.recognition import move_of, noted_move
from opic.store.scan import key_names
from opic.store.server import check_server, make_ready
from opic.store.shard import Shard

TOKEN_BYTES: Final = 16
REST_SECONDS: Final = 120.0
PAGES_A_READ: Final = 20_000
STOPS_MAX: Final = 5
ROUNDS: Final = 2

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Migration:
    """What a migration is to do, as its note keeps it."""

    to: str  # Name of the new crawl.
    store: str = ""  # The store of the new crawl, without its password; "" for the same store.
    changes: Mapping[str, int | bool | str] = field(default_factory=dict)  # By name, rules that `new_rules` takes.
    token: str = field(default_factory=lambda: secrets.token_hex(TOKEN_BYTES))
    began: float = field(default_factory=time.time)

    @property
    def moved(self) -> str:
        """What the old crawl says of where it went."""
        return f"{self.to} {self.store}".strip()


@dataclass(slots=True)
class Report:
    """What a migration did."""

    to: str
    shards: int
    pages: int = 0
    links_left_out: int = 0
    stopped_seconds: float = 0.0  # How long the crawl took no writes.
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)  # What follows from changed rules.


def check_name(client: Client, to: str) -> None:
    """Check that a new crawl may have this name.

    Raises:
        SettingsError: it is not a name.
        BadInput: the store has such a crawl.
    """
    if not CRAWL_NAME.fullmatch(to):
        raise SettingsError(f"{to!r} is no name of a crawl: use 1 to 64 letters, digits, '_', '.' or '-'")
    if key_names(client, f"opic:{{{to}:*"):
        raise BadInput(
            f"the store already has a crawl named {to!r}: choose another name, or delete it with `opic crawls --delete "
            f"{to}`"
        )


def new_rules(crawl: Crawl, changes: Mapping[str, int | bool | str]) -> tuple[CrawlRules, int, list[str]]:
    """Return the rules and the number of shards of the new crawl, and what follows from the changes, in words.

    Raises:
        SettingsError: a rule can't be changed.
    """
    before, given, notes = crawl.rules, dict(changes), []
    if before.continuous:
        raise SettingsError("a crawl with OPIC_VIRTUAL=continuous can't be migrated: replay its log into a new crawl")
    shards = int(given.pop("shards", len(crawl)))
    rules = replace(before, **given)  # type: ignore[arg-type]
    if rules.inflow and not before.inflow:
        raise SettingsError(
            "OPIC_INFLOW can't be switched on: what came by earlier links is not known; replay the log into a new crawl"
        )
    if rules.q != before.q:
        notes.append(
            "the damping is another one: all history counts as misplaced in the error bound of `static`; where links "
            "are kept, `exact` is computed again"
        )
    if rules.measures_max < before.measures_max:
        notes.append(f"of each page's history the last {rules.measures_max} measures are kept")
    if shards != len(crawl) and not any(replica.trust is not None for replica in crawl.replicas):
        notes.append(
            "links are not kept: a page that is read again counts as one that shows other links, in the error bound of "
            "`static`"
        )
    return rules, shards, notes


def check_room(client: Client, crawl: Crawl, to: Client) -> None:
    """Check that the store of the new crawl has memory for a second copy.

    Raises:
        StoreUnavailable: it has not; the message says how much is needed.
    """
    names = sorted(key_names(client, f"opic:{{{crawl.shards[0].keys.crawl}:*"))
    sizes = [
        ask(client, [["MEMORY", "USAGE", name] for name in names[start : start + 500]])
        for start in range(0, len(names), 500)
    ]
    needed = sum(int(size or 0) for some in sizes for size in some)
    with store_errors():
        infos = [server.info("memory") for server in primaries(to)]
    left = sum((info["maxmemory"] or info.get("total_system_memory", 0)) - info["used_memory"] for info in infos)
    if needed > left:
        raise StoreUnavailable(
            f"the new crawl needs about {needed / 1e6:,.0f} MB of the store's memory, and {max(left, 0) / 1e6:,.0f} MB "
            "are left: raise maxmemory, or move it to another store with --to-store; nothing was changed"
        )


class Move:
    """One attempt of a migration."""

    def __init__(self, crawl: Crawl, client: Client, migration: Migration, on_progress: Progress) -> None:
        """Take the open crawl, and a client of the new crawl's store.

        Raises:
            SettingsError: a rule can't be changed.
        """
        self._crawl, self._migration, self._say = crawl, migration, on_progress
        rules, shards, notes = new_rules(crawl, migration.changes)
        self._source = Source(crawl)
        self._target = Target(client, migration.to, rules, shards, migration.token)
        self._rules, self._shards = rules, shards
        self.report = Report(migration.to, shards, notes=notes)
        self._urls: list[list[str]] = [[] for _ in crawl.shards]
        self._places = Places(crawl.replicas, shards)
        self._links = MovedLinks(self._places, self._urls)
        self._news: list[list[PageLinks]] = [[] for _ in crawl.shards]  # Links of reads since they were carried.
        self._changed: list[set[int]] = [set() for _ in crawl.shards]  # Pages that were forgotten, or came back.
        self._spared: list[set[int]] = [set() for _ in crawl.shards]  # Pages that were forgotten, and get a place.

    def run(self) -> Report:
        """Copy the crawl, and let the copy take its place.

        Raises:
            StoreError: it broke off; the old crawl is whole, and goes on.
        """
        began, token = time.monotonic(), self._migration.token
        crawl = self._crawl
        self._target.claim()
        crawl.follow()
        loads, keepings = crawl.loads, [replica.keeping for replica in crawl.replicas]
        for number, replica in enumerate(crawl.replicas):
            replica.effect_listeners.append(partial(self._note, number))
        self._spare_linked()
        # Digests of links are over ids. Where these change without kept links, each page counts as one that changed.
        kept = any(replica.trust is not None for replica in crawl.replicas)
        self._carry_pages(leave_out=kept or self._shards != len(crawl))
        if left_out := self._places.left_out:
            self.report.notes.append(
                f"the ids of {left_out:,} forgotten pages, to which no kept link leads, are given back"
            )
        self._carry_links()
        for _ in range(ROUNDS):  # What has come since: the last rounds are short.
            crawl.follow()
            self._carry_pages()
            self._carry_news()
        with self._at_rest(token) as (seen, points):
            stopped = time.monotonic()
            self._carry_pages(end=True)
            self._carry_news(end=True)
            self._write(points)
            if crawl.loads != loads or [replica.keeping for replica in crawl.replicas] != keepings:
                raise StoreUnavailable(
                    "the store restarted, or the keeping of links began or ended, during the copy: try again"
                )
            self._target.check_claimed()
            self._target.await_durable(crawl.shards[0].durability)
            self._source.end(token, seen, self._migration.moved)
            finish(crawl.shards[0], len(crawl), self._target.client, self._migration, self._shards)
            self.report.stopped_seconds = time.monotonic() - stopped
        self.report.seconds = time.monotonic() - began
        return self.report

    def _note(self, shard: int, effect: Effect) -> None:
        """Note what a record changes of what was carried already."""
        if len(links := effect.kept()):
            self._news[shard].append(links)
        self._changed[shard] |= set(effect.forgotten.tolist()) | effect.again.keys()
        self._spared[shard] |= set(effect.forgotten.tolist()) | effect.again.keys()
        for page, url in effect.again.items():
            if page < len(self._urls[shard]):
                self._urls[shard][page] = url

    @contextmanager
    def _at_rest(self, token: str) -> Iterator[tuple[list[bytes], dict[str, int]]]:
        """Stop the crawl for the block, with all shards equally far; yield what is there, and how far."""
        source = self._source
        for _ in range(STOPS_MAX):
            with ExitStack() as stack:
                if len(self._crawl) > 1:
                    self._say("waiting until all shards are equally far")
                    stack.enter_context(source.draining())
                    source.await_rest(REST_SECONDS)
                    self._crawl.follow()
                seen = stack.enter_context(source.stopped(token))
                self._say("the crawl takes no writes for a moment")
                self._crawl.follow()
                if (points := source.points()) is not None:
                    yield seen, points
                    return
            source.stop(token, 0)  # A step that was on its way came before the stop.
        raise StoreUnavailable("the shards were never equally far when the crawl was stopped: try again")

    def _spare_linked(self) -> None:
        """Note the forgotten pages to which kept links lead."""
        replicas = self._crawl.replicas
        if not any(replica.books.forgotten for replica in replicas):
            return
        linked = [np.zeros(len(replica), np.bool_) for replica in replicas]
        for shard, replica in zip(self._crawl.shards, replicas, strict=True):
            if replica.trust is None:
                continue
            self._say(f"looking for links to forgotten pages in shard {shard.number}")
            args = shard.client, shard.keys, replica.head.lsn, replica.state, replica.keeping.since
            for part in read_links(*args):
                near = part.near[part.near < len(linked[shard.number])]
                linked[shard.number][near] = True
                for other in np.unique(part.far_shards).tolist():
                    ids = replicas[other].index.find(part.far[part.far_shards == other])
                    linked[other][ids[(ids >= 0) & (ids < len(linked[other]))]] = True
                self._crawl.follow()
        for spared, mask, replica in zip(self._spared, linked, replicas, strict=True):
            spared |= set(np.flatnonzero(mask & (replica.state[: len(mask)] == FORGOTTEN)).tolist())

    def _carry_pages(self, *, leave_out: bool = False, end: bool = False) -> None:
        """Place the pages that have become known, and write their URLs; see `Places.extend`."""
        crawl, places = self._crawl, self._places
        for number, replica in enumerate(crawl.replicas):
            urls = self._urls[number]
            while len(urls) < len(replica):
                ids = range(len(urls), min(len(urls) + PAGES_A_READ, len(replica)))
                urls.extend(crawl.steadily(partial(crawl.urls_in, number, ids)))
                crawl.follow()  # Or the journal might be trimmed past the replicas of a large crawl.
                self._say(f"{sum(map(len, self._urls)):,} of {sum(map(len, crawl.replicas)):,} URLs read")
        self._since = crawl.known_since()
        spared = [np.array(sorted(some), np.int64) for some in self._spared]
        places.extend([len(urls) for urls in self._urls], self._since, spared, leave_out=leave_out)
        for shard, pages in enumerate(self._changed):
            changed = np.array(sorted(pages), np.int64)
            for page in places.number(shard, changed[places.has(shard, changed)]).tolist():
                self._target.write_again(int(places.shard[page]), int(places.id[page]))
            pages.clear()
        for to, numbers in enumerate(places.pages):
            self._target.send(self._target.write_urls(to, partial(self._urls_of, numbers), len(numbers), end=end))

    def _urls_of(self, numbers: Int64s, ids: range) -> list[str]:
        """Return the URLs of pages of the new crawl with consecutive ids, "" for forgotten ones."""
        some = numbers[ids.start : ids.stop]
        listed = [""] * len(some)
        for shard, positions, pages in self._places.split(some):
            urls, known = self._urls[shard], self._crawl.replicas[shard].state[pages] != FORGOTTEN
            for position, page, there in zip(positions.tolist(), pages.tolist(), known.tolist(), strict=True):
                listed[position] = urls[page] if there else ""
        return listed

    def _carry_links(self) -> None:
        """Carry the links that the store has."""
        for shard, replica in zip(self._crawl.shards, self._crawl.replicas, strict=True):
            if replica.trust is not None:
                self._say(f"copying the links of shard {shard.number}")
                args = shard.client, shard.keys, replica.head.lsn, replica.state, replica.keeping.since
                for part in read_links(*args):
                    self._send_links(self._links.carried(shard.number, part))
                    self._crawl.follow()

    def _carry_news(self, *, end: bool = False) -> None:
        """Carry the links of reads since then; at the end, those to pages that no shard knows are left out."""
        for shard, parts in enumerate(self._news):
            if parts:
                links = PageLinks.joined(parts)
                self._send_links(self._links.carried(shard, links.select_rows(links.last_of_each())))
                parts.clear()
        if end:
            self._send_links(self._links.rest())

    def _send_links(self, parts: Iterable[tuple[int, PageLinks]]) -> None:
        for to, links in parts:
            self._target.send(self._target.add_links(to, links))

    def _write(self, points: Mapping[str, int]) -> None:
        """Write all that is as of the end, but the opening of the new crawl."""
        crawl, target, places = self._crawl, self._target, self._places
        lsn = max(replica.head.lsn for replica in crawl.replicas) + 1
        target.send(target.end_links(lsn))
        pages, digests = MovedPages(places, self._rules), [self._links.digests(shard) for shard in range(len(crawl))]
        seconds = np.concatenate(
            [known.seconds_of(np.arange(len(r))) for known, r in zip(self._since, crawl.replicas, strict=True)]
        )
        made = []
        for number in range(self._shards):
            replica = pages.shard(number, digests)
            target.send(target.write_pages(replica, seconds[places.pages[number]], lsn))
            made.append(replica)
        sweeps = len(crawl) == 1 and self._shards > 1  # Of a single shard, the log may still have some to classify.
        target.send(target.write_offsets(points, made, sweeps=sweeps))
        log_from = points.get(LOG_PARTITION, 0)
        target.send(MovedEntries(crawl, places, target.keys, self._migration.token, log_from).commands())
        move_importance(crawl, places, target.client, target.keys)
        with store_errors():
            meta = crawl.client.hgetall(crawl.shards[0].keys.meta)
        target.check_claimed()  # From here on it could be opened, were it not for the claim.
        target.send(target.write_end(made, meta))
        self._say("recounting the copy")
        target.check(made)
        self.report.pages, self.report.links_left_out = sum(map(len, made)), self._links.left_out


def finish(first: Shard, count: int, to: Client, migration: Migration, shards: int) -> None:
    """Open the new crawl, after the old one has ended; repeatable.

    Not before that end is durable: else a failover may bring the old crawl back beside the new one.

    Args:
        first: shard 0 of the old crawl.
        count: its number of shards.
        to: a client of the store of the new crawl.
        migration: the migration.
        shards: the number of shards of the new crawl.

    Raises:
        StoreUnavailable: the end of the old crawl is not durable in time: repeat it.
    """
    if first.durability.wanted:
        with closing(Line(first.client, first.keys.head)) as line, store_errors():
            await_durable(line, first.keys, first.durability)
    others = [Keys(first.keys.crawl, number) for number in range(1, count)]  # The first was, with the end.
    stop(first.client, others, migration.token, FOREVER_SECONDS)
    Target(to, migration.to, first.rules, shards, migration.token).open()
    forget_note(first.client, first.keys)


def remove_copy(client: Client, migration: Migration) -> None:
    """Remove what a migration that broke off has written of the new crawl.

    Raises:
        StoreError: the crawl is another one by now.
    """
    names = key_names(client, f"opic:{{{migration.to}:*")
    metas = {name for name in names if name.endswith(b"}:meta")}
    tokens = ask(client, [["HGET", name, "restoring"] for name in sorted(metas)]) if metas else []
    if any(token != migration.token.encode() for token in tokens) or (names and not metas):
        raise StoreError(
            f"crawl {migration.to!r} is not the one that this migration began to make: delete it yourself if it is "
            "not needed"
        )
    remove_keys(client, names - metas)
    remove_keys(client, metas)


def abort(client: Client, crawl: str, to: Client, store: str = "") -> Migration:
    """End a migration that broke off: the old crawl goes on, and what was copied is removed.

    Raises:
        BadInput: none is noted, or to another store than `store`.
        Refused: the new crawl has taken over already.
    """
    migration = noted_migration(client, crawl, store)
    first = Keys(crawl, 0)
    if move_of(client, first) is not None:
        raise Refused(
            f"crawl {migration.to!r} is whole and took the place of {crawl!r}: open it with `opic migrate --resume`"
        )
    keys = [Keys(crawl, number) for number in range(shards_of(client, first))]
    stop(client, keys, migration.token, 0)
    remove_copy(to, migration)
    forget_note(client, first)
    return migration


def noted_migration(client: Client, crawl: str, store: str) -> Migration:
    """Return the migration that is noted in a crawl; `store` is where it is to go, as `Migration.store`.

    Raises:
        BadInput: none is, or to another store.
    """
    if (stored := noted_move(client, Keys(crawl, 0))) is None:
        raise BadInput(f"no migration of crawl {crawl!r} is under way: begin one with `opic migrate NAME --shards N`")
    if (migration := Migration(**stored)).store != store:
        other = f"give its URL with --to-store: {migration.store}" if migration.store else "leave --to-store out"
        raise BadInput(f"the migration of crawl {crawl!r} goes to another store: {other}")
    return migration


def begin(crawl: Crawl, to: Client, migration: Migration, on_progress: Progress) -> Report:
    """Migrate an open crawl.

    Raises:
        SettingsError: a rule can't be changed, or the name is none.
        BadInput: the name is taken, or another migration is under way.
        StoreUnavailable: there is no room for a second copy, or the migration broke off.
    """
    source = Source(crawl)
    source.check_alone()
    check_server(to)
    make_ready(to)
    check_may_remove(to, migration.to)
    check_name(to, migration.to)
    crawl.follow()
    move = Move(crawl, to, migration, on_progress)
    check_room(crawl.client, crawl, to)
    source.note(asdict(migration))
    try:
        return move.run()
    except BaseException:  # Ctrl-C, too.
        if move_of(crawl.client, crawl.shards[0].keys) is None:
            abort(crawl.client, crawl.shards[0].keys.crawl, to, migration.store)
        raise


def resume(
    client: Client,
    crawl: str,
    to: Client,
    on_progress: Progress,
    *,
    durability: Durability | None = None,
    store: str = "",
) -> Report:
    """Go on with a migration that broke off: open the new crawl if it has taken over, else copy again.

    Args:
        client: of the store of the old crawl.
        crawl: its name.
        to: a client of the store of the new crawl.
        on_progress: as for `begin`.
        durability: what must hold before a write counts.
        store: the store of the new crawl, as `Migration.store`.

    Raises:
        BadInput: none is noted, or to another store.
        StoreUnavailable: it broke off again.
    """
    migration, first = noted_migration(client, crawl, store), Keys(crawl, 0)
    if move_of(client, first) is not None:
        count, shards = shards_of(client, first), shards_of(to, Keys(migration.to, 0))
        ended = Shard(client, first, CrawlRules(), b"", count)
        ended.durability = durability or Durability()
        finish(ended, count, to, migration, shards)
        return Report(migration.to, shards, notes=["the copy was whole: it was opened"])
    remove_copy(to, migration)
    opened = Crawl.open(client, crawl, create=False, durability=durability)
    opened.follow()
    return Move(opened, to, migration, on_progress).run()
