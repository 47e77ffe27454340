"""Prometheus metrics of tokens. No label has a token: those of the file are known by their names."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from opic.service.tokens import Tokens


class TokenCollector(Collector):
    """The metrics of the tokens of this process."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def describe(self) -> Iterator[Metric]:
        """Return nothing, as of metrics that are read at each scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield Gauge("opic_tokens", "Tokens that this endpoint takes, with OPIC_API_TOKEN.", len(self._tokens.tokens))
        about = "0 if OPIC_TOKENS_FILE could not be read, and the tokens are those of before; else 1."
        yield Gauge("opic_tokens_file_ok", about, int(not self._tokens.problem))
