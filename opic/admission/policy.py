"""The policy of a crawl, its URL rules and trap thresholds: one document in the store, which all endpoints share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgpack

from opic.errors import BadInput, ChangedMeanwhile, StoreMismatch, instead_of
from opic.replica import Crawl
from opic.store.connection import store_errors
from opic.store.keys import of_call
from opic.urls.canonical import shown
from opic.urls.rules import RuleBook, check_rules
from opic.urls.traps import Traps, check_traps

FIELDS: Final = ("rules", "traps")
NOTHING_GIVEN: Final = (
    "neither rules nor traps are given: to remove all rules, give an empty list of rules; for the default thresholds, "
    "an empty object of traps"
)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules and trap thresholds that an operator set."""

    book: RuleBook
    traps: Traps
    version: str  # A hash: the same rules and thresholds always have the same version.

    def shown(self) -> dict[str, Any]:
        """Return the policy in the form that `check_policy` takes, with all thresholds."""
        return {
            "rules": [rule.shown() for rule in self.book.rules],
            "traps": self.traps.shown(),
            "version": self.version,
        }


def check_policy(given: object) -> Policy:
    """Validate a policy decoded from JSON. Missing fields get the defaults: no rules, default trap thresholds.

    Raises:
        BadInput: a field is invalid; the message names the field, the value and the limit.
    """
    if not isinstance(given, Mapping):
        raise BadInput("the policy must be an object with `rules` and `traps`")
    if unknown := [str(key) for key in given if key not in FIELDS]:
        raise BadInput(f"unknown field {shown(unknown[0])}: {instead_of(unknown[0], FIELDS)}")
    rules, traps = check_rules(given.get("rules", ())), check_traps(given.get("traps", {}))
    packed = msgpack.packb([[rule.shown() for rule in rules], traps.shown()])
    return Policy(RuleBook(rules), traps, blake2b(packed, digest_size=8).hexdigest())


class StoredPolicy:
    """The policy in the store. Thread-safe."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl, self._key, self._head = crawl, crawl.shards[0].keys.rules, crawl.shards[0].keys.head

    def version(self) -> bytes | None:
        """Return the version of the policy; None if none was set."""
        with store_errors():
            version: bytes | None = self._crawl.client.hget(self._key, "version")
        return version

    def read(self) -> Policy:
        """Return the current policy."""
        return self._read()[0]

    def _read(self) -> tuple[Policy, bytes]:
        """Return the current policy, and its version as the store has it; b"" if none was set."""
        with store_errors():
            document, version = self._crawl.client.hmget(self._key, ["document", "version"])
        return _unpacked(document), version or b""

    def replace(self, given: object, version: str = "") -> Policy:
        """Replace the rules, the thresholds, or both; the other part stays. Return the new policy.

        Args:
            given: the new rules and thresholds, as `check_policy` takes them.
            version: of the policy that may be replaced; "" for any.

        Raises:
            BadInput: a field is invalid, or neither part is given: only an explicit empty list removes all rules.
            ChangedMeanwhile: the policy is of another version.
        """
        check_policy(given)
        assert isinstance(given, Mapping)
        if not given:
            raise BadInput(NOTHING_GIVEN)
        return self._changed(lambda policy: {**policy, **given}, version)

    def change(self, given: Mapping[str, Any], version: str = "") -> Policy:
        """Add and remove some rules, set some thresholds; the others stay. Return the new policy.

        Args:
            given: "add" and "remove", lists of rules; "first", whether the added ones come before the others; "traps".
            version: of the policy that may be changed; "" for any.

        Raises:
            BadInput: a field is invalid, nothing is given, or a rule to remove is not there.
            ChangedMeanwhile: the policy is of another version.
        """
        added, removed = ([rule.shown() for rule in check_rules(given.get(name, ()))] for name in ("add", "remove"))
        traps = given.get("traps", {})
        if not (added or removed or traps):
            raise BadInput("nothing is to change: give rules to add or to remove, or thresholds to set")

        def changed(policy: Mapping[str, Any]) -> dict[str, Any]:
            rules = policy["rules"]
            if missing := next((rule for rule in removed if rule not in rules), None):
                raise BadInput(f"no rule is {shown(str(missing))}: give it as `opic rules --json` shows it")
            others = [rule for rule in rules if rule not in removed and rule not in added]
            return {
                "rules": [*added, *others] if given.get("first") else [*others, *added],
                "traps": {**policy["traps"], **traps},
            }

        return self._changed(changed, version)

    def _changed(self, change: Callable[[Mapping[str, Any]], object], version: str) -> Policy:
        """Change the policy, again if another endpoint did so meanwhile."""
        while True:
            present, stored = self._read()
            if version not in ("", present.version):
                raise ChangedMeanwhile(
                    f"the rules are of version {present.version}, not {version}: read them again, and change those"
                )
            policy = check_policy(change({name: part for name, part in present.shown().items() if name in FIELDS}))
            if self.put(policy, stored):
                return policy

    def put(self, policy: Policy, stored: bytes = b"*") -> bool:
        """Replace the policy in the store, for all endpoints of the crawl, if its version there is this one."""
        plain = check_policy({}).traps.shown()
        traps = {name: value for name, value in policy.traps.shown().items() if value != plain[name]}
        packed = msgpack.packb({"rules": [rule.shown() for rule in policy.book.rules], "traps": traps})
        with store_errors():
            done = self._crawl.client.execute_command(
                *of_call("rules", (self._key, self._head), stored, packed, policy.version)
            )
        return bool(done)


def _unpacked(stored: bytes | None) -> Policy:
    """Decode the policy stored in the store.

    Raises:
        StoreMismatch: another version of the program wrote it.
    """
    try:
        return check_policy(msgpack.unpackb(stored) if stored else {})
    except BadInput as error:
        raise StoreMismatch(
            f"this version can't read the rules in the store: {error}; set them again with `opic rules set`"
        ) from None
