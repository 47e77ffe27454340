"""Changes are heard in their order with the records of the journal, and a gap is noticed."""

from typing import Any

from opic.replica.changes import Change, ChangeId, Changes


class Heard:
    """Who follows a stream of changes."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, int]] = []
        self.gaps = 0
        self.changes = Changes("changes", self.hear, self.lose)

    def hear(self, changes: list[Change]) -> None:
        self.told += [(fields[b"f"], lsn) for fields, lsn in changes]

    def lose(self) -> None:
        self.gaps += 1


def entry(name: str, lsn: int, page: int) -> tuple[bytes, dict[bytes, bytes]]:
    return name.encode(), {b"n": b"%d" % lsn, b"f": b"%d" % page}


def test_changes_wait_for_the_record_that_they_came_after() -> None:
    heard = Heard()
    assert heard.changes.last is None
    heard.changes.begin(b"5-0")
    assert heard.changes.last == b"5-0"
    heard.changes.add_entries([entry("5-0", 0, 0), entry("5-1", 7, 1), entry("6-0", 8, 2), entry("6-1", 8, 3)])
    heard.changes.hear(6)
    assert heard.told == []
    heard.changes.hear(7)
    assert (heard.told, heard.changes.heard) == ([(b"1", 7)], ChangeId(5, 1))
    heard.changes.hear(9)
    assert heard.told[1:] == [(b"2", 8), (b"3", 8)]
    assert heard.changes.last == b"6-1"
    heard.changes.add_entries([entry("6-1", 8, 3)])
    heard.changes.hear(9)
    assert len(heard.told) == 3


def test_entry_that_is_gone_is_a_gap() -> None:
    gone: list[list[Any]] = [[], [entry("5-1", 7, 1)], [entry("6-0", 7, 1), entry("6-1", 7, 1)]]
    for entries in gone:
        heard = Heard()
        heard.changes.begin(b"5-0")
        heard.changes.add_entries(entries)
        heard.changes.hear(9)
        assert (heard.gaps, heard.told, heard.changes.last) == (1, [], None)
        heard.changes.begin(b"7-0")
        heard.changes.add_entries([entry("7-0", 0, 0), entry("7-1", 9, 4)])
        heard.changes.hear(9)
        assert (heard.gaps, heard.told) == (1, [(b"4", 9)])


def test_ids_are_in_the_order_of_entries() -> None:
    assert ChangeId.parse(b"10-2") > ChangeId.parse(b"9-10") > ChangeId.parse(b"9-9") > ChangeId.parse(b"")
