"""The functions that lease pages do what a plain model does, for any calls, and exactly at the ends of times."""

from dataclasses import replace
from typing import Any

from example_counts import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from lease_model import MILLION, Fetch, LeaseModel
from lease_server import LeaseServer
from servers import Server

from opic.frontier import PolitenessSettings
from opic.frontier.leases import Quota

BEGIN_US = 1_700_000_000_000_000
PAGES = [(page, "ab"[page % 2] + ".org") for page in range(7)]
HOSTS = ("a.org", "b.org")
GROUPS = ("192.0.2.1", "[2001:db8::1]")
CRAWLERS = st.sampled_from([b"", b"crawlA", b"crawlB", b"crawlC", b"crawlD"])
RETRIES = st.sampled_from([0.0, 10.0, 10.0, 1e5])
WAITS_MAX = st.sampled_from([1, 3, 1_000, 1_000])
LEASE_SECONDS = st.sampled_from([1e-6, 1.0, 5.0, 60.0])
POLITENESS = st.builds(
    PolitenessSettings,
    retry_seconds=RETRIES,
    host_delay_seconds=st.sampled_from([0.0, 0.0, 1e-7, 1e-6, 5.0]),
    host_in_flight=st.sampled_from([0, 0, 1, 2]),
)
QUOTAS = st.lists(
    st.builds(Quota, st.integers(0, 3), LEASE_SECONDS, CRAWLERS, st.integers(1, 3)), min_size=1, max_size=3
)
SOME_PAGES = st.lists(st.sampled_from(PAGES), min_size=1, max_size=8)
FETCHES = st.lists(
    st.tuples(
        st.integers(0, 6), st.booleans(), st.integers(-2, 2), st.integers(-8, 1), CRAWLERS,
        st.sampled_from([None, None, 0.0, 7.0]),
    ),
    max_size=5,
)  # fmt: skip
TIMES = st.sampled_from([0.0, -1.0, 1e-6, 5.0, 1e6])


