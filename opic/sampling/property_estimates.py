"""What a sample says of a property of the topic's pages: its mean, and the share of each value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opic.errors import BadInput
from opic.graph.walk_samples import MeanEstimate, ShareEstimate, WalkSamples, estimate_mean, estimate_share
from opic.sampling.page_properties import PageProperty, number_of
from opic.sampling.sampled_web import FetchesSpent, SampledWeb

VALUES_SHOWN: Final = 100  # Shown; the share of all others is one number.


@dataclass(frozen=True, slots=True)
class PropertyValues:
    """The values of a property on the pages of samples, as far as they could be had.

    samples  those that have been looked up: all, or the first ones
    values   of each; None where a page has none, or is not on the topic
    pages    a number for the page of each
    complete whether that is all samples
    """

    page_property: PageProperty
    samples: WalkSamples
    values: Sequence[str | float | None]
    pages: Sequence[int]
    complete: bool

    def mean(self) -> "PropertyMean":
        """Estimate the mean.

        Raises:
            BadInput: no page has a number.
        """
        numbers = np.array([number_of(value) for value in self.values], np.float64)
        on_topic = self.samples.on_topic
        if not np.isfinite(numbers[on_topic]).any():
            example = next((value for value in self.values if value is not None), None)
            ours = "no page on the topic has it" if example is None else f"a page has {str(example)[:40]!r}"
            raise BadInput(
                f"the mean of {self.page_property.written} needs numbers, and {ours}: estimate --shares of it"
            )
        found_on = estimate_mean(self.samples, numbers, np.array(self.pages, np.int64))
        weight = np.where(on_topic, self.samples.weight, 0.0)
        return PropertyMean(self.page_property, found_on, float(weight[np.isnan(numbers)].sum() / weight.sum()))

    def shares(self) -> "PropertyShares":
        """Estimate the share of each value, or of each bin of numbers; pages without the property are one more."""
        bins = [self.page_property.bin_of(value) for value in self.values]
        number = {value_bin: index for index, value_bin in enumerate(dict.fromkeys(bins))}
        indices, pages = np.array([number[value_bin] for value_bin in bins], np.int64), np.array(self.pages, np.int64)
        seen = np.unique(indices[self.samples.on_topic]).tolist()
        names = list(number)
        estimates = {names[index]: estimate_share(self.samples, indices == index, pages) for index in seen}
        by_number = any(isinstance(value, float) for value in self.values)
        # Names by share, and bins of numbers in order; pages without the property come last.
        order = sorted(
            estimates,
            key=lambda value_bin: (
                value_bin[1] is None,
                value_bin[0] if by_number else -estimates[value_bin].share,
                value_bin[1] or "",
            ),
        )
        shown = {name: estimates[rank, name] for rank, name in order[:VALUES_SHOWN]}
        return PropertyShares(self.page_property, shown, max(0.0, 1 - sum(share.share for share in shown.values())))


@dataclass(frozen=True, slots=True)
class PropertyMean:
    """The mean of a property over the topic's pages that have a number, and the share of those that have none."""

    page_property: PageProperty
    estimate: MeanEstimate
    without: float

    def shown(self) -> dict[str, Any]:
        estimate = self.estimate
        return {
            "of": self.page_property.written,
            "mean": estimate.mean,
            "interval": [estimate.low, estimate.high],
            "effective_samples": round(estimate.effective, 1),
            "without": self.without,
        }


@dataclass(frozen=True, slots=True)
class PropertyShares:
    """The share of each value among the topic's pages; None: pages without the property. `others`: all not named."""

    page_property: PageProperty
    values: dict[str | None, ShareEstimate]
    others: float

    def shown(self) -> dict[str, Any]:
        values = [
            {"value": value, "share": share.share, "interval": [share.low, share.high]}
            for value, share in self.values.items()
        ]
        return {"of": self.page_property.written, "values": values, "others": self.others}


def look_up(page_property: PageProperty, web: SampledWeb, urls: Sequence[str], samples: WalkSamples) -> PropertyValues:
    """Look up a property on the pages of samples, in order, until no more pages may be fetched.

    Args:
        page_property: what is looked up.
        web: in which the walk was.
        urls: (n,) the page of each sample.
        samples: of the walk.
    """
    known: dict[str, str | float | None] = {}
    values: list[str | float | None] = []
    try:
        for url, on_topic in zip(urls, samples.on_topic.tolist(), strict=True):
            if on_topic and url not in known:
                known[url] = page_property.value_on(web, url)
            values.append(known[url] if on_topic else None)
    except FetchesSpent:
        samples = samples.first(len(values))
    number: dict[str, int] = {}
    pages = [number.setdefault(url, len(number)) for url in urls[: len(values)]]
    return PropertyValues(page_property, samples, values, pages, len(values) == len(urls))
