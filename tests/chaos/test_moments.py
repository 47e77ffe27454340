"""Answers are within their bounds at every moment of a crawl that changes, and mixed states are found."""

from pathlib import Path

import pytest
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server

from chaos.journal_truth import JournalTruth
from chaos.moments import Answer, Judge, World, ask_through
from chaos.telling_service import Told

SECONDS = 5.0
ANSWERS_MIN = 50
BOUND = 0.01


@pytest.mark.slow
def test_no_answer_under_load_is_over_its_bound(tmp_path: Path) -> None:
    found, _ = ask_through(World(3, large=True), SECONDS, seed=7, scratch=tmp_path, answers_min=ANSWERS_MIN)
    assert not [wrong for one in found.values() for wrong in one.wrong]
    answers = sum(one.answers for one in found.values())
    assert answers >= ANSWERS_MIN
    assert sum(one.unknown for one in found.values()) < answers / 10
    assert any(one.widened for one in found.values())


def test_the_judge_finds_an_answer_that_mixes_two_states(valkey: Server) -> None:
    web, hub = Web(valkey, "default", 2), PAGES[0]
    for page in PAGES[1:]:
        web.read(page, [hub, PAGES[1]])
    web.read(hub, PAGES[1:3])
    web.writer.drain()
    web.crawl.follow()
    before = [head.lsn for head in web.crawl.heads()]
    web.read(hub, [], 404)
    web.writer.drain()
    web.crawl.follow()
    after = [head.lsn for head in web.crawl.heads()]
    truth = JournalTruth(valkey.url, 2, 0.85)
    truth.start()
    wait_until(truth.has_all)
    truth.end()
    told = [Told(2.0, 1.0, BOUND, before, before), Told(4.0, 3.0, BOUND, after, after)]
    judge = Judge(PAGES, BOUND, truth, told)
    first, second = (judge.truth_at(heads) for heads in (before, after))
    assert first[hub] > 0.2
    assert hub not in second
    mixed = {**first, hub: 0.0}
    ratios = [
        judge.judge([Answer("top", at, at + 1.5, as_of, BOUND, shares, whole=True)])["top"].worst
        for shares, at, as_of in ((first, 1.0, 1.0), (second, 3.0, 3.0), (mixed, 1.0, 1.0), (mixed, 3.0, 3.0))
    ]
    assert max(ratios[:2]) < 1e-6
    assert min(ratios[2:]) > 10
