"""How a batch of events changes the statuses of pages."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from opic.model.events import CheckedEvent
from opic.replica.page_lookup import PageLookup
from opic.replica.page_table import PageStatuses


def status_changes(statuses: PageStatuses, named: PageLookup, events: Sequence[CheckedEvent]) -> dict[str, Any]:
    """Return the fields of an effect: the pages whose status a batch changes, and the statuses of their last events."""
    last = {page: event.status for page, event in zip(named.own, events, strict=True) if page >= 0}
    if not statuses.used and not any(last.values()):
        return {}
    ids = np.array(sorted(last), np.int64)
    noted = np.array([last[page] for page in ids.tolist()], np.uint16)
    changed = noted != statuses.of(ids)
    return {"status_page": ids[changed].astype(np.uint32), "noted": noted[changed]}
