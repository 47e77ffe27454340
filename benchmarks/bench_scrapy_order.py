"""What share of PageRank has a Scrapy project fetched early, by which scheduler?

The same spider, which follows every link, crawls Debian's python3-doc and sqlite3-doc, which nginx serves on loopback
as two hosts: by Scrapy's own scheduler, depth-first (its default) and breadth-first, by scrapy-redis, and with
opic.scrapy. Then counts what share of the PageRank of all pages the first answers hold. That PageRank is of the sites'
own pages and the links between them, by networkx, from a crawl without Scrapy before.

scrapy-redis is installed into an environment of its own, as other frontiers are (`peer_frontiers.py`).

    python benchmarks/bench_scrapy_order.py
    python benchmarks/bench_scrapy_order.py --folders SITE1,SITE2 --no-peer
"""

import argparse
import getpass
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import networkx
from bench_scrapy import by_service, spider
from harness import STOP_SECONDS, embedded_server, served, write_result
from peer_frontiers import install

from opic.html.links import html_links
from opic.urls.canonical import canonical_url

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from ports import free_port

DOCUMENTS: Final = Path("/usr/share/doc")
SITES: Final = {"python3-doc": "python3*/html", "sqlite3-doc": "sqlite3*"}
SHARES: Final = (0.10, 0.25, 0.50)  # Of the pages, at which the PageRank is counted.
ALL: Final = 0.999  # Of the pages: what counts as all of them. Parsers differ about a link to "//".
DAMPING: Final = 0.85
RUNS: Final = 5
CRAWL_SECONDS_MAX: Final = 600.0
OWN: Final[dict[str, dict[str, Any]]] = {
    "Scrapy, depth-first": {},
    "Scrapy, breadth-first": {
        "DEPTH_PRIORITY": 1,
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
        "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    },
}
PEER: Final = "scrapy-redis"
OURS: Final = "opic.scrapy"


def folder_of(package: str, pattern: str) -> Path:
    """Return where a package has its pages.

    Raises:
        SystemExit: it is not installed.
    """
    for index in sorted(DOCUMENTS.glob(f"{pattern}/index.html")):
        return index.parent.resolve()
    raise SystemExit(f"no pages of {package}: apt-get install {package}")


@contextmanager
def sites(folders: Sequence[Path], directory: Path) -> Iterator[list[str]]:
    """Serve the pages of folders by nginx, as a host each; lend the URLs of the first ones.

    Raises:
        SystemExit: nginx is missing.
    """
    if (nginx := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")) is None:
        raise SystemExit("no nginx on the PATH: apt-get install nginx-light")
    hosts = [f"127.0.0.{number}" for number, _ in enumerate(folders, 1)]
    port = free_port()
    servers = "".join(
        f"server {{ listen {host}:{port}; root {folder}; port_in_redirect on; }}\n"
        for host, folder in zip(hosts, folders, strict=True)
    )
    places = "".join(
        f"{kind}_temp_path {directory / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"daemon off; user {getpass.getuser()}; pid {directory / 'nginx.pid'};\n"
        "error_log stderr crit; worker_processes 1;\nevents {}\n"
        f"http {{\ninclude /etc/nginx/mime.types; access_log off; charset utf-8;\n{places}{servers}}}\n"
    )
    process = subprocess.Popen([nginx, "-c", str(configuration), "-p", str(directory)])
    try:
        starts = [f"http://{host}:{port}/index.html" for host in hosts]
        deadline = monotonic() + STOP_SECONDS
        while not all(map(_answers, starts)):
            if process.poll() is not None or monotonic() > deadline:
                raise SystemExit("nginx does not serve the pages")
            sleep(0.05)
        yield starts
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def page_ranks(starts: Sequence[str]) -> dict[str, float]:
    """Crawl both sites without Scrapy; return the PageRank of their pages, (n,), which sums to 1."""
    hosts, graph = {urlsplit(url).netloc for url in starts}, networkx.DiGraph()
    waiting = list(starts)
    graph.add_nodes_from(waiting)
    with httpx.Client() as client:
        for url in waiting:  # It grows.
            answer = client.get(url)
            links = [answer.headers["location"]] if answer.is_redirect else list[str]()
            if answer.headers.get("content-type", "").startswith("text/html"):
                links = html_links(url, answer.content, charset=answer.charset_encoding)
            for link in dict.fromkeys(canonical_url(link) for link in links if urlsplit(link).netloc in hosts):
                if link not in graph:
                    graph.add_node(link)
                    waiting.append(link)
                if link != url:
                    graph.add_edge(url, link)
    found: dict[str, float] = networkx.pagerank(graph, alpha=DAMPING, tol=1e-12, max_iter=1_000)
    return found


def masses(answers: Sequence[str], ranks: Mapping[str, float]) -> dict[str, float]:
    """Return the PageRank of the first answers, by their share of all pages."""
    pages = [url for url in dict.fromkeys(map(canonical_url, answers)) if url in ranks]
    return {f"{share:.0%}": sum(ranks[url] for url in pages[: round(share * len(ranks))]) for share in SHARES}


def crawl(python: Path, settings: Mapping[str, Any], starts: Sequence[str]) -> list[str]:
    """Let the spider crawl; return the URLs of its answers, in their order."""
    done = subprocess.run(
        spider(python, settings, starts), stdout=subprocess.PIPE, check=True, timeout=CRAWL_SECONDS_MAX
    )
    answers: list[str] = json.loads(done.stdout)["answers"]
    return answers


def by_redis(python: Path, starts: Sequence[str]) -> list[str]:
    """Crawl by scrapy-redis, with its defaults, on a server of its own."""
    with embedded_server() as server:
        settings = {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "REDIS_URL": server.url,
        }
        return crawl(python, settings, starts)


def by_opic(starts: Sequence[str], directory: Path) -> list[str]:
    """Crawl with a service of its own."""
    with tempfile.TemporaryDirectory(dir=directory) as data, served(Path(data), host_delay_seconds=0) as url:
        return crawl(Path(sys.executable), by_service(url), starts)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--folders", help="with an index.html each, comma-separated, instead of Debian's documents")
    options.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="scrapy-redis too")
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        directory = Path(name)
        named = [Path(folder).resolve() for folder in given.folders.split(",")] if given.folders else []
        peer = install(PEER, directory) if given.peer else None
        with sites(named or [folder_of(*source) for source in SITES.items()], directory) as starts:
            ranks = page_ranks(starts)
            best = sorted(ranks.values(), reverse=True)
            optimum = {f"{share:.0%}": sum(best[: round(share * len(best))]) for share in SHARES}
            print(f"{len(ranks):,} pages; the best ones hold {_shown(optimum)}", flush=True)
            runs: dict[str, list[dict[str, float]]] = {}
            for _ in range(given.runs):
                found = {kind: crawl(Path(sys.executable), settings, starts) for kind, settings in OWN.items()}
                if peer is not None:
                    found[PEER] = by_redis(peer, starts)
                found[OURS] = by_opic(starts, directory)
                for kind, answers in found.items():
                    fetched = len(ranks.keys() & set(map(canonical_url, answers)))
                    if fetched < ALL * len(ranks):
                        raise SystemExit(f"{kind} fetched {fetched:,} of {len(ranks):,} pages")
                    runs.setdefault(kind, []).append(masses(answers, ranks))
    rows = {}
    for kind, some in runs.items():
        rows[kind] = {share: statistics.median(one[share] for one in some) for share in optimum}
        print(f"{kind:<24} {_shown(rows[kind])}", flush=True)
    others = [rows[kind]["25%"] for kind in rows if kind != OURS]
    ratio = rows[OURS]["25%"] / max(others)
    print(f"{OURS} at 25%: {ratio:.2f} times the best other")
    about = {"pages": len(ranks), "optimum": optimum, "schedulers": rows, "ratio_at_25": ratio, "runs": runs}
    write_result("scrapy_order", about, given.result)
    return 0


def _shown(masses: Mapping[str, float]) -> str:
    return ", ".join(f"{mass:.3f} at {share}" for share, mass in masses.items())


if __name__ == "__main__":
    sys.exit(main())
