"""Distribution: what goes between shards, and what its delay costs, with pages spread by host and by URL.

The paper (section 4.1) spreads pages over servers by a hash h_url of the URL and sends the cash that a read pays to
other servers' pages in buffered calls, each payment with the URL of its page. Here each of 16 shards reads its pages
with the most cash, a hundredth of them at a time. What it owes to pages of other shards is summed up by page, and sent
after every so many reads as an entry of the service's outboxes, in their encoding (`opic.model.transfer`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from experiments.recorded_graphs import RecordedGraph
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Row, Run, keys
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import LinkMatrix, degrees
from opic.graph.pagerank import DAMPING, pagerank
from opic.model.cash import CrawlRules
from opic.model.transfer import Transfer
from opic.urls.canonical import canonical_or_none, host_of, registered_domain, shard_of

GRAPHS: Final = ("hollins", "gr0-california", "uk-2007-05-100000")
SHARDS: Final = 16
BATCH_SHARE: Final = 100  # A shard reads 1/BATCH_SHARE of its pages at a time.
FLUSHES: Final = (1, 5, 20, 50, 100, 200)  # Sent after so many batches: hundredths of a read of each page.
READS: Final = (1, 2, 5)  # Reads of each page, on average, after which the error is taken.
TRUTH_THRESHOLD: Final = 1e-12
EVENT_US: Final = 100  # Between two reads, in the times of transfers.
PLAIN_AMOUNT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Where pages are.

    urls     (N,) canonical
    shard    (N,) shard of each page
    domain   (N,) number of its registered domain
    """

    urls: Sequence[str]
    shard: Int64s
    domain: Int64s

    @classmethod
    def of(cls, graph: RecordedGraph, by: str, shards: int = SHARDS) -> "Layout":
        """Spread the pages of a graph: by "host", by "url", or all in "one shard"."""
        made_up = [f"http://site{part}.example/{page}" for page, part in enumerate(graph.group.tolist())]
        # In the form in which they are sent; a few are no URLs.
        urls = [canonical_or_none(url) or other for url, other in zip(graph.urls or made_up, made_up, strict=True)]
        hosts = list(map(host_of, urls))
        keys = {"host": hosts, "url": urls, "one shard": [""] * len(urls)}[by]
        shard = np.array([shard_of(key, shards if by != "one shard" else 1) for key in keys], np.int64)
        number: dict[str, int] = {}
        domain = [number.setdefault(registered_domain(host), len(number)) for host in hosts]
        return cls(urls, shard, np.array(domain, np.int64))


@dataclass(slots=True)
class Traffic:
    """What was sent between shards."""

    entries: int = 0
    deposits: int = 0
    links: int = 0
    packed_bytes: int = 0
    plain_bytes: int = 0


