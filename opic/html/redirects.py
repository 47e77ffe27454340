"""Where a redirect leads."""

from opic.html.links import absolute_link


def redirect_target(url: str, location: bytes) -> str | None:
    """Return the target of a Location header as an absolute http(s) URL; None if it is none.

    Bytes above ASCII are percent-encoded one by one, as browsers do, whatever encoding the server meant.

    Args:
        url: what the answer is of.
        location: the value of the header.

    >>> redirect_target("http://a.example/x", b"/caf\\xe9")
    'http://a.example/caf%E9'
    """
    return absolute_link(url, "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in location))
