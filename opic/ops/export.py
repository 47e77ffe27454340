"""Export of a crawl to a file: its pages as Parquet, CSV or JSON Lines, its hosts as Common Crawl ranks them.

A file is there whole or not at all. Batches keep the memory beside the replicas constant.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from opic.errors import BadInput
from opic.model.cash import MILLION
from opic.ops.export_pages import CrawlPicture, MetaCopy, take_picture
from opic.ops.export_tables import LINK_COLUMNS, PAGE_COLUMNS, check_parquet, open_table, open_text
from opic.ops.whole_files import whole_files
from opic.query.queries import Query

FORMATS: Final = ("parquet", "csv", "jsonl", "cc-ranks")
CC_COLUMNS: Final = ("#harmonicc_pos", "#harmonicc_val", "#pr_pos", "#pr_val", "#host_rev")
CC_NONE: Final = "---"
OnProgress = Callable[[int, int | None, str], None]


def format_of(path: Path) -> str:
    """Return the format that a file's name stands for.

    Raises:
        BadInput: it stands for none.

    >>> format_of(Path("pages.parquet")), format_of(Path("pages.csv.gz"))
    ('parquet', 'csv')
    """
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in FORMATS:
        raise BadInput(f"{path.name} does not say its format: give --format {', '.join(FORMATS)}")
    return ending


def links_path(path: Path) -> Path:
    """Return the file of the links beside a file of pages.

    >>> links_path(Path("out/pages.csv.gz")).as_posix(), links_path(Path("pages")).as_posix()
    ('out/pages.links.csv.gz', 'pages.links')
    """
    endings = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    ending = "".join(endings)
    return path.with_name(f"{path.name.removesuffix(ending)}.links{ending}")


def export(
    query: Query,
    path: Path,
    format: str,
    *,
    links: bool = False,
    max_failures: int = 0,
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, object]:
    """Export all pages of a crawl as of one position of its journals, while events go on.

    Args:
        query: the crawl, which nobody else in this process follows.
        path: the file. What it is of (policy, error bound, position, settings) is in the footer of a Parquet file, and
            in a file of the same name and `.meta.json` otherwise.
        format: one of FORMATS. A name that ends in .gz makes a text format compressed.
        links: also write the links between these pages to `links_path`, as pairs of row numbers from 0.
        max_failures: failed fetches in a row after which a page is given up; 0 means never.
        on_progress: called with the rows written, their number, and a text.

    Returns:
        "files", "pages" or "hosts", "links" if asked for, and what they are of.

    Raises:
        BadInput: the file can't be written, or the format has no links.
        NotKept: no links are kept.
        StoreUnavailable: the store is unavailable, or was recreated meanwhile.
    """
    packed = path.suffix == ".gz"
    _check(path, format, links=links, packed=packed)
    own = [] if format == "parquet" else [path.with_name(f"{path.name}.meta.json")]
    paths = [path, *own, *([links_path(path)] if links else [])]
    with MetaCopy(query.crawl) as metas, whole_files(paths) as files:
        on_progress(0, None, "reading the crawl")
        picture = replace(take_picture(query, metas, links=links), max_failures=max_failures)
        about = about_of(picture)
        if format == "cc-ranks":
            counts = _write_hosts(picture, files[0], packed=packed)
        else:
            counts = _write_pages(picture, files[0], format, about, on_progress, packed=packed)
            if links:
                counts |= _write_links(picture, files[-1], format, about, on_progress, packed=packed)
        if own:
            files[1].write(json.dumps(about, indent=1).encode() + b"\n")
    return {"files": [str(one) for one in paths], **counts, **about}


def _check(path: Path, format: str, *, links: bool, packed: bool) -> None:
    if links and format == "cc-ranks":
        raise BadInput("--links are between pages, and cc-ranks has hosts: use parquet, csv or jsonl")
    if packed and format == "parquet":
        raise BadInput(f"{path.name}: Parquet compresses by itself: leave .gz out")
    if format == "parquet":
        check_parquet()
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no directory: make it first")


def about_of(picture: CrawlPicture) -> dict[str, object]:
    """Return what an export is of."""
    crawl, rules = picture.query.crawl, picture.query.crawl.rules
    return {
        "crawl": crawl.shards[0].keys.crawl,
        "as_of": picture.snapshot.as_of,
        "policy": picture.policy,
        "window": picture.window,
        "error_bound": picture.query.bound_of(picture.snapshot, picture.view),
        "position": [{"lsn": head.lsn, "digest": head.digest.hex()} for head in picture.snapshot.heads],
        "settings": {
            "damping": 1 - rules.q / MILLION,
            "virtual": rules.virtual,
            "regrant": rules.regrant_ppm / MILLION,
            "history_measures": rules.measures_max,
            "inflow": rules.inflow,
            "shards": len(crawl),
            "classes": {
                name: 1 + picture.snapshot.books.extra[slot] / MILLION
                for slot, name in picture.query.class_names().items()
            },
        },
    }


def _write_pages(
    picture: CrawlPicture, file: BinaryIO, format: str, about: Mapping[str, object], tell: OnProgress, *, packed: bool
) -> dict[str, object]:
    done, pages = 0, picture.pages
    with open_table(file, format, PAGE_COLUMNS, about, packed=packed) as put:
        for batch in picture.batches():
            put(batch)
            done += len(batch["url"])
            tell(done, pages, f"{done:,} of {pages:,} pages")
    return {"pages": done}


def _write_links(
    picture: CrawlPicture, file: BinaryIO, format: str, about: Mapping[str, object], tell: OnProgress, *, packed: bool
) -> dict[str, object]:
    done = 0
    with open_table(file, format, LINK_COLUMNS, about, packed=packed) as put:
        for sources, targets in picture.link_batches():
            put({"from": sources, "to": targets})
            done += len(sources)
            tell(done, None, f"{done:,} links")
    return {"links": done}


def _write_hosts(picture: CrawlPicture, file: BinaryIO, *, packed: bool) -> dict[str, object]:
    """Write hosts as Common Crawl publishes their ranks, by PageRank; harmonic centrality is not computed."""
    sums = reversed_hosts(picture)
    with open_text(file, packed=packed) as text:
        text.write("\t".join(CC_COLUMNS) + "\n")
        for position, (name, share) in enumerate(sorted(sums.items(), key=lambda one: (-one[1], one[0])), 1):
            text.write(f"{CC_NONE}\t{CC_NONE}\t{position}\t{share!r}\t{name}\n")
    return {"hosts": len(sums)}


def reversed_hosts(picture: CrawlPicture) -> dict[str, float]:
    """Return the importance of each host that has pages, by the names that Common Crawl's web graphs give them."""
    sums = dict[str, float]()
    for host, share in picture.hosts().items():
        name = reversed_host(host)
        sums[name] = sums.get(name, 0.0) + share
    return sums


def reversed_host(host: str) -> str:
    """Return a host with its labels reversed and without a leading `www.`, as in Common Crawl's web graphs.

    >>> reversed_host("www.example.co.uk"), reversed_host("127.0.0.1"), reversed_host("[::1]"), reversed_host("www.com")
    ('uk.co.example', '127.0.0.1', '[::1]', 'com.www')
    """
    if host.endswith("]") or host.rpartition(".")[2].isdigit():
        return host
    labels = host.rstrip(".").split(".")
    if labels[0] == "www" and len(labels) > 2:
        labels = labels[1:]
    return ".".join(reversed(labels))
