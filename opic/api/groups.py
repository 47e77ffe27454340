"""The groups of calls on the API's pages, by what one does with them."""

from typing import Final

_GROUPS: Final = (  # Of each its name, what it is about, and the paths of its calls.
    ("Feed", "Tell what was crawled, and what to begin with.", ("/v1/events", "/v1/seeds", "/v1/pages")),
    (
        "Crawl",
        "Which pages to fetch next, and how much of the important ones is fetched.",
        ("/v1/next", "/v1/release", "/v1/leases/renew", "/v1/frontier", "/v1/coverage"),
    ),
    (
        "Importance",
        "How important pages, hosts and domains are, and why.",
        (
            "/v1/importance",
            "/v1/top",
            "/v1/hosts",
            "/v1/domains",
            "/v1/search",
            "/v1/explain",
            "/v1/history",
            "/v1/inlinks",
            "/v1/inflow",
        ),
    ),
    (
        "Define",
        "Classes of pages, rules of URLs, delays of hosts.",
        ("/v1/classes", "/v1/rules", "/v1/canonical", "/v1/politeness"),
    ),
    ("Local domains", "Lists of the local-domain estimator.", ("/v1/local", "/v1/local/{domain}")),
    (
        "Operate",
        "What the service holds, and whether all is well.",
        ("/v1/stats", "/v1/audit", "/v1/series", "/v1/dead-letters", "/healthz", "/readyz", "/metrics"),
    ),
)
TAGS: Final = [{"name": name, "description": about} for name, about, _ in _GROUPS]
TAG_OF: Final = {path: name for name, _, paths in _GROUPS for path in paths}
