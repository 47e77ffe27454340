"""Messages of the calls about what operators define: classes of pages, rules of URLs."""

from typing import Annotated, Any, Final, Literal

from msgspec import Struct

from opic.messages.frontier import RevisitSeconds
from opic.messages.terms import VERSION, AsOf, HostName, Position, about, always

WEIGHT_MAX: Final = 1_000
PATTERN_BYTES_MAX: Final = 512
NOTE_CHARS_MAX: Final = 200

HostNames = Annotated[list[str], about("Hosts or domains, including subdomains.", examples=[["a.example"]])]
Prefixes = Annotated[list[str], about("URL prefixes.")]
Parts = Annotated[list[str], about("Literal substrings of the URL.")]
Tags = Annotated[list[str], about("Tags of the page's most recent crawl event with tags.")]
Weight = Annotated[
    float, about("Each of its pages receives this multiple of every grant.", gt=0, le=WEIGHT_MAX, examples=[5])
]
Revisit = Annotated[
    RevisitSeconds | None, about("Minimum time from a read of one of its pages to the next suggestion of the page.")
]


class PageClass(Struct, kw_only=True, omit_defaults=True):
    """A class of pages: its weight, and which pages belong to it."""

    name: Annotated[str, about("1 to 64 letters, digits, '_', '.' or '-'.", examples=["trusted"])]
    weight: Weight
    hosts: HostNames = []
    urls: Prefixes = []
    contains: Parts = []
    tags: Tags = []
    revisit_seconds: Revisit = None


class ClassCounts(Struct, frozen=True):
    """The number of pages of a class, and their share of grants."""

    weight: Annotated[float, about("Each of its pages receives this multiple of every grant.")]
    known_pages: Annotated[int, about("Known pages that are not gone.")]
    read_pages: int
    grant_share: Annotated[float, about("Share of each grant to all pages that goes to these pages.")]
    name: str | None = None
    hosts: HostNames = []
    urls: Prefixes = []
    contains: Parts = []
    tags: Tags = []
    revisit_seconds: Revisit = None


class ClassFound(ClassCounts, frozen=True, kw_only=True):
    """A class of pages as it was defined, in canonical forms, with its pages."""

    name: str


class Classes(Struct, frozen=True):
    """The current classes of pages, in order."""

    classes: list[ClassFound]
    other: Annotated[ClassCounts, about("The pages that are in no class.")]
    as_of: AsOf
    version: Annotated[str | None, always(VERSION)] = None
    reclassified: Annotated[int | None, about("After a change: number of known pages, which are classified again.")] = (
        None
    )
    settled: Annotated[
        bool | None, about("After a change: whether all of them are in their new classes, and counted there.")
    ] = None


class Reclassified(Classes, frozen=True, kw_only=True):
    """The new classes, and the number of pages that are classified again."""

    reclassified: Annotated[int, about("Number of known pages, which are classified again.")]
    settled: Annotated[bool, about("Whether all of them are in their new classes, and counted there.")]
    position: Position = None


class Rule(Struct, kw_only=True, omit_defaults=True):
    """A rule: it applies to a URL that meets all given conditions."""

    effect: Annotated[
        Literal["allow", "deny"],
        about("Whether matching pages may be suggested. Denied pages stay known and keep their cash."),
    ]
    host: Annotated[HostName | None, about("Matches this host only.", examples=["a.example"])] = None
    domain: Annotated[
        HostName | None, about("Matches this host or domain and its subdomains. Can't be combined with `host`.")
    ] = None
    path: Annotated[
        str,
        about(
            "Prefix of the path and query, as in robots.txt: * matches any characters, a final $ the end.",
            min_length=1,
            max_length=PATTERN_BYTES_MAX,
            pattern=r"^[/*][!\"$-~]*$",  # Printable ASCII without a number sign.
            examples=["/calendar/*?month="],
        ),
    ] = "/"
    query: Annotated[bool | None, about("True matches only URLs with a query, false only URLs without.")] = None
    note: Annotated[str, about("A one-line comment.", max_length=NOTE_CHARS_MAX)] = ""
    revisit_seconds: Annotated[
        RevisitSeconds | None, about("Minimum time from a page's read to its next suggestion; only with `allow`.")
    ] = None


class Rules(Struct, frozen=True):
    """The current rules and thresholds; each rule has only the fields that were given."""

    rules: list[Rule]
    traps: Annotated[
        dict[str, Any],
        about("Thresholds of trap detection.", extra_json_schema={"$ref": "#/components/schemas/Thresholds"}),
    ]
    version: Annotated[str, about(VERSION)]
