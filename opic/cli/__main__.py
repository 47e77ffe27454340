"""Entry point of the command `opic`: runs it, or says which extra to install."""

import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

WRONG_USAGE: Final = 2


def naming_the_extra(program: Callable[[], int | None]) -> NoReturn:
    """Run a program and exit with its status; without the packages of the server extra, say that it needs them."""
    try:
        sys.exit(program())
    except ModuleNotFoundError as error:
        package = (error.name or "opic").partition(".")[0]
        if package in ("opic", "consumers") or package in sys.stdlib_module_names:
            raise
        from opic.errors import MissingExtra

        extra = "kafka" if os.environ.get("OPIC_KAFKA_BOOTSTRAP") else "server"  # It includes the other.
        print(f"opic: {MissingExtra(f'the package {package}', extra)}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def main() -> None:
    """Run the command line."""
    naming_the_extra(_run)


def _run() -> None:
    if sys.argv[1:] == ["--version"]:  # Answered where the command line's packages are not installed, too.
        from opic import __version__

        print(f"opic {__version__}")
        return
    from opic.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
