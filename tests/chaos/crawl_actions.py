"""Actions on what a crawl holds: rules and traps, backups and restores, kept links, records that Kafka deletes."""

import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import curls
import httpx
from kafka_crawl import Topic, WorkerProcess, event
from processes import wait_until

from chaos.actions import action
from chaos.bank import Expected, expected_of, inspect, links_shown
from chaos.checks import inlinks_wrong
from chaos.exactness import importance_wrong, pagerank_shown
from chaos.refused_calls import REFUSED
from chaos.scene import Scene, remove_crawl
from opic.errors import StoreError
from opic.ingest import ShardWriter, Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.query.exact import Exact
from opic.query.inlinks import inlinks
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.store import Keys, connect

HOSTILE_HOSTS = 2
HOSTILE_PAGES = 1_200
HOSTILE_LINKS = 20  # Of a page that links to them.
TRAP_REPEATS = 8  # Of a segment of the path.
LINKERS = 600
LINKERS_A_CALL = 60
ASKED_SECONDS = 2.5
LATE_SECONDS = 4.0
EFFECT_SECONDS_MAX = 60.0
UPGRADE = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
OFFERED_CALLS = 20
REFUSED_CALLS = 4
BACKUP_SCANS = (2, 8)  # Before which one the server restarts; one reads a thousand fields.
LINKS_READS = (1, 2)  # At which one the server restarts: of the list of segments, and of them or of the list again.
APPENDERS = 2
REFUSED_SECONDS_MAX = 45.0
RECORDS_A_STEP = 500


# Crawlers.


def flood(scene: Scene, name: str, host: str, ending: str) -> None:
    """Have many pages link to pages of one host, which get more cash than others; wait until these are known."""
    crawler, visit = scene.fetchers.all[0], scene.notes.reads.total()
    targets = [f"http://{host}/{number}{ending}" for number in range(HOSTILE_PAGES)]
    for at in range(0, LINKERS, LINKERS_A_CALL):
        pages = [f"http://{name}-{visit}.example/{number}" for number in range(at, at + LINKERS_A_CALL)]
        crawler.put(*(scene.notes.read(page, scene.rng.sample(targets, HOSTILE_LINKS)) for page in pages))

    def known() -> bool:
        scene.heal()  # A doomed worker may have ended meanwhile.
        try:
            return curls.get(
                f"{scene.urls()[0]}/v1/explain", params={"url": pages[-1]}, headers=scene.headers, timeout=30
            ).is_success
        except httpx.TransportError:
            return False

    wait_until(known, EFFECT_SECONDS_MAX)


def put_rules(scene: Scene, rules: list[dict[str, str]]) -> None:
    answer = curls.put(f"{scene.urls()[0]}/v1/rules", json={"rules": rules}, headers=scene.headers, timeout=60)
    answer.raise_for_status()


@action()
def deny_a_host(scene: Scene) -> None:
    """An operator denies a host of which many pages wait."""
    number = scene.rng.randrange(HOSTILE_HOSTS)
    flood(scene, f"linker{number}", f"denied{number}.example", "")
    with scene.fetchers.only_asking():
        put_rules(scene, [{"effect": "deny", "host": f"denied{number}.example"}])
        time.sleep(ASKED_SECONDS)
    scene.healing.append(lambda: put_rules(scene, []))


@action()
def set_a_trap(scene: Scene) -> None:
    """Pages link to many pages of a host whose URLs are a trap's; then an endpoint starts."""
    number = scene.rng.randrange(HOSTILE_HOSTS)
    with scene.fetchers.only_asking():
        flood(scene, f"attacker{number}", f"trap{number}.example", "/again" * TRAP_REPEATS)
        for endpoint in scene.endpoints[:1]:
            endpoint.end()
            endpoint.start()
        time.sleep(ASKED_SECONDS)


@action()
def report_late(scene: Scene) -> None:
    """Crawlers report most pages only once their leases are over and others have the pages."""
    shares = [one.late_share for one in scene.fetchers.all]
    for one in scene.fetchers.all:
        one.late_share = 0.9
    time.sleep(LATE_SECONDS)
    for one, share in zip(scene.fetchers.all, shares, strict=True):
        one.late_share = share


