"""Commands for classes of pages and their weights."""

import sys
from typing import Annotated, Any

import typer

from opic.cli.calls import asked, asking
from opic.cli.options import File, ServiceChosen, choosing, is_group
from opic.cli.output import print_list

classes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@classes_app.callback()
@choosing
def classes(context: typer.Context, *, chosen: ServiceChosen) -> None:
    """Show or set classes of pages and their weights.

    A page is granted cash in proportion to the weight of its class: with 2, twice as much as a page in no class.
    """
    if is_group(context, chosen):
        return
    answer = asked(chosen, "GET", "/v1/classes")
    _print_classes(answer, chosen.as_json)


@classes_app.command(name="set")
@choosing
def set_classes(file: File, *, chosen: ServiceChosen) -> None:
    """Define the classes of pages, replacing the present ones.

    FILE is TOML with a table [[classes]] for each class: its name, its weight, and lists of what belongs to it: hosts
    (including subdomains), urls (prefixes), contains (parts of URLs) and tags (of crawl events). It may have
    revisit_seconds. JSON of the same shape, as `opic classes --json` prints it, works too. A page belongs to the first
    class that it matches. To remove all classes, write `classes = []`.
    """
    from opic.model.classes import read_classes

    _change({"classes": [one.shown() for one in read_classes(file)]}, chosen, chosen.as_json, "PUT")


@classes_app.command(name="change")
@choosing
def change_classes(file: File, *, chosen: ServiceChosen) -> None:
    """Set the classes of FILE, and leave all others as they are.

    FILE is as for `opic classes set`. A class of the same name is replaced in its place; a new one comes last.
    """
    from opic.model.classes import read_classes

    _change({"classes": [one.shown() for one in read_classes(file)]}, chosen, chosen.as_json)


@classes_app.command(name="remove")
@choosing
def remove_classes(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)], *, chosen: ServiceChosen
) -> None:
    """Remove classes by name, and leave all others as they are."""
    _change({"remove": names}, chosen, chosen.as_json)


def _change(body: dict[str, Any], chosen: ServiceChosen, as_json: bool, method: str = "PATCH") -> None:
    with asking(chosen, feeds=True) as ask:
        answer = ask(method, "/v1/classes", body=body)
    how = "were" if answer["settled"] else "are being"
    print(f"{answer['reclassified']:,} known pages {how} reclassified", file=sys.stderr)
    _print_classes(answer, as_json)


def _print_classes(answer: dict[str, Any], as_json: bool) -> None:
    rows = [*answer["classes"], {"name": "other", **answer["other"]}]
    names = ("name", "weight", "known_pages", "read_pages", "grant_share")
    print_list(names, answer if as_json else {"classes": rows}, "classes", as_json)
