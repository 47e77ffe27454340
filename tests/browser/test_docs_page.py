"""The pages at /docs in a real browser, with a token set: they load, Authorize works, each example is answered."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import curls
import pytest
from chromium import running_browser
from conftest import want_server
from example_counts import THOROUGH
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from processes import Service, running

pytestmark = pytest.mark.slow

TOKEN = "s3cret-token-of-the-tests"
WAIT_MS = 40_000  # Of a loaded machine.
UNFOLD_MS = 4_000
PLAIN = ("GET /healthz", "GET /readyz", "GET /metrics")
# Each method, with a body and without, in the path and in the query; what later tests see the effects of. Schemathesis
# sends every example of the document (tests/integration/api/test_schemathesis.py), here it is the page that is tested.
USUAL = {
    "POST /v1/seeds", "POST /v1/events", "DELETE /v1/pages", "PATCH /v1/rules", "PUT /v1/politeness",
    "PUT /v1/local/{domain}", "GET /v1/local/{domain}", "GET /v1/history", *PLAIN,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser(want_server("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A new crawl, of which nothing is known."""
    folder = tmp_path_factory.mktemp("docs")
    with running(folder / "data", folder / "serve.log", api_token=TOKEN, host_delay_seconds=0) as started:
        yield started


@pytest.fixture(scope="module")
def page(browser: Browser, service: Service) -> Iterator[Page]:
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    opened.goto(f"{service.url}/docs")
    opened.wait_for_selector(".opblock")
    yield opened
    context.close()


def name_of(page: Page, index: int) -> str:
    """The method and the path of a call."""
    block = page.locator(".opblock").nth(index)
    path = block.locator(".opblock-summary-path").get_attribute("data-path") or ""
    return f"{block.locator('.opblock-summary-method').inner_text()} {path}"


def unfold(block: Locator) -> None:
    """Open a block; a page that is busy with the answer of another call may miss a click."""
    body, deadline = block.locator(".opblock-body"), time.monotonic() + WAIT_MS / 1000
    while not body.is_visible():
        assert time.monotonic() < deadline, "the block does not open"
        block.locator(".opblock-summary-control").dispatch_event("click")
        with suppress(PlaywrightTimeout):
            body.wait_for(timeout=UNFOLD_MS)


def try_out(page: Page, index: int) -> tuple[str, str]:
    """Run a call as it is prepared, in its place on the page; what it is, and the status of its answer.

    Blocks fold and unfold slowly: a click that is dispatched does not wait until they stand still.
    """
    block, name = page.locator(".opblock").nth(index), name_of(page, index)
    unfold(block)
    block.locator("button.execute").click()
    status = block.locator(".live-responses-table .response .response-col_status").first
    expect(status).to_be_visible(timeout=WAIT_MS)
    found = status.inner_text().split()[0]
    block.locator(".opblock-summary-control").dispatch_event(
        "click"
    )  # Each open block makes every change of the page slower.
    return name, found


def test_page_loads_without_the_token_from_the_service_alone(browser: Browser, service: Service) -> None:
    context = browser.new_context()
    opened, asked, complaints = context.new_page(), list[str](), list[str]()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{service.url}/docs")
    opened.wait_for_selector(".opblock", timeout=WAIT_MS)
    summaries = opened.locator(".opblock-summary-description").all_inner_texts()  # Swagger UI shows them as they are.
    context.close()
    assert len(summaries) > 20
    assert not [text for text in summaries if "`" in text]
    assert complaints == []
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {urlsplit(service.url).netloc}
    assert curls.get(f"{service.url}/").status_code == 200
    assert curls.get(f"{service.url}/v1/stats").status_code == 401


def test_call_without_the_token_is_refused_and_with_it_every_example_is_answered(page: Page) -> None:
    assert try_out(page, 0) == ("POST /v1/seeds", "401")
    page.locator(".btn.authorize").click()
    page.locator(".modal-ux input").fill(TOKEN)
    page.locator(".modal-ux .btn.authorize").click()
    page.locator(".modal-ux .btn-done").click()
    count = page.locator(".opblock").count()
    tried = [index for index in range(count) if THOROUGH or name_of(page, index) in USUAL]
    answers = dict(try_out(page, index) for index in tried)
    assert count > 20
    assert len(answers) == len(tried) >= len(USUAL)
    # What is to be forgotten nobody names for the caller.
    assert {name: status for name, status in answers.items() if not status.startswith("2")} == {
        "DELETE /v1/pages": "422"
    }
    assert set(PLAIN) < answers.keys()


def test_examples_show_the_effects_of_earlier_examples(page: Page, service: Service) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def get(path: str) -> Any:
        return curls.get(service.url + path, headers=headers).raise_for_status().json()

    assert "https://a.example/" in [one["url"] for one in get("/v1/top")["pages"]]
    assert get("/v1/inflow?domain=a.example")["pages"]
    assert get("/v1/politeness")["hosts"]
