"""Weight classes: groups of pages that receive larger or smaller grants than others.

A class has a name, a weight and patterns that match URLs or tags of crawl events. A page is in the first class that it
matches, in the order of definition, else in class 0 with weight 1. Nothing is evaluated: hosts, prefixes, parts of URLs
and tags are compared literally.

Each class has a slot, 1 to 7, which is the number in a page's state byte. A name keeps its slot while it is defined.
The slot of a removed class is reused once no page is in it.
"""

import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgpack

from opic.errors import BadInput, BadUrl, ChangedMeanwhile, Refused, instead_of
from opic.messages.definitions import WEIGHT_MAX
from opic.model.cash import CLASSES_MAX, MILLION
from opic.urls.canonical import canonical_host, canonical_url, host_of, shown
from opic.urls.normalization import PLAIN, Normalization
from opic.urls.rules import check_revisit

PATTERNS_MAX: Final = 10_000  # Hosts, prefixes and tags of a class; each is one look-up, however many there are.
PARTS_MAX: Final = 1_000  # Parts of URLs of a class: each is looked for in each new URL, some 50 ns.
PATTERN_CHARS_MAX: Final = 2_048
OTHERS: Final = "other"  # Class 0, in answers.
KINDS: Final = ("hosts", "urls", "contains", "tags")
FIELDS: Final = ("name", "weight", *KINDS, "revisit_seconds")
# What `opic classes --json` and the API print beside the definitions; a file may be what they printed.
PRINTED: Final = ("other", "reclassified", "settled", "version", "as_of")
PRINTED_OF_CLASS: Final = ("known_pages", "read_pages", "grant_share")
NO_WEIGHTS: Final = "classes of pages weigh grants: under OPIC_VIRTUAL=continuous there are none"
NO_ROOM: Final = (
    "these weights would grant known pages more than a shard has: choose smaller ones; a weight counts as many pages"
)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class WeightClass:
    """A class as it was defined: hosts and prefixes of URLs in their canonical forms."""

    name: str
    weight: int  # In parts of a million.
    hosts: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    revisit_seconds: float | None = None  # Least time from a page's read to its next suggestion.

    def shown(self) -> dict[str, Any]:
        """Return it in the form in which it is given, for people."""
        kinds = {kind: list(getattr(self, kind)) for kind in KINDS}
        definition = {"name": self.name, "weight": self.weight / MILLION, **{k: v for k, v in kinds.items() if v}}
        return definition if self.revisit_seconds is None else {**definition, "revisit_seconds": self.revisit_seconds}


