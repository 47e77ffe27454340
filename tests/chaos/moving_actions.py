"""The crawl is moved to another number of shards while everything else goes on."""

import signal
import subprocess
import sys
import time

from processes import environment
from repository import ROOT

from chaos.actions import action
from chaos.exactness import Onlooker
from chaos.scene import Scene
from opic.errors import BadInput, Refused
from opic.migration.migrate import abort, resume
from opic.store import Keys, connect
from opic.store.recognition import move_of

SHARDS = (1, 2, 3, 5)
KILLED_SHARE = 0.5
KILLED_SECONDS = (0.5, 4.0)  # The start of the process takes one of them.
MIGRATION_SECONDS_MAX = 150.0


@action(store_away=True)
def move_to_other_shards(scene: Scene) -> None:
    """The process is killed half of the time, and its migration ended or gone on with."""
    to, former = f"moved-{next(scene.numbers)}", scene.crawl_name
    kills = scene.rng.random() < KILLED_SHARE
    command = [sys.executable, "-m", "opic.cli.main", "migrate", to, "--shards", str(scene.rng.choice(SHARDS))]
    env = environment() | scene.settings.environment() | {"OPIC_STORE": scene.store.admin_url}
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        if kills:
            time.sleep(scene.rng.uniform(*KILLED_SECONDS))
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=MIGRATION_SECONDS_MAX)
    finally:
        process.kill()
    with connect(scene.store.admin_url) as client:
        if kills:
            _end(scene, former)
        elif process.returncode:
            print(f"  a migration was refused: {said[-300:]}", flush=True)
        moved = move_of(client, Keys(former, 0)) is not None
    if moved:
        scene.report.wrong += scene.onlooker.seen_wrong()
        scene.onlooker.end()
        scene.crawl_name, scene.settings, scene.moved = to, scene.settings.with_crawl(to), True
        for endpoint in scene.endpoints:
            endpoint.settings = scene.settings  # Of those that are started again; the others follow by themselves.
        scene.onlooker = Onlooker(scene.store.workers_url, to)
        scene.onlooker.start()


def _end(scene: Scene, former: str) -> None:
    """End what a killed process began, or go on with it."""
    with connect(scene.store.admin_url) as client:
        try:
            if scene.rng.random() < 0.5:
                abort(client, former, client)
            else:
                resume(client, former, client, lambda _: None)
        except Refused:
            resume(client, former, client, lambda _: None)
        except BadInput as error:
            assert "no migration" in str(error), error  # noqa: PT017 - it was killed before it began, or after its end
