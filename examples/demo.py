"""A crawl of the graph that ships here, over HTTP, from five seeds until the ranks match PageRank.

    make demo        which runs: python examples/demo.py [--no-serve] [--port PORT] [--data DIR]

It starts `opic serve --embedded` with an empty data directory and plays a crawler: it asks what to fetch next, looks
up the page's links in a file instead of fetching it, and posts the crawl event. Meanwhile it compares the importance
that the service answers, from kept links and from cash alone, with PageRank of all that is known so far.
"""

import argparse
import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import matplotlib as mpl
import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.ticker import LogLocator, NullLocator
from scipy.sparse import csr_matrix
from scipy.stats import kendalltau

mpl.use("svg")
import matplotlib.pyplot as plt  # After the choice of a backend that needs no display.

LINKS = Path(__file__).parent / "data" / "wikispeedia" / "links.tsv.gz"
SITE = "https://en.wikipedia.org/wiki/"
SEEDS = ("Bede", "Chess", "Dog", "Jazz", "Volcano")
OUT = Path("demo-out")

READS_PER_PAGE = 5
CHECKPOINTS_PER_PAGE = 5  # Looks at the error while as many reads as there are pages take effect.
BATCH_SHARE = 100  # The crawler asks for 1 % of the known pages at a time.
DAMPING = 0.85
ROUNDING = 1e-9  # Two exact solvers differ by less.
PORT = 8080
READY_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.003

Floats = npt.NDArray[np.float64]


class DemoFailed(Exception):
    """The demo can't go on, or its promise did not hold; its text says what."""


# The web of this demo: a file.


