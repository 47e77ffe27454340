"""Request and response models of the calls about URL rules and trap thresholds."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from opic.urls.rules import NOTE_CHARS_MAX, PATTERN_BYTES_MAX, RULES_MAX
from opic.urls.traps import NUMBER_MAX, WINDOW, Traps

HOST_CHARS_MAX: Final = 255
PLAIN: Final = Traps()


class _RulesBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rule(_RulesBody):
    """A rule: it applies to a URL that meets all given conditions."""

    effect: Literal["allow", "deny"] = Field(description="Denied pages stay known and keep their cash.")
    host: str | None = Field(None, max_length=HOST_CHARS_MAX, description="This host alone.", examples=["a.example"])
    domain: str | None = Field(
        None, max_length=HOST_CHARS_MAX, description="This host or domain, with all below it; not beside `host`."
    )
    path: str = Field(
        "/",
        min_length=1,
        max_length=PATTERN_BYTES_MAX,
        pattern=r"^[/*][!\"$-~]*$",  # Printable ASCII without a number sign.
        description="What path and query begin with, as in robots.txt: * is any characters, $ at the end is the end.",
        examples=["/calendar/*?month="],
    )
    query: bool | None = Field(None, description="Only URLs with a query, or only those without.")
    note: str = Field("", max_length=NOTE_CHARS_MAX, description="For people: a line.")


def _number(what: str, default: int) -> Any:
    return Field(default, ge=0, le=NUMBER_MAX, description=f"{what} 0: off.")


def _share(what: str, default: float) -> Any:
    return Field(
        default,
        ge=1 / WINDOW,
        le=1,
        allow_inf_nan=False,
        description=f"The most of the last {WINDOW} suggestions that may be of {what}.",
    )


class Thresholds(_RulesBody):
    """Thresholds of trap detection; missing fields have their defaults."""

    on: bool = Field(default=PLAIN.on, description="False: no trap is looked for.")
    url_bytes: int = _number("Longer URLs are held back.", PLAIN.url_bytes)
    segments: int = _number("Paths of more segments are held back.", PLAIN.segments)
    repeats: int = _number("So are those where some segments follow each other so often; not 1.", PLAIN.repeats)
    parameters: int = _number("So are queries of more parameters.", PLAIN.parameters)
    years_ahead: int = _number("So are URLs that name a date more years ahead.", PLAIN.years_ahead)
    dates: int = _number("Of pages that differ only in a date, those after so many are held back.", PLAIN.dates)
    host_pages: int = _number("A host with more known pages is large.", PLAIN.host_pages)
    host_share: float = _share("one large host, while others have pages to offer", PLAIN.host_share)
    site_reads: int = _number(
        "A registered domain that was read more often, and more often than links of others paid for, is outgrown.",
        PLAIN.site_reads,
    )
    site_share: float = _share("one outgrown domain, while others have pages to offer", PLAIN.site_share)


class Rules(_RulesBody):
    """Rules and thresholds, which replace those set before."""

    rules: list[Rule] = Field(
        [], max_length=RULES_MAX, description="Tried in order: the first that matches a URL decides. None: all may be."
    )
    traps: Thresholds = Field(
        Thresholds(), description="Pages of URLs that a rule allows are never held back as traps."
    )


class RulesFound(BaseModel):
    """The current rules and thresholds; each rule has only the fields that were given."""

    model_config = ConfigDict(extra="allow")

    rules: list[dict[str, Any]]
    traps: Thresholds
    version: str = Field(description="The same for the same rules and thresholds.")
