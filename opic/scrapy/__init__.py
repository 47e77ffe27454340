"""Scrapy crawls what the service says, and reports what it fetched.

    ADDONS = {"opic.scrapy.Addon": 500}
    OPIC_URL = "http://127.0.0.1:8080"

A request for a page is kept until the service hands that page out; each answer, redirect and failure becomes an event.
See docs/guide/scrapy.md.
"""

from opic.errors import MissingExtra

try:
    from opic.scrapy.addon import Addon
    from opic.scrapy.middlewares import FailureEvents, PageEvents, RedirectEvents, RobotsTxt
    from opic.scrapy.scheduler import Scheduler
except ModuleNotFoundError as error:
    raise MissingExtra(f"what opic.scrapy needs, such as {error.name},", "scrapy") from None

__all__ = ["Addon", "FailureEvents", "PageEvents", "RedirectEvents", "RobotsTxt", "Scheduler"]
