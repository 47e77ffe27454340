"""Where the endpoint listens, and what it says where it can't."""

import errno
import os
import signal
import socket

import pytest
from starlette.applications import Starlette

from opic.api import server
from opic.api.server import bind, serve, url_of
from opic.errors import SettingsError

HAS_IPV6 = os.path.exists("/proc/net/if_inet6") and socket.has_ipv6


def ipv6_loopback() -> bool:
    if not HAS_IPV6:
        return False
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_needs_no_token(host: str) -> None:
    with bind(host, 0) as listener:
        assert listener.getsockname()[1]


def test_small_answers_do_not_wait_for_an_acknowledgement() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP  # What asyncio looks at before it sets TCP_NODELAY.


@pytest.mark.skipif(not ipv6_loopback(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_is_listened_on_with_brackets_or_without(host: str) -> None:
    with bind(host, 0) as listener:
        assert listener.family == socket.AF_INET6
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://[::1]:{port}"
        with pytest.raises(SettingsError, match=rf"port {port} on \[::1\] is in use: .* choose another with --port"):
            bind(host, port)


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port} on 127.0.0.1 is in use: .* choose another with --port"):
            bind("127.0.0.1", port)


def test_a_port_is_free_again_at_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_token_a_public_address_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="OPIC_API_TOKEN is not set"):
        bind(host, 0)


@pytest.mark.parametrize("how", [{"token_set": True}, {"allow_open": True}])
def test_with_a_token_or_explicit_permission_a_public_address_is_allowed(how: dict[str, bool]) -> None:
    with bind("0.0.0.0", 0, **how) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["", "no-such-host.invalid", "a b", "\ud800", "x" * 300])
def test_an_unresolvable_host_is_reported(host: str) -> None:
    with pytest.raises(SettingsError, match="can't be resolved on this machine"):
        bind(host, 0)


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1 is no address of this machine"):
        bind("192.0.2.1", 0, allow_open=True)


def test_a_privileged_port_is_reported_with_a_remedy() -> None:
    # Whether this user may listen on port 80 differs between machines, the words do not.
    said = server._refused(OSError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    assert str(said) == "port 80 on 127.0.0.1 is not for this user: choose one from 1024 on with --port"


def test_a_server_that_is_stopped_before_it_starts_does_not_serve() -> None:
    """As `opic serve` is, by a SIGTERM in the moment before; its handler ignores all further ones."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with bind("127.0.0.1", 0) as listener:
            serve(Starlette(), sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
