"""A replay is a crawl: what it feeds has the same effect as the same events from a crawler, and no file can hurt it."""

import gzip
import json
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import networkx as nx
import pytest
from logs import NOW_US, PARTITION, pep_history
from packed_events import BAD_PACKED, DEEP_PACKED, UNENDING_PACKED
from packed_events import PACKED as GOOD
from processes import WORKER, children_of, command_of, wait_until
from same_state import assert_same
from serving import working
from typer.testing import CliRunner

from opic.cli.main import app
from opic.errors import BadInput, StoreUnavailable
from opic.frontier import Frontier
from opic.ingest.worker_health import Health, HealthPort
from opic.model.events import Record, decode_crawl_event
from opic.model.ledger import Ledger
from opic.ops.feeder import Progress
from opic.ops.replay import Plan, Summary, _next, format_of, read_graph, replay, url_of_name
from opic.service.backend import Backend
from opic.service.service import EmbeddedService, feeding
from opic.settings import Settings

pytestmark = pytest.mark.slow  # `make check` has the README's commands; this is each command at length.

NODES = 40
SEED = 20030524


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    """A bundled store with a worker that lets the records of the crawl `default` take effect."""
    with EmbeddedService(Settings(store="embedded", data=tmp_path_factory.mktemp("replay") / "data")) as running:
        yield running


numbers = count()  # Of all crawls that these tests make.


class Crawls:
    """Crawls of their own in one store: a replay into one sees nothing of the others."""

    def __init__(self, service: EmbeddedService, stack: ExitStack) -> None:
        self.service, self.stack = service, stack

    def open(self, **settings: object) -> Backend:
        given = {"shards": 1, "store": self.service.server.url, "crawl": f"crawl-{next(numbers)}", **settings}
        backend = Backend(Settings(**given), self.service.server.url)  # type: ignore[arg-type]
        self.stack.callback(backend.close)
        return backend


@pytest.fixture
def crawls(service: EmbeddedService) -> Iterator[Crawls]:
    with ExitStack() as stack:
        yield Crawls(service, stack)


def feed(backend: Backend, paths: Path | Sequence[Path], plan: Plan) -> Summary:
    told: list[Progress] = []
    paths = [paths] if isinstance(paths, Path) else paths
    with working(backend):
        summary = replay(backend, paths, plan, lambda p: told.append(replace(p)))
    assert (told[-1].events, told[-1].lag) == (summary.events, 0)
    assert backend.lag() == 0
    assert backend.query.audit()["conserved"]
    return summary


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    with pytest.raises(BadInput) as found:
        yield
    for part in parts:
        assert part in str(found.value)


# Crawl events.


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all records have one time, that of the ledger's: the books and the series know it."""
    monkeypatch.setattr("opic.store.server_clock.ServerClock.now_us", lambda _: NOW_US)


def test_replayed_history_equals_the_ledger_fed_the_same(crawls: Crawls, still: None, tmp_path: Path) -> None:
    history = pep_history()
    with gzip.open(tmp_path / "peps.jsonl.gz", "wt", compresslevel=1) as file:
        for record in history:
            event = decode_crawl_event(record.value)
            row = {"url": event.url, "links": event.links, "status": event.status, "fetched_at": event.fetched_at}
            file.write(json.dumps(row) + "\n")
    backend = crawls.open()
    summary = feed(backend, tmp_path / "peps.jsonl.gz", Plan("jsonl"))
    ledger = Ledger()
    ledger.apply(PARTITION, [Record(i, NOW_US, record.value) for i, record in enumerate(history)])
    assert_same(backend.shard, ledger)
    assert (summary.events, summary.accepted, summary.dead_letters) == (len(history), len(history), 0)
    assert (summary.pages, summary.links) == (ledger.books.live, ledger.books.links)


def test_replay_into_the_embedded_store_ends_with_a_checkpoint(crawls: Crawls, tmp_path: Path) -> None:
    """Whoever opens it next has nothing of the journal to apply."""
    urls = [f"http://h{host}.example/" for host in range(8)]
    rows = [{"url": url, "links": urls} for url in urls]
    file = lines(tmp_path / "crawl.jsonl", *rows)
    with feeding(Settings(store="embedded", data=tmp_path / "data", shards=2)) as backend:
        replay(backend, [file], Plan("jsonl"))
    beside = crawls.open(shards=2)
    feed(beside, file, Plan("jsonl"))
    with EmbeddedService(backend.settings, worker=False) as again:
        for backend, is_written in ((again.backend, True), (beside, False)):
            backend.crawl.follow()
            for shard, head in zip(backend.crawl.shards, backend.crawl.heads(), strict=True):
                written = shard.client.hget(shard.keys.block(0), "l")
                assert written == (b"%d" % head.lsn if is_written else None)


