"""A reason not to offer a page is one row of a table: declaring it is enough to hold pages back and to tell of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import declared_hindrances
import pytest
from declared_hindrances import URLS
from frontiers import Crawl
from servers import Server

from opic.frontier import PolitenessSettings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script, folder = Path(declared_hindrances.__file__), tmp_path_factory.mktemp("declared")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=env)
    return json.loads(done.stdout)


def test_pages_with_a_declared_hindrance_are_not_offered(said: Any) -> None:
    assert said["next"] == [URLS[0]]


def test_counts_sentences_metrics_and_document_tell_of_it(said: Any) -> None:
    assert said["waiting"] == {"leased": 1, "odd": 2, "embargo": 1}
    for sentences in (said["sentences"], said["console"]):
        assert "2 pages have odd ids." in sentences
        assert "1 page is under an embargo." in sentences
    for kind, count in (("odd", 2), ("embargo", 1), ("leased", 1), ("unread", 0)):
        assert f'opic_frontier_pages{{class="other",kind="{kind}"}} {count}.0' in said["metrics"]
    assert said["document"]["odd"]["description"] == "With an odd id."
    assert said["client"] == [2, 1, False]


def test_explanation_of_a_page_names_it(said: Any) -> None:
    odd, embargoed = said["explain"][URLS[3]], said["explain"][URLS[2]]["frontier"]
    assert (odd["frontier"]["held_back"], odd["frontier"]["why_not"]) == (["odd"], ["its id 3 is odd"])
    assert "Its id 3 is odd." in odd["reasons"][-1]["sentences"]
    assert embargoed["held_back"] == ["embargo"]
    assert (odd["frontier"]["next"], embargoed["next"]) == (False, False)


def test_explanation_tells_what_holds_the_page_before_what_holds_its_host(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=30.0, revisit_seconds=3_600.0))
    crawl.seed(URLS[:1])
    assert crawl.urls() == URLS[:1]
    crawl.event(URLS[0])
    told = crawl.frontier.explain(URLS[0])
    assert told is not None
    assert told.held_back == ["revisit", "host_delay"]
