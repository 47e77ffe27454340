"""What it means that a store ended in the same state as the ledger: to the bit, page by page."""

from collections import Counter
from dataclasses import asdict

from opic.ledger import Ledger
from opic.store import Shard
from opic.store.keys import ROWS_MEASURES


def assert_same(shard: Shard, ledger: Ledger) -> None:
    """Fail on the first total, page or measure that differs; and unless the store's own recount agrees."""
    books = asdict(shard.books()) | {"version": 0}  # Counts steps, hence depends on how the log was cut.
    assert books == asdict(ledger.books)
    assert shard.series() == list(ledger.series)
    reads = Counter[int]()
    for page in ledger.pages.values():
        reads[page.id // ROWS_MEASURES] += page.reads
    assert shard.columns().reads.tolist() == [reads[bucket] for bucket in range(-(-len(ledger.pages) // ROWS_MEASURES))]
    pages = {page.url: page for page in shard.pages()}
    for url, page in ledger.pages.items():
        assert pages.pop(url, None) == page
    assert not pages
    audit = shard.audit()
    assert audit.conserved, audit.mismatches
    assert audit == ledger.audit()
