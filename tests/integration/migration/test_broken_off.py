"""A migration that breaks off at any point leaves one whole crawl, and says which. What can't be moved is refused."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from backup_crawls import crossing_log
from command_line import run_here
from conftest import ONE_SERVER
from logs import PARTITION
from migrations import links_of, moved, opened, pages_of
from processes import environment, wait_until
from servers import Server

from opic.admission import Admission
from opic.api.metrics import Metrics
from opic.api.succession import Succession
from opic.errors import BadInput, CrawlMoved, CrawlStopped, Refused, SettingsError, StoreError, StoreUnavailable
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.migration.migrate import Migration, abort, begin, resume
from opic.migration.source import Source
from opic.migration.target import Target
from opic.model.cash import CONTINUOUS
from opic.replica import Crawl
from opic.service.standing import StandingService
from opic.service.stored_crawls import delete_crawl
from opic.service.tokens import Tokens
from opic.settings import Settings
from opic.store.keys import Keys
from opic.store.local_lists import put_list
from opic.store.scan import key_names

LOG = crossing_log()[:1_200]
HALF = 800


class Killed(BaseException):
    """The process is gone: nothing of it cleans up."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[int]]:
    """Let the process die before the command with this number that it sends to the store, and send none after it."""
    sent = [0]

    def dying(send: Callable[..., Any]) -> Callable[..., Any]:
        def sending(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                sent[0] += 1
            if sent[0] >= number:
                raise Killed
            return send(*args, **options)

        return sending

    with monkeypatch.context() as patch:
        for name in ("send_packed_command", "send_command"):
            for kind in (redis.Connection, redis.UnixDomainSocketConnection):
                patch.setattr(kind, name, dying(getattr(kind, name)))
        yield sent


def filled(server: Server, shards: int) -> Crawl:
    crawl = Crawl.open(server.client(), "first", keep_links=True, shards=shards)
    Writer(crawl).apply(PARTITION, LOG[:HALF])
    Writer(crawl).drain()
    return crawl


def begun(server: Server, to: str = "second", **changes: int) -> None:
    begin(opened(server, "first"), server.client(), Migration(to, changes=changes), lambda _: None)


@pytest.mark.parametrize(
    ("shards", "end"),
    [
        (1, "resume"),
        (4, "abort"),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((4, "resume"), (1, "abort"))),
    ],
)
def test_migration_killed_before_any_command_leaves_one_whole_crawl(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, shards: int, end: str
) -> None:
    filled(valkey, shards)
    before, links = pages_of(opened(valkey, "first")), links_of(opened(valkey, "first"))
    copy = valkey.client().dump  # The keys are put back after each death: filling them takes longer.
    names = sorted(key_names(valkey.client(), "opic:{first:*"))
    kept = {name: copy(name) for name in names}
    with killed_at(monkeypatch, 1 << 30) as sent:
        begun(valkey, shards=5 - shards)
    count = sent[0]
    outcomes, last = set(), 8  # The commands by which the new crawl takes over.
    for number in sorted({*range(1, count - last, max(1, count // 5)), *range(count - last, count + 1)}):
        client = valkey.client()
        client.flushall()
        for name, value in kept.items():
            client.restore(name, 0, value)
        with killed_at(monkeypatch, number), pytest.raises(Killed):
            begun(valkey, shards=5 - shards)
        outcomes.add(_ended(valkey, end))
        whole = "second" if client.hexists(Keys("first", 0).meta, "moved") else "first"
        crawl = opened(valkey, whole)
        assert crawl.audit()[0].conserved
        assert pages_of(crawl).keys() == before.keys()
        assert links_of(crawl) == links
        assert not client.hexists(Keys("first", 0).meta, "moving")
        if whole == "first":
            assert not key_names(client, "opic:{second:*")
        Writer(crawl).apply(PARTITION, LOG[HALF : HALF + 20])  # It goes on.
        assert crawl.audit()[0].conserved
    assert outcomes == {"no migration", *(("aborted", "refused") if end == "abort" else ("again", "opened"))}


def _ended(server: Server, how: str) -> str:
    """Resume or abort; return what that said."""
    client = server.client()
    moved_already = client.hexists(Keys("first", 0).meta, "moved")
    try:
        if how == "abort":
            abort(client, "first", server.client())
            return "aborted"
        report = resume(client, "first", server.client(), lambda _: None)
    except Refused:
        assert moved_already
        resume(client, "first", server.client(), lambda _: None)
        return "refused"
    except BadInput as error:
        return str(error).partition(" of crawl")[0]
    return "opened" if report.notes and moved_already else "again"


@ONE_SERVER
def test_crawl_takes_no_writes_while_it_is_stopped_and_goes_on_after_that(servers: Server) -> None:
    crawl = filled(servers, 1)
    writer, frontier = Writer(crawl), Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0))
    given = frontier.next(1).pages
    source = Source(opened(servers, "first"))
    source.stop("token", 60)
    for call in (
        lambda: writer.apply(PARTITION, LOG[HALF : HALF + 1]),
        lambda: frontier.next(1),
        lambda: frontier.release([given[0].lease]),
        lambda: frontier.renew([given[0].lease]),
        lambda: frontier.block("h1.org", 2e9),
        lambda: frontier.report_delay("h1.org", 5.0),
        lambda: Admission(crawl).replace({"rules": []}),
        lambda: put_list(crawl.client, crawl.shards[0].keys, "h1.org", {"pages": []}),
    ):
        with pytest.raises(CrawlStopped):
            call()
    source.stop("token", 0)
    writer.apply(PARTITION, LOG[HALF : HALF + 1])
    assert frontier.release([given[0].lease]).released == 1


@ONE_SERVER
def test_write_between_two_stops_is_noticed(servers: Server) -> None:
    crawl = filled(servers, 1)
    source = Source(opened(servers, "first"))
    seen = source.stop("token", 60)
    source.stop("token", 60, seen)
    source.stop("token", 0)
    Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0)).next(1)  # As after a stop that ended by itself.
    with pytest.raises(StoreUnavailable, match="was written to"):
        source.end("token", seen, "second")
    assert opened(servers, "first").resume(PARTITION) == HALF


