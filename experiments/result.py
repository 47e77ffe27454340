"""The result of an experiment: a table as JSON, and its curves as a picture."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opic.cli.pictures import Panel, draw
from opic.whole_files import whole_files

Progress = Callable[[int, int, str], object]  # Steps done, all steps, what comes next.


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an experiment. Attributes:

    name      of the experiment
    paper     the paper's figures, as it prints them: rows of one shape
    columns   names of the columns
    rows      values in the order of the columns
    seconds   how long it took
    panels    its curves
    missing   what was left out for want of a recorded graph, a sentence each
    notes     what differs from the paper and why, a sentence each
    caption   of their picture: what it shows, and of which paper
    """

    name: str
    paper: Sequence[Mapping[str, object]]
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    seconds: float
    panels: Sequence[Panel] = ()
    missing: Sequence[str] = ()
    notes: Sequence[str] = ()
    caption: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the table as programs read it."""
        return {
            "name": self.name,
            "paper": list(self.paper),
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }

    def write(self, directory: Path) -> list[Path]:
        """Write NAME.json and NAME.svg into a directory, which is made if it is missing."""
        paths = [directory / f"{self.name}.json", directory / f"{self.name}.svg"]
        with whole_files(paths) as (table, picture):
            draw(self.panels, picture, self.caption)
            table.write(json.dumps(self.as_json(), indent=1).encode() + b"\n")
        return paths
