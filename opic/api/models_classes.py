"""Request and response models of the calls about classes of pages."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import AS_OF, _Answer, _Body
from opic.api.models_rules import VERSION
from opic.model.classes import WEIGHT_MAX
from opic.urls.rules import REVISIT_SECONDS_MAX


class PageClass(_Body):
    """A class of pages: its weight, and which pages belong to it."""

    name: str = Field(description="1 to 64 letters, digits, '_', '.' or '-'.", examples=["trusted"])
    weight: float = Field(
        gt=0,
        le=WEIGHT_MAX,
        allow_inf_nan=False,
        description="Each of its pages receives this multiple of every grant.",
        examples=[5],
    )
    hosts: list[str] = Field([], description="Hosts or domains, including subdomains.", examples=[["a.example"]])
    urls: list[str] = Field([], description="URL prefixes.")
    contains: list[str] = Field([], description="Literal substrings of the URL.")
    tags: list[str] = Field([], description="Tags of the page's most recent crawl event with tags.")
    revisit_seconds: float | None = Field(
        None,
        ge=0,
        le=REVISIT_SECONDS_MAX,
        allow_inf_nan=False,
        description="Minimum time from a read of one of its pages to the next suggestion of the page.",
    )


class Classes(_Body):
    """Classes of pages, in order: a page belongs to the first one that it matches."""

    classes: list[PageClass] = Field(description="At most 7; an empty list removes all classes.")


class SomeClasses(_Body):
    """Classes to set or to remove; all others stay as they are."""

    classes: list[PageClass] = Field(
        [], description="A class of the same name is replaced in its place; a new one comes after the others."
    )
    remove: list[str] = Field([], description="Names of classes to remove.")


class ClassCounts(_Answer):
    """The number of pages of a class, and their share of grants."""

    weight: float = Field(description="Each of its pages receives this multiple of every grant.")
    known_pages: int = Field(description="Known pages that are not gone.")
    read_pages: int
    grant_share: float = Field(description="Share of each grant to all pages that goes to these pages.")


class ClassFound(ClassCounts):
    """A class of pages as it was defined, in canonical forms, with its pages."""

    name: str


class ClassesFound(_Answer):
    """The current classes of pages, in order."""

    classes: list[ClassFound]
    other: ClassCounts = Field(description="The pages that are in no class.")
    version: str = Field(description=VERSION)
    as_of: float = Field(description=AS_OF)


class Reclassified(ClassesFound):
    """The new classes, and the number of pages that are classified again."""

    reclassified: int = Field(description="Number of known pages, which are classified again.")
    settled: bool = Field(description="Whether all of them are in their new classes, and counted there.")


_TRUSTED: Final[dict[str, Any]] = {"name": "trusted", "weight": 5.0, "hosts": ["a.example"]}
_FOUND: Final[dict[str, Any]] = {
    "classes": [{**_TRUSTED, "known_pages": 2, "read_pages": 1, "grant_share": 0.71}],
    "other": {"weight": 1.0, "known_pages": 4, "read_pages": 2, "grant_share": 0.29},
    "version": "3c3e7f0a4b1d9a57",
    "as_of": 1_764_000_000.0,
}
BODIES: Final[dict[str, dict[str, Any]]] = {"Classes": {"classes": [_TRUSTED]}, "SomeClasses": {"classes": [_TRUSTED]}}
EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "ClassesFound": [_FOUND],
    "Reclassified": [{**_FOUND, "reclassified": 6, "settled": True}],
}
