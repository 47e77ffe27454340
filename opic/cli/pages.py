"""Commands for pages and hosts: their importance, and what is behind it."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from opic.cli.calls import ApiCall, asked, asking
from opic.cli.options import Domain, ServiceChosen, UrlFile, choosing, number_or_text, numbered_lines, without_none
from opic.cli.output import print_answer, print_json, print_list, print_paragraph, print_rows
from opic.errors import BadInput
from opic.messages.sentences import certainty

Url = Annotated[str, typer.Argument(metavar="URL", show_default=False)]
Policy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="exact, static, interpolation, fixed, variable or improved. [OPIC_POLICY]"),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="WINDOW", help="Window of the policy: rounds, or a duration like 30d or 12h. [OPIC_WINDOW_ROUNDS]"
    ),
]
All = Annotated[bool, typer.Option("--all", help="To the end of the list, instead of --n.")]
PAGES_A_CALL: Final = 1_000  # The default of OPIC_MAX_N.


def _paged(ask: ApiCall, path: str, terms: Mapping[str, object], n: int | None) -> dict[str, Any]:
    """Ask for the first `n` pages of a list, or for all (None), in as many calls as it takes; return one answer."""
    first = PAGES_A_CALL if n is None else min(n, PAGES_A_CALL)
    answer = ask("GET", path, {**terms, "n": first})
    pages: list[dict[str, Any]] = answer["pages"]
    while answer.get("next") is not None and (n is None or len(pages) < n):
        left = PAGES_A_CALL if n is None else min(n - len(pages), PAGES_A_CALL)
        answer = ask("GET", path, {**terms, "n": left, "after": answer["next"]})
        pages += answer["pages"]
    return {**answer, "pages": pages}


Site = Literal["host", "domain"]  # What pages are added up by.
TopBy = Literal["importance", "inlinks"]  # What pages are ordered by.
TopState = Literal["unread", "read", "excluded"]  # Of the pages that are listed.


@choosing
def top(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages, asked for 1,000 at a time.")] = 100,
    all: All = False,
    domain: Domain = None,
    by: Annotated[
        TopBy,
        typer.Option(
            help="What orders pages: importance, or inlinks, the known pages that link to a page; with --window 7d "
            "only those read in the last 7 days. inlinks: not with OPIC_KEEP_LINKS=off."
        ),
    ] = "importance",
    state: Annotated[
        TopState | None, typer.Option(help="Only pages never read, only those read, or those that may not be read.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Continue where the last answer stopped.")] = None,
    policy: Policy = None,
    window: Window = None,
    chosen: ServiceChosen,
) -> None:
    """Print the most important pages, or those that most pages link to, best first.

    By policy exact, `certain` says whether the error bound makes a page's rank certain.
    """
    terms = {"domain": domain, "policy": policy, "window": window, "by": by, "state": state, "after": after}
    with asking(chosen) as ask:
        answer = _paged(ask, "/v1/top", terms, None if all else n)
    if by == "importance" and answer["pages"]:  # Of all calls together.
        certain = [bool(page.get("certain")) for page in answer["pages"]]
        answer["certainty"] = certainty(certain, answer["pages"][-1].get("error_bound"))
    sure = ("certain",) if any("certain" in page for page in answer["pages"]) else ()
    columns = ("importance", *sure) if by == "importance" else ("inlinks", "importance")
    print_list((*columns, "url"), answer, "pages", chosen.as_json)
    if not chosen.as_json and "certainty" in answer:
        print(answer["certainty"], file=sys.stderr)
    if not chosen.as_json and answer.get("next") is not None:
        print(f"there are more pages: --after {answer['next']}", file=sys.stderr)


@choosing
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 20,
    all: All = False,
    domain: Domain = None,
    after: Annotated[str | None, typer.Option(help="Continue where the last answer stopped.")] = None,
    chosen: ServiceChosen,
) -> None:
    """Print pages whose URL contains TEXT, the most important first; case does not matter."""
    with asking(chosen) as ask:
        answer = _paged(ask, "/v1/search", {"text": text, "domain": domain, "after": after}, None if all else n)
    print_list(("importance", "url"), answer, "pages", chosen.as_json)
    if not chosen.as_json and answer.get("next") is not None:
        looked = f"{answer['looked_at']:,} of {answer['known_pages']:,} pages"
        print(f"looked at {looked}; continue with --after {answer['next']}", file=sys.stderr)


@choosing
def hosts(
    *,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of hosts, or of domains.")] = 100,
    by: Annotated[Site, typer.Option(help="Add pages up by host, or by registered domain.")] = "host",
    policy: Policy = None,
    window: Window = None,
    chosen: ServiceChosen,
) -> None:
    """Print the most important hosts or registered domains, best first.

    The importance of a host is the sum over its pages, that of a domain the sum over its hosts.
    """
    answer = asked(chosen, "GET", f"/v1/{by}s", {"n": n, "policy": policy, "window": window})
    counts = ("pages", "read_pages") if by == "host" else ("hosts", "pages", "read_pages")
    print_list(("importance", *counts, by), answer, f"{by}s", chosen.as_json)


@choosing
def importance(url: Url, *, policy: Policy = None, window: Window = None, chosen: ServiceChosen) -> None:
    """Print the importance of a page.

    Exit status 1 if the page was never seen.
    """
    terms = {"url": url, "policy": policy, "window": window}
    print_answer(asked(chosen, "GET", "/v1/importance", terms), chosen.as_json)


@choosing
def explain(url: Url, *, policy: Policy = None, window: Window = None, chosen: ServiceChosen) -> None:
    """Print why a page has its score, who gives it its importance, and why it is offered or not.

    Exit status 1 if the page was never seen.
    """
    answer = asked(chosen, "GET", "/v1/explain", {"url": url, "policy": policy, "window": window})
    if chosen.as_json:
        print_json(answer)
        return
    print(answer["url"])
    for reason in answer["reasons"]:
        print_paragraph(reason["about"], reason["sentences"])


@choosing
def canonical(
    url: Url,
    *,
    normalize: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="Show the form in a crawl with these rules, or none, without a store."),
    ] = None,
    chosen: ServiceChosen,
) -> None:
    """Print the canonical form of a URL: the name of its page in the crawl, by the crawl's normalization rules.

    The rules are unreserved, escape, dot, www, https, tracking, session and index; a crawl has those of OPIC_NORMALIZE
    when it is made.
    """
    if normalize is not None:
        from opic.model.events import EventLimits, shown_canonical
        from opic.urls.normalization import Normalization

        answer: Mapping[str, Any] = shown_canonical(url, EventLimits(normalization=Normalization.of(normalize)))
    else:
        answer = asked(chosen, "GET", "/v1/canonical", {"url": url})
    if not chosen.as_json:
        answer = {**answer, **{name: ", ".join(answer[name]) or "none" for name in ("rules", "applied")}}
    print_answer(answer, chosen.as_json)


@choosing
def inflow(
    domain: Annotated[str | None, typer.Argument(metavar="DOMAIN", show_default=False)] = None,
    *,
    host: Annotated[bool, typer.Option("--host", help="DOMAIN is a host: print what came from other hosts.")] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="DOMAIN is the beginning of URLs; needs kept links.")
    ] = False,
    file: UrlFile = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 1_000,
    after: Annotated[
        str | None, typer.Option(metavar="URL", help="Continue after this page, as the last answer said.")
    ] = None,
    policy: Policy = None,
    window: Window = None,
    chosen: ServiceChosen,
) -> None:
    """Print what each page of a registered domain received from pages outside it, as a share of all cash.

    Where links are kept also of a URL prefix or of the pages in a file, and by any policy.
    """
    if (domain is None) == (file is None):
        raise BadInput("name a domain, or a file of URLs with --file")
    scope = "host" if host else "prefix" if prefix else "domain"
    with asking(chosen) as ask:
        if file is not None:
            urls = [line for _, line in numbered_lines(file)]
            body = without_none({"urls": urls, "policy": policy, "window": window and number_or_text(window)})
            answer = ask("POST", "/v1/inflow", body=body)
        else:
            terms = {scope: domain, "n": n, "after": after, "policy": policy, "window": window}
            answer = ask("GET", "/v1/inflow", terms)
    print_list(("inflow", "inflow_max", "url") if host else ("inflow", "url"), answer, "pages", chosen.as_json)
    if not chosen.as_json:
        print(
            f"outside {domain or 'the list'}: importance {answer['outside_mass']:.6g}, of which never read "
            f"{answer['unread_mass']:.6g}, without links {answer['dangling_mass']:.6g}",
            file=sys.stderr,
        )
        if missing := answer.get("missing"):
            print(f"{len(missing):,} of the list are gone or were never seen, such as {missing[0]}", file=sys.stderr)
        if answer.get("next") is not None:
            print(f"there are more pages: --after {answer['next']}", file=sys.stderr)


@choosing
def inlinks(
    url: Url, *, n: Annotated[int, typer.Option("--n", min=1, help="Number of pages.")] = 100, chosen: ServiceChosen
) -> None:
    """Print pages that were read and link to a page. Not with OPIC_KEEP_LINKS=off.

    Exit status 1 if the page was never seen.
    """
    answer = asked(chosen, "GET", "/v1/inlinks", {"url": url, "n": n})
    if chosen.as_json:
        print_json(answer)
        return
    print_rows(("url",), [{"url": page} for page in answer["inlinks"]])
    if answer["known"] > len(answer["inlinks"]):
        print(f"{answer['known']:,} pages link to it: --n shows more", file=sys.stderr)
