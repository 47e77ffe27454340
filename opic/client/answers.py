"""Types that calls take and return, as in the service's OpenAPI document, which describes their fields.

Importance is a share: over all known pages it sums to 1. Cash and clock are whole grains. Times are Unix seconds.
Other fields of an answer are ignored.
"""

from msgspec import Struct

from opic.messages.definitions import *  # noqa: F403
from opic.messages.events import *  # noqa: F403
from opic.messages.frontier import *  # noqa: F403
from opic.messages.importance import *  # noqa: F403
from opic.messages.local import *  # noqa: F403
from opic.messages.operation import *  # noqa: F403
from opic.messages.terms import *  # noqa: F403


class Ready(Struct, frozen=True):
    """Whether the service is ready for requests, and if not, why."""

    ready: bool
    reason: str | None = None
