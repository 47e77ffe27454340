"""What breaks a world: actions on its processes, servers and Kafka. Each leaves in `scene.healing` how it ends."""

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka_crawl import SESSION_SECONDS, STOP_SECONDS_MAX
from processes import wait_until

from chaos.scene import Scene, end_process
from opic.ingest import Writer

WORKERS_MAX = 5
DOOM_STATEMENTS = (1, 60_000)
CLOCKS_AHEAD = (25 * 3600.0, -25 * 3600.0, 600.0, 400 * 86_400.0)  # Seconds.
LAG_SECONDS = 0.7


@dataclass(frozen=True)
class Action:
    """An action by its name."""

    name: str
    do: Callable[[Scene], None]
    store_away: bool  # While it lasts `next` may be refused.
    goes_back: bool  # The store is in an earlier state afterwards.


ACTIONS: dict[str, Action] = {}


def action(
    *, store_away: bool = False, goes_back: bool = False
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Have a function known as an action."""

    def register(do: Callable[[Scene], None]) -> Callable[[Scene], None]:
        ACTIONS[do.__name__] = Action(do.__name__, do, store_away, goes_back)
        return do

    return register


# Workers.


@action()
def kill_a_worker(scene: Scene) -> None:
    scene.rng.choice(scene.alive()).kill()


@action()
def kill_a_worker_between_statements(scene: Scene) -> None:
    """It may be under way for a while before its time has come."""
    low, high = DOOM_STATEMENTS
    if len(scene.alive()) >= WORKERS_MAX or scene.world.workers == 1:
        scene.rng.choice(scene.alive()).kill()
    scene.start_worker(doom=int(low * (high / low) ** scene.rng.random()))


@action()
def wake_a_worker_as_a_zombie(scene: Scene) -> None:
    victim = scene.rng.choice(scene.alive()).process
    late = SESSION_SECONDS + scene.rng.random()
    victim.send_signal(signal.SIGSTOP)

    def wake() -> None:
        time.sleep(late)  # Past its session: another one has its partitions.
        victim.send_signal(signal.SIGCONT)

    scene.healing.append(wake)


@action()
def add_a_worker(scene: Scene) -> None:
    if len(scene.alive()) >= WORKERS_MAX:
        return restart_a_worker(scene)
    scene.start_worker()
    return None


@action()
def restart_a_worker(scene: Scene) -> None:
    victim = scene.rng.choice(scene.alive()).process
    victim.send_signal(signal.SIGTERM)
    scene.healing.append(lambda: victim.wait(STOP_SECONDS_MAX))


@action()
def start_a_worker_with_a_wrong_clock(scene: Scene) -> None:
    ahead = scene.rng.choice(CLOCKS_AHEAD)
    scene.rng.choice(scene.alive()).kill()
    scene.start_worker(ahead_seconds=ahead)


# Endpoints.


@action()
def kill_an_endpoint(scene: Scene) -> None:
    victim = scene.rng.choice(scene.endpoints)
    victim.end()
    scene.healing.append(victim.start)


@action()
def restart_an_endpoint_with_a_wrong_clock(scene: Scene) -> None:
    """It stays so until it is restarted again. It ends in order, and so goes on from the visits that it saved."""
    victim, ahead = scene.rng.choice(scene.endpoints), scene.rng.choice(CLOCKS_AHEAD)
    victim.end(signal.SIGTERM)
    victim.start(ahead)


# Kafka.


@action()
def restart_kafka(scene: Scene) -> None:
    (scene.kafka.kill if scene.rng.random() < 0.5 else scene.kafka.stop)()
    scene.healing.append(scene.kafka.start)


@action()
def apply_all_again(scene: Scene) -> None:
    """A second reader has the topic from its beginning, in pieces, each twice, while the others go on."""
    assert scene.topic is not None
    with scene.crawl() as crawl:
        writer = Writer(crawl)
        for name, found in scene.topic.all_records().items():
            end = crawl.resume(name)
            known = [record for record in found if record.offset < end]
            for at in range(0, len(known), 500):
                writer.apply(name, known[at : at + 500])
                writer.apply(name, known[at // 2 : at + 500][:500])


@action()
def deliver_twice(scene: Scene) -> None:
    """Two more deliver to all shards, at once with the workers."""
    with scene.crawl() as crawl:
        both = [threading.Thread(target=Writer(crawl).deliver) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()


# A single server.


@action(store_away=True)
def kill_the_server(scene: Scene) -> None:
    scene.store.server.kill()
    scene.healing.append(scene.store.server.start)


@action(store_away=True)
def restart_the_server(scene: Scene) -> None:
    """In order, as for an upgrade."""
    scene.store.server.stop()
    scene.healing.append(scene.store.server.start)


@action(store_away=True, goes_back=True)
def lose_the_end_of_the_file(scene: Scene) -> None:
    """A power loss: the server ends, and the last of what it wrote is not on the disk. Leases are lost with it."""
    scene.notes.forget_leases()
    scene.store.lose_the_end()
    scene.notes.forget_leases()
    scene.healing.append(scene.store.server.start)


@action(store_away=True)
def cut_connections(scene: Scene) -> None:
    scene.store.proxy.cut()


@action(store_away=True)
def delay_connections(scene: Scene) -> None:
    scene.store.proxy.delay(scene.rng.uniform(0.01, 0.2))
    scene.healing.append(scene.store.proxy.heal)


@action(store_away=True)
def lose_what_is_sent(scene: Scene) -> None:
    """Nothing passes for a while, then all connections end: answers of calls that took effect are lost."""
    scene.store.proxy.hold()

    def end() -> None:
        scene.store.proxy.cut()
        scene.store.proxy.heal()

    scene.healing.append(end)


# A cluster.


@action(store_away=True)
def kill_a_node(scene: Scene) -> None:
    key = scene.rng.choice(scene.hash_tags())
    node = scene.store.cluster.owner(key)
    scene.store.cluster.kill(node)
    scene.healing.append(scene.store.bring_back(key, node))


@action(store_away=True)
def restart_a_node(scene: Scene) -> None:
    """In order. Where it has a replica, that takes over, if it is quick enough."""
    node = scene.store.cluster.owner(scene.rng.choice(scene.hash_tags()))
    node.stop()
    scene.healing.append(lambda: scene.store.cluster.restart(node))


@action()
def move_a_slot(scene: Scene) -> None:
    """All that a shard has goes to another node, key by key, while it is written to."""
    cluster, key = scene.store.cluster, scene.rng.choice(scene.hash_tags())
    cluster.migrate_slot(key, cluster.other(cluster.owner(key)))


@action()
def move_a_slot_at_once(scene: Scene) -> None:
    """As Valkey does by itself."""
    cluster, key = scene.store.cluster, scene.rng.choice(scene.hash_tags())
    cluster.migrate_slot_at_once(key, cluster.other(cluster.owner(key)))


@action(store_away=True, goes_back=True)
def fail_over_while_the_replica_lags(scene: Scene) -> None:
    """A primary goes on without its replica for a moment, and then dies; the replica takes over."""
    cluster, key = scene.store.cluster, scene.rng.choice(scene.hash_tags())
    primary = cluster.owner(key)
    replica = cluster.replica_of(primary)
    replica.pause()
    try:
        primary.ask("CLIENT", "KILL", "TYPE", "replica")  # What it writes now is sent to nobody.
        with scene.fetchers.only_asking():
            time.sleep(LAG_SECONDS)
        cluster.kill(primary)
    finally:
        replica.wake()
    scene.healing.append(scene.store.bring_back(key, primary))


# The bundled service.


@action(store_away=True)
def kill_the_embedded_store(scene: Scene) -> None:
    scene.store.crash()


@action()
def kill_the_embedded_worker(scene: Scene) -> None:
    assert scene.service is not None
    before = scene.service.pids()["worker"]
    if before:
        end_process(before)
    wait_until(lambda: scene.service is not None and scene.service.pids()["worker"] not in (0, before))


@action(store_away=True)
def kill_the_embedded_service(scene: Scene) -> None:
    """The endpoint goes; worker and store are told by the next one that starts."""
    service = scene.service
    assert service is not None
    assert service.process is not None
    pids = service.pids()
    end_process(pids["endpoint"])
    service.process.wait()
    scene.left_behind += [pids["worker"]]
    for pid in (pids["worker"], pids["store"]):
        if pid and scene.rng.random() < 0.5:
            end_process(pid)
    service.start()


class Deck:
    """Actions in an order that follows from a seed: all of them, then all of them again in another order."""

    def __init__(self, names: tuple[str, ...], rng: random.Random) -> None:
        self._names, self._rng, self._left = names, rng, list[str]()

    def draw(self) -> Action:
        """The next one."""
        if not self._left:
            self._left = self._rng.sample(self._names, len(self._names))
        return ACTIONS[self._left.pop()]
