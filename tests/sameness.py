"""What it means that a store ended in the same state as the ledger: to the bit, page by page, whatever its steps."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import patch

from hypothesis import strategies as st

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


@contextmanager
def small_steps(links: int, urls: int) -> Iterator[None]:
    """Let a step take so many links, and a request for ids so many URLs: a short log is many batches in a row then."""
    with (
        patch("opic.store.batch.LINKS_A_STEP_MAX", links),
        patch("opic.store.batch.URLS_A_CALL", urls),
        patch("opic.store.ids.URLS_A_CALL", urls),
    ):
        yield


STEPS = st.tuples(st.sampled_from([1, 5, 15, 4_000]), st.sampled_from([1, 3, 4_000]))
