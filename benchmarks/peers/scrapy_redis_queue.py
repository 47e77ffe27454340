"""scrapy-redis' priority queue as it is: a sorted set of pickled requests, the one of highest priority popped.

Run by the Python of an environment that has it, by benchmarks/peer_frontiers.py. Arguments: the server's Unix socket, a
file of lines `cash URL`. Prints what it took to fill the queue, then for each line `CALLS N` read, N pops a call.
"""

import json
import sys
import time

import redis
from scrapy import Request, Spider
from scrapy_redis.queue import PriorityQueue

PUSHES_A_TRIP = 1_000


def main(socket: str, pages: str) -> None:
    """Fill, then answer."""
    client = redis.Redis(unix_socket_path=socket)
    queue = PriorityQueue(client, Spider("peer"), "%(spider)s:requests")
    queue.clear()
    started = time.perf_counter()
    with client.pipeline(transaction=False) as pipe, open(pages) as lines:
        queue.server = pipe  # A push is one ZADD, which a pipeline takes as a client does; else a round trip each.
        for count, line in enumerate(lines, 1):
            cash, url = line.split()
            queue.push(Request(url, priority=int(cash)))
            if count % PUSHES_A_TRIP == 0:
                pipe.execute()
        pipe.execute()
        queue.server = client
    print(json.dumps({"fill_s": time.perf_counter() - started, "pages": len(queue)}), flush=True)
    for line in sys.stdin:
        calls, n = map(int, line.split())
        times, urls = [], []
        for _ in range(calls):
            started = time.perf_counter()
            urls += [queue.pop().url for _ in range(n)]
            times.append(1000 * (time.perf_counter() - started))
        print(json.dumps({"times_ms": times, "urls": urls}), flush=True)
    queue.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
