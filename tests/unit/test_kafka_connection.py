"""A Kafka client says what makes it slow."""

import subprocess
import sys

from opic.ingest.kafka.connection import slow_checksums

WITHOUT_THE_PACKAGE = """
import sys
sys.modules["crc32c"] = None  # Its import fails, as where it is not installed.
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
from opic.ingest.kafka import KafkaCluster
from opic.settings import Settings
for _ in range(2):
    KafkaCluster(Settings(kafka_bootstrap="127.0.0.1:1"))
"""


def test_checksums_are_fast_with_the_package_that_the_extra_brings() -> None:
    assert slow_checksums() is None


def test_missing_package_for_checksums_is_reported_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("WARNING the package crc32c is missing") == 1
