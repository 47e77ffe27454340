"""An endpoint and its worker go on with the crawl that they have now, where the name of their start was removed."""

import os
import signal
from pathlib import Path

import pytest
from processes import Service, running, wait_until

from opic.migration.migrate import Migration, begin
from opic.replica import Crawl
from opic.service.stored_crawls import delete_crawl
from opic.store import connect
from opic.store.connection import Client
from opic.store.keys import Keys

pytestmark = pytest.mark.slow


def read(service: Service, url: str) -> int:
    """Publish an event; return how many took effect so far, where the crawl answers."""
    after = service.post("/v1/events", {"url": url}).json()["position"]
    return int(service.get("/v1/stats", after=after).json()["reads"])


def moved(client: Client, name: str, to: str) -> None:
    crawl = Crawl.open(client, name, create=False)
    begin(crawl, client, Migration(to, changes={"shards": 2 if len(crawl) == 1 else 1}), lambda _: None)


def crawl_of(service: Service) -> str:
    return str(service.get("/v1/stats").json().get("crawl"))  # None for the moment of a 503.


def test_first_name_is_removed_between_two_moves(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "said", crawl="first") as service:
        assert read(service, "http://a.example/") == 1
        with connect(service.store_url()) as client:
            moved(client, "first", "second")
            wait_until(lambda: crawl_of(service) == "second")
            assert read(service, "http://b.example/") == 2  # The worker has followed, too.
            delete_crawl(client, "first")
            moved(client, "second", "third")
            wait_until(lambda: crawl_of(service) == "third")
            assert read(service, "http://c.example/") == 3
            os.kill(service.pids()["worker"], signal.SIGKILL)
            assert read(service, "http://d.example/") == 4
            assert not client.exists(Keys("first", 0).meta)
