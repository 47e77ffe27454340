"""Archives by the writers of the field give the events that were planned, and warcio finds the same records.

benchmarks/bench_archive_writers.py makes more of them, and made the samples, of seed 0.
"""

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from archive_plans import IN_ARC, IN_WARC, SERVED, ArchivePlan, PlannedEvent, PlannedRecord
from archive_readers import kinds_by_warcio, recorded, records_by_warcio, row_of
from repository import ROOT
from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from opic.archives.events import ArchivedEvent, ArchiveEvents
from opic.archives.files import ArchiveFile

SAMPLES = sorted((ROOT / "tests/data/archives/writers").iterdir())
LIBRARIES = ("heritrix", "jwarc", "jwat", "rust")
OF_THE_WRITER = ("warcinfo", "metadata", "not_web")  # Records that a writer adds of its own.
NOTABLE = ("records", "revisits_repeated", "bodies_cut")


@pytest.fixture(scope="module")
def events() -> Iterator[ArchiveEvents]:
    with closing(ArchiveEvents()) as found:
        yield found


def assert_read(
    events: ArchiveEvents, path: Path, wanted: list[PlannedEvent], reasons: Counter[str], *, timed: bool
) -> None:
    events.counts.clear()
    found = [one.event for one in events.events_of(ArchiveFile(path.name, path)) if isinstance(one, ArchivedEvent)]
    assert Counter(row_of(one, timed=timed) for one in found) == Counter(row_of(one, timed=timed) for one in wanted)
    told = {name: count for name, count in events.counts.items() if count and name not in NOTABLE}
    assert events.counts["records"] == len(found) + sum(told.values())
    assert {name: told.get(name, 0) for name in reasons} == dict(reasons)
    assert told.keys() <= {*reasons, *OF_THE_WRITER}
    assert not events.counts["bodies_cut"]
    if path.stem != "jwat-arc2":  # warcio reads version 1 of ARC.
        assert sum(kinds_by_warcio(path).values()) == events.counts["records"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sample_of_a_writer_is_read_as_planned(events: ArchiveEvents, path: Path) -> None:
    writer = path.name.partition(".")[0]
    if writer in LIBRARIES or "arc" in writer.partition("-")[2]:
        plan = ArchivePlan(0, kinds=IN_WARC if writer in LIBRARIES else IN_ARC)
        assert_read(events, path, plan.events, plan.reasons, timed=True)
        return
    urls = [
        headers["warc-target-uri"].strip("<>") for kind, headers, _ in records_by_warcio(path) if kind == "response"
    ]
    plan = ArchivePlan(0, kinds=SERVED, origin=urls[0][: urls[0].index("/", len("http://"))])
    wanted, reasons = recorded(path, {event.url: event for event in plan.events})
    assert len(wanted) > 10
    assert_read(events, path, wanted, reasons, timed=False)


def write(plan: ArchivePlan, path: Path) -> None:
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=path.suffix == ".gz")
        for row in plan.records:
            writer.write_record(raw(row))


def raw(row: PlannedRecord) -> ArcWarcRecord:
    date, length = row.date.strftime("%Y-%m-%dT%H:%M:%SZ"), len(row.block)
    pairs = [("WARC-Type", row.kind), ("WARC-Target-URI", row.url), ("WARC-Date", date)]
    pairs += [("WARC-Record-ID", f"<{row.name}>"), ("Content-Type", row.content_type), *row.fields.items()]
    headers = StatusAndHeaders("", pairs, "WARC/1.0")
    # It writes no block of a revisit without a parsed header.
    kind = "response" if row.kind == "revisit" else row.kind
    return ArcWarcRecord("warc", kind, headers, io.BytesIO(row.block), None, row.content_type, length)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_planned_archive_is_read(events: ArchiveEvents, tmp_path: Path, seed: int) -> None:
    plan = ArchivePlan(seed)
    path = tmp_path / f"{seed}.warc{'.gz' * (seed % 2)}"
    write(plan, path)
    assert_read(events, path, plan.events, plan.reasons, timed=True)
