"""What it means that a store ended in the same state as the ledger: to the bit, page by page, whatever its batches."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from link_pools import rows_of

from opic.arrays import Uint16s, Uint32s, Uint64s
from opic.model.cash import Flag
from opic.model.host_failures import HostFailures
from opic.model.ledger import Ledger
from opic.model.ledger_page import LedgerPage
from opic.replica import Crawl, Replica
from opic.replica.fingerprints import Fingerprints
from opic.replica.page_columns import PAGE_COLUMNS
from opic.replica.stored_links import read_links
from opic.store import Shard
from opic.urls.canonical import host_of, shard_of


def assert_same(shard: Shard, ledger: Ledger) -> None:
    """Fail on the first total, page or measure that differs; and unless the store's own recount agrees."""
    crawl = Crawl([shard])
    books = asdict(shard.books()) | {"version": 0}  # Counts records, hence depends on how the log was cut.
    assert books == asdict(ledger.books)
    (replica,) = crawl.follow()
    assert asdict(replica.books) | {"version": 0} == books
    assert replica.series == list(ledger.series)
    assert replica.round_counts == list(ledger.round_counts)
    assert host_failures(replica) == {host: found for host, found in ledger.host_failures.items() if found.times}
    pages = {page.url: page for page in crawl.pages()}
    assert_same_trust(shard, replica, ledger)
    for page in known(ledger):
        assert pages.pop(page.url, None) == page
    assert not pages
    audit, _ = crawl.audit()
    assert audit.conserved, audit.mismatches
    assert audit == ledger.audit()


def host_failures(replica: Replica) -> dict[str, HostFailures]:
    """Return the hosts with failures in a row."""
    found = enumerate(replica.hosts.names)
    return {name: one for number, name in found if (one := replica.host_failures.failures_of(number)).times}


def known(ledger: Ledger) -> list[LedgerPage]:
    """Return the pages of a ledger that are not forgotten."""
    return [page for page in ledger.pages.values() if page.has(Flag.KNOWN)]


def assert_same_trust(shard: Shard, replica: Replica, ledger: Ledger) -> None:
    """Fail on the first weight, or on the first page whose links are kept, that differs."""
    if replica.trust is not None and ledger.trust is None:
        assert not replica.trust
        return  # The ledger keeps links for trust alone.
    weights = ledger.trust and {ledger.pages[url].id: weight for url, weight in ledger.trust.items()}
    assert replica.trust == weights
    kept = stored_links(shard, replica)
    hashed = Fingerprints(shard.secret)
    for page in ledger.pages.values():
        if page.links is None:
            continue
        near, far, shards = kept.pop(page.id)
        assert near.tolist() == sorted(ledger.pages[url].id for url in page.links if url in ledger.pages)
        others = [url for url in page.links if url not in ledger.pages]
        expected = [(shard_of(host_of(url), ledger.shards), hashed.hash_strings([url]).tolist()[0]) for url in others]
        assert sorted(zip(shards.tolist(), far.tolist(), strict=True)) == sorted(expected)
    assert not kept


def stored_links(shard: Shard, replica: Replica) -> dict[int, tuple[Uint32s, Uint64s, Uint16s]]:
    """Return by page what the store keeps of its links: ids, fingerprints and their shards."""
    found = {}
    for links in read_links(shard.client, shard.keys, replica.head.lsn, replica.state, replica.keeping.since):
        for page, *parts in rows_of(links):
            assert page not in found
            found[page] = tuple(parts)
    return found


@contextmanager
def small_batches(links: int) -> Iterator[None]:
    """Let a batch take so many links: a short log is many batches in a row then."""
    with patch("opic.replica.batch.LINKS_A_BATCH_MAX", links):
        yield


BATCH_LINKS = st.sampled_from([1, 5, 15, 4_000])

CHECKPOINT_SIZES = ("PAGES_A_BLOCK", "URLS_A_FIELD", "NAMES_A_FIELD", "CALL_BYTES_AIM", "SEGMENT_BYTES")

SMALL_SEGMENT = 400  # Bytes: links of about a dozen pages.


@contextmanager
def small_blocks(pages: int = 4, urls_a_field: int = 2, call_bytes: int = 1) -> Iterator[None]:
    """Let a block of the checkpoint take few pages, and a call few blocks: a short log has many of each then."""
    assert pages % urls_a_field == 0
    sizes = dict(zip(CHECKPOINT_SIZES, (pages, urls_a_field, 4, call_bytes, SMALL_SEGMENT), strict=True))
    with ExitStack() as stack:
        for module in [found for name, found in sys.modules.items() if name.startswith("opic.")]:
            for name in CHECKPOINT_SIZES:
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, sizes[name]))
        yield


def assert_same_replica(one: Replica, other: Replica) -> None:
    """Fail on the first difference between two replicas of one shard, however each came to its state."""
    assert (one.head, one.books, one.pages) == (other.head, other.books, other.pages)
    assert (one.series, one.round_counts) == (other.series, other.round_counts)
    assert (one.classes, one.sent, one.taken) == (other.classes, other.sent, other.taken)
    assert one.trust == other.trust
    assert one.keeping == other.keeping
    assert one.hosts.names == other.hosts.names
    assert one.hosts.domains.tolist() == other.hosts.domains.tolist()
    assert one.keeps_yields == other.keeps_yields
    for name in (of.name for of in PAGE_COLUMNS if of.dtype and of.name != "row"):
        columns = [replica.column(name, np.arange(replica.pages)).tolist() for replica in (one, other)]
        assert columns[0] == columns[1], name
    prints = one.index.fingerprints[: one.pages]
    assert prints.tolist() == other.index.fingerprints[: other.pages].tolist()
    assert one.index.find(prints).tolist() == other.index.find(prints).tolist() == list(range(one.pages))
    assert _histories(one) == _histories(other)


def _histories(replica: Replica) -> list[object]:
    histories, rows = replica.histories, replica.columns.row[: replica.pages]
    table = [getattr(histories.rows, name)[rows].tolist() for name, _ in histories.rows.COLUMNS if name != "newest"]
    found = histories.measures(rows)
    anchors = [histories.anchors_of(row) for row in rows.tolist()]
    return [*table, found.starts.tolist(), found.clock.tolist(), found.cash.tolist(), found.at_us.tolist(), anchors]
