"""An estimator's journal: what was planned and fetched outlives a kill, at whatever byte it comes."""

from pathlib import Path

import pytest

from opic.errors import BadInput
from opic.local.journal import LOCAL, OUTSIDE, Journal, StateDamaged, batches
from opic.model.events import CrawlEvent

A, B, C = (CrawlEvent(f"http://{name}.example/", links=["http://x.example/"]) for name in "abc")


def written(directory: Path) -> bytes:
    with Journal("a.example", directory) as journal:
        first = journal.plan(LOCAL, [A.url])
        journal.took(A, first)
        second = journal.plan(OUTSIDE, [B.url, C.url])
        journal.took(C, second)
        journal.took(B, second)
    return (directory / "events.jsonl").read_bytes()


def entries(journal: Journal) -> int:
    return len(journal.rounds) + sum(len(planned.events) for planned in journal.rounds)


def test_journal_is_read_back_as_written(tmp_path: Path) -> None:
    written(tmp_path)
    with Journal("a.example", tmp_path) as journal:
        assert [(planned.part, list(planned.urls)) for planned in journal.rounds] == [
            (LOCAL, [A.url]),
            (OUTSIDE, [B.url, C.url]),
        ]
        assert journal.complete() == [A, B, C]
        assert journal.rounds[1].events == {B.url: B, C.url: C}
        assert not journal.rounds[1].left


def test_file_cut_at_any_byte_gives_the_whole_lines_before(tmp_path: Path) -> None:
    whole = written(tmp_path)
    for size in range(len(whole)):
        (tmp_path / "events.jsonl").write_bytes(whole[:size])
        with Journal("a.example", tmp_path) as journal:
            lines = whole[:size].count(b"\n")
            assert entries(journal) == lines
            if journal.rounds:
                journal.took(CrawlEvent("http://more.example/"), journal.rounds[-1])
        with Journal("a.example", tmp_path) as again:
            assert entries(again) == lines + bool(again.rounds)


def test_foreign_line_is_refused_by_number(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines(keepends=True)
    for wrong in (b"{}\n", b"[1]\n", b"\xff\n", b'{"round": 9, "event": {"url": "http://a.example/"}}\n'):
        (tmp_path / "events.jsonl").write_bytes(b"".join([lines[0], wrong, *lines[1:]]))
        with pytest.raises(StateDamaged, match=r"events\.jsonl:2: no line of an estimator"):
            Journal("a.example", tmp_path)


def test_state_of_another_domain_or_version_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(BadInput, match=r"is the state of a\.example: name another directory for b\.example"):
        Journal("b.example", tmp_path)
    (tmp_path / "state.json").write_text('{"domain": "a.example", "version": 2}')
    with pytest.raises(StateDamaged, match="version 2 is unknown"):
        Journal("a.example", tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StateDamaged, match="no state of an estimator"):
        Journal("a.example", tmp_path)


def test_two_estimators_do_not_share_a_directory(tmp_path: Path) -> None:
    with Journal("a.example", tmp_path), pytest.raises(BadInput, match="another estimator uses this directory"):
        Journal("a.example", tmp_path)


def test_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="can't be used"):
        Journal("a.example", tmp_path / "file")


def test_interrupted_batch_is_sent_again_under_its_key(tmp_path: Path) -> None:
    written(tmp_path)
    with Journal("a.example", tmp_path) as journal:
        sending = batches(journal, 2)
        first = next(sending)
        assert first[1] == [A, B]
        second = next(sending)
        assert second[1] == [C]
        del sending  # Killed before the answer.
    with Journal("a.example", tmp_path) as journal:
        journal.took(A, journal.plan(OUTSIDE, [A.url]))
        found = list(batches(journal, 2))
    assert found[0] == second
    assert [events for _, events in found] == [[C], [A]]
    assert len({key for key, _ in (first, *found)}) == 3
    with Journal("a.example", tmp_path) as journal:
        assert list(batches(journal, 2)) == []
