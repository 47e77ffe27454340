"""The handlers of the HTTP API are found by the names of their calls, without the application."""

import re

from repository import ROOT

from opic.api.calls import Calls
from opic.api.crawl_calls import CrawlCalls
from opic.api.definitions import Definitions
from opic.api.in_process import name_of


def test_every_api_call_has_a_handler_with_its_name() -> None:
    table = r'\b(?<!\.)add\(\s*"(GET|POST|PUT|PATCH|DELETE)", "(/[\w/-]+)"'
    rows = [row for row in re.findall(table, (ROOT / "opic/api/app.py").read_text()) if row[1] != "/metrics"]
    assert len(rows) > 20
    handlers = (Calls.__new__(Calls), Definitions.__new__(Definitions), CrawlCalls.__new__(CrawlCalls))
    names = [name_of(*row) for row in rows]
    missing = [name for name in names if not any(hasattr(one, name) for one in handlers)]
    assert missing == []
