"""Commands that take a whole store: a copy of it, and back."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from opic.errors import SettingsError, StoreError
from opic.logs import log_to_stderr
from opic.options import AsJson, Chosen, choosing, ending_in_order
from opic.output import print_fields, print_json

if TYPE_CHECKING:
    from opic.settings import Settings

PROGRESS_SECONDS: Final = 0.2
PROGRESS_LINE_SECONDS: Final = 5.0  # Where it is no terminal.

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]


@choosing
def backup(
    directory: Directory,
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Copy a crawl, all its shards as of one state, into a new directory.

    Workers and endpoints may run; records wait while it is made, and take effect afterwards.
    """
    from opic import backup as backups
    from opic.store import Crawl as OpenCrawl

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack, _progress("copied") as told:
        client = _connected(settings, stack, make=False)
        found = OpenCrawl.open(client, settings.crawl, settings.rules_given(), create=False)
        manifest = backups.backup(found, directory, told)
    _print_manifest(manifest, directory, as_json)


@choosing
def restore(
    directory: Directory,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Remove the crawl of that name that is there.")] = False,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Put a backup into a store, whole or not at all. End the crawl's workers and endpoints first.

    Workers that are started then read on from where the copy stands.
    """
    from opic import backup as backups

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack, _progress("written") as told:
        client = _connected(settings, stack, make=True)
        manifest = backups.restore(client, directory, settings.crawl, replace=replace, on_progress=told)
    _print_manifest(manifest, directory, as_json)


def _connected(settings: "Settings", stack: ExitStack, *, make: bool) -> Any:
    """Connect to the store; an embedded one that does not run is started for as long."""
    from opic.embedded import EmbeddedServer
    from opic.store import connect

    url = settings.store
    if settings.embedded:
        running = EmbeddedServer.running(settings.data_dir())
        if running is not None and make:
            raise SettingsError(f"a service runs on {settings.data_dir()}: end it first")
        if running is None:
            if not make and not (settings.data_dir() / "store").is_dir():
                raise StoreError(f"no embedded store in {settings.data_dir()}: there is nothing to copy")
            server = EmbeddedServer(settings.data_dir())
            stack.callback(server.stop)
            server.start()
            running = server.url
        url = running
    client = connect(url)
    stack.callback(client.close)
    return client


@contextmanager
def _progress(done: str) -> Iterator[Callable[[int, int], None]]:
    """Say on stderr how far it is."""
    terminal, last = sys.stderr.isatty(), 0.0

    def tell(keys: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= (PROGRESS_SECONDS if terminal else PROGRESS_LINE_SECONDS):
            start, end = ("\r", "") if terminal else ("", "\n")
            print(f"{start}{keys:,} of {total:,} keys {done}", end=end, file=sys.stderr, flush=True)
            last = now

    yield tell
    if terminal and last:
        print("\r", end="\x1b[K", file=sys.stderr, flush=True)


def _print_manifest(manifest: dict[str, Any], directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    files = manifest["files"]
    print_fields(
        {
            "backup": manifest["id"],
            "directory": str(directory),
            "crawl": manifest["crawl"],
            "shards": manifest["shards"],
            "keys": sum(file["keys"] for file in files),
            "bytes": sum(file["bytes"] for file in files),
            "conserved": manifest["audit"]["conserved"],
        }
    )
