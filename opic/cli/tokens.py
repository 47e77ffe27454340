"""Commands for the tokens of an endpoint."""

import sys
from typing import Annotated, Final

import typer

from opic.cli.options import ResultAsJson
from opic.cli.output import print_json

_DEFAULT: Final = "Limit at each endpoint; 0: none. Default: OPIC_{}."

tokens_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@tokens_app.callback()
def tokens() -> None:
    """Make tokens for OPIC_TOKENS_FILE."""


@tokens_app.command(name="new")
def new_token(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    *,
    role: Annotated[
        list[str],
        typer.Option(
            metavar="ROLE", help="publish, crawl (and publish), read or admin (all); several times for several."
        ),
    ],
    crawl: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A crawl that it is for; several times. Default: all.")
    ] = None,
    calls_per_second: Annotated[float | None, typer.Option(min=0, help=_DEFAULT.format("CALLS_PER_SECOND"))] = None,
    events_per_second: Annotated[float | None, typer.Option(min=0, help=_DEFAULT.format("EVENTS_PER_SECOND"))] = None,
    bytes_per_second: Annotated[float | None, typer.Option(min=0, help=_DEFAULT.format("BYTES_PER_SECOND"))] = None,
    concurrent_calls: Annotated[int | None, typer.Option(min=0, help=_DEFAULT.format("CONCURRENT_CALLS"))] = None,
    as_json: ResultAsJson = False,
) -> None:
    """Make a token: its lines for OPIC_TOKENS_FILE go to standard output, the token itself to standard error.

    The token is shown this once: the lines have only its SHA-256. NAME stands in logs and metrics. With --json the
    token is in the JSON.
    """
    from opic.service.tokens import new_token as make

    token, lines = make(
        name,
        role,
        crawl or [],
        calls_per_second=calls_per_second,
        events_per_second=events_per_second,
        bytes_per_second=bytes_per_second,
        concurrent_calls=concurrent_calls,
    )
    if as_json:
        print_json({"name": name, "token": token, "lines": lines})
        return
    print(f"opic: the token of {name}, shown this once: {token}", file=sys.stderr, flush=True)
    print(lines, end="")
