"""Methods that run a crawl: feed it, take pages from it, and define what it does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opic.client import answers, calls
from opic.client.calls import Call
from opic.client.errors import SeedsRejected
from opic.client.host_pace import HostPace
from opic.client.methods import Method


class CrawlMethods:
    """Methods that run a crawl: feed it, take pages from it, and define what it does."""

    crawler: str
    pace: HostPace

    @Method
    def event(
        self, /, url: str, links: Iterable[str] = (), *, once: bool = True, raise_rejected: bool = True, **fields: Any
    ) -> Call[answers.Accepted]:
        """Report a fetched page. When this returns, the event is durable.

        With status 429 or 503 and `retry_after`, the host rests for so long: `next` of this client passes it over.

        Args:
            url: URL of the page.
            links: absolute URLs of its out-links.
            once: send an Idempotency-Key, so that the event takes effect once even if the call is retried.
            raise_rejected: as in `events`.
            fields: other fields of `Event`: status, redirect, excluded, fetched_at, tags, depth, meta, give_up,
                retry_after, not_before, priority, addresses.

        Raises:
            EventsRejected: the event is invalid.
        """
        event = {"crawler": self.crawler or None, **fields, "url": url, "links": calls.texts(links)}
        given = {name: value for name, value in event.items() if value is not None}
        return calls.events([given], once=once, raise_rejected=raise_rejected, pace=self.pace)

    @Method
    def events(
        self,
        events: calls.Events,
        *,
        form: calls.Form = "msgpack",
        once: bool = True,
        key: str | None = None,
        raise_rejected: bool = True,
    ) -> Call[answers.Accepted]:
        """Report fetched pages in one call. Batches of a few hundred are ten times as fast as single events.

        Hosts rest as in `event`, but for events that are encoded already.

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
        return calls.events(events, form, once=once, key=key, raise_rejected=raise_rejected, pace=self.pace)

    @Method
    def seed(
        self,
        urls: Iterable[str],
        *,
        depth: int = 0,
        meta: Mapping[str, str] | None = None,
        trust: float | None = None,
        not_before: float | str | None = None,
        priority: float | None = None,
        raise_rejected: bool = True,
    ) -> Call[answers.Seeded]:
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
        call = calls.post("/v1/seeds", answers.Seeded, urls=calls.texts(urls), depth=depth, **said)
        return replace(call, rejected=SeedsRejected) if raise_rejected else call

    @Method
    def make_crawl(self, /, name: str, **rules: float | str | bool) -> Call[answers.CrawlMade]:
        """Make a crawl, or check that the one that is there has these rules.

        Args:
            name: its name.
            rules: those that can't be changed later: damping, virtual, regrant, history_measures, normalize, inflow,
                shards; those left out are the service's settings.

        Raises:
            CallFailed: it is there, with other rules.
        """
        return calls.post(calls.crawl_path(name), answers.CrawlMade, "PUT", **rules)

    @Method
    def remove_crawl(self, name: str) -> Call[answers.CrawlRemoved]:
        """Remove a crawl with all its data. Not retried: where it took effect, a second attempt finds no crawl.

        Raises:
            CallFailed: there is none, or its worker runs elsewhere.
        """
        call = calls.get(calls.crawl_path(name), answers.CrawlRemoved, "DELETE", confirm=name)
        return replace(call, again=False)

    @Method
    def forget(
        self,
        *,
        url: str | None = None,
        prefix: str | None = None,
        host: str | None = None,
        domain: str | None = None,
        expired: bool = False,
        dry_run: bool = False,
    ) -> Call[answers.Forgotten]:
        """Forget pages, with their links and metadata; repeat it while the answer has `more`.

        Give one of the first five arguments.

        Args:
            url: a page,
            prefix: or all pages whose URLs begin so,
            host: or those of a host,
            domain: or those of a host or domain, including subdomains,
            expired: or those that the rule of OPIC_EXPIRE_BELOW would forget now.
            dry_run: forget nothing, and tell in `would_forget` how many pages it would be.
        """
        flags = {name: True for name, given in (("expired", expired), ("dry_run", dry_run)) if given}
        chosen = {"url": url, "prefix": prefix, "host": host, "domain": domain, **flags}
        return calls.get("/v1/pages", answers.Forgotten, "DELETE", **chosen)

    @Method
    def canonical(self, url: str) -> Call[answers.CanonicalUrl]:
        """Return the canonical form of a URL, by the normalization rules of the crawl."""
        return calls.get("/v1/canonical", answers.CanonicalUrl, url=url)

    @Method
    def next(
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
    ) -> Call[answers.NextPages]:
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
            busy_hosts: hosts to skip, besides those that rest.
            crawl_delays: seconds between two fetches that robots.txt of hosts asks for. The service stores them, and
                applies those that are longer than its own delay; 0 removes one.
        """
        busy = list(dict.fromkeys([*calls.texts(busy_hosts), *self.pace.resting()]))
        hosts = {"domains": calls.texts(domains), "busy_hosts": busy, "crawl_delays": crawl_delays}
        given = {name: value for name, value in hosts.items() if value}
        which = {"domain": domain, "mode": mode, "policy": policy, "max_depth": max_depth}
        asked = {"n": n, "crawler": self.crawler, "lease_seconds": lease_seconds, **which, **given}
        return calls.post("/v1/next", answers.NextPages, **asked)

    @Method
    def frontier(
        self, n: int | None = None, *, domain: str | None = None, mode: answers.Mode | None = None
    ) -> Call[answers.FrontierPreview]:
        """Return the pages that would be handed out next, 10 if `n` is None, without leasing them."""
        return calls.get("/v1/frontier", answers.FrontierPreview, n=n, domain=domain, mode=mode)

    @Method
    def release(self, leases: Iterable[str | answers.Page]) -> Call[answers.Released]:
        """Release leases on pages that will not be fetched."""
        return calls.post("/v1/release", answers.Released, leases=calls.names(leases))

    @Method
    def renew(
        self, leases: Iterable[str | answers.Page], *, lease_seconds: float | None = None
    ) -> Call[answers.Renewed]:
        """Let leases run for `lease_seconds` from now; OPIC_LEASE_SECONDS if None. Do it before they expire."""
        asked = {"leases": calls.names(leases), "lease_seconds": lease_seconds}
        return calls.post("/v1/leases/renew", answers.Renewed, **asked)

    @Method
    def coverage(self, target: float | None = None, delta: float | None = None) -> Call[answers.Coverage]:
        """Return the share of personalized PageRank that the fetched pages are guaranteed to hold.

        Args:
            target: a coverage, such as 0.98: the answer then says how many more fetches it is expected to need.
            delta: the share of all trust, less than 1, that is on pages other than the trusted ones; 0 if None.
        """
        return calls.get("/v1/coverage", answers.Coverage, target=target, delta=delta)

    @Method
    def classes(self) -> Call[answers.Classes]:
        """Return the current classes of pages."""
        return calls.get("/v1/classes", answers.Classes)

    @Method
    def define_classes(
        self, classes: Sequence[answers.PageClass | Mapping[str, Any]], *, if_version: str | None = None
    ) -> Call[answers.Classes]:
        """Replace the classes of pages; with `if_version`, only if they are of this version.

        Raises:
            CallFailed: with status 412, they are of another version.
        """
        return calls.change("PUT", "/v1/classes", answers.Classes, if_version, classes=list(classes))

    @Method
    def change_classes(
        self,
        classes: Sequence[answers.PageClass | Mapping[str, Any]] = (),
        *,
        remove: Sequence[str] = (),
        if_version: str | None = None,
    ) -> Call[answers.Classes]:
        """Set some classes of pages and remove others by name; all others stay as they are."""
        body = {"classes": list(classes), "remove": calls.texts(remove)}
        return calls.change("PATCH", "/v1/classes", answers.Classes, if_version, **body)

    @Method
    def rules(self) -> Call[answers.Rules]:
        """Return the URL rules and the thresholds of trap detection."""
        return calls.get("/v1/rules", answers.Rules)

    @Method
    def set_rules(
        self,
        rules: Sequence[answers.Rule | Mapping[str, Any]] = (),
        *,
        traps: Mapping[str, Any] | None = None,
        if_version: str | None = None,
    ) -> Call[answers.Rules]:
        """Replace the URL rules and the thresholds of trap detection.

        Args:
            rules: in order: the first that matches a URL decides. Without rules all URLs are allowed.
            traps: thresholds by name; those left out get their defaults.
            if_version: change only rules of this version; others are an error with status 412.
        """
        body = {"rules": list(rules), "traps": traps}
        return calls.change("PUT", "/v1/rules", answers.Rules, if_version, **body)

    @Method
    def change_rules(
        self,
        add: Sequence[answers.Rule | Mapping[str, Any]] = (),
        *,
        remove: Sequence[answers.Rule | Mapping[str, Any]] = (),
        first: bool = False,
        traps: Mapping[str, Any] | None = None,
        if_version: str | None = None,
    ) -> Call[answers.Rules]:
        """Add and remove some URL rules, set some thresholds; all others stay as they are.

        Args:
            add: rules that come after the others, or before them with `first`.
            remove: rules as they are shown.
            first: whether the added rules come before the others.
            traps: thresholds by name.
            if_version: change only rules of this version; others are an error with status 412.
        """
        body = {"add": list(add), "remove": list(remove), "first": first, "traps": traps}
        return calls.change("PATCH", "/v1/rules", answers.Rules, if_version, **body)

    @Method
    def politeness(self, *, host: str | None = None) -> Call[answers.Politeness]:
        """Return the default host delay and cap, and those set for individual hosts.

        Args:
            host: whose address, and group of hosts that share its delay, are wanted too.
        """
        return calls.get("/v1/politeness", answers.Politeness, host=host)

    @Method
    def set_politeness(
        self, hosts: Mapping[str, answers.HostPoliteness | Mapping[str, Any]]
    ) -> Call[answers.Politeness]:
        """Replace the delays and caps of individual hosts; all other hosts have the default ones."""
        return calls.post("/v1/politeness", answers.Politeness, "PUT", hosts=dict(hosts))
