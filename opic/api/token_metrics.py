"""Prometheus metrics of tokens. No label has a token: those of the file are known by their names."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from opic.service.rates import UNITS
from opic.service.tokens import Tokens


def of_tokens(tokens: Tokens | None) -> Iterator[Metric]:
    """Yield the metrics of the tokens of this process."""
    if tokens is None:
        return
    yield Gauge("opic_tokens", "Tokens that this endpoint takes, with OPIC_API_TOKEN.", len(tokens.tokens))
    about = "0 if OPIC_TOKENS_FILE could not be read, and the tokens are those of before; else 1."
    yield Gauge("opic_tokens_file_ok", about, int(not tokens.problem))
    about = "Calls refused because they were over a limit of their token; `none` where no token is required."
    refused = Count("opic_refused_calls", about, labels=["token", "reason"])
    counted = {"none": dict.fromkeys(UNITS, 0)} | {name: limiter.refused for name, limiter in tokens.limiters()}
    for name, by_reason in counted.items():
        for reason, calls in by_reason.items():
            refused.add_metric([name, reason], calls)
    yield refused