def version_of(classes: Sequence[WeightClass]) -> str:
    """Return a hash of definitions: the same classes in the same order always have the same version."""
    return blake2b(msgpack.packb([asdict(definition) for definition in classes]), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class ClassesChange:
    """A change of the definitions: all of them anew, or some set and others removed by name."""

    classes: tuple[WeightClass, ...] = ()
    removed: tuple[str, ...] = ()
    whole: bool = True  # Whether `classes` are all that are to be.
    version: str = ""  # Of the definitions that may be changed; "" for any.

    def applied_to(self, present: Sequence[WeightClass]) -> tuple[WeightClass, ...]:
        """Return the definitions after the change. A class set anew keeps its place; a new one comes last.

        Raises:
            ChangedMeanwhile: the present definitions are of another version.
            BadInput: there would be too many classes, or none has a name that is to be removed.
        """
        if self.version not in ("", version := version_of(present)):
            raise ChangedMeanwhile(
                f"the classes are of version {version}, not {self.version}: read them again, and change those"
            )
        if self.whole:
            return self.classes
        names = [definition.name for definition in present]
        if unknown := next((name for name in self.removed if name not in names), None):
            raise BadInput(f"no class is called {unknown}: {instead_of(unknown, names) if names else 'there are none'}")
        given = {definition.name: definition for definition in self.classes}
        kept = [given.pop(definition.name, definition) for definition in present if definition.name not in self.removed]
        return _limited((*kept, *given.values()))

    def holds_in(self, present: Sequence[WeightClass]) -> bool:
        """Whether definitions are as the change wanted them."""
        if self.whole:
            return tuple(present) == self.classes
        return set(self.classes) <= set(present) and not {definition.name for definition in present} & set(self.removed)


NO_CHANGE: Final = ClassesChange(whole=False)


def _limited(classes: tuple[WeightClass, ...]) -> tuple[WeightClass, ...]:
    if len(classes) >= CLASSES_MAX:
        raise BadInput(f"{len(classes):,} classes is over the limit of {CLASSES_MAX - 1}")
    return classes


def check_change(
    given: object, removed: Sequence[str], version: str = "", normalization: Normalization = PLAIN
) -> ClassesChange:
    """Check a change of some classes: definitions as `check_classes` takes them, and names of classes to remove.

    Raises:
        BadInput: a definition is invalid, nothing is to change, or a class is both set and removed.
    """
    classes = check_classes(given, normalization)
    if not classes and not removed:
        raise BadInput("nothing is to change: give classes to set, or names of classes to remove")
    if both := next((definition.name for definition in classes if definition.name in removed), None):
        raise BadInput(f"class {both} is both set and removed")
    return ClassesChange(classes, tuple(dict.fromkeys(removed)), whole=False, version=version)


def check_classes(given: object, normalization: Normalization = PLAIN) -> tuple[WeightClass, ...]:
    """Check definitions as they come from JSON or TOML, in their order; URLs in them as in a crawl with these rules.

    Raises:
        BadInput: a definition is invalid; the message names the class, the value and the limit.

    >>> (news,) = check_classes([{"name": "news", "weight": 2, "hosts": ["News.Example"]}])
    >>> news.weight, news.hosts
    (2000000, ('news.example',))
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise BadInput("classes: a list of classes is wanted, each with name, weight and what belongs to it")
    classes = tuple(_check_class(raw, normalization) for raw in _limited(tuple(given)))
    names = [definition.name for definition in classes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"class {twice} is defined twice")
    return classes


def _check_class(given: object, normalization: Normalization) -> WeightClass:
    if not isinstance(given, Mapping):
        raise BadInput("a class is an object with name, weight and what belongs to it")
    name = given.get("name")
    if unknown := [str(key) for key in given if key not in FIELDS]:
        named = f"class {name}" if isinstance(name, str) and NAME.fullmatch(name) else "a class"
        raise BadInput(f"{named} has no {shown(unknown[0])}: {instead_of(unknown[0], FIELDS)}")
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == OTHERS:
        raise BadInput(
            f"class name {shown(str(name))}: 1 to 64 letters, digits, '_', '.' or '-', and not {OTHERS!r}, "
            "which is all that is in no class"
        )
    patterns = {kind: _patterns(name, kind, given.get(kind, ()), normalization) for kind in KINDS}
    if not any(patterns.values()):
        raise BadInput(f"class {name}: nothing belongs to it, give it one of {', '.join(KINDS)}")
    revisit = given.get("revisit_seconds")
    if revisit is not None:
        revisit = check_revisit(f"class {name}", revisit)
    return WeightClass(name, check_weight(name, given.get("weight")), **patterns, revisit_seconds=revisit)


def check_weight(name: str, weight: object) -> int:
    """Return a weight in whole parts of a million.

    Raises:
        BadInput: not a number over 0 and up to WEIGHT_MAX.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise BadInput(f"class {name}: weight {shown(str(weight))} is no number")
    if not 0 < weight <= WEIGHT_MAX or not math.isfinite(weight):  # NaN fails every comparison.
        raise BadInput(f"class {name}: weight {shown(str(weight))} is not over 0 and up to {WEIGHT_MAX:,}")
    parts = round(weight * MILLION)
    if not parts:
        raise BadInput(f"class {name}: weight {weight} is under the least, 0.000001")
    return parts


def _patterns(name: str, kind: str, given: object, normalization: Normalization) -> tuple[str, ...]:
    if not isinstance(given, Collection) or isinstance(given, str | bytes | Mapping):
        raise BadInput(f"class {name}: {kind} is a list of texts")
    most = PARTS_MAX if kind == "contains" else PATTERNS_MAX
    if len(given) > most:
        raise BadInput(f"class {name}: {len(given):,} {kind} is over the limit of {most:,}")
    patterns = []
    for pattern in given:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= PATTERN_CHARS_MAX:
            raise BadInput(
                f"class {name}: {kind} are texts of 1 to {PATTERN_CHARS_MAX:,} characters, not {shown(str(pattern))}"
            )
        try:
            text = pattern
            if kind == "hosts":
                text = canonical_host(pattern)
            elif kind == "urls":
                text = canonical_url(pattern, normalization=normalization)
            text.encode()
        except (BadInput, UnicodeEncodeError) as error:
            reason = error if isinstance(error, BadUrl | BadInput) else f"{shown(pattern)} is no text"
            raise BadInput(f"class {name}: {reason}") from None
        patterns.append(text)
    return tuple(dict.fromkeys(patterns))


def read_classes(path: Path) -> tuple[WeightClass, ...]:
    """Read definitions from a file, TOML or JSON, as its name says; what a program prints beside them is passed over.

    Raises:
        BadInput: it can't be read, it does not say which classes are to be, or something in it is invalid.
    """
    given = read_table(path)
    try:
        if isinstance(given, dict):
            if unknown := [key for key in given if key not in ("classes", *PRINTED)]:
                raise BadInput(f"unknown key {shown(unknown[0])}: {instead_of(unknown[0], ['classes'])}")
            if "classes" not in given:
                raise BadInput("it has no classes: to remove all of them, write an empty list, classes = []")
            given = given["classes"]
        if isinstance(given, list):
            given = [_without(entry, PRINTED_OF_CLASS) if isinstance(entry, dict) else entry for entry in given]
        return check_classes(given)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _without(table: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def read_table(path: Path) -> object:
    """Read a file that a person wrote, TOML or JSON, as its name says.

    Raises:
        BadInput: it can't be read.
    """
    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from None


class _Matcher:
    """What belongs to one class, made for looking up."""

    def __init__(self, slot: int, weight_class: WeightClass) -> None:
        self.slot, self.hosts, self.contains, self.tags = (
            slot,
            set(weight_class.hosts),
            weight_class.contains,
            set(weight_class.tags),
        )
        self.urls, self.lengths = set(weight_class.urls), sorted({len(url) for url in weight_class.urls})

    def has_url(self, url: str, hosts: Sequence[str]) -> bool:
        """Return whether a URL belongs to the class; `hosts` are its host and all parent domains."""
        if self.hosts and not self.hosts.isdisjoint(hosts):
            return True
        if self.lengths and any(url[:length] in self.urls for length in self.lengths):
            return True
        return any(part in url for part in self.contains)


class WeightClasses:
    """The classes that are defined, in order, each with its slot. It never changes.

    With many shards, shard 0 places classes in slots for all: `version` counts these definitions, and `known` is how
    many pages the shard knew when it took the last one, which are to be classified again. Both are 0 with one shard.
    """

    def __init__(self, placed: Sequence[tuple[int, WeightClass]] = (), version: int = 0, known: int = 0) -> None:
        self.placed, self.version, self.known = tuple(placed), version, known
        self._matchers = [_Matcher(slot, definition) for slot, definition in self.placed]
        self.names = {slot: definition.name for slot, definition in self.placed}  # By slot.

    def __bool__(self) -> bool:
        return bool(self.placed)

    def __eq__(self, other: object) -> bool:
        """Equal to classes that are placed alike, of the same version."""
        return isinstance(other, WeightClasses) and self._all() == other._all()

    def _all(self) -> tuple[object, ...]:
        return self.placed, self.version, self.known

    __hash__ = None  # type: ignore[assignment]

    def slot_of(self, url: str, tags: Collection[str] = ()) -> tuple[int, bool]:
        """Return the slot of a canonical URL, and whether only a tag put it there."""
        labels = host_of(url).split(".")
        hosts = [".".join(labels[i:]) for i in range(len(labels))]
        for matcher in self._matchers:
            if matcher.has_url(url, hosts):
                return matcher.slot, False
            if tags and not matcher.tags.isdisjoint(tags):
                return matcher.slot, True
        return 0, False

    def has_tags(self, slot: int) -> bool:
        """Return whether the class in a slot is still defined and has tags."""
        return any(matcher.slot == slot and bool(matcher.tags) for matcher in self._matchers)

    def redefined(self, change: ClassesChange, known_by: Sequence[int]) -> "WeightClasses":
        """Return new definitions with slots; names that are already defined keep theirs.

        Args:
            change: of the definitions.
            known_by: number of pages by slot; a slot with pages is not free.

        Raises:
            BadInput: the change can't be made, see `ClassesChange.applied_to`.
            Refused: no slot is free for a new name.
        """
        definitions = change.applied_to([definition for _, definition in self.placed])
        kept = {definition.name: slot for slot, definition in self.placed}
        names = {definition.name for definition in definitions}
        taken = {slot for name, slot in kept.items() if name in names}
        free = [slot for slot in range(1, CLASSES_MAX) if slot not in taken and not known_by[slot]]
        placed = []
        for definition in definitions:
            slot = kept.get(definition.name) or (free.pop(0) if free else 0)
            if not slot:
                raise Refused(
                    f"class {definition.name}: pages of classes that are no longer defined fill all "
                    f"{CLASSES_MAX - 1} places: try again once they were classified anew"
                )
            placed.append((slot, definition))
        return WeightClasses(placed, self.version)

    def placed_for_all(self, change: ClassesChange, known_by: Sequence[int]) -> "WeightClasses":
        """Return the next version of the classes of many shards; see `redefined`.

        Args:
            change: of the definitions.
            known_by: number of pages by slot in all shards, each of which has these classes: then no page comes into a
                slot that is free.

        Raises:
            BadInput: the change can't be made.
            Refused: no slot is free for a new name.
        """
        return WeightClasses(self.redefined(change, known_by).placed, self.version + 1)

    def extra(self) -> tuple[int, ...]:
        """Return by how much the weight of each slot differs from 1, in parts of a million; as the books keep it."""
        extra = [0] * CLASSES_MAX
        for slot, definition in self.placed:
            extra[slot] = definition.weight - MILLION
        return tuple(extra)

    def pack(self) -> bytes:
        placed: object = [(slot, asdict(definition)) for slot, definition in self.placed]
        packed: bytes = msgpack.packb({"v": self.version, "k": self.known, "p": placed} if self.version else placed)
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> "WeightClasses":
        """Deserialise classes packed by `pack`; empty bytes mean no classes."""
        decoded = msgpack.unpackb(packed) if packed else []
        version, known, placed = (
            (decoded["v"], decoded["k"], decoded["p"]) if isinstance(decoded, dict) else (0, 0, decoded)
        )
        return cls([(slot, _unpacked(entry)) for slot, entry in placed], version, known)

    def taken_by(self, known: int) -> "WeightClasses":
        """Return the same classes, as a shard of many takes them that knows `known` pages."""
        return WeightClasses(self.placed, self.version, known)


def encode_classes(classes: Sequence[WeightClass]) -> bytes:
    """Write definitions of all classes as a record of the log."""
    return encode_change(ClassesChange(tuple(classes)))


def encode_change(change: ClassesChange) -> bytes:
    """Write a change of definitions as a record of the log: a plain list if it replaces all, whatever they are."""
    classes = [asdict(definition) for definition in change.classes]
    more = {"c": classes, "r": change.removed, "w": change.whole, "v": change.version}
    packed: bytes = msgpack.packb(classes if change.whole and not change.version else more)
    return packed


def decode_change(value: bytes) -> ClassesChange:
    """Read a record that `encode_change` wrote.

    Raises:
        BadInput: it is none.
    """
    try:
        given = msgpack.unpackb(value)
        more: Mapping[str, Any] = {"c": given, "r": (), "w": True, "v": ""} if isinstance(given, list) else given
        classes = [{**entry, "weight": entry["weight"] / MILLION} for entry in more["c"]]
        removed, whole, version = tuple(more["r"]), more["w"], more["v"]
        if not isinstance(whole, bool) or not all(isinstance(text, str) for text in (*removed, version)):
            raise ValueError("its fields are of other types")
        return ClassesChange(check_classes(classes), removed, whole, version)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise BadInput(f"not a definition of classes: {error}") from None


def _unpacked(entry: Mapping[str, Any]) -> WeightClass:
    kinds = {kind: tuple(entry[kind]) for kind in KINDS}
    return WeightClass(entry["name"], entry["weight"], **kinds, revisit_seconds=entry.get("revisit_seconds"))
