"""CI has what the tests want: nothing is skipped there for want of a program."""

import re

from repository import ROOT, relative, repository_files

RUN = (ROOT / ".ci/run").read_text()


def test_ci_installs_every_tool_that_a_test_needs() -> None:
    tests = [
        path.read_text() for path in repository_files() if relative(path).startswith("tests/") and path.suffix == ".py"
    ]
    wanted = {found for text in tests for found in re.findall(r'want_tool\("([\w-]+)"(?:, "([\w-]+)")?', text)}
    assert {tool for tool, _ in wanted} >= {"openssl", "promtool", "prometheus", "redis-cli", "vegeta", "wrk"}
    for tool, package in wanted:
        installed = (
            f"({package})" in RUN if package else re.search(rf"command -v {tool} |^build {tool} ", RUN, re.MULTILINE)
        )
        assert installed, f"CI does not install {tool}"


def test_ci_checks_style_and_types_before_it_tests() -> None:
    steps = re.findall(r"^make (.+)$", RUN, re.MULTILINE)
    assert steps == ["lint", "test", "demo SERVE=0"]
