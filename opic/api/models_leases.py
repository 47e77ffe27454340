"""Request and response models of the calls about leases: giving them back, renewing them."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import LEASE_SECONDS_MAX, _Answer, _Body


class Leases(_Body):
    """Leases to end or to renew."""

    leases: list[str] = Field(description="Leases returned by /v1/next, at most OPIC_MAX_URLS.")


class RenewLeases(Leases):
    """Leases to renew."""

    lease_seconds: float | None = Field(
        None,
        gt=0,
        le=LEASE_SECONDS_MAX,
        allow_inf_nan=False,
        description="How long they run from now on; default OPIC_LEASE_SECONDS.",
    )


class Released(_Answer):
    """The result of releasing leases."""

    released: int = Field(description="Number of leases that had not expired.")


class RenewedLease(_Answer):
    """A lease that runs on, under the same name."""

    lease: str
    lease_until: float = Field(description="Expiry time of the lease, in Unix seconds.")


class Renewed(_Answer):
    """The result of renewing leases."""

    renewed: list[RenewedLease]
    lost: list[str] = Field(description="Leases that have ended: their pages may be leased to other crawlers.")


EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "Released": [{"released": 1}],
    "Renewed": [{"renewed": [{"lease": "0-1-1764000300000000", "lease_until": 1_764_000_600.0}], "lost": []}],
}

BODIES: Final[dict[str, dict[str, Any]]] = {
    "Leases": {"leases": ["0-1-1764000300000000"]},
    "RenewLeases": {"leases": ["0-1-1764000300000000"], "lease_seconds": 600},
}
