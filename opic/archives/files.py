"""Archive files, which may be parts of a WACZ file, and how they are opened."""

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, Final

from opic.archives.stream import EXPANSION_MAX, FREE_BYTES
from opic.errors import BadInput

WACZ_FOLDER: Final = "archive/"
WACZ_ENDS: Final = (".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz")
LOCAL_HEADER: Final = struct.Struct("<26xHH")  # Of a file in a ZIP archive: the lengths of its name and of more.
COPIED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file, or a part of one."""

    name: str  # As messages have it.
    path: Path
    begin: int = 0
    size: int | None = None  # None: to the end of the file.

    def open(self) -> BinaryIO:
        """Open it.

        Raises:
            BadInput: it can't be opened.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise BadInput(f"{self.name}: can't be read: {error.strerror or error}") from error
        return file if self.size is None else io.BufferedReader(_FileSection(file, self.begin, self.size))


class _FileSection(io.RawIOBase):
    """A part of a file, which it closes."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def archive_files(path: Path, folder: Path) -> Iterator[ArchiveFile]:
    """Yield the archive files that a file is or, if its name ends in .wacz, has.

    Those that are compressed in it are copied to a folder first.

    Raises:
        BadInput: it can't be read, or has none.
    """
    if path.suffix.lower() != ".wacz":
        yield ArchiveFile(str(path), path)
        return
    count = 0
    try:
        with zipfile.ZipFile(path) as wacz:
            for info in wacz.infolist():
                if info.filename.startswith(WACZ_FOLDER) and info.filename.lower().endswith(WACZ_ENDS):
                    count += 1
                    yield _part_of(path, wacz, info, folder)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error) as error:
        raise BadInput(f"{path}: is no WACZ file that can be read: {error}") from None
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror or error}") from error
    if not count:
        raise BadInput(f"{path}: has no {' or '.join(WACZ_ENDS)} file in its folder {WACZ_FOLDER}")


def _part_of(path: Path, wacz: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> ArchiveFile:
    name = f"{path}/{info.filename}"
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        with path.open("rb") as file:
            file.seek(info.header_offset)
            lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        return ArchiveFile(name, path, info.header_offset + LOCAL_HEADER.size + sum(lengths), info.file_size)
    with wacz.open(info) as packed, NamedTemporaryFile(dir=folder, delete=False) as copy:
        while part := packed.read(COPIED_BYTES):
            copy.write(part)
            if copy.tell() > FREE_BYTES + EXPANSION_MAX * info.compress_size:
                raise BadInput(f"{name}: unpacks to over {EXPANSION_MAX} times its size")
    return ArchiveFile(name, Path(copy.name))
