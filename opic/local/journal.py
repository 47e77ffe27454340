"""What an estimator has planned and fetched, kept in a directory so that it goes on after a kill where it was.

`events.jsonl` is only appended to: a line names the pages that a round is going to fetch, or has the event of one that
was fetched. A line that was torn by a kill is cut off. `state.json`, replaced by an atomic rename, names the domain and
the estimator, and counts what was published.
"""

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from opic.errors import BadInput, OpicError
from opic.model.events import CrawlEvent
from opic.whole_files import whole_files

VERSION: Final = 1
OUTSIDE, LOCAL = "outside", "local"


class StateDamaged(OpicError):
    """The directory of an estimator holds what no estimator wrote."""


@dataclass(slots=True)
class PlannedRound:
    """The pages that a round fetches, and the events that came so far. `part` is "local" or "outside"."""

    number: int
    part: str
    urls: Sequence[str]
    events: dict[str, CrawlEvent] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """The pages that are still to be fetched."""
        return [url for url in self.urls if url not in self.events]


@dataclass(slots=True)
class JournalState:
    """What `state.json` holds.

    id         name of this estimator, in the Idempotency-Keys of what it publishes
    domain     its local domain
    published  number of its events that the service has accepted
    sending    number of those that it has once a call is answered that may be under way; 0 for none
    """

    domain: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    published: int = 0
    sending: int = 0
    version: int = VERSION


class Journal(AbstractContextManager["Journal"]):
    """The rounds of an estimator: those before, and the current one. Without a directory it is kept in memory alone."""

    def __init__(self, domain: str, directory: Path | None = None) -> None:
        """Open the journal of a domain; it is made if it is not there.

        Raises:
            BadInput: the directory belongs to another domain, to an estimator that runs, or can't be written.
            StateDamaged: a line or the state can't be read.
        """
        self.state = JournalState(domain)
        self.rounds: list[PlannedRound] = []
        self._directory = directory
        self._file: IO[bytes] | None = None
        if directory is not None:
            with ExitStack() as opened:
                opened.callback(self.close)
                try:
                    self._open(directory)
                except OSError as error:
                    raise BadInput(f"--state {directory} can't be used: {error.strerror or error}") from None
                opened.pop_all()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def plan(self, part: str, urls: Sequence[str]) -> PlannedRound:
        """Begin a round that fetches these pages."""
        planned = PlannedRound(len(self.rounds), part, urls)
        self.rounds.append(planned)
        self._append({"part": part, "plan": list(urls)}, sync=True)
        return planned

    def took(self, event: CrawlEvent, planned: PlannedRound) -> None:
        """Add the event of a page of a round."""
        planned.events[event.url] = event
        self._append({"round": planned.number, "event": msgspec.to_builtins(event)})

    def complete(self) -> list[CrawlEvent]:
        """Return the events of all rounds up to the first that is not complete, in the planned order."""
        done = takewhile(lambda planned: not planned.left, self.rounds)
        return [planned.events[url] for planned in done for url in planned.urls]

    def save(self) -> None:
        """Replace `state.json` by the present state.

        Raises:
            BadInput: it can't be written.
        """
        if self._directory is None:
            return
        with whole_files([self._directory / "state.json"]) as (file,):
            file.write(json.dumps(asdict(self.state)).encode())

    def _open(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = file = (directory / "events.jsonl").open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"--state {directory}: another estimator uses this directory: stop it, or name another directory"
            ) from None
        if (directory / "state.json").exists():
            self._read_state(directory / "state.json")
        else:
            self.save()
        file.seek(0)
        end = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            self._read(line, f"{directory / 'events.jsonl'}:{number}")
            end += len(line)
        file.truncate(end)

    def _read_state(self, path: Path) -> None:
        domain = self.state.domain
        try:
            self.state = msgspec.json.decode(path.read_bytes(), type=JournalState)
        except msgspec.DecodeError as error:
            raise StateDamaged(f"{path}: no state of an estimator: {error}") from None
        if self.state.version != VERSION:
            raise StateDamaged(f"{path}: version {self.state.version} is unknown: this opic reads {VERSION}")
        if self.state.domain != domain:
            raise BadInput(f"{path.parent} is the state of {self.state.domain}: name another directory for {domain}")

    def _read(self, line: bytes, location: str) -> None:
        try:
            entry: dict[str, Any] = msgspec.json.decode(line)
            if "plan" in entry:
                self.rounds.append(PlannedRound(len(self.rounds), entry["part"], entry["plan"]))
            else:
                event = msgspec.convert(entry["event"], CrawlEvent)
                self.rounds[entry["round"]].events[event.url] = event
        except (msgspec.DecodeError, KeyError, TypeError, IndexError) as error:
            raise StateDamaged(f"{location}: no line of an estimator: {error}") from None

    def _append(self, entry: dict[str, Any], *, sync: bool = False) -> None:
        if self._file is None:
            return
        line = msgspec.json.encode(entry) + b"\n"
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise OpicError(
                f"--state {self._directory} can't be written: {error.strerror}; what was fetched before is still there"
            ) from error


def batches(journal: Journal, size: int) -> Iterator[tuple[str, Sequence[CrawlEvent]]]:
    """Yield what is to be published, with Idempotency-Keys; each batch counts as published when the next is asked for.

    These are the events of complete rounds in the planned order, so that the service takes them in an order that no
    kill changes. A batch that was under way at a kill comes again with the same events and key.
    """
    state, events = journal.state, journal.complete()
    while state.published < len(events):
        if not state.sending:
            state.sending = min(state.published + size, len(events))
            journal.save()
        first, end = state.published, state.sending
        yield f"{state.id}-{first}-{end}", events[first:end]
        state.published, state.sending = end, 0
        journal.save()
