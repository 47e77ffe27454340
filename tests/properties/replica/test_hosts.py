"""The table of hosts gives numbers as plain dicts would, and what is undone leaves no trace."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadUrl
from opic.replica.hosts import HostTable
from opic.urls.canonical import canonical_url, host_of, registered_domain
from opic.urls.normalization import Normalization

HOSTS = st.sampled_from(
    [
        "a.example",
        "www.a.example",
        "b.co.uk",
        "www.b.co.uk",
        "co.uk",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "[2001:db8::7]",
    ]
) | st.from_regex(r"[a-z]{1,2}\.(example|org)", fullmatch=True)
URLS = st.builds(
    lambda scheme, user, host, port, rest: canonical_url(f"{scheme}://{user}{host}{port}/{rest}"),
    st.sampled_from(["http", "https"]),
    st.sampled_from(["", "", "user@", "user:pw@", "a%40b@"]),
    HOSTS,
    st.sampled_from(["", "", ":81", ":8443"]),
    st.sampled_from(["", "a/b", "?q=@x", "//c", "a:b@c/"]),
)
BATCHES = st.lists(st.lists(URLS, max_size=12), max_size=8)
DOMAINS = ("example", "a.example", "co.uk", "b.co.uk", "[::1]", "localhost", "nowhere")


def plain(batches: list[list[str]]) -> list[str]:
    """The hosts in order of first sight."""
    return list(dict.fromkeys(host_of(url) for urls in batches for url in urls))


def below(names: list[str], domain: str) -> list[int]:
    return [i for i, name in enumerate(names) if name == domain or name.endswith("." + domain)]


def added(hosts: HostTable, urls: list[str]) -> list[int]:
    """Add the hosts of URLs that are new; return the number of each URL's host."""
    numbers, new = hosts.resolve(urls)
    hosts.append(new)
    return numbers.tolist()


def state(hosts: HostTable) -> dict[str, Any]:
    """All that can be asked of a table, and the order of what it keeps."""
    return {
        "names": list(hosts.names),
        "numbers": {name: hosts.number(name) for name in hosts.names},
        "domains": hosts.domains.tolist(),
        "domain numbers": list(hosts._domain_number.items()),
        "below": {domain: hosts.below(domain) for domain in DOMAINS},
    }


@given(batches=BATCHES)
def test_hosts_are_numbered_in_order_of_first_sight(batches: list[list[str]]) -> None:
    hosts = HostTable()
    for nth, urls in enumerate(batches, 1):
        names = plain(batches[:nth])
        assert added(hosts, urls) == [names.index(host_of(url)) for url in urls]
        assert hosts.names == names
        assert [hosts.number(name) for name in names] == list(range(len(names)))
        assert {domain: hosts.below(domain) for domain in DOMAINS} == {d: below(names, d) for d in DOMAINS}


@given(batches=BATCHES)
def test_two_hosts_share_a_domain_number_exactly_when_they_share_a_domain(batches: list[list[str]]) -> None:
    hosts = HostTable()
    for urls in batches:
        added(hosts, urls)
    domains = list(dict.fromkeys(registered_domain(name) for name in hosts.names))
    assert hosts.domains.tolist() == [domains.index(registered_domain(name)) for name in hosts.names]


@given(batches=BATCHES, urls=st.lists(URLS, max_size=12))
def test_lookups_change_nothing(batches: list[list[str]], urls: list[str]) -> None:
    hosts = HostTable()
    for batch in batches:
        added(hosts, batch)
    before = state(hosts)
    asked = hosts.resolve(urls)
    assert state(hosts) == before
    again = hosts.resolve(urls)
    assert (asked[0].tolist(), asked[1]) == (again[0].tolist(), again[1])
    assert added(hosts, urls) == asked[0].tolist()
    assert hosts.names == before["names"] + asked[1]


@given(batches=BATCHES, undone=BATCHES, then=BATCHES)
def test_undo_leaves_no_trace(batches: list[list[str]], undone: list[list[str]], then: list[list[str]]) -> None:
    hosts, untouched = HostTable(), HostTable()
    for urls in batches:
        added(hosts, urls)
        added(untouched, urls)
    count = len(hosts)
    for urls in undone:
        hosts.append(hosts.resolve(urls)[1])
        hosts.resolve(urls)  # Which remembers their authorities.
        hosts.below("example")
    hosts.truncate(count)
    assert state(hosts) == state(untouched)
    for urls in then:
        assert added(hosts, urls) == added(untouched, urls)
    assert state(hosts) == state(untouched)


def test_users_and_ports_are_not_part_of_a_host() -> None:
    hosts = HostTable()
    urls = ["http://a.example/", "http://u:p@a.example:81/", "http://[::1]/", "https://u@[::1]:8443/x@y", "http://b/"]
    assert added(hosts, urls) == [0, 0, 1, 1, 2]
    assert hosts.names == ["a.example", "[::1]", "b"]


def test_made_up_users_and_ports_fill_no_memory() -> None:
    hosts = HostTable()
    for at in range(100, 190):
        assert added(hosts, [f"http://user{at}@a.example/", f"http://a.example:{at}/"]) == [0, 0]
    assert hosts.names == list(hosts._number) == ["a.example"]


def test_domains_of_hosts_survive_growth_of_the_column() -> None:
    hosts = HostTable()
    added(hosts, [f"http://www{i % 2}.d{i // 2}.example/" for i in range(5_000)])
    assert hosts.domains.tolist() == [i // 2 for i in range(5_000)]
    hosts.truncate(4_001)
    assert hosts.domains.tolist() == [i // 2 for i in range(4_001)]


@pytest.mark.parametrize("count", [-1, 2])
def test_truncating_to_more_hosts_than_there_are_is_refused(count: int) -> None:
    hosts = HostTable()
    hosts.append(["a.example"])
    with pytest.raises(ValueError, match="there are 1 hosts"):
        hosts.truncate(count)


AUTHORITIES = st.sampled_from(
    ["a.org", "a.org:80", "a.org:443", "b.net", "B.net", "u@a.org", "[::1]", "xn--bcher-kva.example", "a..org"]
)
PATHS = st.text(st.sampled_from("aZ09/.%2eE?#&=-_~'\"\\ \n\tä<|+"), max_size=12)
TEXTS = st.one_of(
    st.builds(
        "{}{}{}".format, st.sampled_from(["http://", "https://", "HTTP://", "http:/", "ftp://", ""]), AUTHORITIES, PATHS
    ),
    st.builds("{}{}/{}".format, st.sampled_from(["http://", "https://"]), AUTHORITIES, PATHS),
    st.text(max_size=9),
)


@given(
    known=st.lists(AUTHORITIES),
    texts=st.lists(TEXTS, max_size=12),
    bytes_max=st.sampled_from([12, 20, 2_048]),
    rules=st.sampled_from(["", "", "dot,www,https", "unreserved,index", "unreserved,escape"]),
)
def test_canonical_urls_of_a_batch_equal_those_of_single_urls(
    known: list[str], texts: list[str], bytes_max: int, rules: str
) -> None:
    normalization = Normalization.of(rules)
    table = HostTable()
    for authority in known:
        with suppress(BadUrl):
            added(table, [canonical_url(f"https://{authority}/")])
            table.resolve([canonical_url(f"https://{authority}/")])  # From now on the authority is remembered.
    for text, found in zip(texts, table.canonical_urls(texts, bytes_max, normalization), strict=True):
        expected = None
        with suppress(BadUrl):
            expected = canonical_url(text, bytes_max, normalization)
        assert found == expected
