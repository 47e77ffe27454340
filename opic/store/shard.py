"""A shard in the store: opening and creating it, its rules, its secret, and connections to its server."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from typing import Any

import msgpack

from opic.errors import BeingRestored, StoreError, StoreLost, StoreMismatch, StoreUnavailable
from opic.model.books import Books
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules
from opic.store.connection import Client, Line, ask, run_of, store_errors
from opic.store.durability import Durability, await_durable
from opic.store.keys import FORMAT, Keys, of_call
from opic.store.recognition import ANEW, MOVED, RESTORED, check_not_lost, check_not_moved
from opic.store.server import check_server, make_ready

log = logging.getLogger("opic.store")

SECRET_BYTES = 16
ERA_BYTES = 8
# The metadata that tells whether the store still has a shard.
CHECKED = (b"secret", ANEW, RESTORED, b"restoring", MOVED)
TEXTS = ("virtual", "normalize")  # The rules that are no numbers.
# Each rule that a store keeps, and the name of its setting.
SETTING_OF = {
    "q": "OPIC_DAMPING",
    "regrant_ppm": "OPIC_REGRANT",
    "measures_max": "OPIC_HISTORY_MEASURES",
    "inflow": "OPIC_INFLOW",
    "grant": "the grant",
    "minted": "the grains minted",
    "virtual": "OPIC_VIRTUAL",
    "normalize": "OPIC_NORMALIZE",
    "shards": "OPIC_SHARDS",
}
# How `opic migrate` changes a rule; the others are fixed for ever.
MIGRATED = {
    "shards": "--shards N",
    "q": "--damping D",
    "regrant_ppm": "--regrant SHARE",
    "measures_max": "--history-measures N",
    "inflow": "--no-inflow",
}


class Shard:
    """An open shard: its keys, its rules, its secret."""

    def __init__(self, client: Client, keys: Keys, rules: CrawlRules, secret: bytes, shards: int = 1) -> None:
        """Use `open` instead: it checks that the store matches. `shards` is the number of shards of the crawl."""
        self.client, self.keys, self.rules, self.shards = client, keys, rules, shards
        self.number = keys.shard
        self.secret = secret
        self.run_id: bytes | None = None  # Run id of the server when the shard's writer last checked it.
        self.durability = Durability()
        self.yields = True  # Whether replicas keep what reads of each page have discovered.
        self.keep_links: bool | None = None  # Whether its writer is to keep links; None: only if the shard does so now.
        self.restored = ""  # The backup that it was restored from, if any.
        self.era = ""  # Changes with each restored backup.
        self.lineage = ""  # The migration that made the crawl, if any: tokens of leases differ by it.

    @property
    def minted(self) -> int:
        """Grains minted in this shard: all in shard 0, none in the others."""
        return 0 if self.number else self.rules.minted

    @classmethod
    def open(
        cls,
        client: Client,
        crawl: str = "default",
        given: Mapping[str, int | bool | str] | None = None,
        *,
        create: bool = True,
        shards: int = 1,
    ) -> "Shard":
        """Open a crawl's first shard, creating it if it does not exist. `opic.replica.crawl` opens all shards.

        Args:
            client: a client of Redis 7 or later, or of Valkey.
            crawl: the name of the crawl.
            given: rules that the user set explicitly, as in SETTING_OF; the others are read from the store.
            create: create a missing shard; if False, a missing shard is an error.
            shards: number of shards of a new crawl, unless `given` sets it.

        Raises:
            StoreMismatch: the store has another format version or other rules.
            BeingRestored: a backup is being restored into the crawl.
            StoreLost: the store had the crawl, and lost it or a part of it.
            StoreError: the server can't keep the books, or the crawl does not exist.
        """
        keys, given = Keys(crawl, 0), dict(given or {})
        check_server(client)
        with store_errors():
            stored = client.hgetall(keys.meta)
        check_not_lost(client, crawl, stored, int(given.get("shards", shards)))
        make_ready(client)  # Not before: rewriting the file of a server that lost something makes that final.
        with store_errors():
            if not stored and not create:
                raise StoreError(f"no crawl named {crawl!r} in this store: feed it with `opic replay` or `opic serve`")
            if not stored:
                cls._make(client, keys, {"shards": shards, **given})
                stored = client.hgetall(keys.meta)
        return cls._opened(client, keys, stored, given)

    @classmethod
    def beside(cls, first: "Shard", number: int) -> "Shard":
        """Open another shard of the same crawl; create it like the first one if the crawl is being created.

        Raises:
            StoreLost: it is missing.
            StoreMismatch: it does not match the first shard.
        """
        keys = Keys(first.keys.crawl, number)
        with store_errors():
            stored = first.client.hgetall(keys.meta)
            if not stored:
                if first.client.hexists(first.keys.meta, "whole"):
                    raise StoreLost(first.keys.crawl, f"shard {number} of {first.shards} is gone")
                cls._make(first.client, keys, first.given(), first.secret, first.era)
                stored = first.client.hgetall(keys.meta)
        return cls._opened(first.client, keys, stored, first.given())

    def renew(self) -> None:
        """Read the shard's metadata again, in case the shard was restored, or made again by an operator.

        Raises:
            StoreLost: it is gone, or another process has made it anew without knowing of it.
            BeingRestored: a backup is being restored into the crawl.
            StoreMismatch: it was recreated with other rules.
        """
        with store_errors():
            stored = self.client.hgetall(self.keys.meta)
        check_not_moved(self.keys, stored)
        if stored.get(b"secret") == self.secret.hex().encode():
            self.era = stored.get(b"era", b"").decode()
            return
        if b"restoring" in stored:
            raise _restoring(self.keys)
        self._check_same(stored)
        log.warning("shard %d of crawl %r was made again; opening it again", self.number, self.keys.crawl)
        made = self._opened(self.client, self.keys, stored, self.given())
        self.secret, self.restored, self.era = made.secret, made.restored, made.era

    def _check_same(self, stored: Mapping[bytes, bytes]) -> None:
        """Refuse metadata that is not of the crawl that was opened, nor of one that has knowingly replaced it."""
        if stored.get(b"secret") == self.secret.hex().encode():
            return
        label = f"shard {self.number} of {self.shards}"
        if b"secret" not in stored:
            raise StoreLost(self.keys.crawl, f"{label} is gone")
        if not {ANEW, RESTORED} & stored.keys():
            raise StoreLost(self.keys.crawl, f"{label} was made again by a process that did not know of it")

    def make_server_ready(self) -> None:
        """Prepare the servers after a start, unless a part of the crawl is gone.

        Raises:
            StoreLost: the store lost the crawl or a part of it: what is left of its files must not be rewritten.
        """
        with store_errors():
            stored = self.client.hgetall(Keys(self.keys.crawl, 0).meta)
        self.renew()
        check_not_lost(self.client, self.keys.crawl, stored, self.shards)
        make_ready(self.client)

    def given(self) -> dict[str, int | bool | str]:
        """Return the rules of this shard, which all shards of a crawl share."""
        return {**asdict(self.rules), "shards": self.shards}

    @classmethod
    def _opened(
        cls, client: Client, keys: Keys, stored: Mapping[bytes, bytes], given: Mapping[str, int | bool | str]
    ) -> "Shard":
        check_not_moved(keys, stored)
        meta = {k.decode(): v.decode() for k, v in stored.items()}
        if "restoring" in meta:
            raise _restoring(keys)
        if meta.get("format") != FORMAT:
            raise StoreMismatch(
                f"this store has format version {meta.get('format')}, this program reads version {FORMAT}: "
                "use the program that made it, or start a new store and replay the log"
            )
        for name, value in given.items():
            text = _text(value)
            if (kept := meta.get(name, "")) != text:
                option = None if (name, text) == ("inflow", "1") else MIGRATED.get(name)
                way = "start a new store" if option is None else f"change it with `opic migrate NAME {option}`"
                raise StoreMismatch(
                    f"{SETTING_OF[name]} is {_as_given(name, text)}, but this store was made with "
                    f"{_as_given(name, kept)}, which is fixed: leave the setting out, or {way}"
                )
        shard = cls(client, keys, _rules(meta), bytes.fromhex(meta["secret"]), int(meta["shards"]))
        shard.restored, shard.era = meta.get("restored", ""), meta.get("era", "")
        shard.lineage = meta.get("lineage", "")
        return shard

    @staticmethod
    def _make(
        client: Client, keys: Keys, given: Mapping[str, int | bool | str], secret: bytes = b"", era: str = ""
    ) -> None:
        default = CONTINUOUS if given.get("virtual") == CONTINUOUS.virtual else CrawlRules()
        meta: dict[str, int | bool | str] = {**asdict(default), "shards": 1, **given}
        books = Books.genesis(_rules({name: _text(value) for name, value in meta.items()}), keys.shard)
        meta |= {"format": FORMAT, "secret": (secret or secrets.token_bytes(SECRET_BYTES)).hex()}
        meta["era"] = era or secrets.token_hex(ERA_BYTES)
        client.execute_command(*of_call("init", (keys.meta, keys.books), _flat(meta), _flat(books.flat())))

    def run_now(self) -> bytes:
        """Return the current run id of this shard's server."""
        return run_of(self.client, self.keys.head)

    def barrier(self, run_id: bytes | None = None) -> None:
        """Wait until everything written to this shard, by any client, is durable as `durability` requires.

        Args:
            run_id: the run of the server that was written to; if None, the run that the shard's writer last saw.

        Raises:
            StoreUnavailable: the writes are not durable in time, or the server restarted and may have lost some.
        """
        if not self.durability.wanted:
            return
        with closing(Line(self.client, self.keys.head)) as line:
            if line.run_id != (self.run_id if run_id is None else run_id):
                raise StoreUnavailable(f"shard {self.number} is served by another run of the store than a moment ago")
            await_durable(line, self.keys, self.durability)

    def books(self) -> Books:
        with store_errors():
            return Books.unflat(self.client.hgetall(self.keys.books))

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect. See `offsets_in`."""
        return self.offsets_in(self.keys.offsets, [partition])[0]

    def offsets_in(self, key: str, partitions: Sequence[str]) -> list[int]:
        """Return partitions' offsets in a hash of this shard, read at once.

        Raises:
            BeingRestored: a backup is being restored into the crawl, which has no offset until then.
            StoreLost: the shard is gone.
        """
        with store_errors(), self.client.pipeline(transaction=True) as pipe:
            pipe.hmget(key, *partitions)
            pipe.hmget(self.keys.meta, *CHECKED)
            offsets, values = pipe.execute()
        _check_whole(self, values)
        return [int(offset or 0) for offset in offsets]


def _restoring(keys: Keys) -> BeingRestored:
    return BeingRestored(
        f"a backup is being restored into crawl {keys.crawl!r}, or a restore broke off: wait, or run `opic restore "
        "--replace` again; if another crawl is being moved to it, wait, or run `opic migrate --resume` there"
    )


def check_known(shards: Sequence[Shard]) -> None:
    """Check that a store still has the shards of a crawl that were opened.

    Raises:
        StoreLost: it does not.
        BeingRestored: a backup is being restored into the crawl.
    """
    answers = ask(shards[0].client, [["HMGET", shard.keys.meta, *CHECKED] for shard in shards])
    for shard, values in zip(shards, answers, strict=True):
        _check_whole(shard, values)


def _check_whole(shard: Shard, values: Sequence[bytes | None]) -> None:
    stored = {name: value for name, value in zip(CHECKED, values, strict=True) if value is not None}
    check_not_moved(shard.keys, stored)
    if b"restoring" in stored:
        raise _restoring(shard.keys)
    shard._check_same(stored)


def _as_given(name: str, text: str) -> str:
    """Return a stored rule in the form in which its setting is given.

    >>> _as_given("q", "150000"), _as_given("inflow", "0"), _as_given("shards", "16")
    ('0.85', 'off', '16')
    """
    if name == "inflow":
        return "on" if int(text) else "off"
    if name == "normalize":
        return text or "none"
    if name in ("q", "regrant_ppm"):
        return f"{(MILLION - int(text) if name == 'q' else int(text)) / MILLION:g}"
    return text


def _rules(meta: Mapping[str, str]) -> CrawlRules:
    kept: dict[str, Any] = {f.name: meta[f.name] for f in fields(CrawlRules)}
    numbers = {name: int(text) for name, text in kept.items() if name not in TEXTS}
    return CrawlRules(**{**kept, **numbers, "inflow": numbers["inflow"] != 0})


def _flat(part: Mapping[str, int | bool | str]) -> bytes:
    blob: bytes = msgpack.packb([text for k, v in part.items() for text in (k, _text(v))])
    return blob


def _text(value: int | bool | str) -> str:
    return str(int(value)) if isinstance(value, bool | int) else value
