"""The command that adds seeds: from the command line, files, sitemaps and feeds."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from opic.cli.calls import ApiCall, asking
from opic.cli.options import (
    FOUND_A_PROBLEM,
    AllowPrivate,
    ServiceChosen,
    UrlFile,
    choosing,
    number_or_text,
    numbered_lines,
    without_none,
)
from opic.cli.output import print_answer
from opic.errors import BadInput, BadUrl

if TYPE_CHECKING:
    from opic.sitemaps.reader import SitemapReader

SEEDS_IN_CALL: Final = 1_000


class Seed(NamedTuple):
    """A URL, and where it is named: a file with the line; "" on the command line."""

    url: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class SitemapOptions:
    """Sitemaps, and how they are read."""

    sitemap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL|FILE",
            help="The pages of this sitemap, sitemap index, feed (RSS, Atom) or list of URLs; repeatable.",
        ),
    ] = None
    max_urls: Annotated[
        int | None, typer.Option(min=1, help="Sitemaps: take no more pages than these; default 1,000,000.")
    ] = None
    allow_private: AllowPrivate = False

    def reader(self) -> "SitemapReader":
        """Return what reads them."""
        from opic.sitemaps.reader import SitemapLimits, SitemapReader

        limits = SitemapLimits(allow_private=self.allow_private)
        return SitemapReader(limits if self.max_urls is None else replace(limits, urls_max=self.max_urls))


@dataclass(frozen=True, slots=True)
class PageNotes:
    """What is said of each of the pages."""

    depth: Annotated[
        int | None, typer.Option(min=0, help="Depth of the pages, default 0; the smallest depth seen is kept.")
    ] = None
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Metadata to keep with each page, which `next` returns; repeatable."),
    ] = None
    trust: Annotated[
        float | None,
        typer.Option(help="Weight of each page among the trusted pages of `opic coverage`; 0 takes its trust away."),
    ] = None
    not_before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Unix seconds or RFC 3339; the pages are not offered before.")
    ] = None
    priority: Annotated[
        float | None, typer.Option(help="Factor on the key of each page in the order of `next`; the default is 1.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the call."""
        from opic.model.page_notes import check_priority
        from opic.model.trust import check_trust

        return without_none(
            {
                "depth": self.depth,
                "trust": check_trust(self.trust),
                "not_before": None if self.not_before is None else number_or_text(self.not_before),
                "priority": check_priority(self.priority),
                "meta": dict(map(_pair, self.meta)) if self.meta else None,
            }
        )


@choosing
def seed(
    urls: Annotated[list[str] | None, typer.Argument(metavar="URL", show_default=False)] = None,
    *,
    file: UrlFile = None,
    sitemaps: SitemapOptions,
    notes: PageNotes,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any URL was rejected.")] = False,
    chosen: ServiceChosen,
) -> None:
    """Add seed pages, and print how many were known already.

    URLs that are refused are listed with file and line, and the others are added. A sitemap is read within limits:
    50 MiB, a minute and 1,000 files; indexes up to 3 levels below the first. Of a damaged one, the whole entries count.
    One that declares entities is refused.
    Exit status 1: no URL could be taken, or with --strict any was rejected.
    """
    if not urls and file is None and not sitemaps.sitemap:
        raise BadInput("no seeds: name URLs, or a file of them with --file, or a sitemap with --sitemap")
    if not sitemaps.sitemap and (sitemaps.max_urls is not None or sitemaps.allow_private):
        raise BadInput("--max-urls and --allow-private apply to --sitemap only")
    more = notes.fields()
    listed = [Seed(url) for url in urls or ()]
    if file is not None:
        listed += [Seed(line, f"{file}:{number}") for number, line in numbered_lines(file)]
    if not listed and not sitemaps.sitemap:
        raise BadInput(f"no seeds: --file {file} has none")
    total: dict[str, Any] = {"known": 0, "new": 0}
    rejected: list[dict[str, Any]] = []
    with asking(chosen, feeds=True) as ask:
        _add(ask, iter(listed), more, total, rejected)
        if sitemaps.sitemap:
            with sitemaps.reader() as reader:
                for source in sitemaps.sitemap:
                    _add(ask, (Seed(*page) for page in reader.pages(source)), more, total, rejected)
            rejected += [{"error": problem} for problem in reader.problems]
    if len(listed) == len(rejected) == 1 and not sitemaps.sitemap:
        raise BadUrl(_told(rejected[0]))
    _print(total, rejected, chosen.as_json)
    if rejected and (strict or not total["known"] + total["new"]):
        raise typer.Exit(FOUND_A_PROBLEM)


def _add(
    ask: ApiCall, seeds: Iterator[Seed], more: Mapping[str, Any], total: dict[str, Any], rejected: list[dict[str, Any]]
) -> None:
    """Add seeds, a call for each SEEDS_IN_CALL of them; count them in `total` and list the bad ones in `rejected`."""
    while batch := list(islice(seeds, SEEDS_IN_CALL)):
        try:
            answer = ask("POST", "/v1/seeds", body={"urls": [seed.url for seed in batch], **more})
        except BadUrl as error:  # The only one of the call.
            answer = {"known": 0, "new": 0, "rejected": [{"index": 0, "error": str(error)}]}
        for name in ("known", "new"):
            total[name] += answer[name]
        for rejection in answer.get("rejected", ()):
            where = batch[rejection["index"]].where
            rejected.append({**({"where": where} if where else {}), "error": rejection["error"]})


def _print(total: Mapping[str, Any], rejected: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_answer({**total, **({"rejected": list(rejected)} if rejected else {})}, as_json)
        return
    for rejection in rejected:
        print(_told(rejection), file=sys.stderr)
    print_answer({**total, **({"rejected": len(rejected)} if rejected else {})}, as_json)


def _told(rejection: Mapping[str, Any]) -> str:
    return f"{rejection['where']}: {rejection['error']}" if "where" in rejection else str(rejection["error"])


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--meta {text!r} has no '=': write KEY=VALUE")
    return key, value
