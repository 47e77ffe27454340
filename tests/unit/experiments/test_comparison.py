"""Kendall's tau by its definition."""

import numpy as np
import pytest

from experiments.algorithms.comparison import kendall_tau


def test_kendalls_tau_counts_ties_as_neither() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 8, 40).astype(float), rng.integers(0, 8, 40).astype(float)
    signs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(40) for j in range(i)]
    assert kendall_tau(a, b) == pytest.approx(sum(signs) / len(signs))
    assert kendall_tau(a, np.ones(40)) == 0.0
    assert kendall_tau(a[:1], b[:1]) == 1.0
