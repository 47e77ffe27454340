"""Where writes ended, as text: what the calls that write answer as `position`, and others take as `after`.

    @<era>@<topic>/<partition>:<offset>,<partition>:<offset>

An era (hexadecimal digits, or none) ends when a backup is restored; only the log in the store has it.

>>> positions = LogPositions({"log/0": 4})
>>> positions.era = b"5f0c"
>>> shown_position(positions)
'@5f0c@log/0:4'
>>> read_position("@@crawl.events/0:7,12:9")
{'crawl.events/0': 7, 'crawl.events/12': 9}
"""

import re
from typing import Final

from opic.errors import BadInput
from opic.ingest.event_log import ANY_ERA, LogPositions, Positions
from opic.urls.canonical import shown

MARK: Final = "@"  # What a position begins with; no cursor does, which some calls take as `after` too.
POSITION: Final = r"^@([0-9a-f]{0,64})@([A-Za-z0-9._-]{1,249})/([0-9]{1,10}:[0-9]{1,18}(?:,[0-9]{1,10}:[0-9]{1,18})*)$"


def shown_position(positions: Positions) -> str:
    """Return the text of positions in the partitions of one log, of which there is at least one."""
    era = positions.era if isinstance(positions, LogPositions) and positions.era != ANY_ERA else b""
    parts = [(*name.rpartition("/"), offset) for name, offset in positions.items()]
    offsets = ",".join(f"{number}:{offset}" for _, _, number, offset in parts)
    return f"{MARK}{era.decode()}{MARK}{parts[0][0]}/{offsets}"


def read_position(text: str) -> LogPositions:
    """Return the positions that a text tells.

    Raises:
        BadInput: it is none.
    """
    match = re.fullmatch(POSITION, text)
    if match is None:
        raise BadInput(f"after={shown(text)} is no position: give the `position` of an answer as it is")
    era, topic, offsets = match.groups()
    pairs = (part.split(":") for part in offsets.split(","))
    positions = LogPositions({f"{topic}/{int(number)}": int(offset) for number, offset in pairs})
    positions.era = era.encode() or ANY_ERA
    return positions
