"""HTTP request handlers for the crawls themselves, and calls on other crawls than OPIC_CRAWL."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from opic.api import bodies, queries
from opic.api.access import TOKEN
from opic.api.problems import Json
from opic.api.router import Answer, Routes
from opic.errors import BadInput, SettingsError, StoreError
from opic.service.backend import Backend
from opic.service.open_crawls import OpenCrawls
from opic.service.tokens import Token
from opic.settings import check_regrant
from opic.urls.canonical import shown

INTERFACE: Final = "http"


class CrawlCalls:
    """The request handlers: crawls are listed, made and removed."""

    def __init__(self, crawls: OpenCrawls) -> None:
        self._crawls, self._settings = crawls, crawls.first.backend.settings

    def get_crawls(self, request: Request, _: queries.Nothing) -> Answer:
        """Return the crawls of the store that the token is for."""
        token: Token | None = request.scope.get(TOKEN)
        stored = self._crawls.stored()
        if token is not None:
            stored = [crawl for crawl in stored if token.is_for(self._crawls.names_of(crawl.name))]
        names = {name for opened in (self._crawls.first, *self._crawls.opened) for name in opened.names}
        crawls = [{**crawl.told(), "open": crawl.name in names} for crawl in stored]
        return {"crawls": crawls, "default": self._crawls.first.name}

    async def put_crawl(self, crawl: str, asked: bodies.NewCrawl) -> Response:
        """Make a crawl, and open it. One that is there already is compared with the rules given.

        The answer is 201 if it was made, 200 if it was there with these rules, 409 if it has others. Rules that are
        left out are those of the endpoint's settings. The rules can't be changed later. `worker` says whether the
        service runs its worker, or an operator has to start one.
        """
        given = {name: value for name, value in asdict(asked).items() if value is not UNSET}
        try:
            check_regrant(float(given.get("regrant", 0)))
            rules = self._settings.model_copy(update=given).rules_given(given)
        except SettingsError as error:
            raise BadInput(str(error)) from None
        made = await self._crawls.make(crawl, rules)
        starts = self._crawls.starts_workers or self._crawls.is_first(crawl)
        topic = {}
        if self._settings.kafka_bootstrap is not None:
            topic["topic"] = (await self._crawls.crawl(crawl)).backend.settings.kafka_topic
        worker = "of the service" if starts else f"start one: OPIC_CRAWL={crawl} opic worker"
        return Json({"name": crawl, "made": made, "worker": worker, **topic}, 201 if made else 200)

    async def delete_crawl(self, crawl: str, asked: queries.CrawlToRemove) -> Response:
        """Remove a crawl with all its data: pages, books, links, classes, rules, leases, dead letters.

        Its worker ends first where the service runs it; elsewhere stop it before: until then the answer is 409.
        Calls on the crawl that are being answered end with 404. The name can be used again. With Kafka its topics stay.
        """
        if asked.confirm != crawl:
            raise BadInput(f"confirm={shown(asked.confirm)} is not the name of the crawl to remove")
        return Json({"deleted": crawl, "keys_removed": await self._crawls.remove(crawl)})


class OtherCrawls:
    """Answers calls on other crawls than OPIC_CRAWL: each has routes of its own while it is open."""

    def __init__(self, crawls: OpenCrawls, routes_for: Callable[[Backend, Callable[[int], None]], Routes]) -> None:
        """Answer none yet.

        Args:
            crawls: the open crawls.
            routes_for: makes the routes of a crawl; it is given a function that counts pages handed out.
        """
        self._crawls, self._routes_for = crawls, routes_for

    def is_own(self, crawl: str) -> bool:
        """Return whether OPIC_CRAWL is meant, whose routes the application has."""
        return self._crawls.is_first(crawl)

    async def answer(self, crawl: str, path: str, request: Request) -> Response:
        """Answer a call on a crawl that is not OPIC_CRAWL; `path` is that of the call without the crawl.

        Raises:
            NoSuchCrawl: there is none, or it was removed in the meantime.
            Problem: the call's own.
            OpicError: the call's own.
        """
        opened = await self._crawls.crawl(crawl)
        kept: tuple[Backend, Routes] | None = opened.handlers.get(INTERFACE)
        if kept is None or kept[0] is not opened.backend:

            def handed(pages: int) -> None:
                opened.suggestions += pages

            kept = opened.handlers[INTERFACE] = opened.backend, self._routes_for(opened.backend, handed)
        matched = kept[1].find(path)
        assert matched is not None
        handler: Callable[[Request], Awaitable[Response]] = matched.by_method[request.method].handler
        try:
            return await handler(request)
        except StoreError:
            await self._crawls.check_there(crawl)
            raise
