"""A worker that is killed before a statement of the step: `OPIC_DOOM=n` sends it SIGKILL before the n-th.

Statements of the modules that move cash are counted, once the worker is under way. The code under test knows nothing.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

TRACED = ("worker.py", "shard_writer.py", "checkpointer.py", "batch.py", "writer.py", "replica.py", "follow.py")
TRACED += ("shard.py", "connection.py", "source.py", "state_changes.py", "step.py", "deliveries.py")


class Doom:
    """Counts down."""

    def __init__(self, statements: int) -> None:
        self.left = statements
        self._traced: dict[str, bool] = {}

    def call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        path = frame.f_code.co_filename
        traced = self._traced.get(path)
        if traced is None:
            traced = self._traced[path] = Path(path).name in TRACED and "/opic/" in path
        return self.line if traced else None

    def line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left <= 0:
                where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                print(f"doomed: killed before {where}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def main() -> int:
    from consumers import crawl_events

    sys.settrace(Doom(int(os.environ["OPIC_DOOM"])).call)
    return crawl_events.main()


if __name__ == "__main__":
    sys.exit(main())
