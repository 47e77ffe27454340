"""What a storm did and what came of it: a table, and JSON."""

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repository import ROOT


@dataclass
class WorldReport:
    """One world's part."""

    name: str
    servers: str = ""
    spells: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    hindered: Counter[str] = field(default_factory=Counter)  # Actions that another one kept from their work.
    confirmed: int = 0
    lost: int = 0
    doubled: int = 0
    leases: int = 0
    leased_twice: int = 0
    next_calls: int = 0
    failed_while_up: int = 0
    repeated: int = 0  # Calls sent again after they had been confirmed.
    over_rate: int = 0  # Calls refused because a crawler made too many.
    inlinks: int = 0  # Pages whose in-links were compared.
    exact: int = 0  # How often the importance of all pages at an endpoint was compared with PageRank.
    looks: int = 0  # How often that of a reader was, while things broke;
    looks_missed: int = 0  # and how often that could not be: the store was away, or the crawl went on.
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """For a file."""
        plain = {name: value for name, value in vars(self).items() if not isinstance(value, Counter)}
        return {**plain, "seconds": round(self.seconds), "actions": dict(self.actions), "hindered": dict(self.hindered)}


WRONG_SHOWN = 30


def run_facts() -> dict[str, Any]:
    """What a file of results says of the run: command, commit and machine."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
    }


COLUMNS = {
    "world": "name",
    "spells": "spells",
    "events": "confirmed",
    "lost": "lost",
    "doubled": "doubled",
    "leases": "leases",
    "twice": "leased_twice",
    "next": "next_calls",
    "5xx while up": "failed_while_up",
    "over rate": "over_rate",
    "in-links": "inlinks",
    "exact": "exact",
    "looks": "looks",
}


@dataclass
class Report:
    """All worlds."""

    seed: int
    worlds: list[WorldReport] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [f"{world.name}: {text}" for world in self.worlds for text in world.wrong]

    def text(self) -> str:
        """The table, and the actions of each world."""
        rows = [list(COLUMNS)]
        for world in self.worlds:
            values = [getattr(world, name) for name in COLUMNS.values()]
            rows.append([f"{v:,}" if isinstance(v, int) else str(v) for v in values])
        widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        done = [
            f"{world.name}: " + ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(world.actions.items()))
            for world in self.worlds
        ]
        return "\n".join([f"seed {self.seed}", *table, *done, *(f"WRONG  {text}" for text in self.wrong[:WRONG_SHOWN])])

    def write(self, path: Path) -> None:
        """Write all of it as JSON, with the machine and the commit."""
        about = run_facts() | {
            "seed": self.seed,
            "seconds": round(sum(world.seconds for world in self.worlds)),
        }
        worlds = [world.figures() for world in self.worlds]
        path.write_text(json.dumps({**about, "worlds": worlds}, indent=1) + "\n")
