"""The command that adds seeds: from the command line, files, sitemaps and feeds."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from opic.cli.calls import ApiCall, asking
from opic.cli.options import FOUND_A_PROBLEM, AllowPrivate, ServiceChosen, UrlFile, choosing, numbered_lines
from opic.cli.output import print_answer
from opic.errors import BadInput, BadUrl

if TYPE_CHECKING:
    from opic.sitemaps.reader import SitemapReader

SEEDS_IN_CALL: Final = 1_000
Sitemaps = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL|FILE",
        help="The pages of this sitemap, sitemap index or feed (RSS, Atom), plain or gzip; repeatable.",
    ),
]
MaxUrls = Annotated[int | None, typer.Option(min=1, help="Sitemaps: take no more pages than these; default 1,000,000.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any URL was rejected.")]


class Seed(NamedTuple):
    """A URL, and where it is named: a file with the line; "" on the command line."""

    url: str
    where: str = ""


@choosing
def seed(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", show_default=False)] = None,
    *,
    file: UrlFile = None,
    sitemap: Sitemaps = None,
    max_urls: MaxUrls = None,
    allow_private: AllowPrivate = False,
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
    not_before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Unix seconds or RFC 3339; the pages are not offered before.")
    ] = None,
    priority: Annotated[
        float | None, typer.Option(help="Factor on the key of each page in the order of `next`; the default is 1.")
    ] = None,
    strict: Strict = False,
    chosen: ServiceChosen,
) -> None:
    """Add seed pages, and print how many were known already.

    URLs that can't be taken are listed with file and line, and the others are added. A sitemap is read within limits:
    50 MiB, a minute and 1,000 files; indexes up to 3 levels below the first. One that declares entities is refused.
    Exit status 1: no URL could be taken, or with --strict any was rejected.
    """
    if not urls and file is None and not sitemap:
        raise BadInput("no seeds: name URLs, or a file of them with --file, or a sitemap with --sitemap")
    if not sitemap and (max_urls is not None or allow_private):
        raise BadInput("--max-urls and --allow-private apply to --sitemap only")
    more = _said(depth, meta, trust, not_before, priority)
    listed = [Seed(url) for url in urls or ()]
    if file is not None:
        listed += [Seed(line, f"{file}:{number}") for number, line in numbered_lines(file)]
    if not listed and not sitemap:
        raise BadInput(f"no seeds: --file {file} has none")
    total: dict[str, Any] = {"known": 0, "new": 0}
    rejected: list[dict[str, Any]] = []
    with asking(chosen, feeds=True) as ask:
        _add(ask, iter(listed), more, total, rejected)
        if sitemap:
            with _reader(max_urls, allow_private=allow_private) as reader:
                for source in sitemap:
                    _add(ask, (Seed(*page) for page in reader.pages(source)), more, total, rejected)
            rejected += [{"error": problem} for problem in reader.problems]
    if len(listed) == len(rejected) == 1 and not sitemap:
        raise BadUrl(_told(rejected[0]))
    _print(total, rejected, chosen.as_json)
    if rejected and (strict or not total["known"] + total["new"]):
        raise typer.Exit(FOUND_A_PROBLEM)


def _said(
    depth: int | None, meta: Sequence[str] | None, trust: float | None, not_before: str | None, priority: float | None
) -> dict[str, Any]:
    """Return what each of the pages gets, as the call has it."""
    more: dict[str, Any] = {} if depth is None else {"depth": depth}
    if trust is not None:
        from opic.model.trust import check_trust

        more["trust"] = check_trust(trust)
    if not_before is not None:
        more["not_before"] = _time(not_before)
    if priority is not None:
        from opic.model.page_notes import check_priority

        more["priority"] = check_priority(priority)
    if meta:
        more["meta"] = dict(map(_pair, meta))
    return more


def _reader(urls_max: int | None, *, allow_private: bool) -> "SitemapReader":
    from opic.sitemaps.reader import SitemapLimits, SitemapReader

    limits = SitemapLimits(allow_private=allow_private)
    return SitemapReader(limits if urls_max is None else SitemapLimits(allow_private=allow_private, urls_max=urls_max))


def _add(
    ask: ApiCall,
    seeds: Iterator[Seed],
    more: Mapping[str, Any],
    total: dict[str, Any],
    rejected: list[dict[str, Any]],
) -> None:
    """Add seeds, a call for each SEEDS_IN_CALL of them; count them in `total` and list the bad ones in `rejected`."""
    while batch := list(islice(seeds, SEEDS_IN_CALL)):
        try:
            answer = ask("POST", "/v1/seeds", body={"urls": [seed.url for seed in batch], **more})
        except BadUrl as error:  # The only one of the call.
            answer = {"known": 0, "new": 0, "rejected": [{"index": 0, "error": str(error)}]}
        for name in ("known", "new"):
            total[name] += answer[name]
        for one in answer.get("rejected", ()):
            where = batch[one["index"]].where
            rejected.append({**({"where": where} if where else {}), "error": one["error"]})


def _print(total: Mapping[str, Any], rejected: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_answer({**total, **({"rejected": list(rejected)} if rejected else {})}, as_json)
        return
    for one in rejected:
        print(_told(one), file=sys.stderr)
    print_answer({**total, **({"rejected": len(rejected)} if rejected else {})}, as_json)


def _told(one: Mapping[str, Any]) -> str:
    return f"{one['where']}: {one['error']}" if "where" in one else str(one["error"])


def _time(text: str) -> float | str:
    """Return a time as a JSON body has it: Unix seconds are a number."""
    try:
        return float(text)
    except ValueError:
        return text


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--meta {text!r} has no '=': write KEY=VALUE")
    return key, value
