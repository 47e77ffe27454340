"""Request and response models of the calls about host politeness: delays, caps and revisit times."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import AS_OF, _Answer, _Body
from opic.urls.rules import REVISIT_SECONDS_MAX

DELAY_SECONDS_MAX: Final = 86_400


class HostManners(_Body):
    """The politeness settings of a host; the default settings apply to missing fields."""

    delay_seconds: float | None = Field(
        None,
        ge=0,
        le=DELAY_SECONDS_MAX,
        allow_inf_nan=False,
        description="Minimum time between two suggestions of the host; 0 disables the delay.",
    )
    in_flight: int | None = Field(
        None, ge=0, le=1_000_000, description="Maximum number of leased pages of the host; 0 means no limit."
    )
    revisit_seconds: float | None = Field(
        None,
        ge=0,
        le=REVISIT_SECONDS_MAX,
        allow_inf_nan=False,
        description="Minimum time from a read of one of its pages to the next suggestion of the page; 0 disables it.",
    )


class Politeness(_Body):
    """The politeness settings of hosts, which replace those set before."""

    hosts: dict[str, HostManners] = Field(
        description="Settings by host, at most OPIC_MAX_URLS hosts.",
        examples=[{"a.example": {"delay_seconds": 10, "in_flight": 1, "revisit_seconds": 86_400}}],
    )


class HostMannersFound(_Answer):
    """The settings of a host; null means that the default setting applies."""

    delay_seconds: float | None
    in_flight: int | None
    revisit_seconds: float | None


class PolitenessFound(_Answer):
    """The default and the individual politeness settings of hosts."""

    host_delay_seconds: float = Field(description="Default delay, OPIC_HOST_DELAY_SECONDS.")
    host_in_flight: int | None = Field(description="Default cap, OPIC_HOST_IN_FLIGHT; null means no limit.")
    revisit_seconds: float = Field(description="Default revisit time, OPIC_REVISIT_SECONDS.")
    hosts: dict[str, HostMannersFound] = Field(description="Individual settings by host.")
    as_of: float = Field(description=AS_OF)


EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "PolitenessFound": [
        {
            "host_delay_seconds": 1.0,
            "host_in_flight": None,
            "revisit_seconds": 3_600.0,
            "hosts": {"a.example": {"delay_seconds": 10.0, "in_flight": 1, "revisit_seconds": None}},
            "as_of": 1_764_000_000.0,
        }
    ],
}

BODIES: Final[dict[str, dict[str, Any]]] = {
    "Politeness": {"hosts": {"a.example": {"delay_seconds": 10, "in_flight": 1}}},
}
