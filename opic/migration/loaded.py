"""Loaded importance, carried to the shards of another crawl: the numbers go with their pages."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from opic.arrays import Float32s, Uint32s, values_at
from opic.errors import NotKept
from opic.migration.places import Places
from opic.query.loaded import LoadedImportance
from opic.replica.crawl import Crawl
from opic.store.connection import Client
from opic.store.keys import Keys
from opic.store.loaded_importance import digest_of, publish, write_column

OF_NO_PAGE: Final = np.nan


def move_importance(crawl: Crawl, places: Places, client: Client, keys: Sequence[Keys]) -> None:
    """Write what was loaded into a crawl to the shards of another one; nothing if that is nothing of use.

    Args:
        crawl: the crawl, at rest.
        places: where its pages are in the other one.
        client: of the store of the other crawl.
        keys: of its shards.
    """
    try:
        loaded = LoadedImportance(crawl).columns()
    except NotKept:  # Nothing was loaded, or what was is of other pages.
        return
    columns = [places.gathered(pages, np.float32, partial(_numbers, loaded.columns)) for pages in places.pages]
    about = msgspec.structs.replace(
        loaded.about,
        pages=list(map(len, places.pages)),
        prints=[digest_of(np.ascontiguousarray(places.prints(pages)).tobytes()) for pages in places.pages],
        digests=[
            write_column(client, shard_keys, loaded.about.load, column)
            for shard_keys, column in zip(keys, columns, strict=True)
        ],
    )
    publish(client, keys, about)


def _numbers(columns: Sequence[Float32s], shard: int, ids: Uint32s) -> NDArray[Any]:
    return values_at(columns[shard], ids, OF_NO_PAGE)
