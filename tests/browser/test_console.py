"""The console as a person meets it: a real service that was fed a real crawl, in a real browser."""

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import curls
import httpx
import pytest
from chromium import running_browser
from command_line import run_here
from conftest import want_server
from kafka_crawl import serving
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, expect
from processes import POLL_SECONDS, Service, environment, running, wait_until
from repository import ROOT
from servers import Server

from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer
from opic.service.tokens import new_token
from opic.settings import Settings

pytestmark = pytest.mark.slow

GRAPH = ROOT / "examples" / "data" / "wikispeedia" / "links.tsv.gz"
SITE = "https://en.wikipedia.org/wiki/"
BEST = SITE + "United_States"
READS = 500
SHARDS = 4
TOKEN = "s3cret-token-of-the-tests"
WAIT_MS = 40_000  # Of a loaded machine.
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}
SCREENS = [pytest.param(size, id=f"{size['width']} wide") for size in (PHONE, DESK)]

HOSTILE_PATH = '"><img src=x onerror=hit()><script>hit()</script>\u202egnp.exe'
HOSTILE = "http://hostile.example/" + HOSTILE_PATH
HOSTILE_EVENTS = [
    b"<img src=x onerror=hit()><script>hit()</script>",
    '{"url": "javascript:hit()", "links": ["\u202e<svg onload=hit()>"]}'.encode(),
    b'{"url": "http://a.example/", "v": "</code><iframe srcdoc=x>\\u0000\\u202e"}',
    b"\x81\xa3url\xff" + b"x" * 4_000,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser(want_server("chromium")) as opened:
        yield opened


def crawl(service: Service, reads: int) -> None:
    """Let a crawler work through the graph, as the demo does."""
    links: dict[str, list[str]] = {}
    with gzip.open(GRAPH, "rt", encoding="utf-8") as lines:
        for source, target in (line.split() for line in lines if line.strip() and not line.startswith("#")):
            links.setdefault(SITE + source, []).append(SITE + target)
    with httpx.Client(base_url=service.url, timeout=60) as client:
        client.post("/v1/seeds", json={"urls": [BEST]}).raise_for_status()
        while reads > 0:
            asked = client.post("/v1/next", json={"n": min(reads, 100)}).raise_for_status().json()
            events = [{"url": page["url"], "links": links.get(page["url"], [])} for page in asked["pages"]]
            client.post("/v1/events", json=events).raise_for_status()
            while client.get("/v1/stats").raise_for_status().json()["lag"]:
                time.sleep(POLL_SECONDS)
            reads -= len(events)


@contextmanager
def backend_of(service: Service, shards: int = SHARDS) -> Iterator[Backend]:
    """Its store, past the endpoint: what the endpoint would refuse gets into the log here."""
    url = EmbeddedServer.running(service.data)
    assert url is not None
    backend = Backend(Settings.load(data=service.data, shards=shards), url, create=False)
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("console")
    with running(folder / "data", folder / "serve.log", host_delay_seconds=0, shards=SHARDS) as started:
        crawl(started, READS)
        links = [BEST, HOSTILE, "http://long.example/" + "a-very-long-name" * 60, "http://xn--bcher-kva.example/"]
        started.post("/v1/events", [{"url": HOSTILE, "links": links}, {"url": HOSTILE, "links": links}])
        with backend_of(started) as backend:
            backend.accept(HOSTILE_EVENTS)
        started.settle()
        yield started


class Watched:
    """A page, with all that the browser complained of and asked for."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESK} | options))
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.bad: list[tuple[int, str]] = []
        self.page.on("console", self._complain)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", self._note)
        self.page.add_init_script("window.hits = 0; window.hit = () => { window.hits++; }")
        self.page.goto(url)

    def _complain(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} [{message.location.get('url', '')}]")

    def _note(self, response: Response) -> None:
        if response.status >= 400:
            self.bad.append((response.status, urlsplit(response.url).path))

    def loaded(self) -> Page:
        """The page once every part of it has something to show."""
        self.text("#state-text", "Live")
        for part in ("#top-rows tr", "#next-rows tr", "#hosts-rows tr", "#curve svg", "#dead-rows li"):
            self.page.wait_for_selector(part, state="attached")
        expect(self.page.locator("#verdict")).to_have_text("Every grain is accounted for.", timeout=WAIT_MS)
        return self.page

    def text(self, where: str, words: str) -> None:
        expect(self.page.locator(where)).to_contain_text(words, timeout=WAIT_MS)

    def look_up(self, url: str) -> None:
        self.page.fill("#url", url)
        self.page.press("#url", "Enter")


@pytest.fixture
def watched(browser: Browser, service: Service) -> Iterator[Watched]:
    with watching(browser, service.url) as opened:
        yield opened


@contextmanager
def watching(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    opened = Watched(browser, url, **options)
    try:
        yield opened
    finally:
        opened.context.close()


def number(page: Page, where: str) -> int:
    return int(page.inner_text(where).replace(",", ""))


def test_console_loads_without_errors_and_calls_no_other_host(watched: Watched, service: Service) -> None:
    watched.loaded()
    assert (watched.complaints, watched.bad) == ([], [])
    assert {urlsplit(url).netloc for url in watched.requests} == {urlsplit(service.url).netloc}
    assert watched.page.evaluate("document.querySelectorAll('[style], script:not([src]), style').length") <= len(
        watched.page.query_selector_all(".meter")  # Their lengths are set by script, which the policy allows.
    )


def test_console_shows_what_the_api_answers(watched: Watched, service: Service) -> None:
    page, stats = watched.loaded(), service.get("/v1/stats").json()
    assert (number(page, "#known"), number(page, "#read")) == (stats["known_pages"], stats["read_pages"])
    top = service.get("/v1/top", n="3").json()["pages"]
    shown = [page.get_attribute(f"#top-rows tr:nth-child({n}) .look", "title") for n in (1, 2, 3)]
    assert shown == [each["url"] for each in top]
    frontier = service.get("/v1/frontier", n="12").json()
    next_pages = [each.get_attribute("title") for each in page.locator("#next-rows .look").all()]
    assert next_pages == [each["url"] for each in frontier["pages"]]
    watched.text("#where", f"Crawl {stats['crawl']} in {stats['store']}, opic {stats['opic_version']}")
    assert page.inner_text("#hosts-rows tr:first-child td:first-child") == "en.wikipedia.org"
    assert page.locator("#curve path.line").count() == 2


def test_the_console_opens_with_the_answer(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    titles = page.locator("main h2:not(.unseen)").all_inner_texts()
    assert titles[:4] == ["Most important pages", "Next pages to fetch", "Progress", "Convergence"]
    top = service.get("/v1/top", n="12").json()
    watched.text("#top-certainty", top["certainty"])
    shown = [each.inner_text() for each in page.locator("#top-rows .rank").all()]
    assert shown == [f"{'' if each['certain'] else '≈ '}{each['rank']}" for each in top["pages"]]


def seconds_of(service: Service) -> float:
    """How long the crawl took, by its progress."""
    points = service.get("/v1/series").json()["progress"]  # One at first.
    return float(points[-1]["time"] - points[0]["time"]) if points else 0.0


def test_progress_says_when_the_crawl_ends_or_why_that_is_unknown(browser: Browser, tmp_path: Path) -> None:
    """Of a crawl that takes long enough to be drawn."""
    with running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as service:
        crawl(service, 20)
        wait_until(lambda: crawl(service, 1) or seconds_of(service) > 5, 60)
        series = service.get("/v1/series").json()
        counts = series["progress"][-1]
        with watching(browser, service.url) as watched:
            watched.text("#forecast", series["forecast"]["text"].split(". ")[0])
            watched.text("#progress .key", f"read: {counts['read_pages']:,}")
            watched.text("#progress .key", f"to fetch: {counts['to_fetch_pages']:,}")


def test_pages_that_wait_are_told_in_sentences(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    held_back = service.get("/v1/frontier", n="12").json()["held_back"]
    assert [each.inner_text() for each in page.locator("#held-rows li").all()] == held_back
    assert "were read a short time ago" in held_back[0]


def test_an_empty_crawl_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", tmp_path / "serve.log") as service,
        watching(browser, service.url) as watched,
    ):
        watched.text("#next-none", "Nothing can be handed out right now.")
        watched.text("#held-rows", "No page is known yet: add some with opic seed URL.")
        expect(watched.page.locator("#held-rows code")).to_have_text("opic seed URL")
        watched.text("#top-none", "No page is known yet.")
        watched.text("#classes-none", "No classes: every page gets the same grants.")
        watched.text("#curve-none", "Drawn once pages are read over 5 s or more.")
        for empty in ("#convergence", "#spark svg", "main th"):
            expect(watched.page.locator(empty).locator("visible=true")).to_have_count(0)
        assert (watched.complaints, watched.bad) == ([], [])


def test_pages_of_equal_importance_have_one_rank_and_keys_of_read_pages_are_not_shown(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0, revisit_seconds=0) as service,
        watching(browser, service.url) as watched,
    ):
        site = "https://a.example/"
        service.post("/v1/events", {"url": site, "links": [f"{site}1", "https://b.example/"]}).raise_for_status()
        service.post("/v1/events", {"url": f"{site}1", "links": [site]}).raise_for_status()
        service.post("/v1/seeds", {"urls": ["https://c.example/", "https://d.example/"]}).raise_for_status()
        service.settle()
        expect(watched.page.locator("#top-rows tr")).to_have_count(5, timeout=WAIT_MS)
        watched.page.reload()
        expect(watched.page.locator("#top-rows tr")).to_have_count(5, timeout=WAIT_MS)
        expect(watched.page.locator("#next-rows tr", has_text="before").first).to_be_visible(timeout=WAIT_MS)
        ranks = [page["rank"] for page in service.get("/v1/top", n="12").json()["pages"]]
        assert len(set(ranks)) < len(ranks)
        shown = [each.inner_text() for each in watched.page.locator("#top-rows .rank").all()]
        assert [int(text.removeprefix("≈ ")) for text in shown] == ranks
        before = watched.page.locator("#next-rows tr", has_text="before")
        assert {row.locator("td").last.inner_text() for row in before.all()} == {"–"}


# Words of URLs that were broken, although they would fit a line.
BROKEN = """() => [...document.querySelectorAll("td .look")].flatMap((at) => {
  const walker = document.createTreeWalker(at, NodeFilter.SHOW_TEXT), broken = [];
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const rows = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (rows.size > 1 && walker.currentNode.data.length < 20) broken.push(walker.currentNode.data);
  }
  return broken;
})"""


def test_the_audit_is_shown_to_the_grain(watched: Watched, service: Service) -> None:
    page, audit = watched.loaded(), service.get("/v1/audit").json()
    for part in ("pages", "virtual", "in_flight", "minted"):
        assert number(page, f"#sum-{part}") == audit[part]
    page.click("summary")
    assert page.locator("#shard-rows tr").count() == SHARDS


def test_digits_inside_a_string_stay_a_string(watched: Watched) -> None:
    text = (
        '{"a":["x:12345678901234567890,",9007199254740993,-9007199254740993,0.12345678901234567,1.5e30],"b\\"1":"\\\\"}'
    )
    found = watched.page.evaluate(
        "async (text) => { const { parse } = await import('/console/ask.js');"
        " return JSON.stringify(parse(text), (_, v) => typeof v === 'bigint' ? `${v}n` : v); }",
        text,
    )
    assert json.loads(found) == {
        "a": ["x:12345678901234567890,", "9007199254740993n", "-9007199254740993n", 0.12345678901234567, 1.5e30],
        'b"1': "\\",
    }


def test_counters_move_while_events_come(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    events, known = number(page, "#events"), number(page, "#known")
    service.post("/v1/events", [{"url": f"http://new.example/{known}/{n}"} for n in range(7)]).raise_for_status()
    expect(page.locator("#events")).to_have_text(f"{events + 7:,}", timeout=WAIT_MS)
    expect(page.locator("#known")).to_have_text(f"{known + 7:,}", timeout=WAIT_MS)
    expect(page.locator("#rate")).not_to_have_text("–", timeout=WAIT_MS)
    page.wait_for_selector("#spark polyline", state="attached")


def test_a_search_shows_score_reasons_and_history(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    watched.look_up(BEST)
    page.wait_for_selector("#history svg")
    measures = service.get("/v1/history", url=BEST).json()["measures"]
    assert page.locator("#history rect.bar").count() == len(measures) + 1
    said = page.locator("#history svg").get_attribute("aria-label") or ""
    assert "Unspent now" in said
    rank = service.get("/v1/importance", url=BEST).json()["rank"]
    assert page.inner_text("#page-facts div:nth-child(2) dd") == str(rank)
    assert page.evaluate("document.activeElement.id") == "page-title"
    why = page.inner_text("#why")
    assert "of the visits of a random surfer on the links as last read are to this page" in why
    assert "the virtual page granted" in why
    assert "by importance." in why
    for reason in service.get("/v1/explain", url=BEST).json()["reasons"]:
        assert reason["about"] in why
    assert "h + r" not in why
    page.click("#why summary")
    assert "h + r with h = " in page.inner_text("#why")


def test_a_refused_event_is_shown_with_its_page(watched: Watched, service: Service) -> None:
    url = "http://refused.example/"
    service.post("/v1/seeds", {"urls": [url]}).raise_for_status()
    (leased,) = service.post("/v1/next", {"n": 1, "domain": "refused.example"}).raise_for_status().json()["pages"]
    assert service.post("/v1/events", {"url": leased["url"], "status": "fine"}).status_code == 422
    watched.loaded()
    watched.look_up(url)
    watched.text("#why", "Why it is not offered")
    watched.text("#why", "Its event was refused: ")


def test_a_page_of_a_list_is_looked_up_by_a_click(watched: Watched) -> None:
    page = watched.loaded()
    url = page.get_attribute("#top-rows tr:nth-child(2) .look", "title")
    assert url is not None
    page.click("#top-rows tr:nth-child(2) .look")
    expect(page.locator("#page-url bdi")).to_have_text(url, timeout=WAIT_MS)
    assert page.input_value("#url") == url


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("http://never.example/", "was never seen"),
        ("not a url", "pages: no URL has “not a url” in it."),
        ("http://a b/", "not an absolute http(s) URL"),
    ],
)
def test_a_search_that_finds_nothing_says_why(watched: Watched, asked: str, said: str) -> None:
    page = watched.loaded()
    watched.look_up(asked)
    watched.text("#page-said", said)
    assert page.is_hidden("#page-found")
    assert page.is_hidden("#look-on")
    assert page.locator("#matches-rows tr").count() == 0
    assert page.inner_text("#state-text") == "Live"


def test_a_page_is_found_by_a_part_of_its_url(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    watched.look_up("united_st")
    watched.text("#page-said", "“united_st” in them")
    found = service.get("/v1/search", text="united_st", n="12").json()
    assert [one.get_attribute("title") for one in page.locator("#matches-rows .look").all()] == [
        one["url"] for one in found["pages"]
    ]
    assert found["pages"][0]["url"] == BEST
    page.click("#matches-rows tr:first-child .look")
    expect(page.locator("#page-url bdi")).to_have_text(BEST, timeout=WAIT_MS)
    assert page.is_hidden("#matches")
    page.go_back()
    watched.text("#page-said", "“united_st” in them")
    expect(page.locator("#matches-rows tr")).to_have_count(len(found["pages"]), timeout=WAIT_MS)
    assert page.is_hidden("#page-found")


def test_a_view_is_shared_by_its_address(browser: Browser, watched: Watched) -> None:
    page = watched.loaded()
    with page.expect_response("**/v1/top?*policy=variable*"):
        page.select_option("#policy", "variable")
    watched.look_up(HOSTILE)
    expect(page.locator("#page-url bdi")).to_contain_text("hostile.example", timeout=WAIT_MS)
    page.wait_for_selector("#history svg")
    with watching(browser, page.url) as other:
        expect(other.page.locator("#page-url bdi")).to_have_text(page.inner_text("#page-url bdi"), timeout=WAIT_MS)
        assert other.page.input_value("#policy") == "variable"
        other.text("#page-facts", "variable")
        assert other.page.evaluate("window.hits") == 0
        assert (other.complaints, other.bad) == ([], [])


def test_classes_and_rules_are_shown(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    watched.text("#classes-none", "No classes: every page gets the same grants.")
    watched.text("#rules-none", "No rules: every URL may be fetched.")
    curls.put(
        f"{service.url}/v1/rules",
        json={
            "rules": [
                {"effect": "deny", "host": "a.example", "path": "/cal*", "query": True, "note": "<b>calendar"},
                {"effect": "allow", "domain": "b.example", "revisit_seconds": 7200},
            ]
        },
        timeout=30,
    ).raise_for_status()
    try:
        page.reload()
        watched.text(
            "#rules-rows li:last-child", "Allow b.example with all below it, read again after 2 h at the earliest"
        )
        watched.text(
            "#rules-rows li:first-child", "Deny the host a.example, paths like /cal*, URLs with a query (<b>calendar)"
        )
        watched.text("#rules-traps", "held back")
    finally:
        curls.put(f"{service.url}/v1/rules", json={"rules": []}, timeout=30).raise_for_status()


def test_in_flow_of_a_domain_is_shown(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    page.fill("#domain", "wikipedia.org")
    page.press("#domain", "Enter")
    watched.text("#inflow-said", "Links from other domains brought")
    pages = service.get("/v1/inflow", domain="wikipedia.org").json()["pages"]
    best = max(pages, key=lambda one: one["inflow"])
    assert page.get_attribute("#inflow-rows tr:first-child .look", "title") == best["url"] == BEST
    assert page.locator("#inflow-rows tr").count() == min(12, sum(one["inflow"] > 0 for one in pages))
    page.fill("#domain", "en.wikipedia.org")
    page.press("#domain", "Enter")
    watched.text("#inflow-said", "ask for wikipedia.org")
    assert page.is_hidden("#inflow")


RANKED = {
    "pages": [{"url": f"http://a.example/{n}", "importance": (5 - n) / 15} for n in range(5)],
    "changes": [{"outside_fetched": 10 * n, "change": 0.4 / n} for n in (1, 2, 3, 4)],
    **{"outside_fetched": 40, "method": "combined", "service_coverage": 0.5, "as_of": 1_764_000_000.0},
}


def put_local(service: Service, domain: str, **ranking: object) -> None:
    body = {**RANKED, **ranking}
    curls.put(f"{service.url}/v1/local/{domain}", json=body, timeout=30).raise_for_status()


def test_local_domains_are_shown_with_their_lists(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    watched.text("#local-none", "No estimator has sent a list")
    put_local(service, "b.example", pages=[{"url": "http://b.example/<b>x", "importance": 1}], changes=[])
    put_local(service, "a.example")
    watched.text("#ranking-title", "Pages of a.example")  # The newest, until another is chosen.
    assert page.locator("#local-rows tr").count() == 2
    assert page.inner_text("#local-rows tr:first-child td:nth-child(3)") == "40"
    shown = [page.get_attribute(f"#ranking-rows tr:nth-child({n}) .look", "title") for n in range(1, 6)]
    assert shown == [f"http://a.example/{n}" for n in range(5)]
    assert page.locator("#ranking-curve path.line").count() == 1
    assert "0.1" in str(page.get_attribute("#ranking-curve svg", "aria-label"))
    page.click("#local-rows tr:nth-child(2) .look")
    watched.text("#ranking-title", "Pages of b.example")
    expect(page.locator("#ranking-rows tr")).to_have_count(1, timeout=WAIT_MS)
    assert page.locator("#ranking-curve svg").count() == 0
    assert page.text_content("#ranking-rows .look") == "http://b.example/<b>x"
    assert watched.complaints == []


def test_hostile_text_is_shown_as_text(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    watched.text("#dead-rows", "<img src=x onerror=hit()><script>hit()</script>")
    watched.text("#dead-rows", "javascript:hit()")
    watched.text("#dead-rows", "\\u{202e}")
    watched.look_up(HOSTILE)
    watched.text("#page-url", "hostile.example")
    page.wait_for_selector("#why dl")
    assert page.evaluate("window.hits") == 0
    assert page.locator("img, iframe, object, embed, body script, svg [onload]").count() == 0
    assert not set("\u202e\u0000") & set(page.inner_text("body"))
    leading_out = page.eval_on_selector_all("main a", "all => all.map(a => [a.protocol, a.rel, a.target])")
    assert leading_out
    assert {tuple(each) for each in leading_out} <= {
        (protocol, "noopener noreferrer nofollow", "_blank") for protocol in ("http:", "https:")
    }
    assert watched.complaints == []


def test_links_lead_to_the_web_only(watched: Watched) -> None:
    found = watched.page.evaluate(
        "async (urls) => { const { linkOut } = await import('/console/show.js');"
        " return urls.map((url) => linkOut(url)?.getAttribute('href') ?? null); }",
        [
            "https://a.example/",
            "javascript:hit()",
            "data:text/html,x",
            " JaVaScRiPt:hit()",
            "//a.example/",
            "file:///x",
        ],
    )
    assert found == ["https://a.example/", None, None, None, None, None]


def test_console_says_that_the_service_is_unavailable_and_recovers_by_itself(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as own:
        own.post("/v1/events", {"url": "http://a.example/"})
        own.settle()
        with watching(browser, own.url) as watched:
            watched.text("#state-text", "Live")
            watched.text("#known", "1")
            own.stop()
            watched.text("#trouble [role=alert]", "The service does not answer.")
            watched.text("#state-text", "No answer, numbers are")
            watched.text("#trouble-next", "Asking again in")
            assert watched.page.inner_text("#known") == "1"
            own.start()
            own.post("/v1/events", {"url": "http://b.example/"})
            watched.text("#known", "2")
            watched.text("#state-text", "Live")
            assert watched.page.is_hidden("#trouble")


def test_console_says_that_the_store_is_unavailable(browser: Browser, tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as own,
        watching(browser, own.url) as watched,
    ):
        watched.text("#state-text", "Live")
        os.kill(own.store_pid(), signal.SIGSTOP)
        try:
            expect(watched.page.locator("#trouble-text")).to_contain_text("can’t answer now", timeout=WAIT_MS)
        finally:
            os.kill(own.store_pid(), signal.SIGCONT)
        expect(watched.page.locator("#trouble")).to_be_hidden(timeout=40_000)
        expect(watched.page.locator("#state-text")).to_have_text("Live", timeout=WAIT_MS)


def test_console_warns_that_no_worker_is_there(browser: Browser, valkey: Server, tmp_path: Path) -> None:
    with (
        serving(Settings.load(store=valkey.url), tmp_path / "serve.log") as url,
        watching(browser, url) as watched,
    ):
        watched.text("#state-text", "Live")
        assert watched.page.is_hidden("#warnings")
        curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}).raise_for_status()
        watched.text("#warnings", "No worker has applied an event yet, and 1 accepted event waits")
        expect(watched.page.locator("#warnings code").first).to_have_text("opic worker")  # And not in backticks.
        left = "(at) => at.getBoundingClientRect().left + parseFloat(getComputedStyle(at).paddingLeft)"
        assert len({watched.page.locator(at).evaluate(left) for at in (".bar", "#main", "#warnings")}) == 1
        watched.text("#state-text", "Live, and something needs care")


def test_the_token_is_asked_for_sent_and_kept_for_the_tab_only(browser: Browser, tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", tmp_path / "serve.log", api_token=TOKEN) as own,
        watching(browser, own.url) as watched,
    ):
        page = watched.page
        watched.text("#token-why", "This service wants a token.")
        watched.text("#state-text", "Token wanted")
        expect(page.locator("#main")).to_be_hidden()  # It would be a dozen empty sections.
        asked = len(watched.requests)
        page.fill("#token", "not the token")
        page.press("#token", "Enter")
        watched.text("#token-why", "no spaces")
        assert len(watched.requests) == asked
        page.fill("#token", "wrong-token")
        page.press("#token", "Enter")
        watched.text("#token-why", "did not take that token")
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        watched.text("#state-text", "Live")
        assert page.is_hidden("#token-form")
        kept = "[sessionStorage.length, localStorage.length, document.cookie, location.href.includes('token')]"
        assert page.evaluate(kept) == [1, 0, "", False]
        assert not [url for url in watched.requests if TOKEN in url]
        page.reload()
        watched.text("#state-text", "Live")
        page.click("#forget")
        watched.text("#token-why", "This service wants a token.")
        assert page.evaluate("sessionStorage.length") == 0
        assert page.inner_text("#known") == "–"


def test_a_token_that_may_not_read_is_said_to_be_so(browser: Browser, tmp_path: Path) -> None:
    made = {"feeder": new_token("feeder", ["crawl"], []), "elsewhere": new_token("elsewhere", ["read"], ["news"])}
    reader, lines = new_token("reader", ["read"], ["default"])
    (tmp_path / "tokens.toml").write_text(lines + "".join(more for _, more in made.values()))
    with (
        running(tmp_path / "data", tmp_path / "serve.log", tokens_file=tmp_path / "tokens.toml") as own,
        watching(browser, own.url) as watched,
    ):
        page = watched.page
        for name, why in (
            ("feeder", "this call wants the role read, and the token feeder has crawl."),
            ("elsewhere", "the token elsewhere is for news."),
        ):
            page.fill("#token", made[name][0])
            page.press("#token", "Enter")
            watched.text("#token-why", f"That token can’t be used on this page: {why}" if name == "feeder" else why)
            expect(page.locator("#main")).to_be_hidden()
        page.fill("#token", reader)
        page.press("#token", "Enter")
        watched.text("#state-text", "Live")
        expect(page.locator("#main")).to_be_visible()


def test_a_crawl_is_chosen_where_the_token_is_for_several(browser: Browser, tmp_path: Path) -> None:
    reader, lines = new_token("reader", ["read"], ["news"])
    (tmp_path / "tokens.toml").write_text(lines)
    terms = {"tokens_file": tmp_path / "tokens.toml", "api_token": TOKEN}
    with running(tmp_path / "data", tmp_path / "serve.log", **terms) as own:
        with httpx.Client(base_url=own.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
            client.put("/v1/crawls/news", json={}).raise_for_status()
            client.post("/v1/crawls/news/seeds", json={"urls": ["http://news.example/"]}).raise_for_status()
        with watching(browser, own.url) as watched:
            watched.page.fill("#token", reader)
            watched.page.press("#token", "Enter")
            watched.text("#where", "Crawl news")  # The only one that this token is for.
            watched.text("#top-rows", "news.example")
            expect(watched.page.locator("#crawl-form")).to_be_hidden()
        with watching(browser, own.url) as watched:
            watched.page.fill("#token", TOKEN)
            watched.page.press("#token", "Enter")
            watched.text("#where", "Crawl default")
            expect(watched.page.locator("#crawl-form")).to_be_visible(timeout=WAIT_MS)
            watched.page.select_option("#crawl", "news")
            watched.text("#where", "Crawl news")
            watched.text("#top-rows", "news.example")
            watched.page.select_option("#crawl", "default")
            watched.text("#where", "Crawl default")
            watched.page.goto(f"{own.url}/?crawl=nothere")
            watched.text("#where", "There is no crawl nothere here")
            watched.text("#state-text", "No such crawl")
            watched.page.select_option("#crawl", "default")
            watched.text("#where", "Crawl default")
            moved = run_here(["migrate", "news-2", "--shards", 2, "--crawl", "news", "--data", own.data], environment())
            assert moved.returncode == 0, moved.stderr
            watched.page.goto(f"{own.url}/?crawl=news")
            watched.text("#where", "Crawl news-2")
            expect(watched.page.locator("#crawl option")).to_have_text(["default", "news-2"], timeout=WAIT_MS)
            expect(watched.page.locator("#crawl")).to_have_value("news-2")


def test_console_makes_no_calls_while_paused_or_hidden(watched: Watched) -> None:
    page = watched.loaded()
    page.click("#pause")
    watched.text("#state-text", "Paused")
    assert page.inner_text("#pause") == "Resume"
    page.wait_for_load_state("networkidle")
    asked = len(watched.requests)
    page.wait_for_timeout(3_000)  # Longer than it ever is between two questions.
    assert len(watched.requests) == asked
    page.click("#pause")
    assert page.inner_text("#pause") == "Pause"
    page.wait_for_event("request")
    page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_load_state("networkidle")
    asked = len(watched.requests)
    page.wait_for_timeout(3_000)
    assert len(watched.requests) == asked
    with page.expect_request("**/v1/stats"):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")


FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const named = (at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent || "").trim();
  return { tag: at.tagName, id: at.id, seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
           inside: box.width > 0 && box.bottom > 0 && box.top < innerHeight, named: named.length > 0 };
}"""


