"""The handlers of the HTTP API are found by the names of their calls, without the application."""

import re

from repository import ROOT

from opic.api.calls import Calls
from opic.api.in_process import name_of
from opic.api.router import handler_of


def test_every_call_of_the_api_has_a_handler_of_its_name() -> None:
    rows = re.findall(r'"(GET|POST|PUT|DELETE)", "(/[\w/-]+)"', (ROOT / "opic/api/app.py").read_text())
    assert len(rows) > 20
    calls = Calls.__new__(Calls)
    missing = [row for row in rows if handler_of(getattr(calls, name_of(*row))) is None]
    assert missing == []
