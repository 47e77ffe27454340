"""A store that has lost a crawl is not taken for a new one: by what is left, and by what others remember of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import curls
import pytest
from kafka_crawl import Topic, event, opic, settings_of, settle, workers
from kafka_server import Kafka
from logs import PARTITION, record
from processes import wait_until
from servers import NAMES, Server
from serving import serving

from opic.errors import StoreLost
from opic.ingest import Writer
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.service.standing import StandingService
from opic.service.stored_crawls import begin_anew
from opic.settings import Settings
from opic.store.recognition import lost_part

SHARDS = 3
LOG = [record(i, f"http://h{i}.example/", [f"http://h{i + 1}.example/"]) for i in range(30)]
ADVICE = "Restore a backup with `opic restore`, or accept the loss with `opic begin-anew`"


def fed(server: Server, shards: int = SHARDS) -> Crawl:
    crawl = Crawl.open(server.client(), shards=shards)
    Writer(crawl).apply(PARTITION, LOG)
    return crawl


def only_what_redis_keeps(server: Server) -> None:
    """As Redis 7.0 does which may not run what is in its file: transactions are gone, single commands are not."""
    server.client().delete(*server.client().keys("opic:*"))
    server.client().hset("opic:{default:0}:meta", "whole", "1")


def without_first_shard(server: Server) -> None:
    server.client().delete(*server.client().keys("opic:{default:0}:*"))


def without_second_shard(server: Server) -> None:
    server.client().delete(*server.client().keys("opic:{default:1}:*"))


def without_meta(server: Server) -> None:
    server.client().delete("opic:{default:0}:meta")


@pytest.mark.parametrize(
    ("servers", "loss", "what"),
    [
        pytest.param(server, *case, marks=[] if server == usual else pytest.mark.thorough)
        for server in NAMES
        for usual, *case in (
            ("redis", only_what_redis_keeps, "1 of its keys are left, without those that describe it"),
            ("valkey", without_first_shard, "of its keys are left"),
            ("redis", without_second_shard, "shard 1 of 3 is gone"),
            ("valkey", without_meta, "of its keys are left"),
        )
    ],
    indirect=["servers"],
)
def test_partial_store_is_refused_and_its_file_is_not_rewritten(
    servers: Server, loss: Callable[[Server], None], what: str
) -> None:
    fed(servers)
    loss(servers)
    servers.restart()
    left, before = servers.client().dbsize(), rewrites(servers)
    for create, shards in ((True, SHARDS), (False, SHARDS), (True, 1)):  # The lost crawl may have been of more shards.
        with pytest.raises(StoreLost, match=what) as refused:
            Crawl.open(servers.client(), shards=shards, create=create)
        assert ADVICE in str(refused.value)
    assert rewrites(servers) == before
    assert servers.client().dbsize() == left
    told = opic(Settings.load(store=servers.url, shards=SHARDS), "doctor")
    assert told.returncode == 1
    assert what in told.stdout
    done = opic(Settings.load(store=servers.url, shards=SHARDS), "begin-anew", "--accept-loss")
    assert done.returncode == 0, done.stderr
    assert Crawl.open(servers.client(), create=False).totals().reads == 0


def rewrites(server: Server) -> int:
    return int(server.client().info("persistence")["aof_rewrites"])


def test_a_crawl_that_another_process_made_a_moment_ago_is_not_taken_for_a_lost_one(valkey: Server) -> None:
    """This process looked for its description just before."""
    Crawl.open(valkey.client(), "new", shards=2)
    assert lost_part(valkey.client(), "new", {}, 2) is None


def test_shards_of_two_crawls_are_refused(valkey: Server) -> None:
    """As when a server of a cluster lost shard 0, and a program of before made it anew."""
    crawl = fed(valkey)
    valkey.client().hset(crawl.shards[0].keys.meta, "secret", "00" * 16)
    with pytest.raises(StoreLost, match="shard 1 of 3 is of an earlier crawl than shard 0"):
        Crawl.open(valkey.client())


def test_running_worker_requests_no_rewrite_of_a_server_that_lost_the_crawl(servers: Server) -> None:
    writer = Writer(Crawl.open(servers.client(), shards=SHARDS))
    writer.apply(PARTITION, LOG)
    without_second_shard(servers)
    servers.restart()
    before = rewrites(servers)
    for _ in range(2):
        with pytest.raises(StoreLost, match="shard 1 of 3 is gone"):
            writer.apply(PARTITION, [record(30, "http://h.example/")])
    assert rewrites(servers) == before


def test_endpoint_says_everywhere_that_the_store_lost_its_crawl(valkey: Server) -> None:
    with StandingService(Settings.load(store=valkey.url, shards=1)) as service, serving(service) as url:
        Writer(service.backend.crawl).apply(PARTITION, LOG)
        assert curls.get(f"{url}/readyz").status_code == 200
        assert "opic_store_lost 0.0" in curls.get(f"{url}/metrics").text
        valkey.client().flushall()
        for path in ("/readyz", "/v1/stats", "/v1/top"):
            answer = curls.get(f"{url}{path}")
            assert (answer.status_code, path) == (503, path)
            assert "the store lost crawl 'default': shard 0 of 1 is gone" in answer.json()["detail"]
        answer = curls.post(f"{url}/v1/events", json={"url": "http://a.example/"})
        assert (answer.status_code, "the store lost crawl" in answer.json()["detail"]) == (503, True)
        wait_until(lambda: "opic_store_lost 1.0" in curls.get(f"{url}/metrics").text)
        Crawl.open(valkey.client())  # By a process that knows nothing of it.
        assert "made again by a process that did not know of it" in curls.get(f"{url}/readyz").json()["detail"]
        begin_anew(valkey.client(), "default", {}, 1)
        assert curls.get(f"{url}/readyz").status_code == 200
        assert curls.get(f"{url}/v1/stats").json()["known_pages"] == 0


def test_data_directory_remembers_the_crawl(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "d", store="embedded")
    with EmbeddedService(settings, worker=False) as service:
        Writer(service.backend.crawl).apply(PARTITION, LOG)
        secret = service.backend.shard.secret.hex()
    names = tmp_path / "d" / "crawls.json"
    assert list(json.loads(names.read_text())) == ["default"]
    assert secret not in names.read_text()
    shutil.rmtree(tmp_path / "d" / "store")
    for _ in range(2):
        with pytest.raises(StoreLost, match=r"it is gone, and was there according to .*crawls\.json"):
            EmbeddedService(settings, worker=False).__enter__()
    told = opic(settings, "stats")
    assert (told.returncode, ADVICE in told.stderr) == (2, True)
    assert opic(settings, "begin-anew").returncode == 2
    done = opic(settings, "begin-anew", "--accept-loss")
    assert done.returncode == 0, done.stderr
    with EmbeddedService(settings, worker=False) as service:
        assert service.backend.crawl.totals().reads == 0


def test_standing_store_is_remembered_where_a_data_directory_is_given(valkey: Server, tmp_path: Path) -> None:
    settings = Settings.load(store=valkey.url, data=tmp_path)
    Backend(settings, valkey.url).close()
    Backend(settings, valkey.url).close()
    valkey.client().flushall()
    with pytest.raises(StoreLost, match="it is gone"):
        Backend(settings, valkey.url)
    Backend(Settings.load(store=valkey.url), valkey.url).close()
    with pytest.raises(StoreLost, match="it is not the one that"):
        Backend(settings, valkey.url)
    told = opic(settings, "doctor")
    assert told.returncode == 1
    assert "the store lost crawl 'default': it is not the one that" in told.stdout


@pytest.mark.slow
def test_empty_store_beside_committed_offsets_is_refused(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event(f"http://{i}.example/") for i in range(5)])
    backend = Backend(settings, valkey.url)
    with workers(settings, tmp_path) as (worker,):
        settle(backend.crawl, topic)
        worker.stop()
    backend.close()
    assert topic.committed() == {0: 5}
    valkey.client().flushall()
    told = opic(settings, "doctor")
    assert told.returncode == 1
    assert f"the store lost crawl '{topic.name}': it has no record of {topic.name}" in told.stdout
    with workers(settings, tmp_path) as (worker,):
        worker.says(f"the store lost crawl '{topic.name}': it has no record of {topic.name}")
        assert "applied all below offset 5" in worker.get("/readyz").text
        assert not valkey.client().keys("*")
        refused = opic(settings, "serve", "--port", 0)
        assert (refused.returncode, ADVICE in refused.stderr) == (2, True)
        done = opic(settings, "begin-anew", "--accept-loss")
        assert done.returncode == 0, done.stderr
        backend = Backend(settings, valkey.url)
        settle(backend.crawl, topic)
        assert backend.crawl.totals().reads == 5
        backend.close()
        worker.stop()
