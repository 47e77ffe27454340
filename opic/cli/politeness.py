"""Commands for politeness: delays and caps of individual hosts."""

from pathlib import Path
from typing import Any, Final

import typer

from opic.cli.calls import asked, asking
from opic.cli.options import File, ServiceChosen, choosing, is_group
from opic.cli.output import print_fields, print_json, print_rows
from opic.errors import BadInput

# Beside the hosts, in the JSON of the command.
PRINTED_BESIDE: Final = ("host_delay_seconds", "host_in_flight", "revisit_seconds", "as_of")

politeness_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@politeness_app.callback()
@choosing
def politeness(context: typer.Context, *, chosen: ServiceChosen) -> None:
    """Show or set the delays and caps of individual hosts."""
    if is_group(context, chosen):
        return
    answer = asked(chosen, "GET", "/v1/politeness")
    _print(answer, chosen.as_json)


@politeness_app.command(name="set")
@choosing
def set_politeness(file: File, *, chosen: ServiceChosen) -> None:
    """Set delays and caps of hosts, replacing the present ones; all other hosts have the default settings.

    FILE is TOML with a table [hosts."a.example"] for each host, or JSON of the same shape, as `opic politeness --json`
    prints it. A host has one or more of delay_seconds, in_flight (its pages leased at once; 0 is any number) and
    revisit_seconds (from a page's read to its next suggestion).
    """
    body = _read(file)
    with asking(chosen) as ask:
        try:
            answer = ask("PUT", "/v1/politeness", body=body)
        except BadInput as error:
            raise BadInput(f"{file}: {error}") from None
    _print(answer, chosen.as_json)


def _read(file: Path) -> dict[str, Any]:
    from opic.model.classes import read_table

    given = read_table(file)
    if not isinstance(given, dict):
        raise BadInput(f"{file}: a table [hosts] is wanted")
    return {name: value for name, value in given.items() if name not in PRINTED_BESIDE}


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names = ("delay_seconds", "in_flight", "revisit_seconds", "host")
    print_rows(names, [{**host, "host": name} for name, host in answer["hosts"].items()])
    print_fields({name: answer[name] for name in PRINTED_BESIDE})
