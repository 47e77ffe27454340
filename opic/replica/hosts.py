"""Host table: numbers hosts and registered domains in order of first appearance.

A batch resolves the hosts of its new pages without changing the table. New hosts are added when the effect is applied,
so that an unconfirmed effect can be undone.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.arrays import Int32s, Int64s, grown
from opic.urls.canonical import canonical_or_none, host_of, registered_domain
from opic.urls.normalization import PLAIN, Normalization
from opic.urls.url_batch import UrlBatch

DOMAINS_KEPT_MAX: Final = 64  # Domains whose hosts `below` remembers,
HOSTS_KEPT_MAX: Final = 1 << 20  # and hosts in total, beside those of the last domain: 4 MB.


class HostTable:
    """Numbers of hosts and of registered domains. One thread at a time.

    >>> hosts = HostTable()
    >>> numbers, new = hosts.resolve(["http://a.example/x", "http://b.example:81/", "http://a.example/y"])
    >>> numbers, new
    (array([0, 1, 0]), ['a.example', 'b.example'])
    >>> hosts.append(new)
    >>> hosts.number("b.example"), hosts.below("example")
    (1, [0, 1])
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._number: dict[str, int] = {}
        self._domain = np.zeros(0, np.int32)
        self._domain_number: dict[str, int] = {}  # In order of first appearance.
        self._below: dict[str, tuple[int, Int32s]] = {}  # By domain: hosts scanned so far, those at or below it.

    def __len__(self) -> int:
        return len(self.names)

    @property
    def domains(self) -> Int32s:
        """The domain number of each host, shape (hosts,): a read-only view, valid until the next change."""
        view = self._domain[: len(self.names)]
        view.flags.writeable = False
        return view

    @property
    def domain_names(self) -> list[str]:
        """The registered domains by number."""
        return list(self._domain_number)

    def domains_with(self, names: Sequence[str]) -> Int32s:
        """Return `domains` followed by the domain numbers that new hosts would get; new domains get new numbers."""
        domains = self._domain[: len(self.names)]
        if not names:
            return domains
        new: dict[str, int] = {}
        known, first = self._domain_number, len(self._domain_number)
        numbers = [
            known[domain] if domain in known else new.setdefault(domain, first + len(new))
            for domain in map(registered_domain, names)
        ]
        return np.concatenate((domains, np.array(numbers, np.int32)))

    def canonical_urls(
        self, texts: Sequence[str], bytes_max: int, normalization: Normalization = PLAIN
    ) -> list[str | None]:
        """Return the canonical form of each text: the same object if it already is canonical, None if it is no URL.

        Texts on known hosts are checked by numpy, all at once. The others are parsed, and so are those with a port,
        because canonical form omits a scheme's default port, and all where the crawl has normalization rules.
        """
        joined = "\n".join(texts)
        if normalization.rules or not joined.isascii() or joined.count("\n") != len(texts) - 1:
            return [canonical_or_none(text, bytes_max, normalization) for text in texts]
        batch = UrlBatch(texts)
        heads, firsts, lasts = batch.heads()
        sure = (heads & batch.plain() & (batch.lengths() <= bytes_max)).tolist()
        known = self._number
        return [
            text
            if ok and ":" not in (host := joined[first:last]) and host in known
            else canonical_or_none(text, bytes_max, PLAIN)
            for text, ok, first, last in zip(texts, sure, firsts.tolist(), lasts.tolist(), strict=True)
        ]

    def resolve(self, urls: Sequence[str]) -> tuple[Int64s, list[str]]:
        """Return the host numbers of canonical URLs, shape (n,), and the names of new hosts.

        New hosts have the numbers that `append` will give them. The table does not change.
        """
        authorities = UrlBatch(urls).authorities() if urls else []
        known = self._number  # Most authorities are just a host name.
        numbers = [known.get(authority, -1) for authority in authorities]
        if -1 not in numbers:
            return np.array(numbers, np.int64), []
        new: dict[str, int] = {}  # Hosts.
        met: dict[str, int] = {}  # Authorities.
        for i, number in enumerate(numbers):
            if number < 0:
                authority = authorities[i]
                if authority not in met:
                    host = host_of(urls[i])
                    host_number = known.get(host)
                    met[authority] = new.setdefault(host, len(self) + len(new)) if host_number is None else host_number
                numbers[i] = met[authority]
        return np.array(numbers, np.int64), list(new)

    def append(self, names: Sequence[str]) -> None:
        """Add new hosts under the next numbers. The names must be distinct and unknown."""
        first, stop = len(self.names), len(self.names) + len(names)
        if stop > len(self._domain):
            self._domain = grown(self._domain, stop)  # A new array: views of the old one do not change.
        numbers = self._domain_number
        for number, name in enumerate(names, first):
            self._number[name] = number
            self._domain[number] = numbers.setdefault(registered_domain(name), len(numbers))
        self.names.extend(names)

    def truncate(self, count: int) -> None:
        """Keep only the first `count` hosts: the exact inverse of the appends since then."""
        if not 0 <= count <= len(self):
            raise ValueError(f"there are {len(self):,} hosts, so {count:,} can't be kept")
        gone = self.names[count:]
        if not gone:
            return
        domains = int(self._domain[:count].max(initial=-1)) + 1
        while len(self._domain_number) > domains:
            self._domain_number.popitem()
        for name in gone:
            del self._number[name]
        del self.names[count:]
        for domain, (seen, numbers) in self._below.items():
            self._below[domain] = min(seen, count), numbers[numbers < count]

    def number(self, host: str) -> int | None:
        """Return a host's number, None if the host is unknown."""
        return self._number.get(host)

    def domain(self, name: str) -> int | None:
        """Return the number of a registered domain, None if it has no known host."""
        return self._domain_number.get(name)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and all hosts below it. Scans only hosts added since the last call."""
        seen, numbers = self._below.pop(domain, (0, np.zeros(0, np.int32)))
        suffix = "." + domain
        new = [i for i, name in enumerate(self.names[seen:], seen) if name == domain or name.endswith(suffix)]
        if new:
            numbers = np.concatenate((numbers, np.array(new, np.int32)))
        kept = sum(len(others) for _, others in self._below.values())
        while self._below and (kept > HOSTS_KEPT_MAX or len(self._below) >= DOMAINS_KEPT_MAX):
            kept -= len(self._below.pop(next(iter(self._below)))[1])  # The first key is the least recently used.
        self._below[domain] = len(self.names), numbers
        listed: list[int] = numbers.tolist()
        return listed
