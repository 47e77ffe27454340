"""Request and response models of the calls about host politeness: delays and caps."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import AS_OF, _Answer, _Body

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


class Politeness(_Body):
    """The politeness settings of hosts, which replace those set before."""

    hosts: dict[str, HostManners] = Field(
        description="Settings by host, at most OPIC_MAX_URLS hosts.",
        examples=[{"a.example": {"delay_seconds": 10, "in_flight": 1}}],
    )


class HostMannersFound(_Answer):
    """The settings of a host; null means that the default setting applies."""

    delay_seconds: float | None
    in_flight: int | None


class PolitenessFound(_Answer):
    """The default and the individual politeness settings of hosts."""

    host_delay_seconds: float = Field(description="Default delay, OPIC_HOST_DELAY_SECONDS.")
    host_in_flight: int | None = Field(description="Default cap, OPIC_HOST_IN_FLIGHT; null means no limit.")
    hosts: dict[str, HostMannersFound] = Field(description="Individual settings by host.")
    as_of: float = Field(description=AS_OF)


EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "PolitenessFound": [
        {
            "host_delay_seconds": 1.0,
            "host_in_flight": None,
            "hosts": {"a.example": {"delay_seconds": 10.0, "in_flight": 1}},
            "as_of": 1_764_000_000.0,
        }
    ],
}
