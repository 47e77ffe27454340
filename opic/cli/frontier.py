"""Commands of a crawl: the next pages, leases."""

import sys
from typing import Annotated, Any, Literal

import typer

from opic.cli.calls import asked
from opic.cli.options import Domain, ServiceChosen, choosing, without_none
from opic.cli.output import print_answer, print_list
from opic.messages.sentences import waiting

Mode = Literal["any", "discover", "refresh", "coverage"]  # Which pages may be offered.
NextPolicy = Literal["U", "OR", "YR", "YRU", "LDU", "GAI", "AI"]  # The recrawl policies, and the expansion policies.
Offered = Annotated[
    Mode,
    typer.Option(
        help="Any page, only pages never read (discover), only pages read before (refresh), or pages never read, "
        "those with the most trust waiting at them first (coverage)."
    ),
]
LeaseSeconds = Annotated[
    float | None, typer.Option(min=0.001, max=86_400, help="Duration of the leases; default 300. [OPIC_LEASE_SECONDS]")
]


@choosing
def next_pages(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages; fewer may be returned.")] = 10,
    crawler: Annotated[str, typer.Option(help="Name of the crawler that gets the leases.")] = "opic next",
    lease_seconds: LeaseSeconds = None,
    busy_host: Annotated[list[str] | None, typer.Option(help="A host to skip; may be repeated.")] = None,
    domain: Annotated[
        list[str] | None, typer.Option(help="Only pages of this host or domain, including subdomains; may be repeated.")
    ] = None,
    mode: Offered = "any",
    policy: Annotated[
        NextPolicy | None,
        typer.Option(
            help="With --mode refresh: draw pages at random, alike (U), by the links seen on them (OR), by what their "
            "last read discovered (YR), half and half (YRU), or half the page with the greatest link score (LDU). With "
            "--mode discover: most in-links first (GAI), or drawn in proportion to in-links (AI). LDU, GAI and AI: not "
            "with OPIC_KEEP_LINKS=off."
        ),
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(min=0, help="Only pages whose depth, in links from a seed, is known and at most this.")
    ] = None,
    chosen: ServiceChosen,
) -> None:
    """Print the next pages to crawl, and lease them.

    This takes leases as a crawler does: no other crawler gets the printed pages until an event for the page
    arrives or the lease expires, and their hosts are delayed for OPIC_HOST_DELAY_SECONDS.
    """
    terms = {"n": n, "crawler": crawler, "lease_seconds": lease_seconds, "busy_hosts": busy_host, "domains": domain}
    body = without_none({**terms, "mode": mode, "max_depth": max_depth, "policy": policy})
    answer = asked(chosen, "POST", "/v1/next", body=body)
    print_list(("cash", "importance", "lease_until", "lease", "url"), answer, "pages", chosen.as_json)
    if not chosen.as_json:
        _say_why_empty(answer, f"ask again in {answer['retry_after']:g} s")


def _say_why_empty(answer: dict[str, Any], then: str) -> None:
    """Say on stderr why there are no pages, and what to do unless waiting brings none."""
    if answer["pages"]:
        return
    then = "waiting will bring nothing" if answer["exhausted"] else then
    print(f"nothing to crawl now: {then}", file=sys.stderr)
    for sentence in waiting(answer["waiting"]):
        print(f"  {sentence}", file=sys.stderr)


@choosing
def release(
    leases: Annotated[list[str], typer.Argument(metavar="LEASE", show_default=False)], *, chosen: ServiceChosen
) -> None:
    """Give leased pages back unread, and print how many of the leases were still active."""
    print_answer(asked(chosen, "POST", "/v1/release", body={"leases": leases}), chosen.as_json)


@choosing
def renew(
    leases: Annotated[list[str], typer.Argument(metavar="LEASE", show_default=False)],
    *,
    lease_seconds: LeaseSeconds = None,
    chosen: ServiceChosen,
) -> None:
    """Let leases run for longer, from now on, and print when they end.

    Exit status 1 if any of them has ended; their pages may be leased to other crawlers.
    """
    body = {"leases": leases, "lease_seconds": lease_seconds}
    answer = asked(chosen, "POST", "/v1/leases/renew", body=without_none(body))
    print_list(("lease_until", "lease"), answer, "renewed", chosen.as_json)
    if answer["lost"]:
        if not chosen.as_json:
            print(f"{len(answer['lost']):,} of the leases have ended: {', '.join(answer['lost'])}", file=sys.stderr)
        raise typer.Exit(1)


@choosing
def frontier(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 10,
    domain: Domain = None,
    mode: Offered = "any",
    chosen: ServiceChosen,
) -> None:
    """Print the pages that would be handed out next, without leasing them, and what holds others back.

    The largest key comes first: by importance where links are kept, else by cash.
    """
    answer = asked(chosen, "GET", "/v1/frontier", {"n": n, "domain": domain, "mode": mode})
    print_list(("key", "importance", "cash", "url"), answer, "pages", chosen.as_json)
    if not chosen.as_json and not answer["pages"]:
        _say_why_empty({**answer, "waiting": {}}, "pages come later")
    if not chosen.as_json:
        print(f"ordered by {'importance' if answer['order'] == 'exact' else answer['order']}", file=sys.stderr)
        for sentence in answer["held_back"]:
            print(f"not offered: {sentence}", file=sys.stderr)