@ONE_SERVER
def test_old_crawl_names_the_new_one_and_takes_nothing(servers: Server) -> None:
    crawl = filled(servers, 1)
    writer, frontier = Writer(crawl), Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0))
    writer.apply(PARTITION, LOG[HALF : HALF + 1])
    moved(servers, "first", "second", shards=3)
    with pytest.raises(CrawlMoved, match="was moved to crawl 'second'"):
        opened(servers, "first")
    with pytest.raises(StoreUnavailable):  # A worker that comes back.
        writer.apply(PARTITION, LOG[HALF + 1 : HALF + 2])
    with pytest.raises(StoreUnavailable):
        frontier.next(1)
    assert opened(servers, "second").audit()[0].conserved


@ONE_SERVER
@pytest.mark.parametrize(
    ("to", "changes", "says"),
    [
        ("second", {"shards": 2}, "already has a crawl named 'second'"),
        ("first", {"shards": 2}, "already has a crawl named 'first'"),
        ("a name", {"shards": 2}, "no name of a crawl"),
        ("third", {"inflow": True}, "can't be switched on"),
    ],
)
def test_what_can_not_be_migrated_is_refused(servers: Server, to: str, changes: dict[str, int], says: str) -> None:
    Crawl.open(servers.client(), "second")
    Crawl.open(servers.client(), "first", {"inflow": False})
    with pytest.raises((BadInput, SettingsError), match=says):
        begun(servers, to, **changes)
    assert opened(servers, "first").resume(PARTITION) == 0


@ONE_SERVER
def test_continuous_payout_is_refused(servers: Server) -> None:
    Crawl.open(servers.client(), "first", {"virtual": CONTINUOUS.virtual})
    with pytest.raises(SettingsError, match="OPIC_VIRTUAL=continuous can't be migrated"):
        begun(servers, shards=2)


