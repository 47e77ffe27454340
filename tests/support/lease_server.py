"""The functions that lease pages, on a real server with a clock that a test sets, and small bounds."""

import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgpack
from lease_model import Bounds, Fetch, Holder, LeaseModel
from servers import Server

from opic.frontier import PolitenessSettings
from opic.frontier.group_claims import claim_command
from opic.frontier.leases import LeaseAnswer, Quota, lease_command
from opic.store.keys import Keys, of_call
from opic.store.library import library_code

CLOCK = "clock"  # The key that has the time, in microseconds.
VALUES_A_COMMAND = 4


def code_with(bounds: Bounds) -> str:
    """The library with another clock and other bounds, each of which it has once."""
    code = library_code()
    constants = {
        "SWEPT_MAX": bounds.swept,
        "FLIGHTS_SWEPT_MAX": bounds.flights_swept,
        "FORGOTTEN_MAX": bounds.forgotten,
        "EARLIER_MAX": bounds.earlier,
        "VALUES_MAX": VALUES_A_COMMAND,
    }
    for name, value in constants.items():
        code, count = re.subn(rf"^local {name} = \d+", f"local {name} = {value}", code, flags=re.M)
        assert count == 1, name
    head = "local function now_us()\n"
    assert code.count(head) == 1
    return code.replace(head, f"{head}  if true then return tonumber(redis.call('GET', '{CLOCK}')) end\n")