def load_graph() -> dict[str, list[str]]:
    """Return each article's URL with the URLs it links to, in the order of the file."""
    links: dict[str, list[str]] = {}
    with gzip.open(LINKS, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                source, target = (SITE + title for title in line.split())
                links.setdefault(source, []).append(target)
                links.setdefault(target, [])
    return links


def name_of(url: str) -> str:
    """Return an article's title as a person reads it."""
    return unquote(url.removeprefix(SITE)).replace("_", " ")


# The service: the same command that a user runs.


@contextlib.contextmanager
def running_service(data: Path, port: int) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `opic serve --embedded`; yield its URL and its process, and end it."""
    # Settings of the reader's own would make this another demo.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPIC_")}
    environment["OPIC_HOST_DELAY_SECONDS"] = "0"  # All articles are on one host, and the demo fetches nothing from it.
    environment["OPIC_REVISIT_SECONDS"] = "0"  # Each article is read some five times.
    command = [sys.executable, "-m", "opic.cli.main", "serve", "--embedded", "--data", str(data), "--port", str(port)]
    log = OUT / "serve.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told:
            raise DemoFailed(f"the service did not start:\n{log.read_text().strip()[-2000:]}")
        yield next(word for word in told.replace(",", " ").split() if word.startswith("http")), process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """Return 8080 if nobody listens there, else 0: any that is free."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT


# The crawler.


class Crawler:
    """A client of the service that knows what it has seen."""

    def __init__(self, http: httpx.Client, graph: dict[str, list[str]]) -> None:
        """Know nothing yet."""
        self.http, self.graph = http, graph
        self.known: dict[str, int] = {}  # Each page's place in the order of first sight.
        self.read: set[str] = set()
        self.ends: list[tuple[int, int]] = []  # The links of pages that were read, as places.
        self.reads = 0
        self.seconds = 0.0

    def call(self, path: str, body: Any = None, **more: Any) -> Any:
        """Ask the service; an error ends the demo."""
        answer = self.http.get(path, **more) if body is None and not more else self.http.post(path, json=body, **more)
        if answer.is_error:
            raise DemoFailed(f"{path} answers {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def start(self, seeds: Sequence[str]) -> None:
        """Make the seeds known."""
        self.call("/v1/seeds", {"urls": list(seeds)})
        for url in seeds:
            self.known.setdefault(url, len(self.known))

    def crawl(self, reads: int) -> None:
        """Crawl until so many pages were read in all."""
        began = time.perf_counter()
        while self.reads < reads:
            n = min(max(1, len(self.known) // BATCH_SHARE), reads - self.reads)
            asked = self.call("/v1/next", {"n": n, "crawler": "demo"})
            urls = [page["url"] for page in asked["pages"]]
            if not urls:
                time.sleep(min(max(asked["retry_after"], POLL_SECONDS), 0.2))
                continue
            # What a real crawler would do here: fetch the pages.
            events = [{"url": url, "links": self.graph[url]} for url in urls]
            lines = "\n".join(map(json.dumps, events))
            taken = self.call("/v1/events", content=lines, headers={"Content-Type": "application/x-ndjson"})
            if taken["accepted"] != len(urls):
                raise DemoFailed(f"the service refused events: {taken['rejected'][:3]}")
            self.note(urls)
            self.await_effect()
        self.seconds += time.perf_counter() - began

    def note(self, urls: Sequence[str]) -> None:
        """Remember what was read and seen."""
        self.reads += len(urls)
        for url in urls:
            if url not in self.read:
                self.read.add(url)
                for target in self.graph[url]:
                    self.ends.append((self.known[url], self.known.setdefault(target, len(self.known))))

    def importance(self, urls: Sequence[str], policy: str) -> list[dict[str, Any]]:
        """Return the answers for pages, from a state that is no older than this call."""
        now = time.time()
        while (found := self.call("/v1/importance", {"urls": urls, "policy": policy}))["as_of"] < now:
            time.sleep(POLL_SECONDS)
        return list(found["pages"])

    def await_effect(self) -> None:
        """Wait until the worker has let all events take effect, so that the next choice sees them."""
        while self.call("/v1/stats")["lag"]:
            time.sleep(POLL_SECONDS)


# The judge.


@dataclass(frozen=True)
class Look:
    """How good the answers were at one moment."""

    reads: int
    known: int
    l1: float
    bound: float
    cash_l1: float  # The same by policy static: from cash alone, as without links.
    cash_bound: float
    tau: float
    tau_top: float
    importance: Floats  # Of the known pages, in order of first sight.
    exact: Floats


def look(crawler: Crawler) -> Look:
    """Compare the importance of all known pages with exact PageRank of the known graph."""
    urls = list(crawler.known)
    pages, by_cash = (crawler.importance(urls, policy) for policy in ("exact", "static"))
    importance, cash = (np.array([page["importance"] for page in found]) for found in (pages, by_cash))
    exact = pagerank(len(urls), crawler.ends)
    top = np.argsort(-exact, kind="stable")[:100]
    return Look(
        crawler.reads,
        len(urls),
        float(np.abs(importance - exact).sum()),
        float(pages[0]["error_bound"]),
        float(np.abs(cash - exact).sum()),
        float(by_cash[0].get("error_bound", 2.0)),  # Left out while it says nothing.
        float(kendalltau(exact, importance).statistic),
        float(kendalltau(exact[top], importance[top]).statistic),
        importance,
        exact,
    )


def pagerank(n: int, ends: Sequence[tuple[int, int]]) -> Floats:
    """Compute PageRank of the known graph by power iteration; pages not read yet have no links."""
    sources, targets = np.array(ends).T
    out = np.bincount(sources, minlength=n)
    walk = csr_matrix((1.0 / out[sources], (targets, sources)), shape=(n, n))
    dangling = out == 0
    rank: Floats = np.full(n, 1.0 / n)
    while True:
        before, rank = rank, DAMPING * (walk @ rank + rank[dangling].sum() / n) + (1 - DAMPING) / n
        if np.abs(rank - before).sum() < 1e-12:
            return rank


def networkx_pagerank(crawler: Crawler) -> Floats:
    """Compute the same with a library that everybody knows."""
    graph = nx.DiGraph()
    graph.add_nodes_from(crawler.known.values())
    graph.add_edges_from(crawler.ends)
    found = nx.pagerank(graph, alpha=DAMPING, max_iter=1_000, tol=1e-12 / len(graph))
    return np.array([found[i] for i in range(len(graph))])


def draw(looks: Sequence[Look], pages: int, path: Path) -> None:
    """Draw how the error and its bound fall."""
    reads = [each.reads / pages for each in looks]
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for values, label, colour, style in (
        ([each.cash_bound for each in looks], "from cash alone: bound", "#c2571a", "--"),
        ([each.cash_l1 for each in looks], "from cash alone: true error", "#c2571a", "-"),
        ([each.bound for each in looks], "from kept links: bound", "#1f5fa8", "--"),
        ([each.l1 for each in looks], "from kept links: true error", "#1f5fa8", "-"),
    ):
        axes.plot(reads, values, style, color=colour, linewidth=1.8, marker="o", markersize=3.2, label=label)
    axes.set(yscale="log", xlim=(0, None), xlabel=f"reads, in multiples of the {pages:,} pages")
    axes.set_ylabel("L1 distance of all importances")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("Importance while the crawl discovers its graph", loc="left", fontsize=11)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


# What is printed.


def print_row(crawler: Crawler, now: Look) -> None:
    """Print one line of the crawl."""
    rate = crawler.reads / crawler.seconds
    print(
        f"  {now.reads:>6,}  {now.known:>6,}  {len(crawler.read):>6,}  {len(crawler.ends):>10,}  {rate:>8,.0f}  "
        f"{now.l1:>8.4f}  {now.bound:>6.4f}  {now.cash_l1:>10.4f}  {now.cash_bound:>6.4f}  {now.tau:>6.3f}",
        flush=True,
    )


def print_top(crawler: Crawler, last: Look, exact: Floats) -> None:
    """Print the most important pages as the service has them, beside networkx."""
    rank = np.empty(len(exact), int)
    rank[np.argsort(-exact, kind="stable")] = np.arange(1, len(exact) + 1)
    print(f"\nThe most important of {last.known:,} known pages, beside networkx.pagerank of the same links:\n")
    print(f"  {'':>2}  {'article':<28}  {'importance':>10}  {'PageRank':>8}  its rank")
    for place, page in enumerate(crawler.call("/v1/top?n=10")["pages"], 1):
        i = crawler.known[page["url"]]
        print(f"  {place:>2}  {name_of(page['url']):<28}  {page['importance']:>10.6f}  {exact[i]:>8.6f}  {rank[i]:>8}")


def print_next(crawler: Crawler) -> None:
    """Print what the service would have crawled next, and give it back."""
    asked = crawler.call("/v1/next", {"n": 10, "crawler": "demo"})["pages"]
    crawler.call("/v1/release", {"leases": [page["lease"] for page in asked]})
    print("\nNext to crawl, by importance and the time since their last read:\n")
    for place, page in enumerate(asked, 1):
        print(f"  {place:>2}  {name_of(page['url']):<28}  {page['importance']:>10.6f}")


def judge(crawler: Crawler, looks: Sequence[Look], exact: Floats) -> None:
    """Print the verdict.

    Raises:
        DemoFailed: a promise did not hold.
    """
    last = looks[-1]
    print("\nAgainst PageRank of all that is known:\n")
    print(f"  true error, L1            {last.l1:.5f}")
    print(f"  bound that opic answers   {last.bound:.5f}, {last.bound / last.l1:.1f} x the true error")
    print(f"  from cash alone, L1       {last.cash_l1:.5f}, with a bound of {last.cash_bound:.5f}")
    print(f"  Kendall tau               {last.tau:.4f} over all pages, {last.tau_top:.4f} over the top 100")
    audit = crawler.call("/v1/audit")
    print("\nThe books, in whole grains:\n")
    print(f"  on pages {audit['pages']:,} + virtual page {audit['virtual']:,} + in flight {audit['in_flight']:,}")
    balance = audit["pages"] + audit["virtual"] + audit["in_flight"] - audit["minted"]
    verdict = "conserved to the grain" if audit["conserved"] and not balance else f"NOT conserved, off by {balance:,}"
    print(f"  = minted {audit['minted']:,}: {verdict}")
    if not audit["conserved"] or balance:
        raise DemoFailed("the books do not balance")
    for each in looks:
        for error, bound in ((each.l1, each.bound), (each.cash_l1, each.cash_bound)):
            if error > bound:
                raise DemoFailed(f"after {each.reads:,} reads the error {error:.5f} is over its bound {bound:.5f}")
    if (distance := float(np.abs(exact - last.exact).sum())) > ROUNDING:
        raise DemoFailed(f"this demo's PageRank is {distance:.1e} in L1 from networkx.pagerank: one of them is wrong")
    known = crawler.call("/v1/stats")["known_pages"]
    if known != last.known:
        raise DemoFailed(f"the service knows {known:,} pages, the crawler has seen {last.known:,}")


def run(crawler: Crawler, graph: dict[str, list[str]]) -> None:
    """Crawl, print, judge."""
    pages, links = len(graph), sum(map(len, graph.values()))
    print(f"The web of this demo: {pages:,} Wikipedia articles of 2007 with {links:,} links between them.")
    print(f"Seeds: {', '.join(SEEDS)}. The rest is found by crawling, most important page first.")
    print("All articles are on one host, so the pause between two pages of a host, 1 s, is set to 0 here.")
    print("One crawler works over HTTP and waits until each batch has taken effect.\n")
    print(f"{'':41}  exact importance    from cash alone")
    print("   reads   known  fetched  links seen  events/s  L1 error   bound    L1 error   bound     tau")
    crawler.start([SITE + title for title in SEEDS])
    looks = []
    for checkpoint in range(1, READS_PER_PAGE * CHECKPOINTS_PER_PAGE + 1):
        crawler.crawl(checkpoint * pages // CHECKPOINTS_PER_PAGE)
        looks.append(look(crawler))
        if checkpoint in (1, 2, 3) or checkpoint % CHECKPOINTS_PER_PAGE == 0:
            print_row(crawler, looks[-1])
    exact = networkx_pagerank(crawler)
    print_top(crawler, looks[-1], exact)
    print_next(crawler)
    judge(crawler, looks, exact)
    draw(looks, pages, OUT / "demo.svg")
    print(f"\nDrawn in {OUT / 'demo.svg'}: how error and bound fell.")


def stay(url: str, process: "subprocess.Popen[str]", data: Path, temporary: bool) -> None:
    """Let the reader ask, until Ctrl-C."""
    print(f"\nThe service still answers at {url}, its manual is at {url}/docs. For example:\n")
    print(f"  curl '{url}/v1/importance?url={SITE}{SEEDS[0]}'")
    print(f"  curl '{url}/v1/top?n=3'")
    opic = ".venv/bin/opic" if Path(".venv/bin/opic").exists() else "opic"
    print(f"  {opic} top --n 3 --data {data}")
    print(f"\nCtrl-C ends it{', and removes its data (--data DIR would keep it)' if temporary else ''}.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        status = process.wait()
        raise DemoFailed(f"the service ended by itself, exit {status}: see {OUT / 'serve.log'}")


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--no-serve", action="store_true", help="stop after printing")
    parser.add_argument("--port", type=int, help=f"of the service; {PORT} if left out, or any if that is taken")
    parser.add_argument(
        "--data", type=Path, help="an empty directory to keep the store in; a temporary one if left out"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    temporary = args.data is None
    data: Path = Path(tempfile.mkdtemp(prefix="opic-demo-")) if temporary else args.data
    try:
        if not temporary and data.exists() and any(data.iterdir()):
            raise DemoFailed(f"--data {data} is not empty: the demo starts from nothing, choose another directory")
        OUT.mkdir(exist_ok=True)
        graph = load_graph()
        port = args.port if args.port is not None else 0 if args.no_serve else free_port()
        with running_service(data, port) as (url, process):
            with httpx.Client(base_url=url, timeout=60.0) as http:
                run(Crawler(http, graph), graph)
            if not args.no_serve:
                stay(url, process, data, temporary)
    except (DemoFailed, httpx.HTTPError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if temporary:
            shutil.rmtree(data, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
