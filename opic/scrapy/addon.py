"""The add-on: puts the scheduler and the middlewares into the settings of a project."""

from contextlib import suppress
from typing import Final

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from opic.errors import SettingsError
from opic.scrapy.middlewares import FailureEvents, HostPauses, PageBodies, PageEvents, RedirectEvents, RobotsTxt
from opic.scrapy.options import CrawlOptions
from opic.scrapy.scheduler import Scheduler

DOWNLOADER: Final = "DOWNLOADER_MIDDLEWARES"


class Addon:
    """What `ADDONS = {"opic.scrapy.Addon": 500}` enables."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Enable all parts of `opic.scrapy`.

        Raises:
            SettingsError: a setting of ours is invalid, or another scheduler is set.
        """
        CrawlOptions.of(settings)
        settings.set("SCHEDULER", Scheduler, "addon")
        if Scheduler not in load_object(settings["SCHEDULER"]).__mro__:  # To issubclass, all schedulers are alike.
            raise SettingsError(
                f"SCHEDULER={settings['SCHEDULER']!r} contradicts the add-on opic.scrapy.Addon: remove one of the two"
            )
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", PageEvents, 10)
        # Below the redirects (600), so that it sees what they follow; above all others that may still rescue a failure.
        settings.setdefault_in_component_priority_dict(DOWNLOADER, RedirectEvents, 610)
        # Between what decompresses (590) and what follows `<meta http-equiv=refresh>` (580).
        settings.setdefault_in_component_priority_dict(DOWNLOADER, PageBodies, 585)
        settings.setdefault_in_component_priority_dict(DOWNLOADER, FailureEvents, 50)
        settings.setdefault_in_component_priority_dict(DOWNLOADER, HostPauses, 1_000)
        chosen = {load_object(kind): priority for kind, priority in settings.getdict(DOWNLOADER).items()}
        if chosen.get(RobotsTxtMiddleware, 0) is not None:  # None: the project does without it.
            for name in (DOWNLOADER, f"{DOWNLOADER}_BASE"):
                with suppress(KeyError):  # It is in one of them, or replaced already.
                    settings.replace_in_component_priority_dict(name, RobotsTxtMiddleware, RobotsTxt)
