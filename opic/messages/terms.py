"""What many messages have in common: names of choices, descriptions of fields."""

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Optional, TypeVar

from msgspec import Meta

T = TypeVar("T")
if TYPE_CHECKING:
    # Of a field that may be null, which the message then takes as absent: Go writes an empty slice as null.
    OrNull = Annotated[T, "null is as absent"]
else:
    OrNull = Optional

Policy = Literal["exact", "static", "interpolation", "fixed", "variable", "improved", "loaded"]
Mode = Literal["any", "discover", "refresh", "coverage"]
TopBy = Literal["importance", "inlinks"]
TopState = Literal["unread", "read", "excluded"]
NextPolicy = Literal["U", "OR", "YR", "YRU", "LDU", "GAI", "AI"]
Window = float | str  # A number of rounds, or a duration such as "30d" or "12h".

HOST_CHARS_MAX: Final = 255
META_BYTES_MAX: Final = 1_024  # Of names and values together, in UTF-8.
DEPTH_MAX: Final = 65_534  # Fits 2 bytes a page. Links of a page so deep are not counted any deeper.
VERSION: Final = "A hash of the definitions, also in `ETag`. Send it as `If-Match` to change just this version."
META: Final = f"Strings kept with the page: names and values together at most {META_BYTES_MAX:,} bytes."
NOT_BEFORE: Final = "Unix seconds or RFC 3339: the page is not offered before. The last one given is kept; 0 ends it."
PRIORITY: Final = "Factor on the page's key in the order of suggestions, 1 by default. The last one given is kept."

POSITION_HEADER: Final = "opic-position"  # Of an answer whose body is the same each time a call is repeated.

Depth = Annotated[int, Meta(ge=0, le=DEPTH_MAX)]
HostName = Annotated[str, Meta(max_length=HOST_CHARS_MAX)]


def about(description: str, **terms: Any) -> Meta:
    """Describe a field; `terms` are other arguments of `Meta`: limits, examples."""
    return Meta(description=description, **terms)


def always(description: str, *, null: bool = False) -> Meta:
    """Describe a field that the service always sends. Older ones did not, so it has a default for the client.

    Args:
        description: of the field.
        null: whether the service may send null; else that is only what the client puts in its place.
    """
    return Meta(description=description, extra_json_schema={"always": null})


Position = Annotated[
    str | None,
    about(
        "Where this write ended: a call that is given it as `after` shows its effect. Absent if nothing was written."
    ),
]
AsOf = Annotated[float, about("Time of the state that this answer shows, in Unix seconds.")]
LaterAsOf = Annotated[float | None, always("Time of the state that this answer shows, in Unix seconds.")]
LoadedAt = Annotated[float | None, about("By policy loaded: when importance was loaded, in Unix seconds.")]
LoadedAsOf = Annotated[
    float | None, about("Of when the graph is that it was computed from, in Unix seconds; null if unknown.")
]
LoadedBound = Annotated[
    float | None, about("Bound on its L1 distance from exact PageRank as of the load; null if unknown.")
]
RankAsOf = Annotated[
    float | None,
    about("Time of the state that the ranks are computed from, in Unix seconds; present only if older than `as_of`."),
]
Share = Annotated[float, about("Share of the cash flow that reaches the page; over all known pages it sums to 1.")]
Next = Annotated[str | None, about("Value of `after` for the next call, if there are more pages.")]
