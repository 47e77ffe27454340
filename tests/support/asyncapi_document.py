"""Writes the schema of a crawl event into docs/asyncapi.yaml anew: `python tests/support/asyncapi_document.py`."""

from typing import Any

import yaml
from repository import ROOT

from opic.api.document import schemas_of
from opic.model.events import CrawlEvent

DOCUMENT = ROOT / "docs/asyncapi.yaml"
SCHEMAS = "  schemas:\n"


def schemas() -> dict[str, Any]:
    """The schemas of the document, from the decoder of events. On a topic, unknown fields are ignored."""
    found = schemas_of([CrawlEvent])
    event = found["CrawlEvent"]
    event["description"] = "One fetched page. A field that is not named here is ignored, and counted."
    event["additionalProperties"] = True
    return found


def written() -> str:
    """The document with these schemas."""
    head, _, _ = DOCUMENT.read_text().partition(SCHEMAS)
    text = yaml.safe_dump(schemas(), sort_keys=False, width=110, allow_unicode=True)
    return head + SCHEMAS + "".join(f"    {line}\n" for line in text.splitlines())


if __name__ == "__main__":
    DOCUMENT.write_text(written())