@action()
def offer_an_upgrade(scene: Scene) -> None:
    """Crawlers offer HTTP/2 with each call, as Java's HttpClient and `curl --http2` do; the service stays with 1.1."""
    notes, visit = scene.notes, scene.notes.reads.total()
    calls, confirmed = len(notes.calls), len(notes.confirmed)
    with scene.fetchers.offering(UPGRADE):
        for number in range(OFFERED_CALLS):
            page = f"http://offer-{visit}.example/{number}"
            scene.rng.choice(scene.fetchers.all).put(notes.read(page, [f"{page}/{n}" for n in range(number)]))
        wait_until(
            lambda: min(len(notes.calls) - calls, len(notes.confirmed) - confirmed) >= OFFERED_CALLS,
            EFFECT_SECONDS_MAX,
        )


@action()
def send_what_is_refused(scene: Scene) -> None:
    """Each endpoint gets some calls that it must refuse."""
    with httpx.Client(timeout=60, headers=scene.headers) as client:
        for url in scene.urls():
            for one in scene.rng.sample(REFUSED, REFUSED_CALLS):
                status = client.request(one.method, url + one.path, **one.given).status_code
                if status not in one.wanted:
                    scene.report.wrong.append(f"{one.method} {one.path} was answered {status}, not {one.wanted}")


# Backups.


def back_up(scene: Scene, restarted_at: int = 0, tries: int = 3) -> Path:
    """Make a backup; the server restarts before so many scans of it. One that says it failed is made again."""
    for attempt in range(tries):
        directory = scene.directory / f"{scene.world.name}-backup-{next(scene.numbers)}"
        if disturbed := restarted_at and attempt == 0:
            scene.store.proxy.before(b"SCAN", restarted_at, scene.store.crash)
        try:
            with connect(scene.store.admin_url) as client:
                backup(Crawl.open(client, scene.crawl_name, create=False), directory)
            return directory
        except StoreError as error:
            print(f"  a backup was refused: {error}", flush=True)
        finally:
            if disturbed and scene.store.proxy.never():
                print("  the backup took fewer scans than were to be disturbed", flush=True)
    raise StoreError(f"{tries} backups were refused")


@action(store_away=True)
def back_up_while_the_server_restarts(scene: Scene) -> None:
    """The backup is restored beside the crawl; with what came since, it must be its twin."""
    expected = None
    if scene.topic is None:
        scene.hold()  # What the store's own log had cannot be read again: the crawl has to stand still.
        expected = expected_of(scene.records())
        with scene.crawl() as crawl:
            for shard in crawl.shards:
                ShardWriter(shard).checkpoint()  # What a scan loses is in no record of the journal then.
    directory = back_up(scene, scene.rng.randint(*BACKUP_SCANS))
    name = f"copy-{next(scene.numbers)}"
    with connect(scene.store.url) as client:
        restore(client, directory, name)
        if expected is not None:
            copy = Crawl.open(client, name, create=False)
            with scene.crawl() as crawl:
                scene.report.wrong += sizes_wrong(crawl, copy)
            scene.report.wrong += copy_wrong(scene, copy, expected)
            remove_crawl(client, name)
    if expected is None:
        scene.copies.append(name)
    else:
        scene.resume()


@action()
def back_up_under_load(scene: Scene) -> None:
    """While nothing is broken it takes one try. Restored beside the crawl, it is inspected with what came since."""
    try:
        directory = back_up(scene, tries=1)
    except StoreError as error:
        scene.report.wrong.append(f"a backup failed while nothing was broken: {error}")
        return
    name = f"copy-{next(scene.numbers)}"
    with connect(scene.store.url) as client:
        restore(client, directory, name)
    scene.copies.append(name)


def inspect_copies(scene: Scene) -> list[str]:
    """Bring restored copies up to date with the topic, and inspect them."""
    wrong: list[str] = []
    assert scene.topic is not None
    for name in scene.copies:
        partitions = scene.topic.all_records()
        keyed = [record for found in partitions.values() for record in found if record.call]
        time_us = max((record.time_us for found in partitions.values() for record in found), default=0)
        again = [
            Record(number, time_us + 1, record.value, record.kind, record.call) for number, record in enumerate(keyed)
        ]
        with connect(scene.store.url) as client:
            copy = Crawl.open(client, name, create=False)
            writer = Writer(copy)
            for partition, found in [*partitions.items(), ("again/0", again)]:
                begin = copy.resume(partition)
                left = [record for record in found if record.offset >= begin]
                for at in range(0, len(left), RECORDS_A_STEP):
                    writer.apply(partition, left[at : at + RECORDS_A_STEP])
            writer.drain()
            expected = expected_of([*(record for found in partitions.values() for record in found), *again])
            wrong += copy_wrong(scene, copy, expected)
            remove_crawl(client, name)
    scene.copies.clear()
    return wrong


