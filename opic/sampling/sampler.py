"""A focused sample from beginning to end: walk, take samples, estimate, and say how it was done."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np

from opic.errors import BadInput
from opic.graph.focused_walk import Focus, FocusedWalk, Visit, WalkOptions
from opic.graph.walk_samples import (
    BURN_IN_SHARE,
    BURN_IN_TIMES,
    CONFIDENCE,
    ShareEstimate,
    WalkSamples,
    estimate_share,
    take_samples,
    weigh_visits,
)
from opic.sampling.page_properties import PageProperty
from opic.sampling.property_estimates import PropertyMean, PropertyShares, PropertyValues, look_up
from opic.sampling.sampled_web import FetchesSpent, SampledWeb
from opic.sampling.topics import Topic

EFFECTIVE_MIN: Final = 30.0  # Fewer independent samples than this are worth a warning.
JUMPS_SHARE_MAX: Final = 0.05
STARTS_TRIED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What is asked for: a topic, what is to be estimated of it, steps, and how the walk goes.

    wanted          a property whose share in the topic is to be estimated, if any
    mean_of         a property of pages whose mean is, if any
    shares_of       one of whose values the shares are, if any
    """

    topic: Topic
    wanted: Topic | None
    steps: int
    mean_of: PageProperty | None = None
    shares_of: PageProperty | None = None
    seed: int = 0
    walk: WalkOptions = field(default_factory=WalkOptions)

    def __post_init__(self) -> None:
        """Check that the mean is of something that may be a number.

        Raises:
            BadInput: it is not.
        """
        if self.mean_of is not None and not self.mean_of.may_be_number:
            raise BadInput(f"{self.mean_of.written} is a name, which has no mean: estimate --shares of it")

    @property
    def metas(self) -> frozenset[str]:
        """The names in the `meta` of pages that are asked for."""
        asked = (self.mean_of, self.shares_of)
        return frozenset(
            page_property.name for page_property in asked if page_property is not None and page_property.kind == "meta"
        )


@dataclass(frozen=True, slots=True)
class SampleProgress:
    """Counts to show while the walk goes on."""

    steps: int
    steps_max: int
    fetched: int
    failed: int


@dataclass(frozen=True, slots=True)
class FocusedSample:
    """The sample. `pages` are on the topic and nearly independent; `notes` says how it was taken, and what to doubt."""

    request: SampleRequest
    start: str
    steps: int
    samples: WalkSamples
    share: ShareEstimate | None
    mean: PropertyMean | None
    shares: PropertyShares | None
    pages: Sequence[str]
    precision: float
    fetched: int
    failed: int
    jumps: int
    notes: Sequence[str]
    course: Sequence[tuple[int, float]]  # Steps, and the share estimated by then; without one, the precision by then.

    def shown(self) -> dict[str, Any]:
        """Return it as JSON: the fields of the contract, and some more."""
        share = self.share
        return {
            "estimate": None if share is None else share.share,
            "interval": None if share is None else [share.low, share.high],
            "samples": self.samples.counted,
            "steps": self.steps,
            "topic": self.request.topic.written,
            "estimated": None if self.request.wanted is None else self.request.wanted.written,
            "effective_samples": None if share is None else round(share.effective, 1),
            "mean": None if self.mean is None else self.mean.shown(),
            "shares": None if self.shares is None else self.shares.shown(),
            "focus": str(self.request.walk.focus),
            "start": self.start,
            "precision": self.precision,
            "burn_in_steps": self.samples.burn_in,
            "fetched": self.fetched,
            "failed": self.failed,
            "jumps": self.jumps,
            "pages": list(self.pages),
            "notes": list(self.notes),
        }


def first_on_topic(web: SampledWeb, candidates: Iterable[str]) -> str | None:
    """Return the first page on the topic among candidates, of which STARTS_TRIED_MAX are looked at."""
    with suppress(FetchesSpent):
        for url in islice(candidates, STARTS_TRIED_MAX):
            seen = web.load_page(url)
            if seen is not None and seen.on_topic:
                return seen.page
    return None


