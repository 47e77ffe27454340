"""Which addresses a fetcher may connect to: those of the public internet.

A page that anyone may write names the URLs that an estimator fetches, so a URL must not reach what only this machine or
its network can: services on loopback, an intranet, the metadata of a cloud. A name is resolved once, its addresses are
checked, and the connection goes to a checked address: a name that resolves to another address a moment later (DNS
rebinding) gains nothing. Redirects are requests of their own, and checked as well.
"""

import asyncio
import ipaddress
import logging
import socket
from typing import Final

import httpx

log = logging.getLogger("opic.addresses")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

IPV6_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
# Metadata of clouds on addresses that are not private ones: Azure and Oracle.
METADATA: Final = frozenset(map(ipaddress.IPv4Address, ("168.63.129.16", "192.0.0.192")))
PORTS: Final = {"http": 80, "https": 443}
CONNECT_SECONDS_MAX: Final = 3.0  # For an address that is not the last one.


class NotReachable(httpx.ConnectError):
    """A host has no address, or no public one: to try again would not help."""


def is_public(address: str) -> bool:
    """Tell whether an IP address belongs to the public internet, and not to this machine, its network or its cloud.

    >>> [is_public(one) for one in ("9.9.9.9", "2620:fe::9", "10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1")]
    [True, True, False, False, False, False]
    >>> [is_public(one) for one in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::909:909", "2002:7f00:1::")]
    [False, False, True, False]
    """
    parsed: IPAddress = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        elif parsed in NAT64:
            parsed = ipaddress.IPv4Address(parsed.packed[-4:])
        elif parsed not in IPV6_GLOBAL or parsed in SIX_TO_FOUR:
            return False
    return parsed.is_global and not parsed.is_multicast and parsed not in METADATA


class PublicTransport(httpx.AsyncBaseTransport):
    """Sends requests to public addresses only. Each has a connection of its own: two hosts may share an address."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._plain = httpx.AsyncHTTPTransport(limits=limits)
        self._told: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first of the host's addresses that takes the connection.

        Raises:
            NotReachable: there is none, or none is public.
            httpx.ConnectError: none takes the connection, or the name can't be resolved now.
            httpx.UnsupportedProtocol: the URL is not one of HTTP or HTTPS.
        """
        url = request.url
        if url.scheme not in PORTS:
            raise httpx.UnsupportedProtocol(f"{url.scheme}: is not fetched", request=request)
        host = url.raw_host.decode("ascii")
        *others, last = await self._public_addresses(request, host, url.port or PORTS[url.scheme])
        for address in others:
            try:
                return await self._send(request, host, address, CONNECT_SECONDS_MAX)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._send(request, host, last)

    async def aclose(self) -> None:
        await self._plain.aclose()

    async def _send(
        self, request: httpx.Request, host: str, address: str, connect_seconds: float | None = None
    ) -> httpx.Response:
        """Send a request to an address. Its header `Host` is set already, and a certificate has to name the host."""
        timeout = request.extensions.get("timeout", {}) | ({"connect": connect_seconds} if connect_seconds else {})
        there = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host, "timeout": timeout},
        )
        return await self._plain.handle_async_request(there)

    async def _public_addresses(self, request: httpx.Request, host: str, port: int) -> list[str]:
        """Resolve a host."""
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            kind = NotReachable if error.errno == socket.EAI_NONAME else httpx.ConnectError
            raise kind(f"{host}: {error}", request=request) from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in resolved))
        public = [address for address in addresses if is_public(address)]
        if not public:
            why = f"{host} has no public address ({', '.join(addresses)}): it is fetched with --allow-private only"
            if host not in self._told:
                self._told.add(host)
                log.warning("%s", why)
            raise NotReachable(why, request=request)
        return public
