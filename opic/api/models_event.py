"""The schema of a crawl event in the OpenAPI document, made from its definition in `opic.model.events`."""

from typing import Any, Final

import msgspec

from opic.api.models import META, NOT_BEFORE, PRIORITY
from opic.model.events import CrawlEvent

_FIELDS: Final = {
    "url": "The page fetched: an absolute http(s) URL.",
    "links": "Absolute URLs of its out-links. The service drops fragments, duplicates, self-links, "
    "and links after the first OPIC_MAX_LINKS.",
    "fetched_at": "Unix seconds or RFC 3339, from 1990 to one day ahead of now; default: time of arrival.",
    "status": "HTTP status of the fetch; 0 if there was no answer.",
    "redirect": "Target of a 3xx redirect.",
    "excluded": "True if robots.txt forbids fetching the page.",
    "tags": "Topical labels assigned by the crawler.",
    "crawler": "Name of the crawler.",
    "depth": "Number of links from a seed to the page, as counted by the crawler. The smallest one seen is kept; the "
    "links are one deeper.",
    "meta": f"{META} The last one given is kept, and returned by /v1/next.",
    "give_up": "Of a failed fetch: true if the page is not to be tried again, until it is read or seeded.",
    "retry_after": "Of a failed fetch: the seconds that the page waits, instead of a back-off that doubles.",
    "not_before": NOT_BEFORE,
    "priority": PRIORITY,
    "v": "Schema version.",
}


def event_schemas() -> dict[str, Any]:
    """Return the JSON Schema of a crawl event, by its name in the OpenAPI document."""
    _, schemas = msgspec.json.schema_components([CrawlEvent], ref_template="#/components/schemas/{name}")
    event: dict[str, Any] = schemas["CrawlEvent"]
    event["description"] = "One fetched page. A field that is not named here is refused."
    for name, text in _FIELDS.items():
        event["properties"][name]["description"] = text
    return schemas
