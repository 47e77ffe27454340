"""Frontera's in-memory frontier: the queue of its memory backend, a heap of requests in this process.

Run by the Python of an environment that has it, by benchmarks/peer_frontiers.py. Arguments: a name that is not used
here, a file of lines `cash URL`. Prints what it took to fill the queue, then for each line `CALLS N` read, calls for N
pages. Its heap gives the lowest score first, so scores are the cash with its sign turned.

Frontera 0.8.1 is of 2019 and imports a name that Python 3.10 took away; that name is put back here, nothing else.
"""

import collections
import collections.abc
import json
import sys
import time
from hashlib import sha1

collections.Iterable = collections.abc.Iterable

from frontera.contrib.backends.memory import MemoryQueue  # noqa: E402
from frontera.core.models import Request  # noqa: E402


def main(_: str, pages: str) -> None:
    """Fill, then answer."""
    queue = MemoryQueue(1)
    started = time.perf_counter()
    with open(pages) as lines:
        for line in lines:
            cash, url = line.split()
            fingerprint = sha1(url.encode(), usedforsecurity=False).hexdigest().encode()
            request = Request(url, meta={b"fingerprint": fingerprint})
            queue.schedule([(fingerprint, -int(cash), request, True)])
    print(json.dumps({"fill_s": time.perf_counter() - started, "pages": queue.count()}), flush=True)
    for line in sys.stdin:
        calls, n = map(int, line.split())
        times, urls = [], []
        for _ in range(calls):
            started = time.perf_counter()
            found = queue.get_next_requests(n, 0)
            times.append(1000 * (time.perf_counter() - started))
            urls += [request.url for request in found]
        print(json.dumps({"times_ms": times, "urls": urls}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
