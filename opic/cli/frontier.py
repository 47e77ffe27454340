"""Commands of a crawl: seeds, the next pages, leases."""

import sys
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from opic.cli.calls import asking
from opic.cli.options import AsJson, Domain, ServiceChosen, UrlFile, choosing, lines_of
from opic.cli.output import print_answer, print_list
from opic.errors import BadInput

SEEDS_IN_CALL: Final = 1_000


class Mode(StrEnum):
    """Which pages may be offered."""

    ANY = "any"
    DISCOVER = "discover"
    REFRESH = "refresh"
    COVERAGE = "coverage"


class Recrawl(StrEnum):
    """The recrawl policies."""

    U = "U"
    OR = "OR"
    YR = "YR"
    YRU = "YRU"
    LDU = "LDU"


Offered = Annotated[
    Mode,
    typer.Option(
        help="Any page, only pages never read (discover), only pages read before (refresh), or pages never read, "
        "those with the most trust waiting at them first (coverage)."
    ),
]


@choosing
def seed(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", show_default=False)] = None,
    *,
    file: UrlFile = None,
    depth: Annotated[
        int | None, typer.Option(min=0, help="Depth of the pages, default 0; the smallest depth seen is kept.")
    ] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Metadata to keep with each page, which `next` returns; repeatable."),
    ] = None,
    trust: Annotated[
        float | None,
        typer.Option(help="Weight of each page among the trusted pages of `opic coverage`; 0 takes its trust away."),
    ] = None,
    chosen: ServiceChosen,
    as_json: AsJson = False,
) -> None:
    """Add seed pages, and print how many were known already."""
    given = [*(urls or ()), *(lines_of(file) if file is not None else ())]
    if not given:
        raise BadInput("no seeds: name URLs, or a file of them with --file")
    more: dict[str, Any] = {} if depth is None else {"depth": depth}
    if trust is not None:
        from opic.model.trust import check_trust

        more["trust"] = check_trust(trust)
    if meta:
        more["meta"] = dict(map(_pair, meta))
    total: dict[str, Any] = {"known": 0, "new": 0}
    with asking(chosen, feeds=True) as ask:
        for at in range(0, len(given), SEEDS_IN_CALL):
            answer = ask("POST", "/v1/seeds", body={"urls": given[at : at + SEEDS_IN_CALL], **more})
            total = {**answer, **{name: total[name] + answer[name] for name in total}}
    print_answer(total, as_json)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--meta {text!r} has no '=': write KEY=VALUE")
    return key, value


@choosing
def next_pages(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages; fewer may be returned.")] = 10,
    crawler: Annotated[str, typer.Option(help="Name of the crawler that gets the leases.")] = "opic next",
    lease_seconds: Annotated[
        float | None,
        typer.Option(min=0.001, max=86_400, help="Duration of the leases; default 300. [OPIC_LEASE_SECONDS]"),
    ] = None,
    busy_host: Annotated[list[str] | None, typer.Option(help="A host to skip; may be repeated.")] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="Only pages of this host or domain, including subdomains; may be repeated."),
    ] = None,
    mode: Offered = Mode.ANY,
    policy: Annotated[
        Recrawl | None,
        typer.Option(
            help="With --mode refresh: draw pages at random, alike (U), by the links seen on them (OR), by what their "
            "last read discovered (YR), half and half (YRU), or half the page with the greatest link score (LDU). LDU "
            "needs OPIC_KEEP_LINKS=on."
        ),
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(min=0, help="Only pages whose depth, in links from a seed, is known and at most this.")
    ] = None,
    chosen: ServiceChosen,
    as_json: AsJson = False,
) -> None:
    """Print the next pages to crawl, and lease them.

    This takes leases as a crawler does: no other crawler gets the printed pages until an event for the page
    arrives or the lease expires, and their hosts are delayed for OPIC_HOST_DELAY_SECONDS.
    """
    wishes: dict[str, object] = {
        "lease_seconds": lease_seconds,
        "busy_hosts": busy_host,
        "domains": domain,
        "max_depth": max_depth,
    }
    wishes["policy"] = policy.value if policy else None
    given = {name: value for name, value in wishes.items() if value is not None}
    with asking(chosen) as ask:
        answer = ask("POST", "/v1/next", body={"n": n, "crawler": crawler, "mode": mode.value, **given})
    print_list(("cash", "importance", "lease_until", "lease", "url"), answer, "pages", as_json)
    if not answer["pages"] and not as_json:
        held = ", ".join(f"{count:,} {kind}" for kind, count in answer["waiting"].items() if count)
        then = "waiting will bring nothing" if answer["exhausted"] else f"ask again in {answer['retry_after']:g} s"
        print(f"nothing to crawl now: {then}{f' (held back: {held})' if held else ''}", file=sys.stderr)


@choosing
def release(
    leases: Annotated[list[str], typer.Argument(metavar="LEASE", show_default=False)],
    *,
    chosen: ServiceChosen,
    as_json: AsJson = False,
) -> None:
    """Give leased pages back unread, and print how many of the leases were still active."""
    with asking(chosen) as ask:
        answer = ask("POST", "/v1/release", body={"leases": leases})
    print_answer(answer, as_json)


@choosing
def frontier(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 10,
    domain: Domain = None,
    mode: Offered = Mode.ANY,
    chosen: ServiceChosen,
    as_json: AsJson = False,
) -> None:
    """Print the pages that would be handed out next, without leasing them."""
    with asking(chosen) as ask:
        answer = ask("GET", "/v1/frontier", {"n": n, "domain": domain, "mode": mode.value})
    print_list(("cash", "importance", "url"), answer, "pages", as_json)