def copy_wrong(scene: Scene, copy: Crawl, expected: Expected) -> list[str]:
    """What is wrong with a restored copy."""
    kept, query = KeptLinks(copy), Query(copy, Snapshots(copy))

    def ask(url: str) -> set[str]:
        found = inlinks(query, kept, url, 1_000)
        return set() if found is None else set(found["inlinks"])  # type: ignore[call-overload]

    links = links_shown(copy, expected)
    wrong = inspect(copy, expected) + inlinks_wrong("the copy", ask, links, scene.rng)
    told = Query(copy, Snapshots(copy), exact=Exact(PageFlows(kept))).importance(sorted(links), "exact")
    shares = {str(page["url"]): float(page["importance"]) for page in told if page}  # type: ignore[arg-type]
    bound = max(float(page["error_bound"]) for page in told if page)  # type: ignore[arg-type]
    wrong += importance_wrong("the copy", shares, bound, pagerank_shown(copy, links))
    return [f"restored backup: {text}" for text in wrong]


def sizes_wrong(crawl: Crawl, copy: Crawl) -> list[str]:
    """Where a copy has other metadata or known calls, by number, than the crawl, which stands still."""
    wrong = []
    for one, other in zip(crawl.shards, copy.shards, strict=True):
        for name, size, its in (
            ("metadata", one.client.hlen(one.keys.page_meta), other.client.hlen(other.keys.page_meta)),
            ("known calls", one.client.zcard(one.keys.seen), other.client.zcard(other.keys.seen)),
        ):
            if size != its:
                wrong.append(f"restored backup: {name} of {its} pages of shard {one.number}, the crawl has {size}")
    return wrong


@action(store_away=True, goes_back=True)
def restore_a_backup(scene: Scene) -> None:
    """In place of the crawl, while its endpoints run and events come; what came since the backup is on the topic."""
    directory = back_up(scene)
    time.sleep(scene.rng.uniform(0.5, 2.0))
    for one in scene.alive():
        one.kill()
    scene.notes.forget_leases()
    with connect(scene.store.url) as client:
        restore(client, directory, scene.crawl_name, replace=True)
    scene.notes.forget_leases()


@dataclass(frozen=True)
class Append:
    """An event that was sent while a backup was restored."""

    begun: float
    event: CrawlEvent
    status: int


class Appender(threading.Thread):
    """Sends one event after the other, each of a page of its own, without a key."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._url, self._name = url, name
        self.done, self.sent = threading.Event(), list[Append]()

    def run(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self.done.is_set():
                number = len(self.sent)
                one = CrawlEvent(f"http://{self._name}.example/{number}", [], fetched_at=1.72e9 + number)
                body, begun = {"url": one.url, "links": [], "fetched_at": one.fetched_at}, time.monotonic()
                try:
                    status = client.post(f"{self._url}/v1/events", json=body).status_code
                except httpx.TransportError:
                    status = 0
                self.sent.append(Append(begun, one, status))
                if status != 202:
                    time.sleep(0.01)


class Watcher(threading.Thread):
    """Notes when a restore has begun to replace a crawl."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(daemon=True)
        self._url, self._key = scene.store.url, Keys(scene.crawl_name, 0).meta
        self.done, self.begun = threading.Event(), float("inf")

    def run(self) -> None:
        with connect(self._url) as client:
            while not self.done.is_set() and self.begun == float("inf"):
                if client.hexists(self._key, "restoring"):
                    self.begun = time.monotonic()


