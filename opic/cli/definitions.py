"""Commands for what operators define: classes of pages, rules of URLs, the politeness of hosts."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from opic.cli.calls import asked, asking
from opic.cli.options import File, ServiceChosen, choosing, is_group
from opic.cli.output import print_fields, print_json, print_list, print_rows
from opic.errors import BadInput

# Beside the hosts, in the JSON of `opic politeness`.
PRINTED_BESIDE: Final = ("host_delay_seconds", "host_in_flight", "revisit_seconds", "politeness_by", "as_of")

classes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
rules_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
politeness_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def _read(file: Path, wanted: str, printed: Collection[str]) -> dict[str, Any]:
    """Read a file of definitions; what a program prints beside them is passed over."""
    from opic.model.classes import read_table

    given = read_table(file)
    if not isinstance(given, dict):
        raise BadInput(f"{file}: {wanted} wanted")
    return {name: value for name, value in given.items() if name not in printed}


# Classes of pages.


@classes_app.callback()
@choosing
def classes(context: typer.Context, *, chosen: ServiceChosen) -> None:
    """Show or set classes of pages and their weights.

    A page is granted cash in proportion to the weight of its class: with 2, twice as much as a page in no class.
    """
    if not is_group(context, chosen):
        _print_classes(asked(chosen, "GET", "/v1/classes"), chosen.as_json)


@classes_app.command(name="set")
@choosing
def set_classes(file: File, *, chosen: ServiceChosen) -> None:
    """Define the classes of pages, replacing the present ones.

    FILE is TOML with a table [[classes]] for each class: its name, its weight, and lists of what belongs to it: hosts
    (including subdomains), urls (prefixes), contains (parts of URLs) and tags (of crawl events). It may have
    revisit_seconds. JSON of the same shape, as `opic classes --json` prints it, works too. A page belongs to the first
    class that it matches. To remove all classes, write `classes = []`.
    """
    _change_classes(chosen, "PUT", _classes_of(file))


@classes_app.command(name="change")
@choosing
def change_classes(file: File, *, chosen: ServiceChosen) -> None:
    """Set the classes of FILE, and leave all others as they are.

    FILE is as for `opic classes set`. A class of the same name is replaced in its place; a new one comes last.
    """
    _change_classes(chosen, "PATCH", _classes_of(file))


@classes_app.command(name="remove")
@choosing
def remove_classes(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)], *, chosen: ServiceChosen
) -> None:
    """Remove classes by name, and leave all others as they are."""
    _change_classes(chosen, "PATCH", {"remove": names})


def _classes_of(file: Path) -> dict[str, Any]:
    from opic.model.classes import read_classes

    return {"classes": [weight_class.shown() for weight_class in read_classes(file)]}


def _change_classes(chosen: ServiceChosen, method: str, body: dict[str, Any]) -> None:
    with asking(chosen, feeds=True) as ask:
        answer = ask(method, "/v1/classes", body=body)
    how = "were" if answer["settled"] else "are being"
    print(f"{answer['reclassified']:,} known pages {how} reclassified", file=sys.stderr)
    _print_classes(answer, chosen.as_json)


def _print_classes(answer: dict[str, Any], as_json: bool) -> None:
    rows = [*answer["classes"], {"name": "other", **answer["other"]}]
    names = ("name", "weight", "known_pages", "read_pages", "grant_share")
    print_list(names, answer if as_json else {"classes": rows}, "classes", as_json)


# Rules: which URLs may be suggested.


@rules_app.callback()
@choosing
def rules(context: typer.Context, *, chosen: ServiceChosen) -> None:
    """Show or set which URLs may be suggested: rules in order, and the thresholds for spider traps."""
    if not is_group(context, chosen):
        _print_rules(asked(chosen, "GET", "/v1/rules"), chosen.as_json)


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

    given = _read_rules(file)
    try:
        check_policy(given)  # The API checks it too; this says better what is wrong.
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    _print_rules(asked(chosen, "PUT", "/v1/rules", body=given), chosen.as_json)


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
    given = _read_rules(file)
    body = {"add": given.pop("rules", []), "first": first, **given}
    _print_rules(asked(chosen, "PATCH", "/v1/rules", body=body), chosen.as_json)


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
    _print_rules(answer, chosen.as_json)


def _read_rules(file: Path) -> dict[str, Any]:
    return _read(file, "tables [[rules]] or [traps] are", ("version",))


def _print_rules(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names = ("rule", "effect", "host", "domain", "path", "query", "revisit_seconds", "note")
    print_rows(names, [{"rule": number, **rule} for number, rule in enumerate(answer["rules"])])
    print_fields({**answer["traps"], "version": answer["version"]})


# Politeness: delays and caps of individual hosts.


@politeness_app.callback()
@choosing
def politeness(
    context: typer.Context,
    *,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Show also its address, and the group that shares its delay.")
    ] = None,
    chosen: ServiceChosen,
) -> None:
    """Show or set the delays and caps of individual hosts."""
    if not is_group(context, chosen):
        _print_politeness(asked(chosen, "GET", "/v1/politeness", {"host": host}), chosen.as_json)


@politeness_app.command(name="set")
@choosing
def set_politeness(file: File, *, chosen: ServiceChosen) -> None:
    """Set delays and caps of hosts, replacing the present ones; all other hosts have the default settings.

    FILE is TOML with a table [hosts."a.example"] for each host, or JSON of the same shape, as `opic politeness --json`
    prints it. A host has one or more of delay_seconds, in_flight (its pages leased at once; 0 is any number) and
    revisit_seconds (from a page's read to its next suggestion).
    """
    body = _read(file, "a table [hosts] is", (*PRINTED_BESIDE, "host_group"))
    with asking(chosen) as ask:
        try:
            answer = ask("PUT", "/v1/politeness", body=body)
        except BadInput as error:
            raise BadInput(f"{file}: {error}") from None
    _print_politeness(answer, chosen.as_json)


def _print_politeness(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names = ("delay_seconds", "in_flight", "revisit_seconds", "host")
    print_rows(names, [{**host, "host": name} for name, host in answer["hosts"].items()])
    print_fields({name: answer[name] for name in PRINTED_BESIDE} | (answer["host_group"] or {}))
