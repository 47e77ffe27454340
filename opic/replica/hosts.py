"""Hosts of pages as numbers, in order of first sight, and the registered domain of each.

A batch asks for the numbers of its new pages without changing anything, and enters new hosts when it is decided, so
that a batch that is not confirmed can be undone.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.errors import BadUrl
from opic.urls.canonical import canonical_url, host_of, registered_domain
from opic.urls.url_batch import UrlBatch

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

ROWS_MIN: Final = 1_024
DOMAINS_KEPT_MAX: Final = 64  # Domains whose hosts `below` remembers.


def _canonical(text: str, bytes_max: int) -> str | None:
    try:
        return canonical_url(text, bytes_max)
    except BadUrl:
        return None


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
        """Know no host."""
        self.names: list[str] = []
        self._number: dict[str, int] = {}
        self._domain = np.zeros(ROWS_MIN, np.int32)
        self._domain_number: dict[str, int] = {}  # In order of first sight.
        self._below: dict[str, tuple[int, list[int]]] = {}  # By domain: hosts looked at so far, those that were below.

    def __len__(self) -> int:
        """Count the hosts."""
        return len(self.names)

    @property
    def domains(self) -> Int32s:
        """The number of each host's registered domain, shape (hosts,): a read-only view, true until the next change."""
        view = self._domain[: len(self.names)]
        view.flags.writeable = False
        return view

    def domains_with(self, names: Sequence[str]) -> Int32s:
        """Return `domains`, and after them those that new hosts would have; new domains get other numbers."""
        if not names:
            return self.domains
        new: dict[str, int] = {}
        known, first = self._domain_number, len(self._domain_number)
        found = [
            known[domain] if domain in known else new.setdefault(domain, first + len(new))
            for domain in map(registered_domain, names)
        ]
        return np.concatenate((self.domains, np.array(found, np.int32)))

    def canonical_urls(self, texts: Sequence[str], bytes_max: int) -> list[str | None]:
        """Return the canonical form of texts, the very same object where a text is canonical; None for a bad one.

        A text on a host that is known is judged by numpy, with many others; any other is parsed, as is one with a port,
        which one scheme leaves out.
        """
        joined = "\n".join(texts)
        if not joined.isascii() or joined.count("\n") != len(texts) - 1:
            return [_canonical(text, bytes_max) for text in texts]
        found = UrlBatch(texts)
        heads, firsts, lasts = found.heads()
        sure = (heads & found.plain() & (found.lengths() <= bytes_max)).tolist()
        known = self._number
        return [
            text if ok and ":" not in (host := joined[first:last]) and host in known else _canonical(text, bytes_max)
            for text, ok, first, last in zip(texts, sure, firsts.tolist(), lasts.tolist(), strict=True)
        ]

    def resolve(self, urls: Sequence[str]) -> tuple[Int64s, list[str]]:
        """Return the numbers of the hosts of canonical URLs, shape (n,), and the names of new hosts.

        New hosts have the numbers that `append` will give them. The table stays as it is.
        """
        authorities = UrlBatch(urls).authorities() if urls else []
        known = self._number  # Most authorities are a host as they stand.
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
                    found = known.get(host)
                    met[authority] = new.setdefault(host, len(self) + len(new)) if found is None else found
                numbers[i] = met[authority]
        return np.array(numbers, np.int64), list(new)

    def numbers_of(self, urls: Sequence[str]) -> Int64s:
        """Return the numbers of the hosts of canonical URLs, shape (n,); new hosts are entered."""
        numbers, new = self.resolve(urls)
        self.append(new)
        return numbers

    def append(self, names: Sequence[str]) -> None:
        """Enter new hosts, distinct and not there yet, under the next numbers."""
        first, stop = len(self.names), len(self.names) + len(names)
        if stop > len(self._domain):
            # A new array: whoever holds a view of the old one keeps what he saw.
            grown = np.zeros(max(2 * len(self._domain), stop), np.int32)
            grown[:first] = self._domain[:first]
            self._domain = grown
        numbers = self._domain_number
        for number, name in enumerate(names, first):
            self._number[name] = number
            self._domain[number] = numbers.setdefault(registered_domain(name), len(numbers))
        self.names.extend(names)

    def truncate(self, count: int) -> None:
        """Forget all hosts but the first `count`: the exact inverse of the appends since there were so many."""
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
            self._below[domain] = min(seen, count), [number for number in numbers if number < count]

    def number(self, host: str) -> int | None:
        """Return a host's number, None if it is not there."""
        return self._number.get(host)

    def domain(self, name: str) -> int | None:
        """Return the number of a registered domain, None if no host of it is there."""
        return self._domain_number.get(name)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all hosts below it. Only hosts new since last time are read."""
        seen, numbers = self._below.pop(domain, (0, []))
        suffix = "." + domain
        new = [i for i, name in enumerate(self.names[seen:], seen) if name == domain or name.endswith(suffix)]
        numbers = numbers + new
        self._below[domain] = len(self.names), numbers  # Last in, so that the first one is the longest unused.
        if len(self._below) > DOMAINS_KEPT_MAX:
            del self._below[next(iter(self._below))]
        return list(numbers)
