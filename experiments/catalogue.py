"""The experiments by name, as `python -m experiments` offers them."""

from pathlib import Path
from typing import Final

from experiments import opic_convergence, window_figures
from experiments.change_models import OPIC_CHANGES
from experiments.cho_schonfeld import RANKMASS_FIG10, RANKMASS_TABLE2, RANKMASS_TABLE3
from experiments.davis_dhillon import TABLE1, TABLE2
from experiments.discovery_knob import DISCOVERY_KNOB
from experiments.distribution import DISTRIBUTION
from experiments.focused_sampling import SAMPLING
from experiments.importance_derivative import OPIC_DERIVATIVE
from experiments.influence import DAVIS_FIG1
from experiments.kumar import KUMAR_FIG1, KUMAR_FIG2
from experiments.link_matrices import OPIC_MATRICES
from experiments.measure_compression import OPIC_COMPRESSION
from experiments.opic_reads import OPIC_READS
from experiments.polled_history import OPIC_POLLING
from experiments.recorded_history import OPIC_HISTORY
from experiments.recrawl_rates import KUMAR_EXPECTED
from experiments.result import Progress, Result
from experiments.sampling_classifier import SAMPLING_CLASSIFIER
from experiments.sampling_precision import SAMPLING_PRECISION
from experiments.sampling_values import SAMPLING_VALUES
from experiments.sampling_weights import SAMPLING_WEIGHTS
from experiments.service_order import SERVICE_ORDER
from experiments.sites import SITES
from experiments.window_sizes import OPIC_DAYS, OPIC_FOLLOW, OPIC_WINDOWS
from opic.errors import BadInput, instead_of

EXPERIMENTS: Final = {
    one.name: one
    for one in (
        *(TABLE1, TABLE2, DAVIS_FIG1),
        *(RANKMASS_TABLE2, RANKMASS_TABLE3, RANKMASS_FIG10),
        *(KUMAR_FIG1, KUMAR_FIG2, KUMAR_EXPECTED),
        *(SAMPLING, SAMPLING_CLASSIFIER, SAMPLING_VALUES, SAMPLING_PRECISION, SAMPLING_WEIGHTS),
        *(*opic_convergence.FIGURES, *window_figures.FIGURES, OPIC_WINDOWS, OPIC_FOLLOW, OPIC_CHANGES, OPIC_DAYS),
        *(OPIC_COMPRESSION, OPIC_DERIVATIVE),
        *(OPIC_READS, OPIC_MATRICES, SERVICE_ORDER, OPIC_HISTORY, OPIC_POLLING, DISTRIBUTION, SITES, DISCOVERY_KNOB),
    )
}


def reproduce(
    name: str, data: Path | None, progress: Progress, *, quick: bool = False, runs: int | None = None
) -> Result:
    """Run an experiment.

    Args:
        name: of the experiment.
        data: directory of recorded graphs; those that the repository ships are found without it.
        progress: called for each step.
        quick: make a small run, to see that it works.
        runs: run it so often with different random numbers; the table has means and their standard errors.

    Raises:
        BadInput: there is no such experiment, none of its graphs is here, or more runs would all be the same.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"no experiment {name!r}: {instead_of(name, EXPERIMENTS)}")
    return EXPERIMENTS[name].run(data, progress, quick=quick, runs=runs)
