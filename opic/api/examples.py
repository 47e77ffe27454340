"""Examples of bodies and answers for the document. The bodies are valid for a new crawl, and about the same pages."""

from typing import Any, Final

from opic.messages.hindrances import words

Example = dict[str, Any]
NOW: Final = 1_764_000_000.0
POSITION: Final = "@5f0c7a9e21d34b88@log/0:3"
A, B = "https://a.example/", "https://b.example/"

_lease = "0-1-1764000300000000"
_trusted: Example = {"name": "trusted", "weight": 5.0, "hosts": ["a.example"]}
_calendar: Example = {"effect": "deny", "host": "a.example", "path": "/calendar/*?month="}
_facts: Example = {"outside_fetched": 40, "method": "combined", "service_coverage": 0.5, "as_of": NOW}
_changes: Example = {"changes": [{"outside_fetched": 20, "change": 0.12}, {"outside_fetched": 40, "change": 0.03}]}
_later: Example = {"expires_at": 1_766_592_000.0}

PATHS: Final = {"domain": "a.example", "crawl": "news"}  # Parameters of paths.
BODIES: Final[dict[str, Example]] = {
    "Seeds": {"urls": [A, B], "trust": 1.0},
    "NextRequest": {"n": 10, "crawler": "crawler-7"},
    "ManyPages": {"urls": [A, B]},
    "Leases": {"leases": [_lease]},
    "RenewLeases": {"leases": [_lease], "lease_seconds": 600},
    "ClassesGiven": {"classes": [_trusted]},
    "SomeClasses": {"classes": [_trusted]},
    "RulesGiven": {"rules": [_calendar]},
    "SomeRules": {"add": [_calendar]},
    "PolitenessGiven": {"hosts": {"a.example": {"delay_seconds": 10, "in_flight": 1}}},
    "NewCrawl": {"damping": 0.85},
    "LocalList": {"pages": [{"url": A, "importance": 1.0}], **_facts, **_changes},
}

_estimated: Example = {"policy": "static", "window": None}
_read: Example = {"reads": 3, "last_read_clock": 9_437_184, "last_fetched_at": NOW}
_page: Example = {
    **{"url": A, "importance": 0.25, "rank": 1, "percentile": 100.0, "cash": 524_288},
    **{**_read, **_estimated, "error_bound": 0.31, "teleport": "uniform"},
}
_shown: Example = {"url": B, "cash": 2_097_152, "importance": 0.25, "fetched_before": False}
_next: Example = {**{**_shown, "lease": _lease, "lease_until": 1_764_000_300.0, "depth": 1, "meta": {"job": "news"}}}
_held: Example = {**dict.fromkeys(words(), 0), "leased": 1, "host_delay": 2, "revisit": 40, "denied": 3, "given_up": 1}
_books: Example = {
    **{"minted": 1 << 62, "pages": 8_388_608, "virtual": (1 << 62) - 8_388_608, "in_flight": 0, "conserved": True}
}
_bad_url = "url '/about' is not an absolute http(s) URL"
_classes: Example = {
    "classes": [{**_trusted, "known_pages": 2, "read_pages": 1, "grant_share": 0.71}],
    "other": {"weight": 1.0, "known_pages": 4, "read_pages": 2, "grant_share": 0.29},
    **{"version": "3c3e7f0a4b1d9a57", "as_of": NOW},
}
_measures: Final = [
    {"clock": 2_097_152, "cash": 2_097_152, "fetched_at": NOW - 86_400},
    {"clock": 9_437_184, "cash": 1_048_576, "fetched_at": NOW - 3_600},
]
_standing: Example = {
    **{"state": "read", "host": "a.example", "next": True, "why_not": [], "held_back": [], "place": 1},
    **{"lease_until": None, "waits_until": None, "revisit_at": None, "revisit_seconds": 3_600.0},
    **{"not_before": None, "priority": 1.0, "refused": None},
    **{"host_address": "192.0.2.1", "host_group": "192.0.2.1"},
    **{"host_free_at": None, "host_delay_seconds": 1.0, "host_in_flight": 0, "host_in_flight_max": None},
    **{"failures": 0, "failed_fetches": 0, "max_failures": 8, "order": "exact", "rules": []},
}
_explained: Example = {
    **{"url": A, "importance": 0.25, "rank": 1, "percentile": 100.0, "known_pages": 4, "cash": 524_288},
    "cash_parts": {"deposits": -1_572_864, "credit": 2_097_152, "from_links": 524_288},
    "history": {"total": 2_097_152, "reads": 1, "measures": [{**_measures[0], "fetched_at": NOW - 3_600}]},
    **{"reads": 1, "last_read_clock": 2_097_152, "last_fetched_at": NOW - 3_600, **_estimated, "teleport": "uniform"},
    "estimate": {
        **{"rule": "static", "formula": "H + C", "numbers": {"H": 2_097_152, "C": 524_288}},
        **{"value": 2_621_440, "of": 10_485_760},
    },
    **{"class": "other", "weight": 1.0, "state": "read", "depth": 1, "meta": {"job": "news"}, "excluded": False},
    **{"frontier": _standing, "as_of": NOW},
    "given_by": {"pages": [{"url": B, "share": 0.6}], "known": 2, "jump": 0.2},
    "expiry": {"below": 1e-6, "at": None},
    "reasons": [
        {"about": "Rank", "sentences": ["1 of 4 known pages, at least as important as 100 % of them."]},
        {
            "about": "When it is offered",
            "sentences": ["It may be handed out now.", "It has place 1 among read pages, by importance."],
        },
    ],
}
_certain: Example = {"certainty": "The error bound 0.0071 makes all these ranks certain."}
_waits: Final = ["1 page is leased to a crawler: its event, or the end of its lease, frees it."]

