"""The process that lets crawl events take effect: `python -m consumers.crawl_events`.

It reads the embedded log for now; Kafka is the same loop with another source, and is not built yet. Settings come from
the environment and the file named by OPIC_CONFIG. It ends cleanly on SIGTERM and SIGINT, after the batch in hand, and
by itself when the service that started it is gone.
"""

import logging
import os
import signal
import sys
import threading

from opic.embedded import EmbeddedServer, disk_full
from opic.errors import NotBuiltYet, OpicError
from opic.log import EventLog
from opic.settings import Settings
from opic.store import Shard, Store, connect
from opic.worker import BatchTimes, work

log = logging.getLogger("opic.worker")


def main() -> int:
    """Run until told to stop; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    parent = os.getppid() if os.environ.get("OPIC_CHILD") else None
    try:
        settings = Settings.load()
        url = settings.store
        if settings.embedded:
            running = EmbeddedServer.running(settings.data_dir())
            if running is None:
                raise NotBuiltYet(
                    "`opic worker` without `opic serve --embedded` waits for Kafka, which is not built yet: "
                    "the embedded service runs its own worker"
                )
            url = running
        shard = Shard.open(connect(url), settings.crawl, settings.rules_given())
        source = EventLog(connect(url), shard.keys)
        store = Store(shard, settings.limits(), settings.retry_seconds)
        times = BatchTimes(shard)
        on_our_disk = settings.embedded or parent is not None
        log.info("ready, from offset %d of %s", store.next_offset(source.partition), source.partition)
        work(
            store,
            source,
            times=times,
            stopped=lambda: done.is_set() or (parent is not None and os.getppid() != parent),
            pause=done.wait,
            full=lambda: disk_full(settings.data_dir()) if on_our_disk else None,
        )
        times.tell(now=True)
    except OpicError as error:
        print(f"opic worker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
