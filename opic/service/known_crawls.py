"""The file crawls.json of a data directory: which crawls its store has had.

An empty store is either new or has lost everything. The file tells which, also after all processes have ended. A
service that runs its own store keeps the file beside it; other processes keep one in OPIC_DATA, if that is set.
"""

import hashlib
import json
import logging
from typing import Final

from opic.errors import BadInput, StoreLost
from opic.query.saved_visits import visits_path
from opic.settings import Settings
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import ANEW, RESTORED
from opic.whole_files import whole_files

log = logging.getLogger("opic.service")

NAME: Final = "crawls.json"


class KnownCrawls:
    """The crawls that processes with this data directory have opened."""

    def __init__(self, settings: Settings) -> None:
        """Read nothing yet. Without a data directory nothing is known or kept."""
        directory = settings.kept_dir()
        self._path = directory and directory / NAME
        self._crawl = settings.crawl

    def check(self, client: Client) -> None:
        """Refuse a store that lacks the crawl which it had when it was opened last.

        Raises:
            StoreLost: the crawl is gone, or was made again by a process that did not know of it.
        """
        known = self._known().get(self._crawl)
        if known is None:
            return
        with store_errors():
            meta = client.hgetall(Keys(self._crawl, 0).meta)
        if b"restoring" in meta or {ANEW, RESTORED} & meta.keys():
            return
        if b"secret" not in meta:
            raise StoreLost(self._crawl, f"it is gone, and was there according to {self._path}")
        if _identity(meta[b"secret"]) != known:
            raise StoreLost(self._crawl, f"it is not the one that {self._path} names")

    def keep(self, secret: bytes) -> None:
        """Remember the crawl, whose shards have this secret."""
        known, identity = self._known(), _identity(secret.hex().encode())
        if self._path is None or known.get(self._crawl) == identity:
            return
        self._write({**known, self._crawl: identity})

    def _write(self, known: dict[str, str]) -> None:
        assert self._path is not None
        try:
            with whole_files([self._path]) as (file,):
                file.write(json.dumps(known).encode())
        except BadInput as error:
            log.warning("%s; a loss of the store may be taken for a new store", error)

    def forget(self, crawl: str) -> None:
        """Forget a crawl, which was deleted, and remove what else the directory has of it."""
        if self._path is not None:
            try:
                visits_path(self._path.parent, crawl).unlink(missing_ok=True)
            except OSError as error:
                log.warning("a file of crawl %s, which was deleted, stays: %s", crawl, error)
        known = self._known()
        if known.pop(crawl, None) is not None:
            self._write(known)

    def _known(self) -> dict[str, str]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            known: dict[str, str] = json.loads(self._path.read_text())
        except (OSError, ValueError) as error:
            log.warning("can't read %s (%s): a loss of the store may be taken for a new store", self._path, error)
            return {}
        return known


def _identity(secret: bytes) -> str:
    """Return a digest of a crawl's secret, from which the secret can't be computed."""
    return hashlib.blake2b(secret, digest_size=16).hexdigest()
