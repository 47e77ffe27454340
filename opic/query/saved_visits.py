"""The visits of exact importance and of trust, saved in a file: where an endpoint goes on after a restart.

The file is only a starting point: from its visits and the present links the flow computes what is left to move, and the
bound told is that of the result. So the file may be older than the store. It is ignored, with a line in the log, if it
is damaged, or of another crawl, era, form or history of the journal, or if its pages are not those here.

Form: FORM, the length of the head, the head (JSON), the visits of importance by shard and id (little-endian float32),
those of trust likewise, and a digest of all before: 8 bytes a page, and at most HEAD_BYTES and SHARD_BYTES a shard.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from opic.arrays import Float64s
from opic.errors import BadInput
from opic.replica import Crawl
from opic.replica.effect import Head
from opic.store.keys import Keys
from opic.whole_files import whole_files

log = logging.getLogger("opic.query")

FORM: Final = b"OPIV\x02"
FLOWS: Final = 2  # Importance and trust.
LENGTH_BYTES: Final = 4
DIGEST_BYTES: Final = 16
HEAD_BYTES: Final = 4096
SHARD_BYTES: Final = 256
VISITS_MAX: Final = float(np.finfo(np.float32).max)


class Unusable(Exception):
    """Why a file is of no use here."""


def visits_path(directory: Path, crawl: str) -> Path:
    """Return the path of the file of a crawl, given its name."""
    return directory / f"visits-{_digest(Keys(crawl, 0).meta.encode(), 8)}.bin"


class SavedVisits:
    """The file of a crawl in a data directory. Endpoints that share the directory share it: the last one writes."""

    def __init__(self, directory: Path, crawl: Crawl) -> None:
        """Read nothing yet.

        Args:
            directory: where the file is; made when it is first written.
            crawl: the crawl.
        """
        self.path = visits_path(directory, crawl.shards[0].keys.crawl)
        self._crawl = crawl

    def write(self, visits: Sequence[Sequence[Float64s]], heads: Sequence[Head]) -> None:
        """Replace the file at once; only log it if that fails.

        Args:
            visits: of importance and of trust, each by shard and id, of the same pages.
            heads: the positions of the journals that they are of.
        """
        pages = list(map(len, visits[0]))
        head = self._identity() | {
            "heads": [[shard_head.lsn, shard_head.digest.hex()] for shard_head in heads],
            "pages": pages,
            "prints": [page_prints(self._crawl, shard, count) for shard, count in enumerate(pages)],
        }
        told = json.dumps(head).encode()
        columns = [np.clip(part, 0.0, VISITS_MAX).astype("<f4").tobytes() for parts in visits for part in parts]
        content = b"".join([FORM, len(told).to_bytes(LENGTH_BYTES, "little"), told, *columns])
        try:
            with whole_files([self.path]) as (file,):
                file.write(content + _hashed(content))
        except BadInput as error:
            log.warning("%s; after a restart exact importance begins from nothing", error)

    def read(self, heads: Sequence[Head], pages: Sequence[int]) -> list[list[Float64s]] | None:
        """Return the visits as `write` had them, of no more pages than there are; None if there are none of use.

        Args:
            heads: the positions of the journals now.
            pages: how many pages each shard has.
        """
        try:
            return self._read(heads, pages)
        except FileNotFoundError:
            return None
        except (OSError, Unusable) as error:
            log.warning("ignoring %s: %s; exact importance begins from nothing", self.path, error)
            return None

    def _read(self, heads: Sequence[Head], pages: Sequence[int]) -> list[list[Float64s]]:
        most = HEAD_BYTES + SHARD_BYTES * len(pages) + FLOWS * 4 * sum(pages)
        with self.path.open("rb") as file:
            content = file.read(most + 1)
        if not content.startswith(FORM):
            raise Unusable("it has another form")
        if len(content) > most:
            raise Unusable("it is of more pages than the crawl has")
        body = content[:-DIGEST_BYTES]
        if content[-DIGEST_BYTES:] != _hashed(body):
            raise Unusable("it is damaged")
        begin = len(FORM) + LENGTH_BYTES
        end = begin + int.from_bytes(body[len(FORM) : begin], "little")
        try:
            head: dict[str, Any] = json.loads(body[begin:end])
            self._check(head, heads, pages)
            column = np.frombuffer(body[end:], "<f4").astype(np.float64)
            ends = np.cumsum([0, *(FLOWS * head["pages"])]).tolist()
        except (ValueError, KeyError, TypeError) as error:
            raise Unusable(f"it is damaged ({error})") from error
        if ends[-1] != len(column) or not bool(((column >= 0) & np.isfinite(column)).all()):
            raise Unusable("it is damaged")
        parts = [column[first:last] for first, last in pairwise(ends)]
        return [parts[: len(pages)], parts[len(pages) :]]

    def _check(self, head: dict[str, Any], heads: Sequence[Head], pages: Sequence[int]) -> None:
        for what, ours in self._identity().items():
            if head[what] != ours:
                raise Unusable(f"it is of another {what}")
        for (lsn, digest), now in zip(head["heads"], heads, strict=True):
            if lsn > now.lsn or (lsn == now.lsn and digest != now.digest.hex()):
                raise Unusable("it is of another history of the journal")
        for shard, (saved, known, prints) in enumerate(zip(head["pages"], pages, head["prints"], strict=True)):
            if saved > known or page_prints(self._crawl, shard, saved) != prints:
                raise Unusable("its pages have other numbers")

    def _identity(self) -> dict[str, str | int]:
        first = self._crawl.shards[0]
        return {"crawl": _digest(first.secret, 16), "era": first.era, "number of shards": len(self._crawl)}


def page_prints(crawl: Crawl, shard: int, pages: int) -> str:
    """Return what stands for the first pages of a shard, in their order."""
    with crawl.replicas[shard].reading() as replica:
        return _digest(np.ascontiguousarray(replica.index.fingerprints[:pages]).tobytes(), 16)


def _digest(value: bytes, size: int) -> str:
    return hashlib.blake2b(value, digest_size=size).hexdigest()


def _hashed(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