def test_invalid_line_is_a_dead_letter_and_the_replay_goes_on(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(
        tmp_path / "crawl.jsonl",
        {"url": "http://a.example/", "links": ["http://b.example/"]},
        "",
        "  ",
        "{not json",
        {"url": "/relative"},
        {"url": "http://b.example/", "fetched_at": "yesterday"},
        {"url": "http://b.example/", "links": ["http://a.example/"]},
    )
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    backend = crawls.open()
    summary = feed(backend, file, Plan("jsonl"))
    assert (summary.events, summary.accepted, summary.dead_letters) == (5, 2, 3)
    assert backend.shard.books().dead_letters == 3
    assert backend.shard.books().reads == 2


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_packed_history_equals_the_ledger_fed_the_same(
    crawls: Crawls, still: None, tmp_path: Path, packed: bool
) -> None:
    values = [record.value for record in pep_history()[:3_000]]
    file = tmp_path / ("peps.msgpack.gz" if packed else "peps.msgpack")
    file.write_bytes(gzip.compress(b"".join(values), 1) if packed else b"".join(values))
    assert format_of(file) == "msgpack"
    backend = crawls.open()
    summary = feed(backend, file, Plan("msgpack"))
    ledger = Ledger()
    ledger.apply(PARTITION, [Record(i, NOW_US, value) for i, value in enumerate(values)])
    assert_same(backend.shard, ledger)
    assert (summary.events, summary.dead_letters) == (len(values), 0)


def test_invalid_packed_value_is_a_dead_letter_and_the_replay_goes_on(crawls: Crawls, tmp_path: Path) -> None:
    bad = [value for name, value in BAD_PACKED.items() if name != "an array" and value != DEEP_PACKED]
    file = tmp_path / "crawl.msgpack"
    file.write_bytes(GOOD + b"".join(value + GOOD for value in bad))
    backend = crawls.open()
    summary = feed(backend, file, Plan("msgpack"))
    assert (summary.events, summary.accepted, summary.dead_letters) == (2 * len(bad) + 1, len(bad) + 1, len(bad))
    assert (backend.shard.books().reads, backend.shard.books().dead_letters) == (len(bad) + 1, len(bad))


@pytest.mark.parametrize("bad", UNENDING_PACKED.values(), ids=UNENDING_PACKED)
def test_endless_packed_value_ends_the_replay_after_the_events_before_it(
    crawls: Crawls, tmp_path: Path, bad: bytes
) -> None:
    (tmp_path / "crawl.msgpack").write_bytes(GOOD * 3 + bad)
    backend = crawls.open()
    with refused("crawl.msgpack", "byte 69", "3 events were fed before"):
        feed(backend, tmp_path / "crawl.msgpack", Plan("msgpack"))
    assert backend.shard.books().reads == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD + GOOD[:-1], ("ends in the middle of the value at byte 23", "1 events were fed before")),
        (GOOD + b"\xc1", ("no MessagePack value", "byte 23", "1 events were fed before")),
        (GOOD + b"\x91" * 5_000 + b"\xc0", ("byte 23", "nested too deeply", "1 events were fed before")),
        (GOOD + b"\xdb\x7f\xff\xff\xff" + b"a" * 300_000, ("byte 23", "OPIC_MAX_BODY_BYTES 4,096")),
        (b'{"url":"http://a.example/"}', ("does not start with a map", "0 events were fed before")),
        (b"\x91" + GOOD, ("does not start with a map",)),
    ],
    ids=["truncated", "no such byte", "deep", "long", "JSON", "an array"],
)
def test_malformed_file_is_an_error_with_the_position(
    crawls: Crawls, tmp_path: Path, content: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / "crawl.msgpack").write_bytes(content)
    with refused("crawl.msgpack", *words):
        feed(crawls.open(max_body_bytes=4_096), tmp_path / "crawl.msgpack", Plan("msgpack"))