class Leases(RuleBasedStateMachine):
    """A shard of the store and its model."""

    server: LeaseServer

    @initialize()
    def begin(self) -> None:
        self.model, self.now = LeaseModel(), BEGIN_US
        self.granted: list[tuple[int, int, str]] = []  # Page, end, host: the terms of a token.
        self.server.reset()
        self.server.set_clock(self.now)

    def _advance(self, us: int) -> None:
        self.now += us
        self.server.set_clock(self.now)

    @rule(us=st.sampled_from([1, MILLION, 10 * MILLION, 3_600 * MILLION, 90_000 * MILLION]))
    def wait(self, us: int) -> None:
        self._advance(us)

    @rule(which=st.integers(0, 20), off=st.integers(-1, 1))
    def wait_until_a_border(self, which: int, off: int) -> None:
        later = [at for at in self.model.borders() if at + off > self.now]
        if later:
            self._advance(later[which % len(later)] + off - self.now)

    @rule(
        pages=SOME_PAGES,
        quotas=QUOTAS,
        politeness=POLITENESS,
        waits_max=WAITS_MAX,
    )
    def take(
        self,
        pages: list[tuple[int, str]],
        quotas: list[Quota],
        politeness: PolitenessSettings,
        waits_max: int,
    ) -> None:
        politeness = replace(politeness, waits_max=waits_max)
        answer = self.server.take(pages, quotas, politeness)
        assert replace(answer, change=b"") == self.model.take(self.now, pages, quotas, politeness)
        self.granted += [(*pages[page.position][:1], page.until_us, pages[page.position][1]) for page in answer.granted]

    def _some(self, which: list[int]) -> list[tuple[int, int, str]]:
        return [self.granted[-1 - nth % len(self.granted)] for nth in which] if self.granted else []

    @rule(which=st.lists(st.integers(0, 9), max_size=5), seconds=LEASE_SECONDS)
    def renew(self, which: list[int], seconds: float) -> None:
        some = self._some(which)
        assert self.server.renew(seconds, some) == self.model.renew(self.now, seconds, some)

    @rule(which=st.lists(st.integers(0, 9), max_size=5))
    def release(self, which: list[int]) -> None:
        some = [(page, until) for page, until, _ in self._some(which)]
        assert self.server.release(some) == self.model.release(self.now, some)

    @rule(
        drawn=FETCHES,
        retry=RETRIES,
        waits_max=WAITS_MAX,
        revived=st.lists(st.integers(0, 6), max_size=2),
        forgotten=st.lists(st.integers(0, 6), max_size=1),
        addresses=st.dictionaries(st.sampled_from(HOSTS), st.sampled_from(["", "192.0.2.1", "2001:db8::1"])),
    )
    def step(
        self,
        drawn: list[Any],
        retry: float,
        waits_max: int,
        revived: list[int],
        forgotten: list[int],
        addresses: dict[str, str],
    ) -> None:
        now_s = self.now / MILLION
        fetches = [
            Fetch(page, failed, now_s + seconds, self.now + at * MILLION, crawler or bytes(6), wait if failed else None)
            for page, failed, seconds, at, crawler, wait in drawn
        ]
        assert self.server.step(fetches, retry, waits_max, revived, forgotten, addresses) == [b"OK"]
        self.model.step(self.now, fetches, retry, waits_max, revived, forgotten, addresses)

    @rule(claims=st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from([0, 1, 5_000])), min_size=1, max_size=4))
    def claim(self, claims: list[tuple[str, int]]) -> None:
        assert self.server.claim(claims) == self.model.claim(self.now, claims)

    @rule(politeness=POLITENESS)
    def take_during_a_restore(self, politeness: PolitenessSettings) -> None:
        for self.model.restoring in True, False:
            self.server.set_head(self.model)
            if self.model.restoring:
                answer = self.server.take(PAGES, [Quota(9, 60.0)], politeness)
                assert answer == self.model.take(self.now, PAGES, [Quota(9, 60.0)], politeness)

    @rule(
        host=st.sampled_from(HOSTS + GROUPS), delay=st.sampled_from([None, 0.0, 2.0]), cap=st.sampled_from([None, 0, 1])
    )
    def operator(self, host: str, delay: float | None, cap: int | None) -> None:
        keys = self.server.keys
        rule = f"{'-' if delay is None else delay} {'-' if cap is None else cap}"
        assert self.server.call("polite", self.server.host_names(keys.polite), host, rule) == 1
        self.model.set_polite(self.now, {host: (delay, cap)})

    @rule(host=st.sampled_from(HOSTS), seconds=st.sampled_from([0.0, 0.0, 2.5]))
    def robots_txt(self, host: str, seconds: float) -> None:
        assert self.server.call("delays", (self.server.keys.crawl_delays,), host, repr(seconds)) == 1
        self.model.set_delay(host, seconds)

    @rule(host=st.sampled_from(HOSTS), seconds=TIMES)
    def block(self, host: str, seconds: float) -> None:
        keys, until = self.server.keys, self.now / MILLION + seconds
        assert self.server.call("block", self.server.host_names(keys.blocks), host, repr(until)) == 1
        self.model.block(self.now, host, until)

    @rule(host=st.sampled_from(HOSTS), pages=st.integers(0, 2))
    def limit(self, host: str, pages: int) -> None:
        keys = self.server.keys
        assert self.server.call("limit", self.server.host_names(keys.limits), host, pages) == 1
        self.model.limit(self.now, host, pages)

    @rule()
    def count_flights(self) -> None:
        counts = self.server.call("flights", self.server.take_names(), *HOSTS)
        assert counts == [len(self.model.in_flight(self.now, host)) for host in HOSTS]

    @invariant()
    def same_state(self) -> None:
        found = self.server.state()
        assert found == {name: getattr(self.model, name) for name in found}


def test_functions_that_lease_do_what_the_model_does(servers: Server) -> None:
    Leases.server = LeaseServer(servers)
    run_state_machine_as_test(Leases, settings=examples(100, stateful_step_count=40))