def take_sample(
    web: SampledWeb,
    start: str,
    request: SampleRequest,
    on_progress: Callable[[SampleProgress], object] = lambda _: None,
) -> FocusedSample:
    """Walk on a topic, take samples, and estimate what is asked for.

    Raises:
        BadInput: the walk can't begin or go on, or is too short for a sample; a mean is asked for and no page has a
            number.
    """
    if request.steps < 1:
        raise BadInput(f"--steps {request.steps} is below 1: start with 1,000")
    visits, spent = _walk(web, start, request, on_progress)
    trial = request.walk.focus is Focus.TRIAL
    spaced = take_samples(visits, by_degree=trial)
    samples = spaced if trial else weigh_visits(visits, spaced.burn_in)
    urls = [visits[index].page for index in samples.visit.tolist()]
    share, hits = None, None
    if request.wanted is not None:
        number: dict[str, int] = {}
        hits = np.array([web.is_wanted(url) for url in urls], np.bool_)
        numbers = np.array([number.setdefault(url, len(number)) for url in urls], np.int64)
        share = estimate_share(samples, hits, numbers)
    elif not samples.counted:
        raise BadInput("no sample is on the topic: take more steps, or choose a harder focus")
    jumps = sum(visit.jumped for visit in visits)
    precision = sum(visit.on_topic for visit in visits) / len(visits)
    pages = [visits[index].page for index in spaced.spaced().tolist()]
    notes = notes_on(request, spaced, share, len(visits), jumps)
    mean, shares = (
        _values(page_property, web, urls, samples, notes) for page_property in (request.mean_of, request.shares_of)
    )
    if spent:
        notes.append(
            f"it ended after {len(visits):,} of {request.steps:,} steps: the limit of pages to fetch was reached"
        )
    return FocusedSample(
        request, visits[0].page, len(visits), samples, share, None if mean is None else mean.mean(),
        None if shares is None else shares.shares(), pages, precision, web.fetched, web.failed, jumps, notes,
        samples.course(hits),
    )  # fmt: skip


def _walk(
    web: SampledWeb, start: str, request: SampleRequest, on_progress: Callable[[SampleProgress], object]
) -> tuple[list[Visit[str]], bool]:
    """Return the visits of a walk, and whether it ended early because as many pages were fetched as may be."""
    visits = list[Visit[str]]()
    rng = random.Random(request.seed)  # noqa: S311 - a sample, not a secret
    try:
        for visit in FocusedWalk(web, start, rng, request.walk).visits():
            visits.append(visit)
            on_progress(SampleProgress(len(visits), request.steps, web.fetched, web.failed))
            if len(visits) == request.steps:
                break
    except FetchesSpent as error:
        if len(visits) < 2:
            raise BadInput(f"{error} before the walk made two steps: allow more, or choose a softer focus") from None
        return visits, True
    return visits, False


def _values(
    page_property: PageProperty | None, web: SampledWeb, urls: Sequence[str], samples: WalkSamples, notes: list[str]
) -> PropertyValues | None:
    """Look up a property that was asked for; None if it was not, or if no more pages may be fetched for it."""
    if page_property is None:
        return None
    values = look_up(page_property, web, urls, samples)
    if not values.complete:
        notes.append(
            f"it ended before all samples were looked at: {page_property.written} is of the first "
            f"{values.samples.counted:,} of {samples.counted:,}, because the limit of pages to fetch was reached"
        )
    return values if values.samples.counted else None


def notes_on(
    request: SampleRequest, samples: WalkSamples, share: ShareEstimate | None, steps: int, jumps: int
) -> list[str]:
    """Return notes: how the samples were taken and why, and warnings.

    Args:
        request: what was asked for.
        samples: those that the pages shown are from.
        share: the estimate, if one was asked for.
        steps: of the walk.
        jumps: of them, out of crowded hosts.
    """
    kept = max(1, math.ceil(2 * samples.time))
    notes = [
        f"burn-in: the first {samples.burn_in:,} steps are discarded, so that the start does not matter "
        f"({BURN_IN_SHARE:.0%} of the walk, or {BURN_IN_TIMES} autocorrelation times if that is longer)",
        "samples: every visit, weighted by 1/degree"
        if request.walk.focus is Focus.TRIAL
        else "samples: every visit, weighted by the virtual time that it was expected to last; unweighted, pages with "
        "many links would count too much",
        f"thinning: the pages are one in {kept} of "
        + ("the visits" if request.walk.focus is Focus.TRIAL else "those at equal intervals of virtual time")
        + f", two autocorrelation times ({samples.time:.1f} of them each) apart, so that they are nearly independent; "
        "the estimate uses all samples, which is more precise",
    ]
    if share is not None:
        notes.append(
            f"interval: {CONFIDENCE:.0%}, from batch means: the samples are worth {share.effective:,.0f} independent "
            "ones. It cannot account for parts of the topic that the walk never reached"
        )
        if share.effective < EFFECTIVE_MIN:
            notes.append(f"doubt: under {EFFECTIVE_MIN:.0f} independent samples: take more steps")
    if jumps > JUMPS_SHARE_MAX * steps:
        notes.append(
            f"doubt: {jumps:,} of {steps:,} steps jumped out of a crowded host, which favours small hosts: "
            "--host-window 0 lets the walk stay"
        )
    return notes