def test_console_is_usable_by_keyboard_alone(watched: Watched) -> None:
    page = watched.loaded()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    ids = []
    for _ in range(150):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        if focus["tag"] == "BODY":
            break
        assert focus["seen"], f"no focus is seen on {focus}"
        assert focus["inside"], f"out of sight: {focus}"
        assert focus["named"], f"nameless: {focus}"
        ids.append(focus["id"])
    else:
        pytest.fail("the end of the page is never reached")
    assert [name for name in ids if name][:4] == ["policy", "window", "url", "recount"]
    page.focus("#window")
    while page.evaluate("document.activeElement.id") != "url":
        page.keyboard.press("Tab")
    page.keyboard.type(BEST)
    page.keyboard.press("Enter")
    page.wait_for_selector("#history svg")


def test_a_list_that_holds_the_focus_stays_as_it_is(watched: Watched, service: Service) -> None:
    page = watched.loaded()
    page.focus("#top-rows tr:nth-child(3) .look")
    with page.expect_response("**/v1/top?*"):
        pass
    assert page.evaluate("document.activeElement.className") == "look"


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const behind = (at) => {
    for (; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.parentElement, style = getComputedStyle(at);
    if (!walker.currentNode.data.trim() || !at.checkVisibility() || at.closest("noscript")) continue;
    const [a, b] = [light(parse(at instanceof SVGElement ? style.fill : style.color)), light(behind(at))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push([at.tagName, at.className?.baseVal ?? at.className, at.textContent.slice(0, 30), ratio]);
  }
  return poor;
}"""


# Cells of tables whose text is wider than its place.
OVERFLOWING = """() => [...document.querySelectorAll("td.n, th.n")]
  .filter((at) => at.checkVisibility() && !at.closest(".wide") && at.scrollWidth > at.clientWidth)
  .map((at) => at.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SCREENS)
def test_console_fits_the_screen_and_is_readable(
    browser: Browser, service: Service, scheme: str, size: dict[str, int], tmp_path: Path
) -> None:
    with watching(browser, service.url, viewport=size, color_scheme=scheme) as watched:
        page = watched.loaded()
        page.click("summary")
        watched.look_up("e")
        page.wait_for_selector("#matches-rows tr")
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate(BROKEN) == []
        assert page.evaluate(CONTRAST) == []
        watched.look_up(HOSTILE)
        page.wait_for_selector("#history svg")
        page.fill("#domain", "wikipedia.org")
        page.press("#domain", "Enter")
        page.wait_for_selector("#inflow-rows tr")
        put_local(service, "a.example")
        page.wait_for_selector("#ranking-curve svg", timeout=WAIT_MS)
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(CONTRAST) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) > 384) == (scheme == "light")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=tmp_path / f"{scheme}-{size['width']}.png", full_page=True)
        assert watched.complaints == []


def test_nothing_moves_where_reduced_motion_is_preferred(browser: Browser, service: Service) -> None:
    with watching(browser, service.url, reduced_motion="reduce") as watched:
        page = watched.page
        assert page.evaluate("document.getAnimations().length") == 0
        watched.loaded()
        assert page.evaluate("document.getAnimations().length") == 0


def test_without_scripts_the_page_says_where_the_answers_are(browser: Browser, service: Service) -> None:
    with watching(browser, service.url, java_script_enabled=False) as watched:
        expect(watched.page.locator("noscript a").first).to_have_attribute("href", "v1/stats")
