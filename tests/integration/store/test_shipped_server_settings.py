"""The files of deploy/ on each server that the docs name, with restarts: nothing is lost, and nobody gets in."""

import pytest
import redis
from conftest import want_server
from kafka_crawl import opic
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import NAMES
from shipped_server import ShippedServer

from opic.errors import StoreError
from opic.ingest import Writer
from opic.model.books import BooksAudit
from opic.model.events import Record, encode_seeds
from opic.ops.doctor import run_checks
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import connect

# Rules as they were shipped once: they let nobody in either, and lose the store.
WITHOUT_RIGHTS = "user default off resetpass resetkeys resetchannels -@all"
NOW_US = 1_790_000_000_000_000
PAGES = [f"http://h{i}.example/" for i in range(60)]
SHARDS = 3


def opened(server: ShippedServer) -> Crawl:
    return Crawl.open(connect(server.url), shards=SHARDS)


def rules_checked(server: ShippedServer) -> tuple[str, str]:
    """What `opic doctor` says of the access rules."""
    (found,) = [one for one in run_checks(lambda: Settings.load(store=server.url)) if one.check == "access rules"]
    return found.verdict, found.text


def nameless(server: ShippedServer) -> redis.Redis:
    return redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0))


def fed(server: ShippedServer, first: int = 0) -> BooksAudit:
    """Make some pages known, beginning with a record; return the audit."""
    writer = Writer(opened(server))
    for number in range(first, first + 3):
        writer.apply("t/0", [Record(number, NOW_US, encode_seeds(PAGES[number * 10 : number * 10 + 10]), "seeds")])
    writer.drain()
    return writer.crawl.audit()[0]


@pytest.mark.parametrize("name", NAMES)
def test_restart_loses_nothing_with_the_shipped_files(name: str) -> None:
    with ShippedServer(want_server(name)) as server:
        before = fed(server)
        assert before.conserved
        for how in (server.shut_down, server.kill):
            how()
            server.start()
            assert opened(server).audit()[0] == before
        more = fed(server, 3)
        server.shut_down()
        server.start()
        after = opened(server)
        assert after.audit()[0] == more
        assert all(place is not None for place in after.ids_of(PAGES))
        assert "NOPERM" not in server.log()
        assert rules_checked(server) == ("ok", "a restart reads back the whole append-only file")


@pytest.mark.parametrize("name", NAMES)
def test_default_user_has_no_access(name: str) -> None:
    with ShippedServer(want_server(name)) as server:
        for words in (["AUTH", ""], ["AUTH", "x"], ["AUTH", "default", ""], ["AUTH", "default", "default"]):
            with nameless(server) as client, pytest.raises(redis.AuthenticationError):
                client.execute_command(*words)
        with nameless(server) as client, pytest.raises(redis.AuthenticationError, match="required"):
            client.get("opic:{default:0}:meta")
        with server.client("opic") as client, pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("ACL GETUSER", "admin")


@pytest.mark.slow
def test_users_that_would_lose_the_store_at_a_restart_are_refused() -> None:
    """And what they have hidden comes back, since nothing has rewritten the file."""
    with ShippedServer(want_server("redis")) as server:
        before = fed(server)
        server.client().acl_setuser("default", enabled=False, reset=True)
        with pytest.raises(StoreError, match=r"a restart of the store's server loses data: .* may not SET keys"):
            opened(server)
        assert rules_checked(server)[0] == "FAIL"
        assert opic(Settings.load(store=server.url), "doctor").returncode == 1
    with ShippedServer(want_server("redis"), default=WITHOUT_RIGHTS) as server:
        server.client().execute_command("ACL SETUSER", "default", "off", "resetpass", "~*", "&*", "+@all")
        before = fed(server)
        kept = server.client().dbsize()
        server.shut_down()
        server.start()  # By the rules of the file.
        assert "NOPERM" in server.log()
        assert server.client().dbsize() < kept
        for _ in range(2):
            with pytest.raises(StoreError, match="a restart of the store's server loses data"):
                opened(server)
        assert server.client().info("persistence")["aof_last_rewrite_time_sec"] == -1
        server.replace_rules(WITHOUT_RIGHTS, "user default off resetpass ~* &* +@all")
        server.shut_down()
        server.start()
        assert opened(server).audit()[0] == before


def test_server_that_hides_its_users_is_refused_if_it_may_lose_the_store() -> None:
    with ShippedServer(want_server("redis"), without="+acl|dryrun ") as server:
        with pytest.raises(StoreError, match=r"can't be told: .* allow this user `\+acl\|dryrun`"):
            opened(server)
        assert rules_checked(server)[0] == "FAIL"
    with ShippedServer(want_server("valkey"), default=WITHOUT_RIGHTS, without="+acl|dryrun ") as server:
        before = fed(server)  # It reads its file without a look at rights.
        server.shut_down()
        server.start()
        assert opened(server).audit()[0] == before