class SimulatedShards:
    """Shards that read their richest pages and buffer what they owe to others. Amounts are in grants."""

    def __init__(self, links: LinkMatrix, layout: Layout) -> None:
        """Start with one grant on each page."""
        pages, shards = links.shape[0], int(layout.shard.max()) + 1
        self.links, self.layout = links, layout
        self.cash, self.history = np.ones(pages), np.zeros(pages)
        self.owed = np.zeros((shards, pages))  # By sender.
        self.inflow = np.zeros((shards, pages))  # The part of it that comes from another registered domain.
        self.reads, self.traffic = 0, Traffic()
        self._own = [np.flatnonzero(layout.shard == shard) for shard in range(shards)]
        self._out = degrees(links)
        self._url_bytes = np.array([len(url.encode()) for url in layout.urls], np.int64)

    def read_batch(self) -> None:
        """Let each shard read 1/BATCH_SHARE of its pages, those with the most cash, all at once."""
        for shard, own in enumerate(self._own):
            count = -(-len(own) // BATCH_SHARE)
            best = own[np.argpartition(-self.cash[own], count - 1)[:count]] if count else own
            self._read(shard, best)

    def _read(self, shard: int, pages: Int64s) -> None:
        spent = self.cash[pages].copy()
        self.cash[pages] = 0
        self.history[pages] += spent
        self.reads += len(pages)
        rows = self.links[pages]
        targets, counts = rows.indices, np.diff(rows.indptr)
        shares = np.repeat(DAMPING * spent / np.maximum(self._out[pages], 1), counts)
        here = self.layout.shard[targets] == shard
        np.add.at(self.cash, targets[here], shares[here])
        far, sent = targets[~here], shares[~here]
        np.add.at(self.owed[shard], far, sent)
        across = self.layout.domain[far] != np.repeat(self.layout.domain[pages], counts)[~here]
        np.add.at(self.inflow[shard], far[across], sent[across])
        self.traffic.links += len(far)
        self.traffic.plain_bytes += int(self._url_bytes[far].sum()) + PLAIN_AMOUNT_BYTES * len(far)

    def deliver(self) -> None:
        """Send what is owed: one entry for each pair of shards that owe."""
        grant, at_us = CrawlRules().grant, self.reads * EVENT_US
        for sender, owed in enumerate(self.owed):
            pages = np.flatnonzero(owed)
            order = pages[np.argsort(self.layout.shard[pages], kind="stable")]
            cuts = np.flatnonzero(np.diff(self.layout.shard[order])) + 1
            for part in np.split(order, cuts) if len(order) else ():
                grains, inflow = (grant * owed[part]).astype(np.int64), (grant * self.inflow[sender][part])
                times = np.full(len(part), at_us, np.int64)
                urls = [self.layout.urls[page] for page in part.tolist()]
                entry = Transfer(at_us, 0, urls, grains, inflow.astype(np.int64), times).pack()
                self.traffic.entries += 1
                self.traffic.deposits += len(part)
                self.traffic.packed_bytes += len(entry)
        self.cash += self.owed.sum(axis=0)
        self.owed[:], self.inflow[:] = 0, 0

    def in_flight(self) -> float:
        """Return the share of all cash and history that is on its way."""
        owed = float(self.owed.sum())
        return owed / (owed + float(self.cash.sum() + self.history.sum()))


def simulate(
    links: LinkMatrix, truth: Float64s, layout: Layout, flush: int, reads: Sequence[int] = READS
) -> tuple[Traffic, list[float], float, int]:
    """Read a graph's pages, sending after every `flush` batches.

    Returns:
        What was sent; the L1 distance from `truth` after each of `reads` times N reads, without what is on its way;
        the largest share that was on its way at once; and how many reads it took.
    """
    shards, errors, due, batches, in_flight = SimulatedShards(links, layout), list[float](), list(reads), 0, 0.0
    while due:
        shards.read_batch()
        batches += 1
        in_flight = max(in_flight, shards.in_flight())
        if batches % flush == 0:
            shards.deliver()
        if shards.reads >= due[0] * len(truth):
            errors.append(distance_l1(shards.history + shards.cash, truth))
            due.pop(0)
    shards.deliver()  # For the count of bytes: nothing is left.
    return shards.traffic, errors, in_flight, shards.reads


def distance_l1(estimate: Float64s, truth: Float64s) -> float:
    """Return the L1 distance of two vectors, each divided by its sum."""
    return float(np.abs(estimate / estimate.sum() - truth / truth.sum()).sum())


def rows_of(run: Run) -> Iterator[list[object]]:
    """Run all graphs, ways to spread and delays."""
    flushes, reads = run.either((FLUSHES, READS), (FLUSHES[::2], READS[:1]))
    for graph in run.steps(run.graphs(run.either(GRAPHS, GRAPHS[:1])), lambda graph: graph.name):
        truth = pagerank(graph.links, threshold=TRUTH_THRESHOLD)
        layouts = {by: Layout.of(graph, by) for by in ("one shard", "host", "url")}
        plan = [(by, flush) for by in ("host", "url") for flush in flushes]
        for by, flush in run.steps([("one shard", flushes[0]), *plan], _named):
            layout = layouts[by]
            traffic, errors, in_flight, done = simulate(graph.links, truth, layout, flush, reads)
            sources = np.repeat(layout.shard, np.diff(graph.links.indptr))
            across = float((sources != layout.shard[graph.links.indices]).mean())
            largest = float(np.bincount(layout.shard).max() / len(truth))
            yield [
                graph.name, by, across, largest, flush / BATCH_SHARE, traffic.packed_bytes / done,
                traffic.packed_bytes / max(traffic.deposits, 1), traffic.links / max(traffic.deposits, 1),
                traffic.plain_bytes / done, *errors, *[None] * (len(READS) - len(errors)), in_flight,
            ]  # fmt: skip


def _named(job: tuple[str, int]) -> str:
    return f"by {job[0]}, sent after {job[1] / BATCH_SHARE:g} N reads"


def draw(run: Run, rows: list[Row]) -> list[Row]:
    """Draw bytes and error for each graph, over how long payments are buffered."""
    shown = {"bytes a read": "bytes_a_read", "URL and amount of each link": "plain_bytes_a_read"}
    errors = {f"after {reads} N reads": f"l1_at_{reads}n" for reads in READS}
    for title, columns, axes, sep in (
        ("bytes", shown, BYTES, ": "),
        ("error", errors, Axes(BYTES.x, "L1 distance from PageRank", "log", "log"), ", "),
    ):
        for by in ("host", "url"):
            for name, column in columns.items():
                for row in rows:
                    if row["by"] == by and row[column] is not None:
                        points = [(row["sent_after"], row[column])]
                        run.draw(f"{row['graph']}: {title}", f"by {by}{sep}{name}", points, axes)
    return rows


BYTES: Final = Axes("reads between deliveries, of each page", "bytes a read", "log", "log")
DISTRIBUTION: Final = Experiment(
    "distribution",
    "bytes and delay between shards, by host and by URL",
    OPIC_PAPER,
    {
        **keys("graph", "by", "links_across", "largest_shard", "sent_after"),
        **dict.fromkeys(("bytes_a_read", "bytes_a_deposit", "links_a_deposit", "plain_bytes_a_read")),
        **{f"l1_at_{reads}n": None for reads in READS},
        "in_flight": None,
    },
    rows_of,
    paper=[
        {
            "by": "h_url, a hash of the URL",
            "sends": "URL and amount of each payment, in buffered calls",
            "measured": "none",
        }
    ],
    notes=(
        "The paper spreads pages by a hash of the URL, buffers its calls, and gives no figures on bytes or delay.",
        "sent_after counts reads in hundredths of the pages of a shard; a payment waits half of that on average.",
        "plain_bytes_a_read: the URL and eight bytes for each link across, as the paper describes its transfers.",
        "in_flight is the largest share of all cash and history that was on its way at once.",
        "by host is what the service does; with `one shard`, all payments arrive at once.",
        "uk-2007-05-100000 was published without URLs: its pages have made-up ones, and a host is a range of pages.",
    ),
    runs=0,
    finish=draw,
)
