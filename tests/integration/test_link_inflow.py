"""In-flow from kept links: what a plain sum over the links says, of any set of pages and by any policy."""

import pytest
from exact_readers import asked
from linked_web import PAGES, Web
from servers import Server

from opic.errors import BadInput, NotKept
from opic.query.inflow import inflow


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("policy", ["exact", "static", "interpolation"])
@pytest.mark.parametrize("area", [{"host": "h1.org"}, {"prefix": "http://h2.org/1"}])
def test_inflow_is_what_pages_outside_send_along_their_links(
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


def test_prefix_needs_links(valkey: Server) -> None:
    web = Web(valkey, "inflow-none", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=on"):
        inflow(asked(web.crawl), prefix="http://h2.org/1")
    with pytest.raises(BadInput, match="give one of domain, host and prefix"):
        inflow(asked(web.crawl), host="h2.org", prefix="http://h2.org/1")
