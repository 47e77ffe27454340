"""Logs for the tests: a real one, and the short forms in which tests write their own."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import msgpack
from hypothesis import strategies as st
from repository import ROOT

from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_forgotten, encode_seeds, split_array
from opic.model.packed_events import is_map
from opic.model.page_notes import DEPTH_MAX

SOME = CrawlEvent("http://a.org/p")
NOW_US = 1_790_000_000_000_000
PARTITION = "log/0"


def record(offset: int, url: str, links: Iterable[str] = (), **more: object) -> Record:
    """One crawl event as a record of the log."""
    return Record(offset, NOW_US + offset, encode_crawl_event(CrawlEvent(url=url, links=list(links), **more)))  # type: ignore[arg-type]


def forget(offset: int, *urls: str, kind: str = "forget") -> Record:
    """Return a record that forgets pages; of kind expire those that were not heard of."""
    return Record(offset, NOW_US, encode_forgotten(list(urls)), kind)


def seeds(
    offset: int,
    *urls: str,
    depth: int | None = None,
    meta: Mapping[str, str] | None = None,
    trust: float | None = None,
    **more: Any,
) -> Record:
    """A record that makes pages known."""
    return Record(offset, NOW_US + offset, encode_seeds(list(urls), depth, meta, trust, **more), kind="seeds")


def array_of(values: Sequence[bytes]) -> bytes:
    """Return an array of events in MessagePack, also of one or none."""
    return msgpack.Packer().pack_array_header(len(values)) + b"".join(values)


def values_in(record: Record) -> list[bytes]:
    """The values of the events that a record has."""
    return split_array(record.value) if record.packed else [record.value]


@st.composite
def some_packed(draw: st.DrawFn, logs: st.SearchStrategy[list[Record]]) -> list[Record]:
    """A log some of whose events are packed into arrays, good ones beside bad."""
    log, packed = draw(logs), list[Record]()
    sizes = iter(draw(st.lists(st.sampled_from([1, 1, 2, 3, 9]), min_size=len(log), max_size=len(log))))
    at = 0
    while at < len(log):
        first, stop = log[at], at + 1
        if first.kind == "event" and not first.call and (size := next(sizes)) > 1:
            while stop < min(len(log), at + size) and log[stop].kind == "event" and not log[stop].call:
                stop += 1
            values = [one.value for one in log[at:stop]]
            first = replace(first, value=array_of([one for one in values if is_map(one)] or [encode_crawl_event(SOME)]))
        packed.append(replace(first, offset=len(packed)))
        at = stop
    return packed


trusts = st.sampled_from([None, None, 1.0, 0.25, 0.0])
# Depth and metadata of an event or of seeds; most have none, as most events of a crawl that has depths.
METAS = st.sampled_from([{}, {"job": "news"}, {"job": "blogs", "\u00e9": "\u00fc" * 9}])
PRIORITIES = st.sampled_from([1.0, 0.5, 3.0])
notes = st.one_of(
    st.just(dict[str, Any]()),
    st.just(dict[str, Any]()),
    st.fixed_dictionaries({}, optional={"depth": st.sampled_from([0, 0, 1, 2, 5, DEPTH_MAX]), "meta": METAS}),
    st.fixed_dictionaries({}, optional={"not_before": st.sampled_from([0, NOW_US / 1e6]), "priority": PRIORITIES}),
)


@cache
def pep_history() -> tuple[Record, ...]:
    """The history of the Python proposals as a crawl: 17,365 events, pages that change, go away and come back."""
    records = []
    with gzip.open(ROOT / "tests/data/pep-history/events.jsonl.gz", "rt") as lines:
        for offset, line in enumerate(lines):
            row = json.loads(line)
            event = CrawlEvent(url=row["url"], links=row["out"], status=row["status"], fetched_at=row["t"])
            records.append(Record(offset, NOW_US + offset, encode_crawl_event(event)))
    return tuple(records)
