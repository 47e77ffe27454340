"""A real browser for the tests: the machine's own Chromium, without a window."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright
from servers import Binary, Missing

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS_MAX = 20.0


def find_chromium() -> Binary | Missing:
    """Find the program, and ask its version."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        return Missing("chromium", "no chromium on the PATH; Debian: apt-get install chromium")
    said = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX, check=False
    ).stdout
    version = re.search(r"\d+[\d.]*", said)
    return Binary("chromium", path, version[0]) if version else Missing("chromium", f"{path} does not say its version")


@contextmanager
def running_browser(binary: Binary) -> Iterator[Browser]:
    """A browser that runs."""
    with sync_playwright() as playwright:
        # No sandbox: in a container, and for root, Chromium does not start with one.
        browser = playwright.chromium.launch(executable_path=binary.path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
