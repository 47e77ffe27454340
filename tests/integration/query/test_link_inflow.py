"""In-flow from kept links: what a plain sum over the links says, of any set of pages and by any policy."""

from dataclasses import replace
from pathlib import Path

import pytest
from exact_readers import asked
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server
from serving import serving_embedded
from typer.testing import CliRunner

from opic.cli.main import app
from opic.client import Conflict
from opic.errors import BadInput, NotKept
from opic.ingest import Writer
from opic.query.inflow import inflow
from opic.replica import Crawl


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("policy", ["exact", "static", "interpolation"])
@pytest.mark.parametrize("area", [{"host": "h1.org"}, {"prefix": "http://h2.org/1"}])
def test_inflow_is_the_importance_sent_along_links_from_outside(
    valkey: Server, shards: int, policy: str, area: dict[str, str]
) -> None:
    web = Web(valkey, f"inflow-{shards}-{policy}-{next(iter(area))}", shards)
    for page in range(10):
        web.read(PAGES[page], [PAGES[1], PAGES[(page + 3) % 14], PAGES[(5 * page + 2) % 14]])
    web.writer.drain()
    query = asked(web.crawl)
    found = inflow(query, policy=policy, **area)  # type: ignore[arg-type]
    shares = {str(one["url"]): float(one["importance"]) for one in query.importance(PAGES, policy) if one}  # type: ignore[arg-type]
    start = area.get("prefix", "http://h1.org/")
    expected = {page: 0.0 for page in PAGES if page.startswith(start)}
    assert expected
    for page, links in web.links.items():
        for link in expected.keys() & set(links) if page not in expected else ():
            expected[link] += 0.85 * shares[page] / len(set(links) - {page})
    told = {page["url"]: page["inflow"] for page in found["pages"]}  # type: ignore[attr-defined]
    assert told == pytest.approx(expected, abs=1e-9)
    assert found["policy"] == policy
    assert found["outside_mass"] == pytest.approx(sum(share for page, share in shares.items() if page not in expected))


def test_page_whose_links_all_lead_to_gone_pages_is_dangling_as_in_the_known_graph(valkey: Server) -> None:
    web = Web(valkey, "dangling")
    to_gone, to_live, to_itself, gone = PAGES[:4]
    web.read(to_gone, [gone])
    web.read(to_live, [to_gone])
    web.read(to_itself, [to_itself])
    web.read(gone, [], status=404)
    query = asked(web.crawl)
    dangling = query.importance([to_gone, to_itself], "exact")
    found = inflow(query, host="outside.example", policy="exact")
    assert found["dangling_mass"] == pytest.approx(sum(float(one["importance"]) for one in dangling if one))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 10])
