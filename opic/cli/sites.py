"""Commands for hosts, and for why a page has its score; and what commands for pages share."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opic.cli.options import FOUND_A_PROBLEM, AsJson, Chosen, asking, choosing
from opic.cli.output import print_answer, print_list
from opic.errors import BadInput

if TYPE_CHECKING:
    from opic.service.service import Backend
    from opic.settings import Settings

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False)]
Policy = Annotated[
    str | None, typer.Option(metavar="NAME", help="static, interpolation, fixed, variable or improved. [OPIC_POLICY]")
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="WINDOW", help="Window of the policy: rounds, or a duration like 30d or 12h. [OPIC_WINDOW_ROUNDS]"
    ),
]


@choosing
def hosts(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of hosts.")] = 100,
    policy: Policy = None,
    window: Window = None,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print the most important hosts, best first.

    The importance of a host is the sum of the importance of its pages.
    """
    found = chosen.settings()
    check_n(n, found)
    with asking(found) as backend:
        as_of = backend.query.as_of(policy)
        answer = {"as_of": as_of, "hosts": backend.query.hosts(n, policy, window)}
    print_list(("importance", "pages", "read_pages", "host"), answer, "hosts", as_json)


@choosing
def explain(
    url: Url,
    *,
    policy: Policy = None,
    window: Window = None,
    chosen: Chosen,
    as_json: AsJson = False,
) -> None:
    """Print why a page has its score and is next or not.

    Exit status 1 if the page was never seen.
    """
    with asking(chosen.settings()) as backend:
        answer = seen(backend, url, backend.explain(url, policy, window))
    print_answer(answer if as_json else _flat(answer), as_json)


def _flat(answer: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Name what is inside by its way there: estimate.numbers.H."""
    found: dict[str, object] = {}
    for name, value in answer.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


def seen(backend: "Backend", url: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    """Return what is known of a page, or end: it was never seen."""
    if answer is not None:
        return answer
    print(f"opic: {backend.query.never_seen(url)}", file=sys.stderr)
    raise typer.Exit(FOUND_A_PROBLEM)


def check_n(n: int, settings: "Settings") -> None:
    """Refuse more than may be asked for at once."""
    if n > settings.max_n:
        raise BadInput(f"--n {n:,} is over OPIC_MAX_N {settings.max_n:,}")
