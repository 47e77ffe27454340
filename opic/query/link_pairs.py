"""The stored links of a shard as pairs of pages, read from the store in parts."""

from collections.abc import Iterator

import numpy as np

from opic.arrays import Int64s
from opic.replica import Crawl
from opic.replica.stored_links import read_links


def stored_pairs(crawl: Crawl, shard: int, starts: Int64s) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """Yield links of a shard's pages as last read, in parts; nothing if it keeps none. Each page is in one part.

    All segments of the shard are held in memory, compressed, from the first part on. Reads after the position of the
    replica may be contained, unless the list of segments is not newer than it once the first part is there.

    Args:
        crawl: its replicas stay where they are in the meantime.
        shard: number of the shard.
        starts: (shards + 1,), the first position of each shard, and the end: positions are shard by shard, by id.

    Yields:
        The positions of the pages whose links these are; the sources and the targets of the links, by position. Links
        to pages that are not known yet are left out.
    """
    home, replica = crawl.shards[shard], crawl.replicas[shard]
    with replica.reading():
        lsn, state, since = replica.head.lsn, replica.state.copy(), replica.keeping.since
        if replica.trust is None:
            return
    for links in read_links(home.client, home.keys, lsn, state, since):
        pages = links.pages.astype(np.int64) + starts[shard]
        sources = [np.repeat(pages, links.near_counts)]
        targets = [links.near.astype(np.int64) + starts[shard]]
        for number in np.unique(links.far_shards).tolist():
            mask = links.far_shards == number
            ids = crawl.replicas[number].index.find(links.far[mask])
            sources.append(np.repeat(pages, links.far_counts)[mask][ids >= 0])
            targets.append(ids[ids >= 0] + starts[number])
        yield pages, np.concatenate(sources), np.concatenate(targets)