ANSWERS: Final[dict[str, Example]] = {
    "CrawlEvent": {"url": A, "links": ["https://a.example/b", B]},
    "Accepted": {"accepted": 2, "rejected": [{"index": 1, "error": _bad_url}], "position": POSITION},
    "Seeded": {
        **{"known": 1, "new": 2, "position": POSITION},
        **{"rejected": [{"index": 3, "error": _bad_url.removeprefix("url ")}]},
    },
    "Forgotten": {"forgotten": 0, "would_forget": 1_200, "importance": 0.0007},
    "CanonicalUrl": {"url": A, "plain": "https://www.a.example/", "rules": ["www", "index"], "applied": ["www"]},
    "NextPages": {
        **{"pages": [_next], "retry_after": 0, "exhausted": False, "waiting": _held, "as_of": NOW},
        **{"policy": "exact", "order": "exact"},
    },
    "FrontierPreview": {
        **{"pages": [{**_shown, "host": "b.example", "key": 0.31}], "as_of": NOW, "policy": "exact", "order": "exact"},
        **{"waiting": {**dict.fromkeys(_held, 0), "leased": 1}, "held_back": _waits, "exhausted": False},
    },
    "Released": {"released": 1},
    "Renewed": {"renewed": [{"lease": _lease, "lease_until": 1_764_000_600.0}], "lost": []},
    "Politeness": {
        **{"host_delay_seconds": 1.0, "host_in_flight": None, "revisit_seconds": 3_600.0, "as_of": NOW},
        "hosts": {"a.example": {"delay_seconds": 10.0, "in_flight": 1, "revisit_seconds": None}},
        "politeness_by": "address",
        "host_group": {"host": "a.example", "address": "192.0.2.1", "group": "192.0.2.1", "rests_seconds": 0.4},
    },
    "Coverage": {
        **{"coverage": 0.62, "fetched_pages": 3, "links_unknown": 0, "trusted_pages": 1, "damping": 0.85},
        **{"target": 0.98, "fetches_expected": None, "as_of": NOW},
    },
    "Classes": _classes,
    "Reclassified": {**_classes, "reclassified": 6, "settled": True, "position": POSITION},
    "OneImportance": {**_page, "as_of": NOW},
    "Importances": {"pages": [_page, {"url": B, "importance": None}], "as_of": NOW},
    "History": {"url": A, "measures": _measures, "as_of": NOW},
    "Top": {
        "pages": [{"url": A, "importance": 0.25, "rank": 1, "cash": 524_288, **_estimated}],
        "as_of": NOW,
        **_certain,
    },
    "Hosts": {"hosts": [{"host": "a.example", "importance": 0.4, "pages": 12, "read_pages": 3}], "as_of": NOW},
    "SiteDomains": {
        "domains": [{"domain": "a.example", "importance": 0.5, "pages": 20, "read_pages": 7, "hosts": 2}],
        "as_of": NOW,
    },
    "Inflows": {
        **{"pages": [{"url": A, "inflow": 0.02}], "next": A, "known_pages": 4, "policy": "static"},
        **{"outside_mass": 0.6, "unread_mass": 0.1, "dangling_mass": 0.05, "error_bound": 0.3, "as_of": NOW},
    },
    "Inlinks": {"url": A, "inlinks": [B, "https://a.example/new"], "known": 2, "as_of": NOW},
    "Explanation": _explained,
    "LocalRanking": {
        **{"domain": "a.example", "pages": [{"url": A, "importance": 1.0, "rank": 1}]},
        **{**_facts, **_changes, **_later},
    },
    "LocalDomains": {"domains": [{"domain": "a.example", "pages": 1, **_facts, **_later}], "as_of": NOW},
    "LocalListKept": {"domain": "a.example", "pages": 1},
    "CrawlList": {
        "crawls": [
            {"name": "news", "shards": 1, "known_pages": 4, "read_pages": 3, "open": True},
            {"name": "old", "shards": 1, "known_pages": 4, "read_pages": 3, "open": False, "moved_to": "news"},
        ],
        "default": "default",
    },
    "CrawlMade": {
        **{"name": "news", "made": True, "topic": "crawl.events.news"},
        "worker": "start one: OPIC_CRAWL=news opic worker",
    },
    "CrawlRemoved": {"deleted": "news", "keys_removed": 18},
    "Audit": {**_books, "shards": [{"shard": 0, **_books, "mismatches": []}]},
    "Stats": {
        **{"loaded_at": NOW - 3_600, "loaded_as_of": NOW - 86_400, "loaded_error_bound": 1e-6, "loaded_pages": 4},
        **{"known_pages": 4, "read_pages": 3, "clock": 9_437_184, "rounds": 1.125, "lag": 0, "given_up_pages": 0},
        **{"undelivered": 0, "pool": _books["virtual"], "granted_rounds": 1.02, "shards": 1, "kept_links": "kept"},
        **{"warnings": [], "policy": "exact", "error_bound": 0.0071, "as_of": NOW},
        "expiry": {
            **{"below": 1e-6, "after_seconds": 604_800.0, "expired_pages": 51_200, "expired_importance": 0.03},
            **{"passes": 160, "last_pass_at": NOW - 12},
        },
        **{"crawl": "default", "store": "the embedded store in opic-data", "opic_version": "1.0.0"},
    },
    "Series": {
        "series": [{"time": NOW, "rounds": 1.125, "clock": 9_437_184}],
        "convergence": [{"time": NOW, "rounds": 1.125, "clock": 9_437_184, "unspent": 524_288, "error_bound": 0.0071}],
        "progress": [
            {
                **{"time": NOW, "read_pages": 30, "to_fetch_pages": 70, "failed_pages": 1, "denied_pages": 2},
                "outside_pages": 0,
            }
        ],
        "forecast": {
            **{"text": "70 pages to fetch. No end is in sight.", "pace": "growing", "to_fetch": 70},
            **{"idle_seconds": 1.5, "reads_per_second": 0.5, "found_per_read": 1.2, "seconds": None},
        },
        "as_of": NOW,
    },
    "Problem": {
        **{"type": "urn:opic:problem:bad-event", "title": "Invalid event", "status": 422, "detail": _bad_url},
        "request_id": "1f0c9a2b7d3e4f60",
    },
}
