"""Methods that ask about a crawl: importance and its reasons, ranked lists, the state of the service."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from opic.client import answers, calls
from opic.client.calls import Call
from opic.client.methods import Method


class QueryMethods:
    """Methods that ask about a crawl: importance and its reasons, ranked lists, the state of the service."""

    @Method
    def importance(
        self, url: str, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.Importance]:
        """Return the importance of a page.

        Raises:
            NotFound: the page was never seen.
        """
        return calls.get("/v1/importance", answers.Importance, url=url, policy=policy, window=window)

    @Method
    def importances(
        self, urls: Iterable[str], *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.Importances]:
        """Return the importance of pages, in the order of `urls`. The importance of a page never seen is None."""
        asked = {"urls": calls.texts(urls), "policy": policy, "window": window}
        return calls.post("/v1/importance", answers.Importances, **asked)

    @Method
    def top(
        self,
        n: int | None = None,
        *,
        domain: str | None = None,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
        by: answers.TopBy | None = None,
        state: answers.TopState | None = None,
        after: str | None = None,
    ) -> Call[answers.Top]:
        """Return the `n` most important pages, 100 if `n` is None; with `by="inlinks"` those most pages link to.

        `after` is the `next` of the answer before: the list goes on there.
        """
        asked = {"n": n, "domain": domain, "policy": policy, "window": window, "by": by}
        asked |= {"state": state, "after": after}
        return calls.get("/v1/top", answers.Top, **asked)

    @Method
    def hosts(
        self, n: int | None = None, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.Hosts]:
        """Return the `n` most important hosts; 100 if `n` is None."""
        return calls.get("/v1/hosts", answers.Hosts, n=n, policy=policy, window=window)

    @Method
    def domains(
        self, n: int | None = None, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.SiteDomains]:
        """Return the `n` most important registered domains; 100 if `n` is None."""
        return calls.get("/v1/domains", answers.SiteDomains, n=n, policy=policy, window=window)

    @Method
    def history(self, url: str) -> Call[answers.History]:
        """Return the last reads of a page, oldest first."""
        return calls.get("/v1/history", answers.History, url=url)

    @Method
    def explain(
        self, url: str, *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.Explanation]:
        """Explain the score of a page, and whether it is handed out next.

        Raises:
            NotFound: the page was never seen.
        """
        return calls.get("/v1/explain", answers.Explanation, url=url, policy=policy, window=window)

    @Method
    def search(
        self, text: str, n: int | None = None, *, domain: str | None = None, after: str | None = None
    ) -> Call[answers.Search]:
        """Find the `n` most important pages (20 if None) by a part of their URL. To look on, pass `next` as `after`."""
        return calls.get("/v1/search", answers.Search, text=text, n=n, domain=domain, after=after)

    @Method
    def inflow(
        self,
        domain: str | None = None,
        *,
        host: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        n: int | None = None,
        policy: answers.Policy | None = None,
        window: answers.Window | None = None,
    ) -> Call[answers.Inflows]:
        """Return the in-flow from outside of the pages of a registered domain, of a host, or of a URL prefix.

        To get more pages, pass `next` as `after`. Where no links are kept, the service refuses a prefix, a window and
        every `policy` but static, and tells bounds for a host.
        """
        asked = {"host": host, "prefix": prefix, "after": after, "n": n, "policy": policy, "window": window}
        return calls.get("/v1/inflow", answers.Inflows, domain=domain, **asked)

    @Method
    def inflows(
        self, urls: Iterable[str], *, policy: answers.Policy | None = None, window: answers.Window | None = None
    ) -> Call[answers.Inflows]:
        """Return what comes to the pages of a list from all other pages, in the order of `urls`.

        Pages that are gone or were never seen are in `missing` instead. Not with OPIC_KEEP_LINKS=off at the service.
        """
        asked = {"urls": calls.texts(urls), "policy": policy, "window": window}
        return calls.post("/v1/inflow", answers.Inflows, **asked)

    @Method
    def inlinks(self, url: str, n: int | None = None) -> Call[answers.Inlinks]:
        """Return up to `n` pages (100 if None) that were read and link to a page; not with OPIC_KEEP_LINKS=off.

        Raises:
            NotFound: the page was never seen.
            Conflict: the service keeps no links.
        """
        return calls.get("/v1/inlinks", answers.Inlinks, url=url, n=n)

    @Method
    def local(self, domain: str, n: int | None = None) -> Call[answers.LocalRanking]:
        """Return the first `n` pages (100 if None) of the last list from the domain's estimator.

        Raises:
            NotFound: no estimator sent a list of this domain.
        """
        return calls.get(calls.local_path(domain), answers.LocalRanking, n=n)

    @Method
    def local_domains(self) -> Call[answers.LocalDomains]:
        """Return the local domains that have a ranked list, newest first."""
        return calls.get("/v1/local", answers.LocalDomains)

    @Method
    def put_local(
        self,
        domain: str,
        pages: Iterable[Mapping[str, Any]],
        *,
        outside_fetched: int,
        method: str,
        service_coverage: float,
        as_of: float,
        changes: Iterable[Mapping[str, float]] = (),
    ) -> Call[answers.LocalListKept]:
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
        facts = {"outside_fetched": outside_fetched, "service_coverage": service_coverage, "as_of": as_of}
        body = {"pages": list(pages), "changes": list(changes), "method": method, **facts}
        return calls.post(calls.local_path(domain), answers.LocalListKept, "PUT", **body)

    @Method
    def audit(self) -> Call[answers.Audit]:
        """Recount the books of the service."""
        return calls.get("/v1/audit", answers.Audit)

    @Method
    def stats(self) -> Call[answers.Stats]:
        """Return the counts of the service."""
        return calls.get("/v1/stats", answers.Stats)

    @Method
    def crawls(self) -> Call[answers.CrawlList]:
        """Return the crawls of the service's store that the token is for."""
        return calls.get(calls.CRAWLS, answers.CrawlList)

    @Method
    def series(self, n: int | None = None) -> Call[answers.Series]:
        """Return the progress of the crawl in about `n` entries, 400 if it is None."""
        return calls.get("/v1/series", answers.Series, n=n)

    @Method
    def dead_letters(self, n: int | None = None) -> Call[answers.DeadLetters]:
        """Return the newest events that were refused for good, and why; 20 if `n` is None."""
        return calls.get("/v1/dead-letters", answers.DeadLetters, n=n)

    @Method
    def metrics(self) -> Call[str]:
        """Return the service's metrics, in the text format of Prometheus."""
        return calls.get("/metrics", str)

    @Method
    def alive(self) -> Call[bool]:
        """Return whether the process answers. Not retried."""
        return Call("GET", "/healthz", dict[str, Any], again=False, outcome=lambda error: error is None)

    @Method
    def ready(self) -> Call[answers.Ready]:
        """Return whether the service is ready for requests, and if not, why. Not retried."""
        return Call("GET", "/readyz", dict[str, Any], again=False, outcome=calls.readiness)

    @Method
    def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Call[dict[str, Any]]:
        """Make a call by its path and return its JSON unchanged.

        Args:
            method: of HTTP.
            path: like /v1/top.
            parameters: of the query.
            body: sent as JSON.
        """
        again = path != "/v1/events"  # These have no Idempotency-Key here.
        if body is None:
            return Call(method, path, dict[str, Any], again, parameters or {})
        call = calls.post(path, dict[str, Any], method, **body)
        return replace(call, again=again, parameters=parameters or {})
