"""What a refused certificate means and what to do about it: the same words for the store, Kafka and the service."""

from typing import Final

REFUSED: Final = "CERTIFICATE_VERIFY_FAILED"  # What Python's ssl says of a peer's certificate.
_NOT_TRUSTED: Final = "who signed it is not trusted: name the PEM file with that authority by {trust}"
# By OpenSSL's reasons, as they stand in the text of an ssl.SSLError. {trust} is replaced by the setting.
_REMEDIES: Final = (
    ("has expired", "it has expired: renew it"),
    ("not yet valid", "it is not valid yet: compare the clocks of both machines"),
    ("not valid for", "it is for another name: connect by a name that it has, or have one made for this name"),
    ("self-signed", _NOT_TRUSTED),
    ("self signed", _NOT_TRUSTED),
    ("issuer", _NOT_TRUSTED),
)
_WANTED: Final = ("certificate required", "bad certificate", "unknown ca", "certificate unknown")


def certificate_fault(text: str, trust: str, own: str | None = None) -> str | None:
    """Return what is wrong with a certificate, and what to do; None where an error is not about one.

    Args:
        text: of the exception that Python's ssl raised, which has OpenSSL's reason.
        trust: the setting that names trusted authorities.
        own: the setting that names the certificate of this side; None where it shows none.

    >>> certificate_fault("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "CAFILE")
    'it has expired: renew it'
    """
    if REFUSED in text:
        default = f"renew it, or name the PEM file with who signed it by {trust}"
        return next((remedy.format(trust=trust) for reason, remedy in _REMEDIES if reason in text), default)
    if own is not None and any(alert in text.lower().replace("_", " ") for alert in _WANTED):
        return f"the other side wants a certificate that it trusts from this one: name it by {own}"
    return None
