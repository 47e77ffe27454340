"""The settings of a Scrapy project that are ours."""

import os
import socket
from dataclasses import dataclass, fields
from typing import Final, Literal, cast

from scrapy.settings import BaseSettings

from opic.client.answers import Mode
from opic.errors import SettingsError, instead_of

MODES: Final = ("any", "discover", "refresh", "coverage")
CONCURRENCY_MAX: Final = 100  # Pages in flight where CONCURRENT_REQUESTS is 0, no limit.


@dataclass(frozen=True)
class CrawlOptions:
    """The settings, each named OPIC_ and the attribute in upper case; the others are Scrapy's own.

    Attributes:
        url: where the service answers.
        api_token: its OPIC_API_TOKEN.
        crawl: the crawl of the service; None is its OPIC_CRAWL.
        crawler: name of this process at the service.
        mode: which pages to ask for, as in POST /v1/next.
        lease_seconds: how long a page is this process's own; it is renewed while the page is worked on.
        close_after_idle: seconds without any page after which the spider closes; 0 is never.
        nofollow: count or drop links with rel=nofollow.
    """

    url: str
    api_token: str | None = None
    crawl: str | None = None
    crawler: str = ""
    mode: Mode = "discover"
    lease_seconds: float | None = None
    close_after_idle: float = 30.0
    nofollow: Literal["count", "drop"] = "count"

    @classmethod
    def of(cls, settings: BaseSettings) -> "CrawlOptions":
        """Read the settings of a crawl.

        Raises:
            SettingsError: one is missing, mistyped or out of range.
        """
        known = {f"OPIC_{field.name.upper()}": field.default for field in fields(cls)}
        for name in settings:
            if str(name).startswith("OPIC_") and name not in known:
                raise SettingsError(f"there is no setting {name}: {instead_of(str(name), known)}")
        if not settings.get("OPIC_URL"):
            raise SettingsError("OPIC_URL is not set: give it the URL that `opic serve` prints")
        mode, nofollow = settings.get("OPIC_MODE", cls.mode), settings.get("OPIC_NOFOLLOW", cls.nofollow)
        if mode not in MODES:
            raise SettingsError(f"OPIC_MODE={mode!r} is not one of {', '.join(MODES)}")
        if nofollow not in ("count", "drop"):
            raise SettingsError(f"OPIC_NOFOLLOW={nofollow!r} is neither count nor drop")
        own_name = f"{settings.get('BOT_NAME')}-{socket.gethostname()}-{os.getpid()}"
        return cls(
            url=str(settings.get("OPIC_URL")),
            api_token=settings.get("OPIC_API_TOKEN"),
            crawl=settings.get("OPIC_CRAWL") or None,
            crawler=str(settings.get("OPIC_CRAWLER") or own_name),
            mode=cast(Mode, mode),
            lease_seconds=_seconds(settings, "OPIC_LEASE_SECONDS") or None,
            close_after_idle=_seconds(settings, "OPIC_CLOSE_AFTER_IDLE", cls.close_after_idle),
            nofollow=nofollow,
        )


def _seconds(settings: BaseSettings, name: str, default: float = 0.0) -> float:
    given = settings.get(name)
    try:
        seconds = default if given is None else float(given)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise SettingsError(f"{name}={given!r} is no number of seconds, 0 or more")
    return seconds


def concurrency_of(settings: BaseSettings) -> int:
    """Return how many pages the downloader takes at once."""
    return settings.getint("CONCURRENT_REQUESTS") or CONCURRENCY_MAX