@ONE_SERVER
def test_second_migration_at_once_is_refused(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(servers, 1)
    with killed_at(monkeypatch, 60), pytest.raises(Killed):
        begun(servers, shards=2)
    with pytest.raises(BadInput, match=r"is being moved to 'second' since .* UTC, or that broke off"):
        begun(servers, "third", shards=2)
    assert abort(servers.client(), "first", servers.client()).to == "second"
    begun(servers, "third", shards=2)
    assert opened(servers, "third").audit()[0].conserved


def test_neither_crawl_is_removed_while_one_is_moved_to_the_other(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(valkey, 1)
    client = valkey.client()
    with killed_at(monkeypatch, 1 << 30) as sent:
        begun(valkey, shards=2)
    for last in (sent[0] // 2, sent[0] - 2):  # In the copy, and after the new crawl has taken over.
        client.flushall()
        filled(valkey, 1)
        with killed_at(monkeypatch, last), pytest.raises(Killed):
            begun(valkey, shards=2)
        assert client.exists(Keys("second", 0).meta)
        for name in ("second", "first"):
            with pytest.raises(Refused, match=r"'first' is being moved to 'second'.*--resume"):
                delete_crawl(client, name)
    resume(client, "first", client, lambda _: None)
    assert delete_crawl(client, "first") > 0
    assert delete_crawl(client, "second") > 0


def test_endpoint_says_once_that_the_new_crawl_is_not_open_yet(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def killed(_: Target) -> None:
        raise Killed

    filled(valkey, 1)
    settings = Settings.load(store=valkey.url, crawl="first")
    with StandingService(settings) as service:
        tokens = Tokens(settings)
        succession = Succession(service, allow_open=False, metrics=Metrics(service.backend, tokens), tokens=tokens)
        with monkeypatch.context() as patch:
            patch.setattr(Target, "open", killed)
            with pytest.raises(Killed):
                begun(valkey)
        assert valkey.client().hget(Keys("first", 0).meta, "moved") == b"second"
        wait_until(lambda: service.backend.crawl.stopped)
        for _ in range(5):
            succession._look()
        said = [record.levelname for record in caplog.records if "a backup is being restored" in record.getMessage()]
        assert said == ["WARNING"]
        resume(valkey.client(), "first", valkey.client(), lambda _: None)
        succession._look()
        assert service.backend.settings.crawl == "second"


def test_copy_that_lost_its_claim_is_not_opened(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    crawl, unclaimed, check = filled(valkey, 1), Keys("second", 0).meta, Target.check_claimed

    def check_after_loss(target: Target) -> None:
        target.client.hdel(unclaimed, "restoring")
        check(target)

    monkeypatch.setattr(Target, "check_claimed", check_after_loss)
    with pytest.raises(StoreError, match="not the one that this migration began to make"):
        begun(valkey)
    assert not valkey.client().hexists(unclaimed, "format")
    Writer(crawl).apply(PARTITION, LOG[HALF : HALF + 20])  # It goes on.


def test_store_without_memory_for_a_second_copy_is_refused(servers: Server) -> None:
    filled(servers, 1)
    client = servers.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 40_000)
    try:
        with pytest.raises(StoreUnavailable, match=r"needs about \d+ MB of the store's memory, and 0 MB are left"):
            begun(servers, shards=2)
    finally:
        client.config_set("maxmemory", 0)
    assert pages_of(opened(servers, "first"))


@ONE_SERVER
def test_crawl_goes_on_where_the_memory_was_full_in_the_end(servers: Server) -> None:
    crawl = filled(servers, 1)
    client = servers.client()
    needed = sum(client.memory_usage(name) or 0 for name in key_names(client, "opic:{first:*"))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + needed + 300_000)
    try:
        with pytest.raises(StoreUnavailable, match="memory full"):
            begun(servers, shards=2_000)  # Which need more than one.
    finally:
        client.config_set("maxmemory", 0)
    assert not key_names(client, "opic:{second:*")
    Writer(crawl).apply(PARTITION, LOG[HALF : HALF + 1])
    assert opened(servers, "first").audit()[0].conserved


def test_commands_say_what_they_did(valkey: Server) -> None:
    filled(valkey, 1)

    def run(*words: str) -> tuple[int, Any]:
        done = run_here(["migrate", *words, "--store", valkey.url, "--crawl", "first", "--json"], environment())
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    for words, says in (
        ((), "give the new crawl a name"),
        (("second",), "nothing is to change"),
        (("--resume", "--abort"), "contradict"),
        (("second", "--resume"), "know what was begun"),
        (("--resume",), "no migration of crawl 'first' is under way"),
    ):
        status, said = run(*words)
        assert (status, says in said) == (2, True), said
    status, said = run("second", "--shards", "4", "--damping", "0.7")
    assert status == 0
    assert (said["migrated_to"], said["shards"], len(said["notes"])) == ("second", 4, 1)
    assert said["pages"] == len(pages_of(opened(valkey, "second")))
    told = run_here(["doctor", "--store", valkey.url, "--crawl", "first"], environment())
    assert "first was moved to second: set OPIC_CRAWL=second" in told.stdout
    listed = json.loads(run_here(["crawls", "--store", valkey.url, "--json"], environment()).stdout)["crawls"]
    assert [(one["name"], one["shards"], one["moved_to"]) for one in listed] == [
        ("first", 1, "second"),
        ("second", 4, ""),
    ]
    status, said = run("third", "--shards", "2")  # By the name of the first: that leads to the second.
    assert (status, said["shards"]) == (0, 2)
    assert opened(valkey, "third").rules.q == 300_000
    for name, leads in (("second", "first"), ("third", "second")):
        with pytest.raises(Refused, match=f"the name '{leads}' leads to crawl '{name}'.*: delete '{leads}' first"):
            delete_crawl(valkey.client(), name)
    for name in ("first", "second", "third"):
        delete_crawl(valkey.client(), name)
    assert not key_names(valkey.client(), "opic:*")
