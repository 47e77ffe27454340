"""A service whose table of hindrances has two more rows; prints all that it says of its pages, as JSON.

The first row holds back pages with an odd id, the second those of b.org once they were read. Run it with a folder.
"""

import json
import sys
from pathlib import Path

import numpy as np
from processes import wait_until

from opic.messages import hindrances
from opic.messages.hindrances import Hindrance

EMBARGO = 4_102_444_800.0  # 2100-01-01
ODD = Hindrance(
    kind="odd",
    word="odd",
    about="With an odd id.",
    counted=("page has an odd id", "pages have odd ids"),
    mask=lambda _, ids: ids % 2 == 1,
    for_good=True,
    why=lambda page: f"its id {page.page[0]} is odd",
)
EMBARGOED = Hindrance(
    kind="embargo",
    word="embargo",
    about="Under an embargo.",
    counted=("page is under an embargo", "pages are under an embargo"),
    until=lambda pages, ids: np.where(pages.last_read_us(ids) > 0, EMBARGO, 0.0),
    why=lambda _: "it is under an embargo",
)
URLS = ["http://a.org/", "http://a.org/1", "http://b.org/", "http://b.org/3"]  # Their ids are 0 to 3.


def main(folder: Path) -> None:
    """Run the service on four pages, and print what is said."""
    hindrances.HINDRANCES = (*hindrances.HINDRANCES, ODD, EMBARGOED)
    from serving import serving_embedded

    from opic.client import Event
    from opic.messages.sentences import waiting

    with serving_embedded(folder, host_delay_seconds=0, revisit_seconds=0) as (http, client):
        client.seed(URLS)
        client.events([Event(url=URLS[2])])
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == 1, 20.0)
        answer = http.post("/v1/next", json={"n": 10}).json()
        metrics = http.get("/metrics").text.splitlines()
        said = {
            "next": [page["url"] for page in answer["pages"]],
            "waiting": {word: count for word, count in answer["waiting"].items() if count},
            "sentences": waiting(answer["waiting"]),
            "console": http.get("/v1/frontier").json()["held_back"],
            "explain": {url: http.get("/v1/explain", params={"url": url}).json() for url in URLS},
            "metrics": [line for line in metrics if line.startswith("opic_frontier_pages{")],
            "document": http.get("/openapi.json").json()["components"]["schemas"]["HeldBack"]["properties"],
        }
        again = client.next(10)
        said["client"] = [again.waiting.odd, again.waiting.embargo, again.exhausted]
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
