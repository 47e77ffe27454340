"""The examples in docstrings run, and give what they say."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import experiments
import opic

MODULES = [
    found.name
    for package in (opic, experiments)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_the_results_shown(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert not result.failed
