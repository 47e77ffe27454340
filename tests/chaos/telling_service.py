"""The command `opic`, whose endpoint writes down which state each answer about exact importance is of.

    python tests/chaos/telling_service.py FILE [--large] serve ...

A line of FILE is a `Told` in JSON. With `--large` no question settles, as on a large crawl.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO

from opic.cli.main import main
from opic.query import unsettled
from opic.query.exact_view import ExactView
from opic.replica.upkeep import Upkeep


class Told(NamedTuple):
    """A view as it was told."""

    at: float  # Unix seconds,
    as_of: float
    bound: float
    settled: list[int]  # By shard: the last record of the state that it is of,
    counted: list[int]  # and the last one that the bound counts, or later than that.


class Telling(unsettled.Moved):
    """Writes down each view that it tells."""

    file: TextIO

    def told(self, as_of: float) -> ExactView:
        """As it is."""
        counted = [head.lsn for head in self._heads]
        view, settled = super().told(as_of), [head.lsn for head in self.view.heads]
        self.file.write(json.dumps(Told(time.time(), view.as_of, view.bound, settled, counted)) + "\n")
        return view


if __name__ == "__main__":
    with Path(sys.argv.pop(1)).open("a", buffering=1) as Telling.file:
        unsettled.Moved = Telling  # type: ignore[misc]
        if sys.argv[1] == "--large":
            del sys.argv[1]
            Upkeep.quick = False  # type: ignore[misc, assignment]
        main()
