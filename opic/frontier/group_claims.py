"""Claims: leased pages of hosts in politeness groups count once the homes of the groups have granted them.

The hosts of a group may be in many shards, on servers that know nothing of each other. So the shard of a page leases
it, by the host's own delay, and then one call asks the home of its group, which lets the group rest from then on or
refuses. A page that is refused is given back: no crawler has heard of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opic.frontier.host_groups import HostGroups
from opic.frontier.leases import Granted, Lease, LeaseAnswer
from opic.frontier.request_parts import ShardCall
from opic.model.cash import MILLION
from opic.store import Keys
from opic.store.keys import of_call


class Ruling(NamedTuple):
    """What the home of a group says of a claim."""

    name: str  # Of the group.
    granted: bool
    now: float  # Of the home's server, in Unix seconds.
    until: float  # When the group is free, in Unix seconds; 0 if there is no delay.


class _Page(NamedTuple):
    """A page that was leased, of a host in a group."""

    call: int
    lease: Granted
    group: str
    claimant: tuple[int, int, int]  # The request, and the shard and the host: pages of one host may go to one request.
    most: int  # How many such pages the request may have.


class GroupClaims:
    """The claims for the pages of some answers, at most one for each group."""

    def __init__(self, groups: HostGroups, calls: Sequence[ShardCall], answers: Sequence[LeaseAnswer]) -> None:
        """Claim each group for the page whose host has the longest delay: mostly all are of one host."""
        self._calls, self._answers = calls, answers
        self.pages = list[_Page]()  # Those of hosts in groups.
        claims = dict[int, _Page]()
        for number, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            for lease in answer.granted:
                host, part = call.pages[lease.position].host, call.parts[lease.quota]
                if not (group := groups.group(call.shard, host)):
                    continue
                claimant = part.index, call.shard, host
                page = _Page(number, lease, groups.name(group), claimant, part.request.host_pages or 1)
                self.pages.append(page)
                if group not in claims or claims[group].lease.delay_seconds < lease.delay_seconds:
                    claims[group] = page
        self._by_home = dict[int, list[_Page]]()
        for group, page in claims.items():
            self._by_home.setdefault(groups.home(group), []).append(page)

    def commands(self, keys: Sequence[Keys]) -> list[list[Any]]:
        """Return the calls of `opic_5_claim`, one for each home, given the keys of all shards."""
        return [
            claim_command(keys[home], [(claim.group, claim.lease.delay_seconds) for claim in claims])
            for home, claims in self._by_home.items()
        ]

    def rulings(self, answers: Sequence[Any]) -> dict[int, list[Ruling]]:
        """Return what the homes said to these calls, by home."""
        return {
            home: [
                Ruling(claim.group, until >= 0, now_us / MILLION, abs(until) / MILLION)
                for claim, until in zip(claims, ends, strict=True)
            ]
            for (home, claims), (now_us, _, ends) in zip(self._by_home.items(), answers, strict=True)
        }

    def kept(self, rulings: Mapping[int, Sequence[Ruling]]) -> tuple[list[LeaseAnswer], list[Lease]]:
        """Return the answers without the pages that are refused, and their leases."""
        said = {ruling.name: ruling for by_home in rulings.values() for ruling in by_home}
        claimants = {claim.group: claim.claimant for claims in self._by_home.values() for claim in claims}
        given, refused = Counter[str](), set[tuple[int, int]]()
        for page in self.pages:
            ruling, ours = said[page.group], page.claimant == claimants[page.group]
            if ruling.until and not (ruling.granted and ours and given[page.group] < page.most):
                refused.add((page.call, page.lease.position))
            given[page.group] += ours
        answers, leases = list[LeaseAnswer](), list[Lease]()
        for number, (call, answer) in enumerate(zip(self._calls, self._answers, strict=True)):
            back = [lease for lease in answer.granted if (number, lease.position) in refused]
            leases += [Lease((call.shard, call.pages[lease.position].id), lease.until_us) for lease in back]
            answers.append(replace(answer, granted=[lease for lease in answer.granted if lease not in back]))
        return answers, leases


def claim_command(keys: Keys, claims: Sequence[tuple[str, float]]) -> list[Any]:
    """Return the call that claims groups of a home for pages whose hosts have these delays, in seconds."""
    names = (keys.group_times, keys.polite, keys.changes, keys.head)
    return of_call("claim", names, *(term for name, delay in claims for term in (name, round(delay * 1_000))))
