"""An outage is two lines of the log, however many calls fail in between."""

import logging

import pytest

from opic.errors import KafkaUnavailable, StoreUnavailable
from opic.ingest.outage import Outage


def test_outage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("opic.ingest"))
    outage.ended()
    for _ in range(2):
        for text in ("refused", "timed out", "timed out"):
            outage.began(KafkaUnavailable(text))
        for _ in range(3):
            outage.ended()
    said = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert said == ["refused; retrying until this is over", "everything answers again"] * 2


def test_second_server_that_becomes_unavailable_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("opic.ingest"))
    assert outage.began(KafkaUnavailable("Kafka"))
    assert outage.began(StoreUnavailable("the store"))
    assert not outage.began(KafkaUnavailable("Kafka"))
    outage.ended()
    assert [record.getMessage().split()[0] for record in caplog.records] == ["Kafka;", "the", "everything"]
