"""The examples in docstrings run, and give what they say."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import opic

MODULES = [found.name for found in pkgutil.walk_packages(opic.__path__, "opic.") if not found.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert not result.failed