def test_several_files_are_one_log(crawls: Crawls, tmp_path: Path) -> None:
    files = [lines(tmp_path / f"{name}.jsonl", {"url": f"http://{name}.example/"}) for name in "abc"]
    assert feed(crawls.open(), files, Plan("jsonl")).pages == 3


def test_line_too_long_is_an_error_that_names_it(crawls: Crawls, tmp_path: Path) -> None:
    short, long = {"url": "http://a.example/"}, {"url": "http://b.example/", "links": ["http://c.example/"] * 99}
    file = lines(tmp_path / "crawl.jsonl", short, long, short)
    with refused("crawl.jsonl:2: the line is over OPIC_MAX_BODY_BYTES 1,024 bytes", "1 events were fed before"):
        feed(crawls.open(max_body_bytes=1_024), file, Plan("jsonl"))


def test_broken_gzip_is_an_error_that_names_the_file(crawls: Crawls, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    text = "".join(json.dumps({"url": f"http://{rng.random()}.example/"}) + "\n" for _ in range(2_000))
    whole = gzip.compress(text.encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for name, content in {"cut": whole[: len(whole) // 2], "flipped": bytes(flipped), "tail": whole[:-3]}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content)
        backend = crawls.open()
        with refused(f"{name}.jsonl: broken gzip after line", "events were fed before"):
            feed(backend, tmp_path / f"{name}.jsonl", Plan("jsonl"))
        assert backend.lag() == 0


def test_format_follows_from_the_name_of_the_file() -> None:
    names = ("a.JSONL", "a.jsonl.gz", "a.tsv.gz", "a", "a.warc.gz", "a.wat", "a.warc.wat.gz", "a.arc.gz")
    assert [format_of(Path(name)) for name in names] == [
        "jsonl", "jsonl", "edges", "edges", "warc", "wat", "wat", "arc",
    ]  # fmt: skip


def test_back_pressure_keeps_the_lag_below_its_limit(service: EmbeddedService, tmp_path: Path) -> None:
    file = lines(tmp_path / "crawl.jsonl", *({"url": f"http://h.example/{i}"} for i in range(1_000)))
    backend = Backend(Settings(store=service.server.url, shards=1, max_lag=10), service.server.url)
    before = backend.shard.books().reads
    assert replay(backend, [file], Plan("jsonl")).events == 1_000
    assert backend.shard.books().reads == before + 1_000
    backend.close()


def test_replay_has_a_worker_of_its_own_where_the_service_works_on_another_crawl(
    crawls: Crawls, tmp_path: Path
) -> None:
    file = lines(tmp_path / "crawl.jsonl", {"url": "http://a.example/"})
    with (
        crawls.service.announced("http://127.0.0.1:1", "an instance"),
        feeding(Settings(store="embedded", data=crawls.service.server.data, crawl="another")) as backend,
    ):
        assert replay(backend, [file], Plan("jsonl")).pages == 1


def test_worker_of_a_replay_is_started_again_when_it_is_killed(tmp_path: Path) -> None:
    file = lines(tmp_path / "crawl.jsonl", *({"url": f"http://h.example/{i}"} for i in range(5_000)))
    others, killed = children_of(os.getpid()), list[int]()

    def kill(_: Progress) -> None:
        if not killed:
            killed.extend(pid for pid in children_of(os.getpid()) if pid not in others and WORKER in command_of(pid))
            os.kill(*killed, signal.SIGKILL)

    with feeding(Settings(store="embedded", data=tmp_path / "data")) as backend:
        summary = replay(backend, [file], Plan("jsonl"), kill)
        assert (summary.events, backend.shard.books().reads) == (5_000, 5_000)


def test_replay_to_a_server_has_a_worker_of_its_own(crawls: Crawls, tmp_path: Path) -> None:
    """Another one may answer on the port of workers."""
    file = lines(tmp_path / "crawl.jsonl", {"url": "http://a.example/"})
    with (
        HealthPort(Health(), "127.0.0.1", 0) as other,
        feeding(crawls.open(shards=2, worker_port=other.port).settings) as backend,
    ):
        assert replay(backend, [file], Plan("jsonl")).pages == 1


def test_replay_without_a_worker_says_what_to_start(
    crawls: Crawls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are in the log, and take effect once there is a worker."""
    monkeypatch.setattr("opic.ops.feeder.AWAY_SECONDS_MAX", 0.2)
    backend, file = crawls.open(), lines(tmp_path / "crawl.jsonl", {"url": "http://a.example/"})
    with pytest.raises(StoreUnavailable, match=r"no worker applied .* `opic worker`; 1 events were accepted"):
        replay(backend, [file], Plan("jsonl"))
    assert backend.lag() == 1
    with working(backend):
        wait_until(lambda: backend.lag() == 0)
    assert backend.shard.books().reads == 1


# Graphs.


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "nx.DiGraph[str]"]:
    """A file with a graph of 40 nodes that can all be reached from any, and what it means."""
    rng = random.Random(SEED)
    edges = [(i, (i + 1) % NODES) for i in range(NODES)]
    edges += [(rng.randrange(NODES), int(rng.paretovariate(0.7)) % NODES) for _ in range(3 * NODES)]
    rng.shuffle(edges)
    path = tmp_path_factory.mktemp("graph") / "graph.txt.gz"
    with gzip.open(path, "wt") as file:
        file.write("# FROM TO\n\n" + "".join(f"{a} {b}\n" for a, b in edges))
    meant = nx.DiGraph((f"http://graph.example/{a}", f"http://graph.example/{b}") for a, b in edges if a != b)
    return path, meant


@pytest.mark.parametrize("strategy", ["log", "random", "greedy", "cycle"])
def test_every_strategy_reads_the_graph_and_nears_its_pagerank(
    strategy: str, crawls: Crawls, graph: tuple[Path, "nx.DiGraph[str]"]
) -> None:
    path, meant = graph
    backend = crawls.open()
    summary = feed(backend, path, Plan("edges", strategy, reads_per_page=15, seed=SEED))
    assert (summary.events, summary.dead_letters, summary.note) == (15 * NODES, 0, None)
    assert backend.shard.books().reads == 15 * NODES
    assert summary.pages == NODES
    exact = nx.pagerank(meant, alpha=0.85, tol=1e-12)
    found = {page["url"]: page["importance"] for page in backend.query.top(NODES)}
    error = sum(abs(found[url] - exact[url]) for url in exact)  # type: ignore[operator]
    bound = backend.query.stats()["error_bound"]
    assert error <= bound < 0.3  # type: ignore[operator]


def test_log_and_cycle_read_pages_in_the_order_of_first_mention(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.txt", "c a", "b c", "a b")
    for strategy in ("log", "cycle"):
        backend = crawls.open()
        feed(backend, file, Plan("edges", strategy, reads_per_page=1.34))
        clocks = {page.url[-1]: [m.clock for m in page.measures] for page in backend.crawl.pages()}
        assert sorted(clocks, key=lambda name: clocks[name][0]) == ["c", "a", "b"]
        assert [len(clocks[name]) for name in "cab"] == [2, 1, 1]


def test_random_choices_repeat_with_their_seed(crawls: Crawls, graph: tuple[Path, "nx.DiGraph[str]"]) -> None:
    def reads(seed: int) -> list[int]:
        backend = crawls.open()
        feed(backend, graph[0], Plan("edges", "random", seed=seed))
        return [page.reads for page in backend.crawl.pages()]

    assert reads(1) == reads(1) != reads(2)


def test_greedy_reads_only_what_its_seeds_reach(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.txt", "a b", "b c", "c a", "x a", "x y")
    backend = crawls.open()
    plan = Plan("edges", "greedy", reads_per_page=4, seed_urls=["http://graph.example/a"])
    assert feed(backend, file, plan).note is None
    assert {page.url[-1] for page in backend.crawl.pages()} == set("abc")
    with refused("--seed-url http://graph.example/z is not a page of this graph"):
        feed(crawls.open(), file, Plan("edges", "greedy", seed_urls=["http://graph.example/z"]))


def test_greedy_ends_early_when_nothing_is_left_to_read(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.txt", "a b")
    plan = Plan("edges", "greedy", reads_per_page=50, seed_urls=["http://graph.example/a"])
    summary = feed(crawls.open(regrant=0), file, plan)
    assert summary.events == 2
    assert summary.note is not None
    assert "98 reads early" in summary.note


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_greedy_reads_batches_of_a_share_of_the_known_pages(
    share: float, crawls: Crawls, graph: tuple[Path, "nx.DiGraph[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = list[int](), _next

    def noting(target: Backend, frontier: Frontier, n: int) -> object:
        asked.append(n)
        return ask(target, frontier, n)

    monkeypatch.setattr("opic.ops.replay._next", noting)
    backend = crawls.open()
    assert (
        feed(backend, graph[0], Plan("edges", "greedy", reads_per_page=6, seed=SEED, batch=share)).events == 6 * NODES
    )
    assert max(asked) == max(1, round(share * NODES))
    assert backend.query.stats()["error_bound"] < 1  # type: ignore[operator]


@pytest.mark.parametrize("strategy", ["log", "random", "greedy", "cycle"])
@pytest.mark.parametrize(
    ("rows", "pages", "what"),
    [
        (["a a"], 1, "one page"),
        (["a a", "b b", "c c"], 3, "no links"),
        (["a b", "b a", "x y", "y x"], 4, "disconnected"),
        (["a b", "a c", "a d"], 4, "all dangling but one"),
    ],
)
def test_degenerate_graph_is_crawled_with_balanced_books(
    strategy: str, rows: list[str], pages: int, what: str, crawls: Crawls, tmp_path: Path
) -> None:
    backend = crawls.open()
    summary = feed(backend, lines(tmp_path / "graph.txt", *rows), Plan("edges", strategy, reads_per_page=4))
    assert (summary.pages, summary.dead_letters) == (pages, 0), what
    assert sum(page["importance"] for page in backend.query.top(pages)) == pytest.approx(1)  # type: ignore[misc, arg-type]


def test_page_that_links_to_100_000_pages_is_read(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.txt", *(f"hub {page}" for page in range(100_000)))
    backend = crawls.open(max_links=100_000)
    summary = feed(backend, file, Plan("edges", "log", reads_per_page=0.00002))
    assert (summary.events, summary.pages, summary.links, summary.links_left_out) == (2, 100_001, 100_000, None)
    (found,) = backend.query.importance(["http://graph.example/hub"])
    assert 0 < found["importance"] <= 2e-5  # type: ignore[operator]


def test_links_of_a_page_over_the_limit_are_left_out_and_the_summary_says_how_many(
    crawls: Crawls, tmp_path: Path
) -> None:
    links = [f"http://h{page % 1_000}.example/{page}" for page in range(100_000)]
    event = {"url": "http://hub.example/", "links": links}
    backend = crawls.open()
    summary = feed(backend, lines(tmp_path / "crawl.jsonl", event), Plan("jsonl"))
    assert (summary.events, summary.pages, summary.links, summary.links_left_out) == (1, 10_001, 10_000, 90_000)
    assert backend.query.importance([links[9_999], links[10_000]])[1] is None
    file = lines(tmp_path / "graph.txt", *(f"hub {page}" for page in range(100_000)))
    summary = feed(crawls.open(), file, Plan("edges", "log", reads_per_page=0.00002))
    assert (summary.events, summary.pages, summary.links, summary.links_left_out) == (2, 10_001, 10_000, 90_000)


def test_greedy_replay_into_a_crawl_of_other_pages_is_refused(crawls: Crawls, tmp_path: Path) -> None:
    backend = crawls.open()
    feed(backend, lines(tmp_path / "crawl.jsonl", {"url": "http://a.example/"}), Plan("jsonl"))
    with refused("is not a page of this graph", "--crawl"):
        feed(backend, lines(tmp_path / "graph.txt", "a b"), Plan("edges", "greedy", reads_per_page=9))


def test_names_of_pages_are_encoded_once_in_their_urls(tmp_path: Path) -> None:
    expected = {
        "7": "http://graph.example/7",
        "%C3%89ire": "http://graph.example/%C3%89ire",
        "Éire": "http://graph.example/%C3%89ire",
        "100%": "http://graph.example/100%25",
        "a?b#c": "http://graph.example/a%3Fb%23c",
        "//a.example/": "http://graph.example///a.example/",
        "ftp://a.example/": "http://graph.example/ftp://a.example/",
        "HTTP://A.example#x": "http://a.example/",
    }
    assert {name: url_of_name(name, 2_048) for name in expected} == expected


def test_duplicate_edges_and_self_links_do_not_count(tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.tsv", "# a comment", "a b\tc", "a b\tc", "c\tc", "  ", "c\thttp://d.example")
    graph = read_graph([file, lines(tmp_path / "more.txt", "http://d.example/ c")], Settings())
    assert graph.urls == ["http://graph.example/a%20b", "http://graph.example/c", "http://d.example/"]
    assert (graph.starts.tolist(), graph.targets.tolist()) == ([0, 1, 2, 3], [1, 2, 1])


def test_graph_comes_from_the_columns_of_a_csv_file(tmp_path: Path) -> None:
    file = lines(tmp_path / "graph.csv", "weight,to,from", '1,"b, or c",a', "2,a,http://d.example")
    graph = read_graph([file], Settings(), ("from", "to"))
    assert graph.urls == ["http://graph.example/a", "http://graph.example/b,%20or%20c", "http://d.example/"]
    rows = lines(tmp_path / "rows.csv", "a,1,b", "b,1,a")
    assert read_graph([rows], Settings(), ("1", "3")).targets.tolist() == [1, 0]
    with refused("graph.csv:1: no column 'source': the first line has weight, to, from"):
        read_graph([file], Settings(), ("source", "to"))
    with refused("rows.csv:1: 'a,1,b' is not an edge: columns 1 and 4 of a line"):
        read_graph([rows], Settings(), ("1", "4"))


def test_unknown_fields_are_ignored_on_request(crawls: Crawls, tmp_path: Path) -> None:
    file = lines(
        tmp_path / "crawl.jsonl", {"url": "http://a.example/", "links": ["http://b.example/"], "colour": "red"}
    )
    assert feed(crawls.open(), file, Plan("jsonl")).dead_letters == 1
    backend = crawls.open()
    summary = feed(backend, file, Plan("jsonl", ignore_unknown=True))
    assert (summary.accepted, summary.dead_letters, summary.links) == (1, 0, 1)


def test_command_ends_with_status_1_if_all_events_or_with_strict_any_were_refused(tmp_path: Path) -> None:
    good, bad = {"url": "http://a.example/"}, {"url": "about:blank"}
    for rows, words, status in (([good, bad], [], 0), ([good, bad], ["--strict"], 1), ([bad], [], 1)):
        file = lines(tmp_path / "crawl.jsonl", *rows)
        done = CliRunner().invoke(app, ["replay", str(file), "--data", str(tmp_path / "data"), *words])
        assert done.exit_code == status, done.output


def test_malformed_edge_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    for text, said in {
        "a b\na\n": ":2: 'a' is not an edge",
        "a b c\n": ":1: 'a b c' is not an edge",
        "a\t\n": ":1: 'a' is not an edge",
        "http://[ b\n": ":1: 'http://[' is not an absolute",
        "# nothing\n": "contains no edge",
    }.items():
        with refused(said):
            read_graph([lines(tmp_path / "graph.txt", text)], Settings())
    (tmp_path / "graph.txt").write_bytes(b"\xff\xfe a\n")
    with refused("graph.txt:1: not UTF-8"):
        read_graph([tmp_path / "graph.txt"], Settings())


@pytest.mark.parametrize(
    "line",
    [
        " CDX N b a m s k r M S V g",
        "com,example)/ 20240102030405 http://example.com/ text/html 200 AAAA - - 1043 333 a.warc.gz",
        'com,example)/a 20240102030405 {"url":"http://example.com/a","filename":"a.warc.gz"}',
        "com,example)/b 20240102030405123 {}",
        "com,example)/b 20240102030405\tcdx-00000.gz\t0\t188224\t1",
    ],
)
def test_index_of_an_archive_is_named_as_one(tmp_path: Path, line: str) -> None:
    with refused(r"looks like a CDX or CDXJ index, which is not read; give the WARC files"):
        read_graph([lines(tmp_path / "index.cdx", line)], Settings())


def test_page_of_a_graph_with_more_links_than_an_event_may_have_is_replayed_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = read_graph([lines(tmp_path / "graph.txt", "a b", "a c", "a d")], Settings(max_links=2))
    assert graph.targets.tolist() == [1, 2, 3]
    assert "http://graph.example/a has 3 links; of each page the first 2 are taken" in caplog.text
