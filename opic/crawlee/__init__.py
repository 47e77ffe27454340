"""Crawlee crawls what the service says, and reports what it fetched.

    async with OpicRequestManager("http://127.0.0.1:8080") as manager:
        crawler = BeautifulSoupCrawler(request_manager=manager)
        attach(crawler)
        ...
        await crawler.run(["https://a.example/"])

A request for a page is kept until the service hands that page out. A page that is done, has failed for good or is
excluded by robots.txt becomes an event, with all its links. See docs/guide/crawlee.md.
"""

from typing import Any

from opic.errors import MissingExtra

try:
    import crawlee  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra(f"what opic.crawlee needs, such as {error.name},", "crawlee") from None

from opic.crawlee.manager import OpicRequestManager
from opic.html.media_types import MediaType

__all__ = ["OpicRequestManager", "attach"]


def attach(crawler: Any) -> None:
    """Have a crawler note what pages answer, for its `OpicRequestManager`: by one post-navigation hook.

    Args:
        crawler: an HTTP crawler of Crawlee (also BeautifulSoupCrawler, ParselCrawler), or a PlaywrightCrawler.
    """

    async def note(context: Any) -> None:
        manager = await crawler.get_request_manager()
        if not isinstance(manager, OpicRequestManager):
            raise TypeError("attach() is for a crawler with request_manager=OpicRequestManager(...)")
        url = context.request.loaded_url or context.request.url
        if (response := getattr(context, "http_response", None)) is not None:
            await manager.note(context.request, url, response.status_code, response.headers, await response.read())
        else:  # The page as the browser sees it; its text is decoded.
            response, kind = context.response, "text/plain"
            body = (await context.page.content()).encode("ascii", "xmlcharrefreplace")
            if MediaType.of(response.headers.get("content-type")).may_have_links:
                encoding = await context.page.evaluate("document.characterSet")  # Of queries.
                kind = f"text/html; charset={'utf-8' if encoding.startswith('UTF') else encoding}"
            headers = {**response.headers, "content-type": kind}
            served = None if context.proxy_info else await response.server_addr()  # Else it is that of the proxy.
            addresses = [served["ipAddress"].strip("[]")] if served else []
            await manager.note(context.request, context.page.url, response.status, headers, body, addresses)

    crawler.post_navigation_hook(note)
