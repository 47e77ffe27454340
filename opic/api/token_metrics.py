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
        """Return nothing: what there is depends on the settings."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none where OPIC_TOKENS_FILE is not set."""
        if self._tokens.path is None:
            return
        yield Gauge("opic_tokens", "Tokens that this endpoint takes, with OPIC_API_TOKEN.", len(self._tokens.tokens))
        about = "1 if OPIC_TOKENS_FILE was read; 0 if not, and the tokens are those of before."
        yield Gauge("opic_tokens_file_ok", about, int(not self._tokens.problem))
