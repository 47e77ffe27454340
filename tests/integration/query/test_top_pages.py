"""`top` in parts: `after` goes on where an answer stopped, so that the parts are the whole list."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exact_readers import asked
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server
from serving import serving_embedded
from typer.testing import CliRunner

from opic.cli.main import app
from opic.client import BadRequest
from opic.errors import BadInput
from opic.query.inlinks import most_linked
from opic.query.top_pages import Cursor

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

WAIT_SECONDS = 20.0
Top = Callable[..., dict[str, Any]]


def web_of(server: Server, name: str, shards: int) -> Web:
    """Most pages are read, some twice; many are alike."""
    web = Web(server, name, shards)
    for page in (*range(10), *range(4)):
        web.read(PAGES[page], [PAGES[1], PAGES[(page + 3) % 14], PAGES[(5 * page + 2) % 14]])
    web.read(PAGES[4], [], status=404)
    web.writer.drain()
    return web


def parts(top: Top, n: int, **terms: Any) -> list[dict[str, Any]]:
    """The list in parts of `n` pages."""
    found, after = list[dict[str, Any]](), None
    while True:
        answer = top(n, after=after, **terms)
        assert 0 < len(answer["pages"]) <= n
        found += answer["pages"]
        if (after := answer.get("next")) is None:
            return found
        assert len(answer["pages"]) == n


@pytest.mark.parametrize("shards", [1, 3])
def test_parts_make_up_the_whole_list(valkey: Server, shards: int) -> None:
    web = web_of(valkey, f"parts-{shards}", shards)
    query = asked(web.crawl)
    assert query.exact is not None
    kept = query.exact.flows.kept
    for top, terms in (
        *((query.top_from, {"policy": policy}) for policy in ("exact", "static", "fixed")),
        (query.top_from, {"domain": "h1.org"}),
        (lambda n, **more: most_linked(query, kept, n, **more), {}),
        (lambda n, **more: most_linked(query, kept, n, **more), {"window": "5d"}),
    ):
        whole = top(1_000, **terms)
        assert "next" not in whole
        assert len(whole["pages"]) > 2
        for n in (1, 2, 5, len(whole["pages"])):
            assert parts(top, n, **terms) == whole["pages"]


def test_list_continues_after_a_page_whose_rank_has_changed(valkey: Server) -> None:
    """At the page if its value is nearly the same, else below the value that was told."""
    web = web_of(valkey, "moved", 1)
    query = asked(web.crawl)
    first = query.top_from(3)
    for page in range(10, 14):
        web.read(PAGES[page], [PAGES[12]])  # It comes to the top, and takes a share of all others.
    web.read(str(first["pages"][2]["url"]), [], status=404)
    rest = query.top_from(100, after=first["next"])
    told = {page["url"]: page["importance"] for page in query.top(100)}
    below = [url for url, share in told.items() if share < first["pages"][2]["importance"]]
    assert [page["url"] for page in rest["pages"]] == below
    assert PAGES[12] not in below


@pytest.mark.parametrize(
    "after",
    ["", "x", "0", "0-1", "0-1-x", "0-1-nan", "0-1-inf", "0-1--1", "1-1-0.5", "-1-1-0.5", "0-²-1", "0-1-" + "1" * 60],
)
def test_unknown_cursor_is_refused(after: str) -> None:
    with pytest.raises(BadInput, match="not from this service"):
        Cursor.parse(after, 1)
    assert str(Cursor.parse("0-1-1e-05", 1)) == "0-1-1e-05"


def test_client_and_command_continue_a_list(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", host_delay_seconds=0) as (http, client):
        events = [{"url": page, "links": PAGES[:number]} for number, page in enumerate(PAGES)]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == len(PAGES), WAIT_SECONDS)
        for by in ("importance", "inlinks"):
            whole = client.top(by=by)  # type: ignore[arg-type]
            assert whole.next is None
            first = client.top(5, by=by)  # type: ignore[arg-type]
            rest = client.top(by=by, after=first.next)  # type: ignore[arg-type]
            assert [page.url for page in first.pages + rest.pages] == [page.url for page in whole.pages]
            said = CliRunner().invoke(app, ["top", "--n", "5", "--by", by, "--service", str(http.base_url)])
            assert said.stderr.endswith(f"\nthere are more pages: --after {first.next}\n")
            terms = ["--by", by, "--after", str(first.next), "--service", str(http.base_url)]
            said = CliRunner().invoke(app, ["top", *terms])
            assert [line.split()[-1] for line in said.stdout.splitlines()[1:]] == [page.url for page in rest.pages]
            assert "there are more pages" not in said.stderr
            with pytest.raises(BadRequest, match="not from this service"):
                client.top(by=by, after="0-1")  # type: ignore[arg-type]
