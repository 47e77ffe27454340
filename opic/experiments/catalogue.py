"""The experiments by name, as `opic reproduce` offers them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from opic.errors import BadInput, NotBuiltYet, instead_of
from opic.experiments.davis_dhillon import SITES, TOPICS, TablePlan, run_table
from opic.experiments.result import Progress, Result


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `opic reproduce --list` shows of an experiment; `plan` is None where it is not built yet."""

    title: str
    source: str
    plan: TablePlan | None = None


DAVIS_DHILLON: Final = "Davis, Dhillon 2006"
OPIC_PAPER: Final = "Abiteboul, Preda, Cobena 2003"
EXPERIMENTS: Final = {
    "table1": Experiment(
        "sites: error of the estimated global PageRank by page-selection algorithm", DAVIS_DHILLON, SITES
    ),
    "table2": Experiment("topics: the same, with half as many outside pages fetched", DAVIS_DHILLON, TOPICS),
    **{f"fig{number}": Experiment(f"figure {number}", OPIC_PAPER) for number in range(2, 7)},
    "rankmass-table2": Experiment("downloads until a guaranteed coverage", "Cho, Schonfeld 2007"),
}


def _quick(plan: TablePlan) -> TablePlan:
    return replace(plan, iterations=5, domains_max=2, runs=1, reads=2, coverages=(0.5,))


def reproduce(name: str, data: Path | None, progress: Progress, *, quick: bool = False) -> Result:
    """Run an experiment.

    Args:
        name: of the experiment.
        data: directory of recorded graphs; those that the repository ships are found without it.
        progress: told after each step.
        quick: two domains of each graph, few iterations, one run: to see that it works.

    Raises:
        BadInput: there is no such experiment, or none of its graphs is here.
        NotBuiltYet: this version does not have it.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"no experiment {name!r}: {instead_of(name, EXPERIMENTS)}")
    plan = EXPERIMENTS[name].plan
    if plan is None:
        raise NotBuiltYet(f"`opic reproduce {name}` is not built yet: see `opic reproduce --list`")
    return run_table(name, _quick(plan) if quick else plan, data, progress)
