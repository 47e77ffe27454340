"""Commands about which URLs may be suggested."""

from pathlib import Path
from typing import Annotated, Any

import typer

from opic.errors import BadInput
from opic.options import AsJson, Chosen, asking, choosing
from opic.output import print_fields, print_json, print_rows

rules_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Which URLs may be suggested.")


@rules_app.command(name="show")
@choosing
def show(
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the rules in their order, and what counts as a trap."""
    with asking(chosen.settings()) as backend:
        answer = backend.admission.policy().shown()
    _print(answer, as_json)


@rules_app.command(name="set")
@choosing
def set_rules(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    *,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Set rules and thresholds, in the place of those before; all endpoints go by them a second later.

    FILE is TOML, with a table [[rules]] for each rule and one [traps] with thresholds, or JSON of the same shape, as
    `opic rules show --json` prints it. A rule has an effect, allow or deny, and what it is for: host or domain (with
    all below it), path (a pattern as in robots.txt), query (true: only with one; false: only without), and may have a
    note. The first rule that matches a URL decides.
    """
    from opic.admission import check_policy

    given = _read(file)
    try:
        policy = check_policy(given)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    with asking(chosen.settings()) as backend:
        backend.admission.put(policy)
        answer = policy.shown()
    _print(answer, as_json)


def _read(file: Path) -> object:
    from opic.classes import read_table

    given = read_table(file)
    return {k: v for k, v in given.items() if k != "version"} if isinstance(given, dict) else given


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    names = ("rule", "effect", "host", "domain", "path", "query", "note")
    print_rows(names, [dict.fromkeys(names, "") | {"rule": at, **rule} for at, rule in enumerate(answer["rules"])])
    print_fields({**answer["traps"], "version": answer["version"]})
