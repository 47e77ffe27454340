"""Commands that take away: pages of a crawl, or a whole crawl."""

import logging
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Final

import typer

from opic.cli.calls import asking
from opic.cli.options import ResultChosen, ServiceChosen, choosing, ending_in_order
from opic.cli.output import print_answer, print_list
from opic.cli.store import connected
from opic.errors import BadInput
from opic.logs import log_to_stderr

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NOT_CONFIRMED: Final = 1


@choosing
def forget(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", show_default=False)] = None,
    *,
    prefix: Annotated[str | None, typer.Option(metavar="URL", help="All pages whose URLs begin so.")] = None,
    host: Annotated[str | None, typer.Option(help="All pages of this host.")] = None,
    domain: Annotated[str | None, typer.Option(help="All pages of this host or domain, including subdomains.")] = None,
    yes: Yes = False,
    chosen: ServiceChosen,
) -> None:
    """Forget pages, with their links and metadata, and print how many.

    Their cash goes to the virtual page. Backups made from then on do not have them. A page that is named again, by a
    link, an event or a seed, becomes known anew.
    """
    areas = {"prefix": prefix, "host": host, "domain": domain}
    wanted = [{"url": url} for url in urls or ()]
    wanted += [{name: value} for name, value in areas.items() if value is not None]
    if not wanted or len(wanted) > max(len(urls or ()), 1):
        raise BadInput("name the pages to forget: by URLs, or by one of --prefix, --host and --domain")
    what = f"{len(wanted):,} pages" if urls else f"all pages of {prefix or host or domain}"
    confirm(f"Forget {what}?", yes)
    count = 0
    with asking(chosen, feeds=True) as ask:
        for one in wanted:
            more = True
            while more:
                answer = ask("DELETE", "/v1/pages", one)
                count, more = count + answer["forgotten"], answer.get("more", False)
    print_answer({"forgotten": count}, chosen.as_json)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `yes`; end the command if the answer is no."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise typer.Exit(NOT_CONFIRMED)


@choosing
def crawls(
    *,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Delete this crawl, with all that it has.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if a worker of it seems to run.")] = False,
    yes: Yes = False,
    chosen: ResultChosen,
) -> None:
    """Print the crawls of a store, or delete one.

    A crawl is not deleted while a worker of it runs. Stop its endpoints first, too: they answer nothing from then on.
    Needs a user that may remove keys.
    """
    from opic.ops.crawls import crawls_of, delete_crawl
    from opic.service.known_crawls import KnownCrawls

    settings = chosen.settings()
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        client = connected(settings, stack, make=False)
        if delete is None:
            answer = {"crawls": [asdict(one) for one in crawls_of(client)]}
            print_list(("name", "shards", "known_pages", "read_pages"), answer, "crawls", chosen.as_json)
            return
        confirm(f"Delete crawl {delete!r} and all that it has?", yes)
        removed = delete_crawl(client, delete, force=force)
        KnownCrawls(settings).forget(delete)
    print_answer({"deleted": delete, "keys_removed": removed}, chosen.as_json)
