"""Request and response models of the calls about URL rules and trap thresholds."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from opic.urls.rules import NOTE_CHARS_MAX, PATTERN_BYTES_MAX, REVISIT_SECONDS_MAX, RULES_MAX
from opic.urls.traps import NUMBER_MAX, WINDOW, Traps

HOST_CHARS_MAX: Final = 255
VERSION: Final = "A hash of the definitions, also in `ETag`. Send it as `If-Match` to change just this version."
PLAIN: Final = Traps()


class _RulesBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rule(_RulesBody):
    """A rule: it applies to a URL that meets all given conditions."""

    effect: Literal["allow", "deny"] = Field(
        description="Whether matching pages may be suggested. Denied pages stay known and keep their cash."
    )
    host: str | None = Field(
        None, max_length=HOST_CHARS_MAX, description="Matches this host only.", examples=["a.example"]
    )
    domain: str | None = Field(
        None,
        max_length=HOST_CHARS_MAX,
        description="Matches this host or domain and its subdomains. Can't be combined with `host`.",
    )
    path: str = Field(
        "/",
        min_length=1,
        max_length=PATTERN_BYTES_MAX,
        pattern=r"^[/*][!\"$-~]*$",  # Printable ASCII without a number sign.
        description="Prefix of the path and query, as in robots.txt: * matches any characters, a final $ the end.",
        examples=["/calendar/*?month="],
    )
    query: bool | None = Field(None, description="True matches only URLs with a query, false only URLs without.")
    note: str = Field("", max_length=NOTE_CHARS_MAX, description="A one-line comment.")
    revisit_seconds: float | None = Field(
        None,
        ge=0,
        le=REVISIT_SECONDS_MAX,
        allow_inf_nan=False,
        description="Minimum time from a page's read to its next suggestion; only with `allow`.",
    )


def _number(what: str, default: int) -> Any:
    return Field(default, ge=0, le=NUMBER_MAX, description=f"{what} 0 disables this.")


def _share(what: str, default: float) -> Any:
    return Field(
        default,
        ge=1 / WINDOW,
        le=1,
        allow_inf_nan=False,
        description=f"Maximum share of the last {WINDOW} suggestions for {what}.",
    )


class Thresholds(_RulesBody):
    """Thresholds of trap detection; missing fields have their defaults."""

    on: bool = Field(default=PLAIN.on, description="Whether trap detection is on.")
    url_bytes: int = _number("Hold back URLs longer than this, in bytes.", PLAIN.url_bytes)
    segments: int = _number("Hold back URLs with more path segments than this.", PLAIN.segments)
    repeats: int = _number(
        "Hold back URLs in which a sequence of path segments repeats this many times; can't be 1.", PLAIN.repeats
    )
    parameters: int = _number("Hold back URLs with more query parameters than this.", PLAIN.parameters)
    years_ahead: int = _number("Hold back URLs with a date more than this many years ahead.", PLAIN.years_ahead)
    dates: int = _number(
        "Of the pages whose URLs differ only in a date, hold back all after the first this many.", PLAIN.dates
    )
    host_pages: int = _number("A host with more known pages than this is large.", PLAIN.host_pages)
    host_share: float = _share("one large host while other hosts have pages to offer", PLAIN.host_share)
    site_reads: int = _number(
        "A registered domain is outgrown if it was read more often than this, and more often than the links from other "
        "domains paid for.",
        PLAIN.site_reads,
    )
    site_share: float = _share("one outgrown domain while other domains have pages to offer", PLAIN.site_share)


class Rules(_RulesBody):
    """Rules, thresholds, or both, which replace those set before; what is left out stays."""

    rules: list[Rule] = Field(
        [],
        max_length=RULES_MAX,
        description="Rules in order; the first that matches a URL decides. A URL that no rule matches is allowed.",
    )
    traps: Thresholds = Field(
        Thresholds(), description="Trap thresholds. Pages that a rule explicitly allows are never held back as traps."
    )


class SomeRules(_RulesBody):
    """Rules to add or to remove, and thresholds to set; all others stay as they are."""

    add: list[Rule] = Field([], max_length=RULES_MAX, description="A rule that is there already is moved.")
    first: bool = Field(False, description="Whether the added rules come before the others; else they come after them.")
    remove: list[Rule] = Field([], max_length=RULES_MAX, description="Rules to remove, as they are shown.")
    traps: Thresholds = Field(Thresholds(), description="Trap thresholds to set; those left out stay.")


class RulesFound(BaseModel):
    """The current rules and thresholds; each rule has only the fields that were given."""

    model_config = ConfigDict(extra="allow")

    rules: list[dict[str, Any]]
    traps: Thresholds
    version: str = Field(description=VERSION)


_CALENDAR: Final = {"effect": "deny", "host": "a.example", "path": "/calendar/*?month="}
BODIES: Final[dict[str, dict[str, Any]]] = {"Rules": {"rules": [_CALENDAR]}, "SomeRules": {"add": [_CALENDAR]}}
