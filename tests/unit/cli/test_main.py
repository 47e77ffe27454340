"""The command line before it has done anything: `opic --help` is whole, and quick."""

import subprocess
import sys

from processes import environment


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys, opic.cli.main\n"
        "try: opic.cli.main.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'fastapi', 'pydantic', 'numpy', 'redis', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    *text, imported = done.stdout.splitlines()
    assert imported == "[]"
    commands = {line.split()[0]: line for line in text if line.startswith("  ")}
    for name in ("serve", "worker", "replay", "top", "next", "importance", "explain", "hosts", "audit", "stats"):
        assert name in commands
