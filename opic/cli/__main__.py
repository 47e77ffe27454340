"""Entry point of the command `opic`: runs it, or says which extra to install."""

import sys
from typing import Final

WRONG_USAGE: Final = 2


def main() -> None:
    """Run the command line; without the packages of the server extra, say in one line that it needs them."""
    try:
        from opic.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        package = (error.name or "opic").partition(".")[0]
        if package in ("opic", "consumers") or package in sys.stdlib_module_names:
            raise
        from opic.errors import MissingExtra

        print(f"opic: {MissingExtra(f'the package {package}', 'server')}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


if __name__ == "__main__":
    main()
