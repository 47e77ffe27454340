"""The packed form of kept links: a segment has the links of many pages, in two fields of the hash `linkseg`.

    p<n>      the pages of segment n, ascending, and how many links each has within the shard and to other shards
    l<n>      the links: ids of pages of the shard; and for other shards, the distinct linked pages (fingerprint, shard)
              and numbers among them; and, if there are any, which links the read before of their page did not show

Ascending numbers are stored as the gaps between them. An array is stored byte by byte: first the lowest bytes of all
its numbers, then the next ones. Each such plane is compressed for itself, so that by Huffman's code a gap takes about
the bits that its size needs. A field begins with a CRC-32 of the rest.
"""

import zlib
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, Uint32s
from opic.errors import StoreDamaged
from opic.model.compression import compress, decompress
from opic.model.page_links import PageLinks

VERSION: Final = 3
CRC_BYTES: Final = 4


def pack_segment(links: PageLinks) -> tuple[bytes, bytes]:
    """Return the fields of pages and of links.

    Args:
        links: of distinct pages, ascending.
    """
    targets, numbers, far_new = _numbered(links)
    body = [
        _planes(_gaps(links.near, links.near_counts)),
        len(targets),
        _planes(np.diff(targets["print"], prepend=np.uint64(0)).astype("<u8")),
        _planes(targets["shard"].astype("<u2")),
        _planes(_gaps(numbers, links.far_counts)),
    ]
    if links.near_new.any() or far_new.any():
        body += [_planes(np.packbits(links.near_new)), _planes(np.packbits(far_new))]
    packed = _sealed(body)
    pages = [
        VERSION,
        len(links),
        len(packed),
        _planes(np.diff(links.pages, prepend=np.uint32(0)).astype("<u4")),
        _planes(links.near_counts.astype("<u4")),
        _planes(links.far_counts.astype("<u4")),
    ]
    return _sealed(pages), packed


def unpack_pages(packed: bytes) -> tuple[int, Int64s, Uint32s, Uint32s]:
    """Return the bytes of a segment, its pages and the numbers of their links within the shard and to other shards.

    Raises:
        StoreDamaged: the field is damaged.
    """
    try:
        version, count, size, pages, near, far = _opened(packed)
        if version != VERSION:
            raise ValueError(f"it has version {version}, but this program reads version {VERSION}")
        ids = np.cumsum(_from_planes(pages, count, "<u4"), dtype=np.int64)
        return len(packed) + size, ids, _from_planes(near, count, "<u4"), _from_planes(far, count, "<u4")
    except (ValueError, TypeError) as error:
        raise _damaged(error) from error


def unpack_segment(pages: bytes, links: bytes) -> PageLinks:
    """Return the links of a segment.

    Raises:
        StoreDamaged: a field is damaged.
    """
    size, ids, near_counts, far_counts = unpack_pages(pages)
    try:
        if size != len(pages) + len(links):
            raise ValueError("its links are not those of its pages")
        near, targets, prints, shards, numbers, *new = _opened(links)
        fingerprints = np.cumsum(_from_planes(prints, targets, "<u8"), dtype=np.uint64)
        of_shards = _from_planes(shards, targets, "<u2").astype(np.uint16)
        near_ids = _from_gaps(_from_planes(near, int(near_counts.sum(dtype=np.int64)), "<u4"), near_counts)
        far = _from_gaps(_from_planes(numbers, int(far_counts.sum(dtype=np.int64)), "<u4"), far_counts)
        pages_u32, near_u32 = ids.astype(np.uint32), near_ids.astype(np.uint32)
        fresh = [
            np.unpackbits(_from_planes(bits, -(-count // 8), "u1"), count=count).view(np.bool_)
            for bits, count in zip(new, (len(near_u32), len(far)), strict=False)
        ]
        return PageLinks(pages_u32, near_counts, near_u32, far_counts, fingerprints[far], of_shards[far], *fresh)
    except (ValueError, TypeError, IndexError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> StoreDamaged:
    return StoreDamaged(f"a segment of kept links is damaged ({error}): restore a backup")


_TARGET: Final = np.dtype([("print", "<u8"), ("shard", "<u2")])


def _numbered(links: PageLinks) -> tuple[NDArray[Any], Uint32s, NDArray[np.bool_]]:
    """Return the distinct linked pages of other shards, ascending.

    And page by page their numbers, ascending; and which of these links are new.
    """
    order = np.lexsort((links.far_shards, links.far))
    prints, shards = links.far[order], links.far_shards[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (prints[1:] != prints[:-1]) | (shards[1:] != shards[:-1])
    targets = np.empty(int(new.sum()), _TARGET)
    targets["print"], targets["shard"] = prints[new], shards[new]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    page_of = np.repeat(np.arange(len(links.far_counts)), links.far_counts)
    placed = page_of << 32 | numbers
    if not links.far_new.any():  # Then sorting is all, which is much faster.
        return targets, (np.sort(placed) & 0xFFFFFFFF).astype(np.uint32), links.far_new
    by_number = np.argsort(placed)
    return targets, numbers[by_number].astype(np.uint32), links.far_new[by_number]


def _gaps(values: Uint32s, counts: Uint32s) -> Uint32s:
    """Return the gaps of values that increase page by page; the first of a page is the value itself."""
    gaps = np.diff(values, prepend=np.uint32(0)).astype("<u4")
    starts = _starts(counts)
    gaps[starts] = values[starts]
    return gaps


def _from_gaps(gaps: Uint32s, counts: Uint32s) -> Int64s:
    sums = np.cumsum(gaps, dtype=np.int64)
    starts = _starts(counts)
    return sums - np.repeat(sums[starts] - gaps[starts], counts[counts > 0])


def _starts(counts: Uint32s) -> Int64s:
    """Return where each page that has values begins."""
    some = counts[counts > 0].astype(np.int64)
    return np.cumsum(some) - some


def _planes(numbers: NDArray[Any]) -> list[bytes]:
    """Pack an array byte by byte; a plane of zeros is left empty, and one that does not shrink is left as it is."""
    planes, width = list[bytes](), numbers.dtype.itemsize
    for plane in np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), width).T:
        raw = plane.tobytes()
        packed = compress(raw) if plane.any() else b""
        planes.append(packed if len(packed) < len(raw) else raw)
    return planes


def _from_planes(planes: list[bytes], count: int, dtype: str) -> NDArray[Any]:
    width = np.dtype(dtype).itemsize
    if len(planes) != width:
        raise ValueError("a number of planes is wrong")
    rows = np.zeros((count, width), np.uint8)
    for column, plane in enumerate(planes):
        if plane:
            raw = plane if len(plane) == count else decompress(plane, count)
            rows[:, column] = np.frombuffer(raw, np.uint8)
    return rows.reshape(-1).view(dtype)


def _sealed(value: object) -> bytes:
    body: bytes = msgpack.packb(value)
    return zlib.crc32(body).to_bytes(CRC_BYTES, "little") + body


def _opened(packed: bytes) -> Any:
    if zlib.crc32(packed[CRC_BYTES:]).to_bytes(CRC_BYTES, "little") != packed[:CRC_BYTES]:
        raise ValueError("its checksum is wrong")
    return msgpack.unpackb(packed[CRC_BYTES:])
