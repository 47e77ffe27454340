"""The command line. Results go to stdout, one record per line; logs and progress go to stderr.

Exit status: 0 done; 1 found a problem (books that do not balance, a page never seen); 2 wrong usage, or the command
cannot be done; 130 after Ctrl-C, except for `opic serve`, where Ctrl-C is the normal end: 0. Modules that are slow to
import are imported by the command that needs them, so that `opic --help` is quick.
"""

import sys
from typing import Annotated, Final

import typer

from opic.cli import frontier, pages, store, taking_away
from opic.cli.calls import Refusal
from opic.cli.classes import classes_app
from opic.cli.compare import compare
from opic.cli.coverage import coverage
from opic.cli.export import export
from opic.cli.history import history
from opic.cli.kafka import letters_app, publish, topics_app
from opic.cli.local_rank import local_rank
from opic.cli.options import FOUND_A_PROBLEM
from opic.cli.output import leave_out_headers
from opic.cli.politeness import politeness_app
from opic.cli.replay import replay
from opic.cli.rules import rules_app
from opic.cli.sample import sample, topic_model
from opic.cli.seed import seed
from opic.cli.serve import doctor, serve, worker
from opic.cli.verify import verify
from opic.errors import OpicError

WRONG_USAGE: Final = 2

app = typer.Typer(
    help="Streaming page importance for crawlers: crawl events in, importance and the next pages to crawl out.",
    epilog="Settings come from the command line, OPIC_… environment variables, or the TOML file named by --config.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from opic import __version__

        print(f"opic {__version__}")
        raise typer.Exit


@app.callback()
def _opic(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether lists in a pipe or file begin with a line of names.")
    ] = True,
) -> None:
    if not header:
        leave_out_headers()


app.command()(serve)
app.command()(worker)
app.command()(replay)
app.command()(seed)
app.command()(taking_away.forget)
app.command(name="next")(frontier.next_pages)
app.command()(frontier.release)
app.command()(frontier.renew)
app.command()(frontier.frontier)
app.command()(pages.top)
app.command()(pages.search)
app.command()(pages.canonical)
app.command()(pages.hosts)
app.command()(pages.importance)
app.command()(history)
app.command()(pages.explain)
app.command()(pages.inflow)
app.command()(pages.inlinks)
app.command()(coverage)
app.command()(local_rank)
app.command()(sample)
app.command()(topic_model)
app.add_typer(classes_app, name="classes")
app.add_typer(rules_app, name="rules")
app.add_typer(politeness_app, name="politeness")
app.command()(store.stats)
app.command()(store.series)
app.command()(store.audit)
app.command()(verify)
app.command()(doctor)
app.command()(export)
app.command()(compare)
app.command()(store.backup)
app.command()(store.restore)
app.command()(store.begin_anew)
app.command()(taking_away.crawls)
app.add_typer(topics_app, name="topics")
app.command()(publish)
app.add_typer(letters_app, name="dead-letters")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except OpicError as error:
        print(f"opic: {error}", file=sys.stderr)
        sys.exit(FOUND_A_PROBLEM if isinstance(error, Refusal) and error.kind == "unknown-page" else WRONG_USAGE)


if __name__ == "__main__":
    main()
