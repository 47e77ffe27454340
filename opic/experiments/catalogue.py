"""The experiments by name, as `opic reproduce` offers them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from opic.errors import BadInput, NotBuiltYet, instead_of
from opic.experiments.davis_dhillon import SITES, TOPICS, quick_plan, run_table
from opic.experiments.result import Progress, Result

# Runs one: directory of recorded graphs or None, who is told of each step, and whether to run it small.
Run = Callable[[Path | None, Progress, bool], Result]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `opic reproduce --list` shows of an experiment; `run` is None where it is not built yet."""

    title: str
    source: str
    run: Run | None = None


def _table(name: str, data: Path | None, progress: Progress, quick: bool) -> Result:
    plan = {"table1": SITES, "table2": TOPICS}[name]
    return run_table(name, quick_plan(plan) if quick else plan, data, progress)


DAVIS_DHILLON: Final = "Davis, Dhillon 2006"
OPIC_PAPER: Final = "Abiteboul, Preda, Cobena 2003"
EXPERIMENTS: Final = {
    "table1": Experiment(
        "sites: error of the estimated global PageRank by page-selection algorithm",
        DAVIS_DHILLON,
        partial(_table, "table1"),
    ),
    "table2": Experiment(
        "topics: the same, with half as many outside pages fetched", DAVIS_DHILLON, partial(_table, "table2")
    ),
    **{f"fig{number}": Experiment(f"figure {number}", OPIC_PAPER) for number in range(2, 7)},
    "rankmass-table2": Experiment("downloads until a guaranteed coverage", "Cho, Schonfeld 2007"),
}


def reproduce(name: str, data: Path | None, progress: Progress, *, quick: bool = False) -> Result:
    """Run an experiment.

    Args:
        name: of the experiment.
        data: directory of recorded graphs; those that the repository ships are found without it.
        progress: told after each step.
        quick: small: to see that it works.

    Raises:
        BadInput: there is no such experiment, or none of its graphs is here.
        NotBuiltYet: this version does not have it.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"no experiment {name!r}: {instead_of(name, EXPERIMENTS)}")
    run = EXPERIMENTS[name].run
    if run is None:
        raise NotBuiltYet(f"`opic reproduce {name}` is not built yet: see `opic reproduce --list`")
    return run(data, progress, quick)
