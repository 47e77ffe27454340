"""Commands for the rules: which URLs may be suggested."""

from pathlib import Path
from typing import Annotated, Any

import typer

from opic.cli.calls import asked, asking
from opic.cli.options import File, ServiceChosen, choosing, is_group
from opic.cli.output import print_fields, print_json, print_rows
from opic.errors import BadInput

rules_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@rules_app.callback()
@choosing
def rules(context: typer.Context, *, chosen: ServiceChosen) -> None:
    """Show or set which URLs may be suggested: rules in order, and the thresholds for spider traps."""
    if is_group(context, chosen):
        return
    answer = asked(chosen, "GET", "/v1/rules")
    _print(answer, chosen.as_json)


@rules_app.command(name="set")
@choosing
def set_rules(file: File, *, chosen: ServiceChosen) -> None:
    """Set rules, trap thresholds, or both, replacing the present ones; all endpoints follow within a second.

    FILE is TOML with a table [[rules]] for each rule and one [traps] with thresholds, or JSON of the same shape, as
    `opic rules --json` prints it. A rule has an effect, allow or deny, and conditions: host, or domain (including
    subdomains); path (a pattern as in robots.txt); query (true: only URLs with one; false: only URLs without). It may
    have a note. The first rule that matches a URL decides. A part that FILE does not have stays as it is; `rules = []`
    removes all rules.
    """
    from opic.admission import check_policy

    given = _read(file)
    try:
        check_policy(given)  # The API checks it too; this says better what is wrong.
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    answer = asked(chosen, "PUT", "/v1/rules", body=given)
    _print(answer, chosen.as_json)


@rules_app.command(name="add")
@choosing
def add_rules(
    file: File,
    *,
    first: Annotated[bool, typer.Option("--first", help="Before the other rules, instead of after them.")] = False,
    chosen: ServiceChosen,
) -> None:
    """Add the rules of FILE, set its thresholds, and leave all others as they are.

    FILE is as for `opic rules set`. A rule that is there already is moved.
    """
    given = _read(file)
    rules = given.pop("rules", [])
    answer = asked(chosen, "PATCH", "/v1/rules", body={"add": rules, "first": first, **given})
    _print(answer, chosen.as_json)


@rules_app.command(name="remove")
@choosing
def remove_rules(
    numbers: Annotated[list[int], typer.Argument(metavar="RULE...", show_default=False, min=0)],
    *,
    chosen: ServiceChosen,
) -> None:
    """Remove rules by their numbers in `opic rules`, and leave all others as they are."""
    with asking(chosen) as ask:
        present = ask("GET", "/v1/rules")["rules"]
        if unknown := [number for number in numbers if number >= len(present)]:
            raise BadInput(f"there is no rule {unknown[0]}: `opic rules` shows {len(present):,}, from 0 on")
        answer = ask("PATCH", "/v1/rules", body={"remove": [present[number] for number in numbers]})
    _print(answer, chosen.as_json)


def _read(file: Path) -> dict[str, Any]:
    from opic.model.classes import read_table

    given = read_table(file)
    if not isinstance(given, dict):
        raise BadInput(f"{file}: tables [[rules]] or [traps] are wanted")
    return {k: v for k, v in given.items() if k != "version"}


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names = ("rule", "effect", "host", "domain", "path", "query", "revisit_seconds", "note")
    print_rows(names, [dict.fromkeys(names, "") | {"rule": at, **rule} for at, rule in enumerate(answer["rules"])])
    print_fields({**answer["traps"], "version": answer["version"]})