def test_pages_forgotten_since_the_state_shown_are_left_out_and_end_no_list(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    web = Web(valkey, f"forgotten-{n}", 1)
    for page in range(12):
        web.read(PAGES[page], [PAGES[(page + 1) % 14], PAGES[(5 * page + 2) % 14]])
    query = asked(web.opened())
    snapshot, asking = query.snapshots.fresh(), {"host": "h1.org", "policy": "static", "n": n}
    whole = inflow(query, host="h1.org", policy="static")["pages"]
    names = [str(page["url"]) for page in whole]  # type: ignore[attr-defined]
    assert len(names) >= 3
    for page in names[:-1]:
        web.forget(page)
    web.writer.stores[0].checkpoint()
    query = asked(web.opened())  # Another endpoint, which has not read their URLs before.
    query.crawl.follow()
    monkeypatch.setattr(query.snapshots, "fresh", lambda: replace(snapshot, crawl=query.crawl))
    found = inflow(query, **asking)  # type: ignore[arg-type]
    assert [page["url"] for page in found["pages"]] == names[-1:]  # type: ignore[attr-defined]
    assert "next" not in found
    (of_list, missing) = (inflow(query, urls=names, policy="static")[name] for name in ("pages", "missing"))
    assert [page["url"] for page in of_list] == names[-1:]  # type: ignore[attr-defined]
    assert missing == names[:-1]


def test_inflow_of_a_prefix_needs_kept_links(valkey: Server) -> None:
    web = Web(valkey, "inflow-none", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        inflow(asked(web.crawl), prefix="http://h2.org/1")
    with pytest.raises(BadInput, match="give one of domain, host and prefix"):
        inflow(asked(web.crawl), host="h2.org", prefix="http://h2.org/1")


@pytest.mark.parametrize("shards", [1, 3])
def test_inflow_by_cash_replaces_inflow_by_links_once_links_are_no_longer_kept(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    web, follow = Web(valkey, f"inflow-ends-{shards}", shards), Crawl.follow
    ended: list[Web] = []

    def followed(crawl: Crawl, since: float | None = None) -> object:
        """The keeping ends right after the first look at the journals: the call has seen that links are kept."""
        found = follow(crawl, since)
        if not ended and crawl is query.crawl:
            ended.append(web)
            web.writer = Writer(web.opened(shards, keep_links=False))
            read_all()
        return found

    def read_all() -> None:
        for page in range(10):
            web.read(PAGES[page], [PAGES[1], PAGES[(page + 3) % 14]])
        web.writer.drain()

    for area, refused in (
        ({"host": "h1.org"}, False),
        ({"host": "h1.org", "policy": "static"}, False),
        ({"domain": "h1.org"}, False),
        ({"host": "h1.org", "policy": "exact"}, True),
        ({"host": "h1.org", "policy": "fixed"}, True),
        ({"prefix": "http://h2.org/1"}, True),
    ):
        web.writer = Writer(web.opened(shards, keep_links=True))
        read_all()
        query = asked(web.opened(shards))
        query.importance(PAGES[:1])
        ended.clear()
        monkeypatch.setattr(Crawl, "follow", followed)
        if refused:
            with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
                inflow(query, **area)  # type: ignore[arg-type]
        else:
            assert inflow(query, **area)["policy"] == "static"  # type: ignore[arg-type]
        monkeypatch.setattr(Crawl, "follow", follow)
        assert ended


@pytest.mark.parametrize("shards", [1, 3])
def test_inflow_of_a_list_comes_from_all_other_pages(valkey: Server, shards: int) -> None:
    web = Web(valkey, f"inflow-list-{shards}", shards)
    for page in range(10):
        web.read(PAGES[page], [PAGES[1], PAGES[(page + 3) % 14], PAGES[(5 * page + 2) % 14]])
    web.read(PAGES[4], [], status=404)
    web.writer.drain()
    query = asked(web.crawl)
    listed = [PAGES[7], PAGES[1], PAGES[4], "http://nowhere.example/", PAGES[12], PAGES[1]]
    for policy in ("exact", "static", "fixed"):
        found = inflow(query, urls=listed, policy=policy)
        shown = {str(one["url"]): float(one["importance"]) for one in query.importance(PAGES, policy) if one}  # type: ignore[arg-type]
        expected = dict.fromkeys((PAGES[7], PAGES[1], PAGES[12]), 0.0)
        for page, links in web.links.items():
            to = {link for link in links if link != PAGES[4]}
            for link in expected.keys() & to if page not in listed else ():
                expected[link] += 0.85 * shown[page] / len(to)
        told = [(page["url"], page["inflow"]) for page in found["pages"]]  # type: ignore[attr-defined]
        assert [url for url, _ in told] == list(expected)
        assert dict(told) == pytest.approx(expected, abs=1e-9)
        assert found["missing"] == [PAGES[4], "http://nowhere.example/"]
        assert "next" not in found
        assert found["outside_mass"] == pytest.approx(sum(shown.values()) - sum(shown[page] for page in expected))
    whole = inflow(query, urls=PAGES)
    assert all(page["inflow"] == 0 for page in whole["pages"])  # type: ignore[attr-defined]
    assert whole["outside_mass"] == 0


def test_invalid_request_for_the_inflow_of_a_list_is_refused(valkey: Server) -> None:
    web = Web(valkey, "inflow-refused", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        inflow(asked(web.crawl), urls=PAGES[:2])
    with pytest.raises(BadInput, match="urls is empty"):
        inflow(asked(web.crawl), urls=[])
    with pytest.raises(BadInput, match="without domain, host, prefix and after"):
        inflow(asked(web.crawl), "h1.org", urls=PAGES[:2])
    assert inflow(asked(Web(valkey, "inflow-empty").crawl), urls=PAGES[:2])["missing"] == PAGES[:2]


@pytest.mark.slow
def test_service_client_and_command_answer_the_inflow_of_a_list(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", keep_links=True) as (http, client):
        events = [{"url": page, "links": [PAGES[0], PAGES[3]]} for page in PAGES]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == len(PAGES), 20.0)
        found = client.inflows([PAGES[3], "http://nowhere.example/", PAGES[5]], policy="fixed", window=2)
        assert [page.url for page in found.pages] == [PAGES[3], PAGES[5]]
        assert found.pages[0].inflow > found.pages[1].inflow == 0
        assert (found.missing, found.policy) == (["http://nowhere.example/"], "fixed")
        for body, complaint in (
            ({"urls": []}, "urls is empty"),
            ({"urls": ["x"]}, "x"),
            ({"url": []}, "did you mean urls"),
        ):
            refused = http.post("/v1/inflow", json=body)
            assert (refused.status_code, complaint in refused.json()["detail"]) == (422, True), refused.text
        too_many = http.post("/v1/inflow", json={"urls": [PAGES[0]] * 10_001})
        assert (too_many.status_code, "OPIC_MAX_URLS" in too_many.json()["detail"]) == (422, True)
        (tmp_path / "urls.txt").write_text(f"# of a list\n{PAGES[3]}\nhttp://nowhere.example/\n")
        url = str(http.base_url)
        done = CliRunner().invoke(
            app,
            ["inflow", "--file", str(tmp_path / "urls.txt"), "--service", url, "--window", "2", "--policy", "fixed"],
        )
        assert done.exit_code == 0, done.output
        assert PAGES[3] in done.stdout
        assert "1 of the list are gone or were never seen" in done.stderr
    with serving_embedded(tmp_path / "none", keep_links=False) as (http, client):
        client.seed(PAGES[:1])
        with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off"):
            client.inflows(PAGES[:1])
