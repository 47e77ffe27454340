"""Draw the console's pictures in docs/: a real crawl in a real browser. Run by `make picture`."""

import contextlib
import sys
import tempfile
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from chromium import find_chromium, running_browser
from PIL import Image
from processes import Service, running
from repository import ROOT
from servers import Missing
from test_console import BEST, WAIT_MS, backend_of, crawl

READS_BEFORE, READS_A_TURN = 1_000, 20  # The crawl has pages left when it is drawn, so that its end is forecast.
WATCHED_MS, SCROLLED_MS = 15_000, 1_000
LOOK: Any = {"viewport": {"width": 1180, "height": 1780}, "device_scale_factor": 1.5}
COLOURS = 128  # Of a page with few: a third of the file.
BAD = [
    b'{"url": "https://en.wikipedia.org/wiki/Dog", "fetched_at": "yesterday"}',
    b'{"url": "<script>alert(1)</script>", "links": []}',
]


def draw(service: Service) -> None:
    """Save what the console shows of a service, by day and by night."""
    found = find_chromium()
    if isinstance(found, Missing):
        sys.exit(found.reason)
    with running_browser(found) as browser:
        pages = {scheme: browser.new_page(**LOOK, color_scheme=scheme) for scheme in ("light", "dark")}
        for page in pages.values():
            page.set_default_timeout(WAIT_MS)
            page.goto(service.url)
        pages["light"].wait_for_timeout(WATCHED_MS)  # So that there is a rate to show.
        for scheme, page in pages.items():
            page.wait_for_selector("#hosts-rows tr", state="attached")
            page.fill("#url", BEST)
            page.press("#url", "Enter")
            page.wait_for_selector("#history svg")
            page.wait_for_timeout(SCROLLED_MS)
            page.evaluate("document.activeElement.blur(); scrollTo({ top: 0, behavior: 'instant' })")
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)
            picture.save(ROOT / "docs" / f"console-{scheme}.png", optimize=True)


def go_on(service: Service, done: threading.Event) -> None:
    """Crawl on, so that numbers move while they are looked at."""
    while not done.is_set():
        crawl(service, READS_A_TURN)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path("opic-data")  # As the pictures show it.
        with (
            contextlib.chdir(folder),
            running(data, Path(folder) / "serve.log", host_delay_seconds=0, revisit_seconds=0) as service,
        ):
            crawl(service, READS_BEFORE)
            with backend_of(service, shards=1) as backend:
                backend.accept(BAD)
            done = threading.Event()
            crawler = threading.Thread(target=go_on, args=(service, done))
            crawler.start()
            try:
                draw(service)
            finally:
                done.set()
                crawler.join()


if __name__ == "__main__":
    main()
