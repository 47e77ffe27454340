"""The soak at work for some seconds: every kind of call is answered as it should be, and slopes are found."""

from pathlib import Path

import pytest

from chaos import soak as soaking
from chaos.soak import Samples, errors_in, soak


@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "SAMPLE_SECONDS", 2.0)
    monkeypatch.setattr(soaking, "REFUSAL_SECONDS", 0.3)
    monkeypatch.setattr(soaking, "BACKUP_SECONDS", 5.0)
    found = soak(tmp_path, minutes=0.25, pages=1_000, events=100, seed=1, keyed=0.1)
    assert found["wrong"] == []
    figures = {row["figure"] for row in found["slopes"]}
    assert {"store: descriptors", "worker: threads", "endpoint 1: memory, MB"} <= figures
    calls = {"events 202", "next 200", "forget 200", "define 200", "refused 422", "backup 0"}
    assert calls <= found["calls"].keys()


def test_the_slope_of_a_figure_is_an_hour_and_ignores_the_warm_up() -> None:
    samples = Samples()
    for minute in range(60):
        samples.at.append(60.0 * minute)
        samples.values["grows"].append(500.0 if minute < 10 else 2.0 * minute)
        samples.values["flat"].append(7.0)
    slopes = {row["figure"]: row for row in samples.slopes()}
    assert slopes["grows"]["an_hour"] == pytest.approx(120)
    assert slopes["flat"]["interval"] == [0, 0]


def test_errors_of_a_log_are_told_with_their_tracebacks() -> None:
    said = "2026-01-01 00:00:00.000+00:00 "
    error = f"{said}ERROR opic.api: request 1 failed\nTraceback (most recent call last):\n  ...\nKeyError: 3"
    log = f"opic: starting\n{said}INFO opic: an ERROR \n{error}\n{said}WARNING opic.store: slow\n{error}\n"
    assert errors_in(log) == [error, error]
