"""The experiments by name, as `python -m experiments` offers them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from experiments.change_models import run_changes
from experiments.cho_schonfeld import run_figure_10, run_table_2, run_table_3
from experiments.davis_dhillon import SITES, TOPICS, quick_plan, run_table
from experiments.discovery_knob import run_discovery_knob
from experiments.distribution import run_distribution
from experiments.focused_sampling import run_sampling
from experiments.kumar import run_dynamic, run_static
from experiments.opic_convergence import run_convergence
from experiments.opic_reads import run_reads
from experiments.polled_history import run_polling
from experiments.recorded_history import run_history
from experiments.result import Progress, Result
from experiments.sampling_classifier import run_classifiers
from experiments.service_order import run_service_order
from experiments.sites import run_sites
from experiments.window_figures import run_windows
from experiments.window_sizes import run_days, run_follow, run_sizes
from opic.errors import BadInput, instead_of

# Runs an experiment: directory of recorded graphs or None, progress callback, whether to make a small run.
Run = Callable[[Path | None, Progress, bool], Result]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: what `python -m experiments --list` shows of it, and the function that runs it."""

    title: str
    source: str
    run: Run


def _table(name: str, data: Path | None, progress: Progress, quick: bool) -> Result:
    plan = {"table1": SITES, "table2": TOPICS}[name]
    return run_table(name, quick_plan(plan) if quick else plan, data, progress)


def _synthetic(run: Callable[[Progress, bool], Result], data: Path | None, progress: Progress, quick: bool) -> Result:
    del data
    return run(progress, quick)


DAVIS_DHILLON: Final = "Davis, Dhillon 2006"
CHO_SCHONFELD: Final = "Cho, Schonfeld 2007"
KUMAR: Final = "Kumar, Lang, Marlow, Tomkins 2008"
SAMPLING_PAPER: Final = "Bar-Yossef, Kanungo, Krauthgamer 2005"
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
    "distribution": Experiment("bytes and delay between shards, by host and by URL", OPIC_PAPER, run_distribution),
    "sites": Experiment("importance of sites: sums over pages, and cash between sites", OPIC_PAPER, run_sites),
    "discovery-knob": Experiment(
        "weight of pages never read: what it finds, and what it costs", OPIC_PAPER, run_discovery_knob
    ),
    "rankmass-table2": Experiment("downloads until a guaranteed coverage", CHO_SCHONFELD, run_table_2),
    "rankmass-table3": Experiment("size of the window: iterations, time, coverage", CHO_SCHONFELD, run_table_3),
    "rankmass-fig10": Experiment("number of trusted pages that a crawl begins with", CHO_SCHONFELD, run_figure_10),
    "kumar-fig1": Experiment("discovery: crawl and rank performance on fixed graphs", KUMAR, run_static),
    "kumar-fig2": Experiment(
        "discovery and recrawl: crawl and discovery performance on graphs that change", KUMAR, run_dynamic
    ),
    "sampling": Experiment("focused samples of topics beside the truth", SAMPLING_PAPER, run_sampling),
    "sampling-classifier": Experiment("the same with imperfect classifiers", SAMPLING_PAPER, run_classifiers),
    "fig2": Experiment(
        "convergence by crawling strategy", OPIC_PAPER, partial(_synthetic, partial(run_convergence, "fig2"))
    ),
    "fig3": Experiment(
        "the same, on the most important tenth", OPIC_PAPER, partial(_synthetic, partial(run_convergence, "fig3"))
    ),
    "fig4": Experiment(
        "error by size of the window and rate of change", OPIC_PAPER, partial(_synthetic, partial(run_windows, "fig4"))
    ),
    "fig5": Experiment(
        "measures stored by window policy", OPIC_PAPER, partial(_synthetic, partial(run_windows, "fig5"))
    ),
    "fig6": Experiment(
        "error by window policy and rate of change", OPIC_PAPER, partial(_synthetic, partial(run_windows, "fig6"))
    ),
    "opic-reads": Experiment("reads until an error, beside PageRank of the crawled pages", OPIC_PAPER, run_reads),
    "service-order": Experiment(
        "orders of suggestions with batches, leases and host delays", OPIC_PAPER, run_service_order
    ),
    "opic-windows": Experiment("bias and variance by size of the window, and the bound 1/|H|", OPIC_PAPER, run_sizes),
    "opic-follow": Experiment("how fast the estimates follow a change", OPIC_PAPER, partial(_synthetic, run_follow)),
    "opic-changes": Experiment("window policies by how the links change", OPIC_PAPER, partial(_synthetic, run_changes)),
    "opic-days": Experiment(
        "windows in days and in rounds, in a crawl of varying speed", OPIC_PAPER, partial(_synthetic, run_days)
    ),
    "opic-history": Experiment(
        "a site's past: estimates and PageRank at the end of each year", OPIC_PAPER, run_history
    ),
    "opic-polling": Experiment(
        "the same site, polled by crawlers that don't know when pages change", OPIC_PAPER, run_polling
    ),
}


def reproduce(name: str, data: Path | None, progress: Progress, *, quick: bool = False) -> Result:
    """Run an experiment.

    Args:
        name: of the experiment.
        data: directory of recorded graphs; those that the repository ships are found without it.
        progress: called for each step.
        quick: make a small run, to see that it works.

    Raises:
        BadInput: there is no such experiment, or none of its graphs is here.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"no experiment {name!r}: {instead_of(name, EXPERIMENTS)}")
    return EXPERIMENTS[name].run(data, progress, quick)
