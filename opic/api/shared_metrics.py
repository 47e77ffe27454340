"""Metrics of several endpoint processes that answer on one port, so that a scrape of any of them shows all.

What they count is summed, by the multiprocess mode of prometheus-client: its values are in files of a directory that
the processes share, and one that was started again goes on with the counts of the one before. What each has of its own,
such as its memory and how far it follows the store, has the label `process`: each writes it to a file there every
second.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.values import MultiProcessValue

from opic.background import repeated

TELL_SECONDS: Final = 1.0
FILES: Final = "endpoint-*.json"
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"  # Where the library looks for the directory.

log = logging.getLogger("opic.api")


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Which of the processes this is, from 0 on, and the directory that they share."""

    number: int
    directory: Path


def count_in_files(process_place: ProcessPlace) -> None:
    """Have all counters and histograms that this process makes from now on keep their values in files."""
    os.environ[VARIABLE] = str(process_place.directory)
    values.ValueClass = MultiProcessValue(lambda: process_place.number)  # type: ignore[no-untyped-call]


class SharedMetrics(Collector):
    """A Prometheus collector of what all the processes count, and of what each of them has of its own."""

    def __init__(self, process_place: ProcessPlace, own: Callable[[], Iterator[Metric]]) -> None:
        """Write nothing yet; `own` returns the metrics that this process has of its own."""
        self._place, self._own = process_place, own
        self._counted = MultiProcessCollector(None, str(process_place.directory))  # type: ignore[no-untyped-call]

    def told(self) -> AbstractContextManager[None]:
        """Write the metrics of this process every second during the block."""
        return repeated(self._tell, 0.0, "opic-metrics")

    def _tell(self) -> float:
        written = []
        for family in self._own():
            samples = [(sample.name, sample.labels, sample.value) for sample in family.samples]
            written.append((family.name, family.documentation, family.type, samples))
        path = self._place.directory / FILES.replace("*", str(self._place.number))
        scratch = path.with_suffix(".new")
        try:
            scratch.write_text(json.dumps(written))
            scratch.replace(path)
        except OSError as error:
            log.warning("the metrics of this process are not shown: %s", error)
        return TELL_SECONDS

    def collect(self) -> Iterator[Metric]:
        """Yield the sums, then what each process wrote last."""
        yield from self._counted.collect()  # type: ignore[no-untyped-call]
        families = dict[str, Metric]()
        for path in sorted(self._place.directory.glob(FILES)):
            process = path.stem.partition("-")[2]
            for name, about, kind, samples in json.loads(path.read_text()):
                family = families.setdefault(name, Metric(name, about, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, {**labels, "process": process}, value)
        yield from families.values()
