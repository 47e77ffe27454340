"""A worker that appends to a shard beside others, from a partition of its own, for some seconds.

    python sharing_worker.py STORE_URL CRAWL NUMBER

It says `ready`, begins with the line that it is sent, works until it is sent another, and prints what it did as JSON.
"""

import json
import sys
import threading
import time

from logs import record

from opic.ingest import ShardWriter, Step
from opic.model.events import Record
from opic.store import Shard, connect

RECORDS_A_CALL = 500
LINKS = 20
PAGES = 20_000


def records(number: int, first: int) -> list[Record]:
    """Reads of pages that all workers know, whose links are half their own."""
    made = []
    for offset in range(first, first + RECORDS_A_CALL):
        links = [f"http://h{(offset * 7 + i * i) % 97}.org/{(offset * LINKS + i) % PAGES}" for i in range(LINKS)]
        made.append(record(offset, f"http://h{offset % 97}.org/{offset * 31 % PAGES}", links, fetched_at=1e9 + offset))
    return made


def main() -> None:
    url, crawl, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = ShardWriter(Shard.open(connect(url), crawl))
    partition, steps, stop = f"log/{number}", list[Step](), threading.Event()
    store.next_offset(partition)
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    began, at, longest, last = time.monotonic(), 0, 0.0, time.monotonic()
    while not stop.is_set():
        store.apply(partition, records(number, at), steps.append)
        at += RECORDS_A_CALL
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    seconds = time.monotonic() - began
    print(json.dumps({"events": at, "steps": len(steps), "seconds": seconds, "longest_call": longest}), flush=True)


if __name__ == "__main__":
    main()
