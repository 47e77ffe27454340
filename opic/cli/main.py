"""The command line. Results go to stdout, one record per line; logs and progress go to stderr.

Exit status: 0 done; 1 found a problem (books that do not balance, a page never seen); 2 wrong usage, or the command
cannot be done; 130 after Ctrl-C, except for `opic serve`, where Ctrl-C is the normal end: 0. Modules that are slow to
import are imported by the command that needs them, so that `opic --help` is quick.
"""

import sys
from typing import Annotated, Final

import typer

from opic import __version__
from opic.cli import definitions, frontier, pages, results, store
from opic.cli.calls import Refusal
from opic.cli.coverage import coverage
from opic.cli.history import history
from opic.cli.kafka import letters_app, publish, topics_app
from opic.cli.local_rank import local_rank
from opic.cli.migrate import migrate
from opic.cli.options import FOUND_A_PROBLEM
from opic.cli.output import printing, show_headers
from opic.cli.replay import replay
from opic.cli.sample import sample, topic_model
from opic.cli.seed import seed
from opic.cli.serve import doctor, serve, worker
from opic.cli.tokens import tokens_app
from opic.errors import OpicError

WRONG_USAGE: Final = 2

app = typer.Typer(
    help="Streaming page importance for crawlers: crawl events in, importance and the next pages to crawl out.",
    epilog="Settings come from the command line, OPIC_… environment variables, or the TOML file named by --config.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    show_headers(header)


# In the order in which `opic --help` lists them.
for command in (serve, worker, replay, seed, store.forget):
    app.command()(command)
app.command(name="next")(frontier.next_pages)
for command in (frontier.release, frontier.renew, frontier.frontier):
    app.command()(command)
for command in (pages.top, pages.search, pages.canonical, pages.hosts, pages.importance, history, pages.explain):
    app.command()(command)
for command in (pages.inflow, pages.inlinks, coverage, local_rank, sample, topic_model):
    app.command()(command)
app.add_typer(definitions.classes_app, name="classes")
app.add_typer(definitions.rules_app, name="rules")
app.add_typer(definitions.politeness_app, name="politeness")
for command in (store.stats, store.series, store.audit, results.verify, doctor, results.export, results.compare):
    app.command()(command)
app.command()(results.load_importance)
for command in (store.backup, store.restore, migrate, store.begin_anew, store.crawls):
    app.command()(command)
app.add_typer(tokens_app, name="tokens")
app.add_typer(topics_app, name="topics")
app.command()(publish)
app.add_typer(letters_app, name="dead-letters")


def main() -> None:
    """Run the command line."""
    try:
        with printing():
            app()
    except OpicError as error:
        print(f"opic: {error}", file=sys.stderr)
        sys.exit(FOUND_A_PROBLEM if isinstance(error, Refusal) and error.kind == "unknown-page" else WRONG_USAGE)


if __name__ == "__main__":
    main()
