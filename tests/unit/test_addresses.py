"""Which addresses are public: none that leads to this machine, its network or its cloud, in whatever form."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from opic.addresses import is_public

PRIVATE = [
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.2.0/24"),
        *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
]
# Mapped, compatible, translated (RFC 2765), NAT64 (RFC 6052, RFC 8215), 6to4, Teredo, ISATAP on a link: where the IPv4
# address stands in each, as a prefix, the bits after it, and what is added.
FORMS = [
    (0xFFFF << 32, 0), (0, 0), (0xFFFF << 48, 0), (0x64FF9B << 96, 0), (0x64FF9B0001 << 80, 0), (0x2002 << 112 | 1, 80),
    (0x20010000 << 96, 64), (0xFE80 << 112 | 0x5EFE << 32, 0),
]  # fmt: skip


@given(st.sampled_from(PRIVATE), st.integers(0, (1 << 32) - 1), st.sampled_from(FORMS))
def test_private_address_is_private_in_every_form(network: IPv4Network, host: int, form: tuple[int, int]) -> None:
    address = network[host % network.num_addresses]
    prefix, shift = form
    embedded = IPv6Address(prefix | int(address) << shift)
    assert not is_public(str(address))
    assert not is_public(str(embedded))
    assert not is_public(f"{embedded}%1")


@given(st.integers(0, (1 << 32) - 1).map(IPv4Address))
def test_mapped_and_translated_addresses_are_as_public_as_what_they_stand_for(address: IPv4Address) -> None:
    for form in (f"::ffff:{address}", str(IPv6Address((0x64FF9B << 96) | int(address)))):
        assert is_public(form) == is_public(str(address))