@action(store_away=True, goes_back=True)
def restore_beside_appends(scene: Scene) -> None:
    """What is confirmed once the old crawl has begun to go must be in the new one."""
    scene.hold()
    directory = back_up(scene)
    notes, then = scene.notes, (list(scene.notes.confirmed), set(scene.notes.confirmed_reads), list(scene.notes.old))
    scene.fetchers.resume()
    time.sleep(1.0)
    scene.fetchers.pause()
    for one in scene.alive():
        one.kill()
    appenders = [Appender(scene.rng.choice(scene.urls()), f"a{next(scene.numbers)}") for _ in range(APPENDERS)]
    watcher = Watcher(scene)
    for thread in (watcher, *appenders):
        thread.start()
    try:
        with connect(scene.store.url) as client:
            restore(client, directory, scene.crawl_name, replace=True)
        time.sleep(0.5)
    finally:
        for thread in (watcher, *appenders):
            thread.done.set()
        for thread in (watcher, *appenders):
            thread.join(40)
    scene.heal()
    notes.confirmed[:], notes.confirmed_reads = then[0], then[1]
    notes.old.clear()
    notes.old.extend(then[2])
    notes.forget_leases()
    judge_appends(scene, [one for appender in appenders for one in appender.sent], watcher.begun)
    scene.fetchers.resume()


def judge_appends(scene: Scene, sent: list[Append], begun: float) -> None:
    """Take those that took effect for confirmed; say which are lost."""
    with scene.crawl() as crawl:
        scene.settle(crawl)
        there = [place is not None for place in crawl.ids_of([one.event.url for one in sent])]
    lost = [
        one for one, known in zip(sent, there, strict=True) if not known and one.status == 202 and one.begun > begun
    ]
    scene.report.lost += len(lost)
    after = sum(one.status == 202 and one.begun > begun for one in sent)
    if lost:
        scene.report.wrong.append(
            f"a restore lost {len(lost)} of {after} events that were confirmed after it had begun"
        )
    present = [one.event for one, known in zip(sent, there, strict=True) if known]
    scene.notes.confirmed += [encode_crawl_event(one) for one in present]
    scene.notes.confirmed_reads |= {(one.url, round((one.fetched_at or 0) * 1e6)) for one in present}


# Kept links.


@action(store_away=True)
def restart_the_server_while_kept_links_load(scene: Scene) -> None:
    """An endpoint reads all kept links when it starts; its answers must be whole afterwards."""
    endpoint, key = scene.rng.choice(scene.endpoints), Keys(scene.crawl_name, 0).link_segments.encode()
    endpoint.end()
    with scene.onlooker.still():  # Which reads them too.
        call = b"HMGET\r\n$%d\r\n%s" % (len(key), key)
        scene.store.proxy.before(call, scene.rng.randint(*LINKS_READS), scene.store.crash)
        try:
            endpoint.start()
            asked = partial(curls.get, f"{endpoint.url}/v1/top", params={"policy": "exact"}, headers=scene.headers)
            wait_until(lambda: asked(timeout=60).is_success)
        finally:
            missed = scene.store.proxy.never()
    if missed:
        scene.report.wrong.append("an endpoint answered without having read the kept links")


# Kafka.


@action()
def let_retention_delete_unread_events(scene: Scene) -> None:
    """Of another crawl, on a topic of its own: a worker that lags finds its next records deleted, and must say so."""
    topic = Topic(scene.kafka, 2)
    settings = scene.settings_of(topic.name, topic)
    unread, said = f"{topic.name}/0", scene.directory / f"{topic.name}.log"
    pages = [f"http://r{n % 7}.org/{n}" for n in range(200)]
    with connect(scene.store.url) as client:
        crawl = Crawl.open(client, topic.name, settings.rules_given())
        topic.put([event(f"{page}/known") for page in pages[:50]], partition=1)
        worker = WorkerProcess(settings, said)
        try:
            wait_until(lambda: crawl.resume(f"{topic.name}/1") == 50)
            worker.kill()
            topic.put([event(page) for page in pages], partition=0)
            topic.let_go(100)
            worker = WorkerProcess(settings, said)
            wait_until(lambda: worker.process.poll() is not None or crawl.resume(unread), REFUSED_SECONDS_MAX)
        finally:
            if worker.process.poll() is None:
                worker.kill()
        if at := crawl.resume(unread):
            known = sum(place is not None for place in crawl.ids_of(pages))
            scene.report.lost += len(pages) - known
            scene.report.wrong.append(
                f"retention deleted 100 unread events, and a worker went on to {at} without a word of refusal"
            )
        elif "retention deleted 100 records" not in worker.said():
            scene.report.wrong.append(f"a worker that lacks 100 deleted events ended: {worker.said()[-500:]}")
        remove_crawl(client, topic.name)
    topic.delete()
