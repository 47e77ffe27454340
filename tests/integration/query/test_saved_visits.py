"""Saved visits: a restart goes on from them, and any file that is of no use is ignored, with a line in the log."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exact_readers import error_by_place, truth
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server

from opic.model.events import CrawlEvent, Record, encode_seeds
from opic.query import coverage, exact, saved_visits
from opic.query.coverage import CoverageQuery
from opic.query.exact import Exact
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.query.saved_visits import SavedVisits
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings

NO_BOUND = 1.9  # With this one wanted, a flow that begins from nothing has hardly anything to do.


def web_of(server: Server, name: str, shards: int = 1) -> Web:
    web = Web(server, name, shards)
    for number, page in enumerate(PAGES[:12]):
        web.read(page, [PAGES[0], PAGES[(number + 3) % 14], PAGES[(number + 5) % 14]])
    web.writer.drain()
    return web


def reader(crawl: Crawl, saved: SavedVisits, bound: float = 0.001) -> Exact:
    return Exact(PageFlows(KeptLinks(crawl), saved.path.parent), bound)


def saved_by(web: Web, directory: Path, shards: int = 1) -> SavedVisits:
    """Settle, and save as a service does that ends."""
    crawl = web.opened(shards)
    crawl.follow()
    saved = SavedVisits(directory, crawl)
    asked = reader(crawl, saved)
    asked.view()
    asked.start()
    asked.close()
    assert saved.path.exists()
    return saved


def bound_after(web: Web, saved: SavedVisits, crawl: Crawl | None = None) -> float:
    """The bound of a reader that begins now and wants none; it is true."""
    crawl = crawl or web.opened()
    view = reader(crawl, saved, NO_BOUND).view()
    assert error_by_place(crawl, view, truth(web)) <= view.bound
    return view.bound


@pytest.mark.parametrize("shards", [1, 3])
def test_reader_resumes_from_saved_visits(valkey: Server, tmp_path: Path, shards: int) -> None:
    web = web_of(valkey, f"goes-on-{shards}", shards)
    path = saved_by(web, tmp_path, shards).path
    assert path.stat().st_size < 4096 + shards * (256 + 8 * len(PAGES))
    crawl = web.opened(shards)
    saved = SavedVisits(tmp_path, crawl)
    assert bound_after(web, saved, crawl) < 0.002
    assert bound_after(web, SavedVisits(tmp_path / "none", crawl), crawl) > 0.5
    web.read(PAGES[12], [PAGES[1]])  # The file is older now, and as good a start.
    web.writer.drain()
    crawl = web.opened(shards)
    saved, none = (SavedVisits(place, crawl) for place in (tmp_path, tmp_path / "none"))
    assert bound_after(web, saved, crawl) < bound_after(web, none, crawl) / 2


@pytest.mark.parametrize("shards", [1, 3])
def test_flow_of_trust_resumes_from_saved_visits(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """Kept up beside that of importance, and saved with it; so coverage is there at once after a restart."""
    web = web_of(valkey, f"trust-{shards}", shards)
    web.writer.apply("log/0", [Record(web.offset, web.at_us, encode_seeds(PAGES[:2], trust=1.0), "seeds")])
    web.writer.drain()
    flows = PageFlows(KeptLinks(web.opened(shards)), tmp_path)
    settling = Exact(flows, 0.001)
    settling.start()
    wait_until(lambda: flows.trust.total and flows.trust.bound < 0.001, 20)
    settling.close()
    monkeypatch.setattr(coverage, "LINKS_A_SETTLE", 0)  # Nothing more flows.
    after, anew = (CoverageQuery(PageFlows(KeptLinks(web.opened(shards)), place)).now() for place in (tmp_path, None))
    assert anew.flow.coverage < 0.2
    assert after.flow.coverage > 0.5


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-30] ^= 0x40
    path.write_bytes(content)


def other_form(path: Path) -> None:
    path.write_bytes(b"OPIV\x01" + path.read_bytes()[5:])


def too_long(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(10_000))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(cut, "damaged"), (flip, "damaged"), (empty, "form"), (other_form, "form"), (too_long, "more pages")],
)
def test_damaged_file_is_ignored(
    valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], why: str
) -> None:
    web = web_of(valkey, f"spoilt-{spoil.__name__}")
    saved = saved_by(web, tmp_path)
    spoil(saved.path)
    caplog.clear()
    assert bound_after(web, saved) > 0.5
    assert why in caplog.text
    crawl = web.opened()
    view = reader(crawl, saved).view()
    assert error_by_place(crawl, view, truth(web)) <= view.bound <= 0.001


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_invalid_visits_are_ignored(valkey: Server, tmp_path: Path, value: float) -> None:
    web = web_of(valkey, f"values-{value}")
    saved = saved_by(web, tmp_path)
    content = saved.path.read_bytes()[: -saved_visits.DIGEST_BYTES]
    content = content[:-4] + np.array([value], "<f4").tobytes()
    saved.path.write_bytes(content + saved_visits._hashed(content))
    assert bound_after(web, saved) > 0.5


def test_file_of_another_crawl_era_history_or_numbering_is_ignored(
    valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web, other = web_of(valkey, "this"), web_of(valkey, "that")
    saved, foreign = saved_by(web, tmp_path), saved_by(other, tmp_path)
    assert saved.path != foreign.path
    theirs, ours = foreign.path.read_bytes(), saved.path.read_bytes()

    def ignored(content: bytes, why: str) -> None:
        saved.path.write_bytes(content)
        caplog.clear()
        crawl = web.opened()
        assert bound_after(web, SavedVisits(tmp_path, crawl), crawl) > 0.5
        assert why in caplog.text

    ignored(theirs, "another crawl")
    meta = web.crawl.shards[0].keys.meta
    valkey.client().hset(meta, "era", "another")
    ignored(ours, "another era")
    valkey.client().hset(meta, "era", web.crawl.shards[0].era)
    lsn = f'"heads": [[{_lsn(web)}, '.encode()
    assert lsn in ours
    ignored(_sealed(ours.replace(lsn, lsn[:-3] + b"9, ")), "another history")
    at = ours.index(b'"prints": ["') + len(b'"prints": ["')
    ignored(_sealed(ours[:at] + b"0000" + ours[at + 4 :]), "other numbers")
    crawl = web.opened()
    saved.path.write_bytes(ours)
    assert bound_after(web, SavedVisits(tmp_path, crawl), crawl) < 0.002


def _lsn(web: Web) -> int:
    crawl = web.opened()
    crawl.follow()
    return int(crawl.replicas[0].head.lsn)


def _sealed(content: bytes) -> bytes:
    """The content with its own length of the head, and digest."""
    end = content.index(b"}", len(saved_visits.FORM) + saved_visits.LENGTH_BYTES) + 1
    begin = len(saved_visits.FORM) + saved_visits.LENGTH_BYTES
    body = saved_visits.FORM + (end - begin).to_bytes(4, "little") + content[begin : -saved_visits.DIGEST_BYTES]
    return body + saved_visits._hashed(body)


def test_unwritable_directory_is_reported(valkey: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    web, blocked = web_of(valkey, "blocked"), tmp_path / "file"
    blocked.write_text("no directory")
    crawl = web.opened()
    asked = reader(crawl, SavedVisits(blocked, crawl))
    asked.view()
    asked.start()
    asked.close()
    assert "can't be written" in caplog.text


@pytest.mark.slow
def test_service_saves_visits_periodically_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(exact, "SAVE_SECONDS", 0.0)
    settings = Settings.load(data=tmp_path, keep_links=True)
    with EmbeddedService(settings) as service:
        service.backend.accept([encode(page) for page in PAGES])
        wait_until(lambda: list(tmp_path.glob("visits-*.bin")) != [], 20)
        wait_until(lambda: service.backend.stats()["read_pages"] == len(PAGES), 20)
    monkeypatch.setattr(exact, "SAVE_SECONDS", 300.0)
    with EmbeddedService(settings) as service:
        wait_until(service.backend.exact.usable, 20)  # The links are read first.
        assert service.backend.exact.view().bound <= 0.01
        assert service.backend.exact.view().visits_of((0, 0))[0] > 0
    assert "goes on from the visits" in caplog.text
    assert not list(tmp_path.glob("visits-*.new*"))


def encode(page: str) -> bytes:
    from opic.model.events import encode_crawl_event

    return encode_crawl_event(CrawlEvent(page, [PAGES[0], PAGES[3]]))
