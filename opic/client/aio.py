"""The client for asyncio. `make client` writes sync.py from this file: the same, without `await`."""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying

from opic.client import answers, calls
from opic.client.errors import CallFailed, ClientError, EventsRejected, SeedsRejected

T = TypeVar("T")


class AsyncClient:
    """A client of one service. Threads may share a `Client`, tasks an `AsyncClient`.

    Calls are retried if there is no answer, or the answer is a 503: after the Retry-After of the answer plus a random
    wait that doubles, for up to `retry_seconds`. Events sent with `once=False` are never retried, since they could
    take effect twice. All other errors are raised at once.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        crawler: str = "",
        timeout_seconds: float = calls.ANSWER_SECONDS,
        retry_seconds: float | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Create a client. Connections are opened when the first call needs them.

        Args:
            url: base URL of the service.
            token: the service's OPIC_API_TOKEN.
            crawler: name of this crawler, which holds the leases.
            timeout_seconds: timeout of an answer; the timeout of a connection is at most 5 s.
            retry_seconds: how long to retry a call; 0 disables retries. If None, 60 s; but 5 s until the service has
                answered this client for the first time, so that a wrong address fails soon.
            verify: TLS certificates to trust; passed to httpx.
            transport: an httpx transport to use instead of the default one.
        """
        self._crawler, self._endpoint = crawler, calls.Endpoint(url, retry_seconds)
        timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, calls.CONNECT_SECONDS))
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, verify=verify, transport=transport
        )

    async def __aenter__(self) -> "AsyncClient":
        """Return the client. Leaving the context closes its connections."""
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self._http.__aexit__(kind, error, at)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def event(
        self, url: str, links: Iterable[str] = (), *, once: bool = True, raise_rejected: bool = True, **fields: Any
    ) -> answers.Accepted:
        """Report a fetched page. When this returns, the event is durable.

        Args:
            url: URL of the page.
            links: absolute URLs of its out-links.
            once: send an Idempotency-Key, so that the event takes effect once even if the call is retried.
            raise_rejected: as in `events`.
            fields: other fields of `Event`: status, redirect, excluded, fetched_at, tags, depth, meta, give_up,
                retry_after, not_before, priority.

        Raises:
            EventsRejected: the event is invalid.
        """
        event = {"crawler": self._crawler or None, **fields, "url": url, "links": calls.texts(links)}
        given = {name: value for name, value in event.items() if value is not None}
        return await self.events([given], once=once, raise_rejected=raise_rejected)

    async def events(
        self,
        events: calls.Events,
        *,
        form: calls.Form = "msgpack",
        once: bool = True,
        key: str | None = None,
        raise_rejected: bool = True,
    ) -> answers.Accepted:
        """Report fetched pages in one call. Batches of a few hundred are ten times as fast as single events.

        Args:
            events: `Event`s, mappings with the same fields, or `msgspec.Raw`s that are encoded in `form` already.
            form: encoding: an array in MessagePack or JSON, or JSON Lines.
            once: as in `event`. The service keeps about 10^6 keys, each for a day, so send events in batches.
            key: the Idempotency-Key to send; set it to repeat an earlier call. A random one if None.
            raise_rejected: raise if an event is rejected; if False, the answer lists the rejected ones.

        Returns:
            The number of accepted events, which are durable, and the rejected ones.

        Raises:
            EventsRejected: some events are invalid; the others are accepted all the same.
        """
        answer = await self._do(calls.events(calls.encoded(events, form), form, once=once, key=key))
        if raise_rejected and answer.rejected:
            raise EventsRejected(answer)
        return answer

    async def seed(
        self,
        urls: Iterable[str],
        *,
        depth: int = 0,
        meta: Mapping[str, str] | None = None,
        trust: float | None = None,
        not_before: float | str | None = None,
        priority: float | None = None,
        raise_rejected: bool = True,
    ) -> answers.Seeded:
        """Add seed pages. After a retry, pages added by the first attempt count as known.

        Args:
            urls: URLs of the pages.
            depth: depth of the pages; the smallest depth seen is kept.
            meta: strings to keep with each page, replacing those it had; `next` returns them.
            trust: weight of each page among the trusted pages of `coverage`; 0 takes its trust away.
            not_before: Unix seconds or RFC 3339; the pages are not offered before.
            priority: factor on the key of each page in the order of `next`; 1 if none was ever given.
            raise_rejected: raise if a seed is rejected; if False, the answer lists the rejected ones.

        Raises:
            SeedsRejected: some seeds are no URLs of pages; the others were added all the same.
        """
        said = {"meta": meta, "trust": trust, "not_before": not_before, "priority": priority}
        answer = await self._do(calls.post("/v1/seeds", answers.Seeded, urls=calls.texts(urls), depth=depth, **said))
        if raise_rejected and answer.rejected:
            raise SeedsRejected(answer)
        return answer

    async def forget(
        self,
        *,
        url: str | None = None,
        prefix: str | None = None,
        host: str | None = None,
        domain: str | None = None,
    ) -> answers.Forgotten:
        """Forget pages, with their links and metadata; repeat it while the answer has `more`. Give one argument.

        Args:
            url: a page,
            prefix: or all pages whose URLs begin so,
            host: or those of a host,
            domain: or those of a host or domain, including subdomains.
        """
        chosen = {"url": url, "prefix": prefix, "host": host, "domain": domain}
        return await self._do(calls.get("/v1/pages", answers.Forgotten, "DELETE", **chosen))

    async def canonical(self, url: str) -> answers.CanonicalUrl:
        """Return the canonical form of a URL, by the normalization rules of the crawl."""
        return await self._do(calls.get("/v1/canonical", answers.CanonicalUrl, url=url))

    async def next(
        self,
        n: int = 10,
        *,
        lease_seconds: float | None = None,
        domain: str | None = None,
        domains: Iterable[str] = (),
        mode: answers.Mode | None = None,
        policy: answers.NextPolicy | None = None,
        max_depth: int | None = None,
        busy_hosts: Iterable[str] = (),
        crawl_delays: Mapping[str, float] | None = None,
    ) -> answers.NextPages:
        """Lease the pages to fetch next, best first. No other crawler gets them until their leases end.

        If an answer is lost and the call is retried, the pages in the lost answer become available again when their
        leases expire.

        Args:
            n: maximum number of pages.
            lease_seconds: duration of the leases; OPIC_LEASE_SECONDS if None.
            domain: only pages of this host or registered domain, including subdomains.
            domains: several of these, at most 100.
            mode: any page, only pages never read (discover), or only pages read before (refresh).
            policy: with mode refresh, a recrawl policy: U, OR, YR, YRU or LDU. Pages are then drawn at random, most
                often those whose reads have discovered most. With mode discover, GAI (most in-links first) or AI (drawn
                in proportion to in-links). LDU, GAI and AI need kept links (not OPIC_KEEP_LINKS=off).
            max_depth: only pages at most this many links from a seed.
            busy_hosts: hosts to skip.
            crawl_delays: seconds between two fetches that robots.txt of hosts asks for. The service stores them, and
                applies those that are longer than its own delay; 0 removes one.
        """
        hosts = {"domains": calls.texts(domains), "busy_hosts": calls.texts(busy_hosts), "crawl_delays": crawl_delays}
        asked = {
            "lease_seconds": lease_seconds,
            "domain": domain,
            "mode": mode,
            "policy": policy,
            "max_depth": max_depth,
        }
        given = {name: value for name, value in hosts.items() if value}
        return await self._do(calls.post("/v1/next", answers.NextPages, n=n, crawler=self._crawler, **given, **asked))

    async def frontier(
        self, n: int | None = None, *, domain: str | None = None, mode: answers.Mode | None = None
    ) -> answers.Frontier:
        """Return the pages that would be handed out next, 10 if `n` is None, without leasing them."""
        return await self._do(calls.get("/v1/frontier", answers.Frontier, n=n, domain=domain, mode=mode))

    async def release(self, leases: Iterable[str | answers.Page]) -> answers.Released:
        """Release leases on pages that will not be fetched."""
        return await self._do(calls.post("/v1/release", answers.Released, leases=calls.names(leases)))

    async def renew(
        self, leases: Iterable[str | answers.Page], *, lease_seconds: float | None = None
    ) -> answers.Renewed:
        """Let leases run for `lease_seconds` from now; OPIC_LEASE_SECONDS if None. Do it before they expire."""
        asked = {"leases": calls.names(leases), "lease_seconds": lease_seconds}
        return await self._do(calls.post("/v1/leases/renew", answers.Renewed, **asked))

    async def importance(
        self, url: str, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Importance:
        """Return the importance of a page.

        Raises:
            NotFound: the page was never seen.
        """
        return await self._do(calls.get("/v1/importance", answers.Importance, url=url, policy=policy, window=window))

    async def importances(
        self, urls: Iterable[str], *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Importances:
        """Return the importance of pages, in the order of `urls`. The importance of a page never seen is None."""
        asked = {"urls": calls.texts(urls), "policy": policy, "window": window}
        return await self._do(calls.post("/v1/importance", answers.Importances, **asked))

    async def top(
        self,
        n: int | None = None,
        *,
        domain: str | None = None,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
        by: answers.TopBy | None = None,
        after: str | None = None,
    ) -> answers.Top:
        """Return the `n` most important pages, 100 if `n` is None; with `by="inlinks"` those most pages link to.

        `after` is the `next` of the answer before: the list goes on there.
        """
        asked = {"n": n, "domain": domain, "policy": policy, "window": window, "by": by, "after": after}
        return await self._do(calls.get("/v1/top", answers.Top, **asked))

    async def hosts(
        self,
        n: int | None = None,
        *,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
    ) -> answers.Hosts:
        """Return the `n` most important hosts; 100 if `n` is None."""
        return await self._do(calls.get("/v1/hosts", answers.Hosts, n=n, policy=policy, window=window))

    async def domains(
        self,
        n: int | None = None,
        *,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
    ) -> answers.SiteDomains:
        """Return the `n` most important registered domains; 100 if `n` is None."""
        return await self._do(calls.get("/v1/domains", answers.SiteDomains, n=n, policy=policy, window=window))

    async def history(self, url: str) -> answers.History:
        """Return the last reads of a page, oldest first."""
        return await self._do(calls.get("/v1/history", answers.History, url=url))

    async def explain(
        self, url: str, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Explanation:
        """Explain the score of a page, and whether it is handed out next.

        Raises:
            NotFound: the page was never seen.
        """
        return await self._do(calls.get("/v1/explain", answers.Explanation, url=url, policy=policy, window=window))

    async def search(
        self, text: str, n: int | None = None, *, domain: str | None = None, after: str | None = None
    ) -> answers.Search:
        """Find the `n` most important pages (20 if None) by a part of their URL. To look on, pass `next` as `after`."""
        return await self._do(calls.get("/v1/search", answers.Search, text=text, n=n, domain=domain, after=after))

    async def inflow(
        self,
        domain: str | None = None,
        *,
        host: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        n: int | None = None,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
    ) -> answers.Inflows:
        """Return the in-flow from outside of the pages of a registered domain, of a host, or of a URL prefix.

        To get more pages, pass `next` as `after`. Where no links are kept, the service refuses a prefix, a window and
        every `policy` but static, and tells bounds for a host.
        """
        asked = {"host": host, "prefix": prefix, "after": after, "n": n, "policy": policy, "window": window}
        return await self._do(calls.get("/v1/inflow", answers.Inflows, domain=domain, **asked))

    async def inflows(
        self, urls: Iterable[str], *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> answers.Inflows:
        """Return what comes to the pages of a list from all other pages, in the order of `urls`.

        Pages that are gone or were never seen are in `missing` instead. Not with OPIC_KEEP_LINKS=off at the service.
        """
        asked = {"urls": calls.texts(urls), "policy": policy, "window": window}
        return await self._do(calls.post("/v1/inflow", answers.Inflows, **asked))

    async def inlinks(self, url: str, n: int | None = None) -> answers.Inlinks:
        """Return up to `n` pages (100 if None) that were read and link to a page; not with OPIC_KEEP_LINKS=off.

        Raises:
            NotFound: the page was never seen.
            Conflict: the service keeps no links.
        """
        return await self._do(calls.get("/v1/inlinks", answers.Inlinks, url=url, n=n))

    async def coverage(self, target: float | None = None, delta: float | None = None) -> answers.Coverage:
        """Return the share of personalized PageRank that the fetched pages are guaranteed to hold.

        Args:
            target: a coverage, such as 0.98: the answer then says how many more fetches it is expected to need.
            delta: the share of all trust, less than 1, that is on pages other than the trusted ones; 0 if None.
        """
        return await self._do(calls.get("/v1/coverage", answers.Coverage, target=target, delta=delta))

    async def local(self, domain: str, n: int | None = None) -> answers.LocalRanking:
        """Return the first `n` pages (100 if None) of the last list from the domain's estimator.

        Raises:
            NotFound: no estimator sent a list of this domain.
        """
        return await self._do(calls.get(calls.local_path(domain), answers.LocalRanking, n=n))

    async def local_domains(self) -> answers.LocalDomains:
        """Return the local domains that have a ranked list, newest first."""
        return await self._do(calls.get("/v1/local", answers.LocalDomains))

    async def put_local(
        self,
        domain: str,
        pages: Iterable[Mapping[str, Any]],
        *,
        outside_fetched: int,
        method: str,
        service_coverage: float,
        as_of: float,
        changes: Iterable[Mapping[str, float]] = (),
    ) -> answers.LocalListKept:
        """Replace the ranked list of a local domain. Estimators make this call.

        Args:
            domain: the host or registered domain.
            pages: its pages, descending, each with `url` and `importance`.
            outside_fetched: number of pages outside the domain that were fetched.
            method: how the importance was estimated.
            service_coverage: share of the importance outside the domain that is on pages the service has read.
            as_of: Unix seconds of the list.
            changes: of each round, `outside_fetched` and `change`: how far it moved the ranking, as an L1 distance.
        """
        counts = {"outside_fetched": outside_fetched, "service_coverage": service_coverage, "as_of": as_of}
        lists = {"pages": list(pages), "changes": list(changes)}
        body = {**lists, "method": method, **counts}
        return await self._do(calls.post(calls.local_path(domain), answers.LocalListKept, "PUT", **body))

    async def audit(self) -> answers.Audit:
        """Recount the books of the service."""
        return await self._do(calls.get("/v1/audit", answers.Audit))

    async def stats(self) -> answers.Stats:
        """Return the counts of the service."""
        return await self._do(calls.get("/v1/stats", answers.Stats))

    async def classes(self) -> answers.Classes:
        """Return the current classes of pages."""
        return await self._do(calls.get("/v1/classes", answers.Classes))

    async def define_classes(
        self, classes: Sequence[answers.PageClass | Mapping[str, Any]], *, if_version: str | None = None
    ) -> answers.Classes:
        """Replace the classes of pages; with `if_version`, only if they are of this version.

        Raises:
            CallFailed: with status 412, they are of another version.
        """
        return await self._do(calls.change("PUT", "/v1/classes", answers.Classes, if_version, classes=list(classes)))

    async def change_classes(
        self,
        classes: Sequence[answers.PageClass | Mapping[str, Any]] = (),
        *,
        remove: Sequence[str] = (),
        if_version: str | None = None,
    ) -> answers.Classes:
        """Set some classes of pages and remove others by name; all others stay as they are."""
        body = {"classes": list(classes), "remove": calls.texts(remove)}
        return await self._do(calls.change("PATCH", "/v1/classes", answers.Classes, if_version, **body))

    async def rules(self) -> answers.Rules:
        """Return the URL rules and the thresholds of trap detection."""
        return await self._do(calls.get("/v1/rules", answers.Rules))

    async def set_rules(
        self,
        rules: Sequence[answers.Rule | Mapping[str, Any]] = (),
        *,
        traps: Mapping[str, Any] | None = None,
        if_version: str | None = None,
    ) -> answers.Rules:
        """Replace the URL rules and the thresholds of trap detection.

        Args:
            rules: in order: the first that matches a URL decides. Without rules all URLs are allowed.
            traps: thresholds by name; those left out get their defaults.
            if_version: change only rules of this version; others are an error with status 412.
        """
        body = {"rules": list(rules), "traps": traps}
        return await self._do(calls.change("PUT", "/v1/rules", answers.Rules, if_version, **body))

    async def change_rules(
        self,
        add: Sequence[answers.Rule | Mapping[str, Any]] = (),
        *,
        remove: Sequence[answers.Rule | Mapping[str, Any]] = (),
        first: bool = False,
        traps: Mapping[str, Any] | None = None,
        if_version: str | None = None,
    ) -> answers.Rules:
        """Add and remove some URL rules, set some thresholds; all others stay as they are.

        Args:
            add: rules that come after the others, or before them with `first`.
            remove: rules as they are shown.
            first: whether the added rules come before the others.
            traps: thresholds by name.
            if_version: change only rules of this version; others are an error with status 412.
        """
        body = {"add": list(add), "remove": list(remove), "first": first, "traps": traps}
        return await self._do(calls.change("PATCH", "/v1/rules", answers.Rules, if_version, **body))

    async def politeness(self) -> answers.Politeness:
        """Return the default host delay and cap, and those set for individual hosts."""
        return await self._do(calls.get("/v1/politeness", answers.Politeness))

    async def set_politeness(self, hosts: Mapping[str, answers.HostManners | Mapping[str, Any]]) -> answers.Politeness:
        """Replace the delays and caps of individual hosts; all other hosts have the default ones."""
        return await self._do(calls.post("/v1/politeness", answers.Politeness, "PUT", hosts=dict(hosts)))

    async def series(self, n: int | None = None) -> answers.Series:
        """Return the progress of the crawl in about `n` entries, 400 if it is None."""
        return await self._do(calls.get("/v1/series", answers.Series, n=n))

    async def dead_letters(self, n: int | None = None) -> answers.DeadLetters:
        """Return the newest events that were refused for good, and why; 20 if `n` is None."""
        return await self._do(calls.get("/v1/dead-letters", answers.DeadLetters, n=n))

    async def metrics(self) -> str:
        """Return the service's metrics, in the text format of Prometheus."""
        return await self._do(calls.get("/metrics", str))

    async def alive(self) -> bool:
        """Return whether the process answers. Not retried."""
        try:
            await self._do(calls.Call("GET", "/healthz", dict[str, Any], again=False))
        except ClientError:
            return False
        return True

    async def ready(self) -> answers.Ready:
        """Return whether the service is ready for requests, and if not, why. Not retried."""
        try:
            await self._do(calls.Call("GET", "/readyz", dict[str, Any], again=False))
        except CallFailed as error:
            return answers.Ready(False, error.detail)
        except ClientError as error:
            return answers.Ready(False, str(error))
        return answers.Ready(True)

    async def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make a call by its path and return its JSON unchanged.

        Args:
            method: of HTTP.
            path: like /v1/top.
            parameters: of the query.
            body: sent as JSON.
        """
        return await self._do(calls.by_path(method, path, parameters or {}, body))

    async def _do(self, call: calls.Call[T]) -> T:
        async def once() -> T:
            try:
                response = await self._http.request(**call.request())
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._endpoint.no_answer(call, error) from error
            return self._endpoint.read(call, response)

        return await AsyncRetrying(**self._endpoint.retrying(call))(once)
