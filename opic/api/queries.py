"""What callers ask in queries: the parameters of calls, and what bodies have in common with them.

They are strict: an unknown field is refused, since a mistyped `lease_seconds` would silently change the behaviour.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from opic.errors import BadInput
from opic.messages.terms import HOST_CHARS_MAX, HostName, Mode, Policy, TopBy, TopState, about
from opic.model.series import NUMBER, Window

LETTERS_MAX: Final = 100
TEXT_CHARS_MAX: Final = 500
POINTS_MAX: Final = 1_000
PREFIX_CHARS_MAX: Final = 2_048

Url = Annotated[str, about("An absolute http(s) URL.", examples=["https://a.example/"])]
Count = Annotated[int, about("Maximum number of pages, up to OPIC_MAX_N.", ge=1, examples=[10])]
SomeHost = Annotated[str, Meta(min_length=1, max_length=HOST_CHARS_MAX)]
UrlPrefix = Annotated[str, Meta(min_length=1, max_length=PREFIX_CHARS_MAX)]
Target = Annotated[float, Meta(gt=0, le=1)]
Domain = Annotated[
    SomeHost | None,
    about("Only pages of this host or registered domain, including subdomains.", examples=["a.example"]),
]
Chosen = Annotated[
    Mode,
    about(
        "any: all pages; discover: pages never read; refresh: pages read before; coverage: pages never read, those "
        "with the most trust waiting at them first."
    ),
]
_ROUNDS = {"type": "number", "exclusiveMinimum": 0}
_DURATION = {"type": "string", "pattern": rf"^{NUMBER}[hd]$"}
_WINDOW = {"anyOf": [_ROUNDS, _DURATION], "examples": [0.5, "30d"]}
After = Annotated[
    str | None,
    about("Continue here: `next` of the previous answer. Also takes the `position` of a write, alone or in addition."),
]


class Given(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of parameters."""


class Nothing(Given, frozen=True):
    """A call without parameters: any parameter is an error."""


class CrawlToRemove(Given, frozen=True):
    """The crawl to remove, named again."""

    confirm: Annotated[str, about("The name of the crawl, as in the path.", examples=["news"])]


class OfHost(Given, frozen=True):
    """A call that may be about one host."""

    host: Annotated[SomeHost | None, about("A host, as in the URLs of its pages.", examples=["a.example"])] = None


class FieldError(ValueError):
    """The value of a field is invalid."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class OfPolicy(Given, frozen=True):
    """Parameters with a policy, and a window of it."""

    policy: Annotated[
        Policy | None,
        about(
            "exact: PageRank of the known graph, from kept links. loaded: as computed elsewhere. Else from cash, and "
            "the policy is what of the past counts. Default: OPIC_POLICY, else exact; without kept links static, or "
            "interpolation under OPIC_VIRTUAL=continuous."
        ),
    ] = None
    window: Annotated[
        Any,
        about(
            "Window of a window policy: a number of rounds, or a duration such as 30d or 12h before the last event; "
            "default OPIC_WINDOW_ROUNDS. During one round the clock advances by one grant for every live page; under "
            "OPIC_VIRTUAL=continuous, by the total cash.",
            extra_json_schema={"anyOf": [_WINDOW, {"type": "null"}]},
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.window is not None:
            try:
                Window.parse(self.window)
            except BadInput as error:
                raise FieldError("window", str(error).removeprefix("window=")) from None


class OneUrl(Given, frozen=True):
    """The URL of a page."""

    url: Url


class OnePage(OfPolicy, frozen=True, kw_only=True):
    """A request about one page."""

    url: Url


class PagesToForget(Given, frozen=True):
    """The pages to forget: give one of these."""

    url: Annotated[str | None, about("A page: absolute http(s) URL.", examples=["https://a.example/old"])] = None
    prefix: Annotated[str | None, about("Pages whose URLs begin so: absolute http(s) URL.")] = None
    host: Annotated[HostName | None, about("Pages of this host.")] = None
    domain: Annotated[HostName | None, about("Pages of this host or domain, including subdomains.")] = None
    expired: Annotated[bool, about("The pages that the rule of OPIC_EXPIRE_BELOW would forget now.")] = False
    dry_run: Annotated[bool, about("Forget nothing, and tell how many pages it would be.")] = False


class FrontierHead(Given, frozen=True):
    """A request for the head of the frontier."""

    n: Count = 10
    domain: Domain = None
    mode: Chosen = "any"


class TopPages(OfPolicy, frozen=True):
    """A request for the most important pages."""

    n: Count = 100
    domain: Domain = None
    by: Annotated[
        TopBy,
        about(
            "inlinks: by the number of known pages that link to a page, where links are kept; with a window, a "
            'duration like "7d", only links from pages read in it count.'
        ),
    ] = "importance"
    state: Annotated[
        TopState | None,
        about("Only pages never read, only those read, or only those that may not be read. With by=importance."),
    ] = None
    after: Annotated[
        str | None,
        about(
            "Continue here: `next` of the previous answer. While the crawl goes on, a page that overtakes the last one "
            "of that answer may be missing or come twice. Also takes the `position` of a write, alone or in addition."
        ),
    ] = None


class TopSites(OfPolicy, frozen=True):
    """A request for the most important hosts or registered domains."""

    n: Annotated[int, about("Maximum number of hosts or domains, up to OPIC_MAX_N.", ge=1)] = 100


class UrlPart(Given, frozen=True):
    """A search for pages by a part of their URL."""

    text: Annotated[
        str,
        about("A part of the URL; case does not matter.", min_length=1, max_length=TEXT_CHARS_MAX, examples=["news"]),
    ]
    n: Count = 20
    domain: Domain = None
    after: After = None


class DomainInflow(Given, frozen=True):
    """A request for the in-flow of a domain or a host; exactly one of the two."""

    domain: Annotated[
        SomeHost | None,
        about(
            "A registered domain.",
            examples=["a.example"],
            extra_json_schema={"example": "a.example"},  # Which the page at /docs fills in.
        ),
    ] = None
    host: Annotated[SomeHost | None, about("Or a host: its pages have bounds.")] = None
    prefix: Annotated[UrlPrefix | None, about("Or the beginning of URLs, where links are kept.")] = None
    after: After = None
    n: Count = 1_000
    policy: Annotated[Policy | None, about("Where links are kept, any; else none or static.")] = None
    window: Annotated[HostName | None, about("Of a window policy, where links are kept.")] = None


class PageInlinks(OneUrl, frozen=True):
    """A request for the pages that link to a page."""

    n: Count = 100


class CoverageTarget(Given, frozen=True):
    """A request for the coverage guarantee."""

    target: Annotated[Target | None, about("Coverage wanted, such as 0.98.", examples=[0.98])] = None
    delta: Annotated[
        float,
        about(
            "Share of all trust that is on other pages than the trusted ones. The guarantee then assumes that nothing "
            "of it reaches a fetched page, and is at most 1 - delta (Cho, Schonfeld 2007, theorem 3).",
            ge=0,
            lt=1,
        ),
    ] = 0.0


class LocalHead(Given, frozen=True):
    """A request for the first pages of a ranked list."""

    n: Count = 100


class SeriesPoints(Given, frozen=True):
    """A request for the series, with its level of detail."""

    n: Annotated[int, about("Approximate number of entries of the series.", ge=2, le=POINTS_MAX)] = 400


class NewestLetters(Given, frozen=True):
    """A request for dead letters."""

    n: Annotated[int, about("Maximum number of dead letters.", ge=1, le=LETTERS_MAX)] = 20
