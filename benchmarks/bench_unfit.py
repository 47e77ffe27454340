"""What do pages that rules deny, or traps, cost a call for ten pages?

At full size: --free 150000 --denied 1,20000,200000 --trap-hosts 1000 --rounds 200

For each case a store with the same free pages, on hosts with the default delay, and an endpoint that has judged them
all. Then a rule denies a host's pages, which have the most cash; or links make pages of traps known, on many hosts. The
endpoints are called by turns in one process, so the ratios of each case to the one without such pages are of calls of
the same seconds. A cost is CPU time of this process; that of the store's server is not in it.

"first" is the first call after the rule was set, or the traps became known, the median of several such changes;
"p99" is of all calls after the first change, those while pages are judged again among them. "new hosts" tells what as
many new pages cost that are no traps.

Exits 1 when an answer is short, has an unfit page, or fails.
"""

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from harness import RECORD_TIME_US, SEEDS_A_RECORD, embedded_server, write_result

from opic.admission import Admission, check_policy
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.replica import Crawl
from opic.store import Shard, connect
from opic.store.connection import Client

FREE, FREE_HOSTS, DENIED, TRAP_HOSTS, PAGES_A_TRAP = 12_000, 4_000, (1, 1_000, 10_000), 100, 20
LINKS_A_RECORD, NEXT, WARM, CHANGES, ROUNDS = 2_000, 10, 30, 5, 100
NO_PAGES, NO_RULE, NEW, TRAPS = "none", "0 denied", "new hosts", "trap hosts"
BIG, OTHER = "big.example", "other.example"


class Case:
    """A store with free and unfit pages, and an endpoint."""

    def __init__(self, client: Client, crawl: str, name: str, free: int, denied: int, trap_hosts: int) -> None:
        self.name, self._trap_hosts, self._offset = name, trap_hosts, 0
        self._writer = ShardWriter(Shard.open(client, crawl))
        urls = [f"https://www.h{page % FREE_HOSTS}.org/{page}" for page in range(free)]
        for at in range(0, free, SEEDS_A_RECORD):
            self._apply(encode_seeds(urls[at : at + SEEDS_A_RECORD]), "seeds")
        self._link("https://linker.example/", [f"https://{BIG}/{page}" for page in range(denied)])
        self._writer.checkpoint()
        self._crawl = Crawl.open(client, crawl, create=False)
        self._admission = Admission(self._crawl)
        self.frontier = Frontier(self._crawl, PolitenessSettings(), admission=self._admission)
        self.took: list[float] = []
        self.first: list[float] = []

    def _apply(self, value: bytes, kind: str) -> None:
        self._writer.apply("fill/0", [Record(self._offset, RECORD_TIME_US, value, kind)])
        self._offset += 1

    def _link(self, source: str, urls: list[str]) -> None:
        for at in range(0, len(urls), LINKS_A_RECORD):
            event = CrawlEvent(url=f"{source}{at}", links=urls[at : at + LINKS_A_RECORD])
            self._apply(encode_crawl_event(event), "event")

    def judge_all(self) -> None:
        """Judge what is left to judge."""
        while self._admission.judge_next(0):
            pass

    def change(self, nth: int) -> None:
        """Deny the pages by another rule than before, or make more pages known."""
        if self.name in {NEW, TRAPS}:
            hosts, length = range(nth * self._trap_hosts, (nth + 1) * self._trap_hosts), 1_100 * (self.name == TRAPS)
            pages = [f"https://t{host}.example/{at}/{'a' * length}" for at in range(PAGES_A_TRAP) for host in hosts]
            self._link(f"https://linker{nth}.example/", pages)
            self._crawl.follow()
        elif self.name != NO_PAGES:
            denied = OTHER if self.name == NO_RULE else BIG
            rule = {"effect": "deny", "host": denied, "path": "/" if nth % 2 else "*", "note": str(nth)}
            self._admission.put(check_policy({"rules": [rule]}))

    def call(self) -> float:
        """Return the CPU milliseconds of a call, and give its pages back."""
        started = time.process_time()
        found = self.frontier.next(NEXT).pages
        took = (time.process_time() - started) * 1000
        if len(found) != NEXT:
            raise SystemExit(f"FAIL: {self.name}: {len(found)} pages")
        self.frontier.release([page.lease for page in found])
        return took

    def check(self) -> None:
        """Check that no unfit page is handed out."""
        found = self.frontier.next(NEXT).pages
        if bad := [page.url for page in found if BIG in page.url or "a" * 1_100 in page.url]:
            raise SystemExit(f"FAIL: {self.name}: {bad}")


def measure(cases: list[Case], rounds: int, changes: int) -> dict[str, dict[str, float]]:
    """Return the figures of each case, and their ratios to those of the first."""
    for case in cases:
        for _ in range(WARM):
            case.call()
        case.judge_all()
    for nth in range(changes):
        for case in cases:
            case.change(nth)
            took = case.call()
            case.first.append(took)
            case.took.append(took)
            case.check()
        for _ in range(rounds):
            for case in cases:
                case.took.append(case.call())
    rows: dict[str, dict[str, float]] = {}
    for case in cases:
        figures = {
            "median_ms": statistics.median(case.took),
            "p99_ms": float(np.percentile(case.took, 99)),
            "first_ms": statistics.median(case.first),
        }
        base = rows[cases[0].name] if rows else figures
        ratios = {name.replace("_ms", "_ratio"): round(value / base[name], 2) for name, value in figures.items()}
        rows[case.name] = {name: round(value, 3) for name, value in figures.items()} | ratios
    return rows


def main() -> int:
    """Fill the stores, call their endpoints, write the JSON."""
    parser = argparse.ArgumentParser(description="CPU time of a call for the next pages, by pages that are unfit.")
    parser.add_argument("--free", type=int, default=FREE, help="free pages of each store")
    parser.add_argument("--denied", default=",".join(map(str, DENIED)), help="denied pages, with commas between")
    parser.add_argument("--trap-hosts", type=int, default=TRAP_HOSTS, help="hosts of traps that each change brings")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls of each case after each change")
    parser.add_argument("--changes", type=int, default=CHANGES, help="changes of rules")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    sizes = (
        {NO_PAGES: 0, NO_RULE: 0} | {f"{int(n):,} denied": int(n) for n in args.denied.split(",")} | {NEW: 0, TRAPS: 0}
    )
    with ExitStack() as stack:
        server = stack.enter_context(embedded_server())
        client = stack.enter_context(connect(server.url))
        cases = [
            Case(client, f"bench{at}", name, args.free, big, args.trap_hosts)
            for at, (name, big) in enumerate(sizes.items())
        ]
        rows = measure(cases, args.rounds, args.changes)
    print(f"{'':<18}" + "".join(f"{head:>20}" for head in ("median ms", "p99 ms", "first ms")))
    for name, row in rows.items():
        figures = [f"{row[f'{of}_ms']:>12.3f} {row[f'{of}_ratio']:>6.2f}x" for of in ("median", "p99", "first")]
        print(f"{name:<18}" + "".join(figures), flush=True)
    about = {"next": NEXT, "free": args.free, "trap_hosts": args.trap_hosts, "pages_a_trap": PAGES_A_TRAP}
    write_result("unfit", {**about, "rounds": args.rounds, "changes": args.changes, "cases": rows}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
