"""Crawls that are moved to others: what tests of migrations share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servers import Server

from opic.migration.migrate import Migration, Report, begin
from opic.model.ledger_page import LedgerPage
from opic.replica import Crawl


def moved(server: Server, crawl: str, to: str, **changes: int | bool | str) -> Report:
    """Move a crawl to another one of the same store."""
    opened = Crawl.open(server.client(), crawl, create=False)
    return begin(opened, server.client(), Migration(to, changes=changes), lambda _: None)


def opened(server: Server, crawl: str) -> Crawl:
    return Crawl.open(server.client(), crawl, create=False)


def pages_of(crawl: Crawl) -> Mapping[str, LedgerPage]:
    """The pages by URL, without what numbers of pages decide: their ids, and the digests of their links."""
    return {page.url: replace(page, id=0, digest=bool(page.digest)) for page in crawl.pages()}


def known_since_of(crawl: Crawl) -> dict[str, int]:
    """When each page became known, in Unix seconds."""
    since, found = crawl.known_since(), crawl.ids_of(urls := [page.url for page in crawl.pages()])
    return {url: int(since[at[0]].seconds_of([at[1]])[0]) for url, at in zip(urls, found, strict=True) if at}


def links_of(crawl: Crawl) -> dict[str, set[str]]:
    """The kept links by URL of their page, of pages and links that are known."""
    from same_state import stored_links

    urls = {
        (shard.number, page): url
        for shard in crawl.shards
        for page, url in enumerate(crawl.urls_in(shard.number, range(len(crawl.follow()[shard.number]))))
    }
    known, found = {page.url for page in crawl.pages()}, dict[str, set[str]]()
    for shard, replica in zip(crawl.shards, crawl.replicas, strict=True):
        for page, (near, far, shards) in stored_links(shard, replica).items():
            targets = [urls[shard.number, one] for one in near.tolist()]
            for of, print_ in zip(shards.tolist(), far, strict=True):
                (at,) = crawl.replicas[of].index.find(print_.reshape(1)).tolist()
                targets += [urls[of, at]] if at >= 0 else []
            found[urls[shard.number, page]] = set(targets) & known
    return found


def answers_of(crawl: Crawl) -> dict[str, Any]:
    """What the whole crawl says of itself, whatever its shards are."""
    books = crawl.totals()
    names = ("clock", "rounds", "pool", "credit", "live", "gone", "open", "open_cash", "v_gone", "h_gone", "rounding")
    names += ("drift_plus", "drift_minus", "reads", "failures", "links", "forgotten", "known_by", "extra")
    return {name: getattr(books, name) for name in names}