class LeaseServer:
    """One shard, by the calls of the functions and of the step that ends leases."""

    def __init__(self, server: Server, bounds: Bounds | None = None) -> None:
        """Load the functions; `reset` begins."""
        self.client, self.keys, self.lsn = server.client(), Keys("default", 0), 0
        self.client.function_load(code_with(bounds or Bounds()), replace=True)

    def reset(self) -> None:
        """Empty the store."""
        self.client.flushdb()
        self.client.hset(self.keys.head, mapping={"lsn": 0, "digest": b"digest00"})
        self.lsn = 0

    def set_clock(self, now_us: int) -> None:
        """Set the time of the server's clock."""
        self.client.set(CLOCK, now_us)

    def call(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Call a function."""
        return self.client.execute_command(*of_call(name, keys, *arguments))

    def take(
        self,
        pages: Sequence[tuple[int, str]],
        quotas: Sequence[Quota],
        politeness: PolitenessSettings,
    ) -> LeaseAnswer:
        """See `LeaseModel.take`."""
        return LeaseAnswer.parse(self.client.execute_command(*lease_command(self.keys, politeness, pages, quotas)))

    def take_names(self) -> list[str]:
        """The keys of that call."""
        command = lease_command(self.keys, PolitenessSettings(), [], [])
        return list(command[3 : 3 + command[2]])

    def renew_names(self) -> list[str]:
        """The keys of a renewal."""
        keys = self.keys
        return [keys.leases, keys.renewed, keys.flights, keys.flight_ends, keys.changes, keys.head]

    def release_names(self) -> list[str]:
        """The keys of a release."""
        keys = self.keys
        return [keys.leases, keys.changes, keys.head, keys.waits, keys.holders, keys.renewed]

    def host_names(self, own: str) -> list[str]:
        """The keys of what is said of a host."""
        return [own, self.keys.changes, self.keys.head]

    def renew(self, seconds: float, leases: Sequence[tuple[int, int, str]]) -> tuple[int, list[int]]:
        """See `LeaseModel.renew`."""
        until, done = self.call("renew", self.renew_names(), repr(seconds), *(t for lease in leases for t in lease))
        return until, done

    def release(self, leases: Sequence[tuple[int, int]]) -> list[int]:
        """See `LeaseModel.release`."""
        return list(map(int, self.call("release", self.release_names(), *(t for lease in leases for t in lease))))

    def step(
        self,
        fetches: Sequence[Fetch],
        retry: float,
        waits_max: int,
        revived: Sequence[int] = (),
        forgotten: Sequence[int] = (),
        addresses: Mapping[str, str] = MappingProxyType({}),
        **changed: Any,
    ) -> Any:
        """Append a record; see `LeaseModel.step`."""
        keys = self.keys
        names = {keys.head, keys.journal, keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails}
        names |= {keys.sent, keys.seen, keys.page_meta, keys.metrics, keys.urls, keys.changes, *keys.of_pages()}
        names |= {keys.addresses} if addresses else set()
        lists = ["advances", "letters", "outboxes", "calls", "metas", "again"]
        blob: dict[str, Any] = {name: [] for name in lists}
        blob |= {
            "totals": ["clock", "1"],
            "forget": 0,
            "since": "",
            "fetches": [term for one in fetches for term in (one.page, int(one.failed), one.seconds)],
            "senders": [term for one in fetches for term in (one.at_us, one.crawler.replace(bytes(6), b""))],
            "asked": [term for nth, one in enumerate(fetches, 1) if one.wait is not None for term in (nth, one.wait)],
            "revived": list(revived),
            "forgotten": list(forgotten),
            "addresses": [term for pair in addresses.items() for term in pair],
            **changed,
        }
        before, after = b"digest%02d" % (self.lsn % 100), b"digest%02d" % ((self.lsn + 1) % 100)
        packed = msgpack.packb(blob, use_bin_type=False)
        terms = self.lsn, before, self.lsn + 1, after, b"record", retry, packed, waits_max, 1 << 20, 1 << 20
        answer = self.call("step", sorted(names), *terms)
        self.lsn += answer == [b"OK"]
        return answer

    def claim(self, claims: Sequence[tuple[str, int]]) -> list[int]:
        """See `LeaseModel.claim`."""
        command = claim_command(self.keys, [(group, delay_ms / 1_000) for group, delay_ms in claims])
        _, _, ends = self.client.execute_command(*command)
        return list(ends)

    def set_head(self, model: LeaseModel) -> None:
        """Close the shard, as a restore does, or open it again."""
        closed = {"lsn": 0, "digest": b"restoring"}
        self.client.hset(self.keys.head, mapping=closed if model.restoring else {
            "lsn": model.lsn, "digest": b"digest%02d" % (model.lsn % 100)
        })  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What the store has, in the form of the model."""
        keys, pipe = self.keys, self.client.pipeline()
        for name in (keys.leases, keys.waits, keys.hosts, keys.flight_ends, keys.renewed):
            pipe.zrange(name, 0, -1, withscores=True)
        for name in (keys.holders, keys.fails, keys.flights):
            pipe.hgetall(name)
        for name in (keys.polite, keys.crawl_delays, keys.blocks, keys.limits, keys.addresses):
            pipe.hgetall(name)
        pipe.zrange(keys.group_times, 0, -1, withscores=True)
        pipe.xrange(keys.changes)
        *found, changes = pipe.execute()
        leases, waits, hosts, flight_ends, renewed = map(dict, found[:5])
        holders, fails, flights, polite, delays, blocks, limits, addresses, group_times = found[5:]
        return {
            "leases": numbers(leases),
            "waits": numbers(waits),
            "hosts": texts(hosts),
            "flight_ends": texts(flight_ends),
            "renewed": {tuple(map(int, lease.split(b"-"))): end for lease, end in renewed.items()},
            "holders": {int(page): holder_of(packed) for page, packed in holders.items()},
            "fails": {int(page): int(times) for page, times in fails.items()},
            "flights": {host.decode(): flights_of(packed) for host, packed in flights.items()},
            "changes": [told_of(fields) for _, fields in changes],
            "polite": {host.decode(): rule_of(rule) for host, rule in polite.items()},
            "crawl_delays": {host.decode(): float(seconds) for host, seconds in delays.items()},
            "blocks": {host.decode(): float(until) for host, until in blocks.items()},
            "limits": {host.decode(): int(limit) for host, limit in limits.items()},
            "addresses": {host.decode(): address.decode() for host, address in addresses.items()},
            "group_times": texts(dict(group_times)),
        }


def told_of(fields: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The fields of a change; scores of back-offs as all other times of the model."""
    told = {name.decode(): text.decode().split() for name, text in fields.items()}
    if "w" in told:
        told["w"] = [f"{float(term):.6f}" if at % 2 == 0 else term for at, term in enumerate(told["w"])]
    return told


def numbers(scores: Mapping[bytes, float]) -> dict[int, float]:
    """Scores by page."""
    return {int(page): score for page, score in scores.items()}


def texts(scores: Mapping[bytes, float]) -> dict[str, float]:
    """Scores by host."""
    return {host.decode(): score for host, score in scores.items()}


def holder_of(packed: bytes) -> Holder:
    """An entry of `holders`."""
    crawlers = [packed[at : at + 6] for at in range(8, len(packed), 6)]
    return Holder(int(struct.unpack("<d", packed[:8])[0]), crawlers[0], tuple(crawlers[1:]))


def flights_of(packed: bytes) -> list[tuple[int, int]]:
    """An entry of `flights`."""
    flat = msgpack.unpackb(packed)
    return [(int(page), end) for page, end in zip(flat[::2], flat[1::2], strict=True)]


def rule_of(rule: bytes) -> tuple[float | None, int | None]:
    """An entry of `polite`."""
    delay, cap = rule.decode().split()
    return None if delay == "-" else float(delay), None if cap == "-" else int(cap)
