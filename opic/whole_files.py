"""Files that appear whole or not at all: written beside their names, synced, then renamed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from opic.errors import BadInput


@contextmanager
def whole_files(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open files to write; they get their names, the first one last, where the block ends without an exception.

    Their directories are made if they are missing.

    Raises:
        BadInput: one can't be written, for instance because the disk is full; then none is there.
    """
    scratches = [path.with_name(f".{path.name}.{os.getpid()}.new") for path in paths]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files: list[BinaryIO] = [stack.enter_context(scratch.open("wb")) for scratch in scratches]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for scratch, path in reversed(list(zip(scratches, paths, strict=True))):
            scratch.replace(path)
        for folder in {path.parent for path in paths}:
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)  # Without this, a power loss may lose the files' names.
            finally:
                os.close(handle)
    except OSError as error:
        raise BadInput(f"{paths[0]} can't be written ({error.strerror or error}): nothing of it was kept") from error
    finally:
        for scratch in scratches:
            with suppress(OSError):
                scratch.unlink()
