"""A wrong clock for a process and its children: time.time() is CLOCK_SKEW_SECONDS ahead. Found through PYTHONPATH."""

import os
import time

_ahead = float(os.environ.get("CLOCK_SKEW_SECONDS") or 0)
if _ahead:
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _ahead
    time.time_ns = lambda: _time_ns() + round(_ahead * 1e9)
