"""Answers in sentences."""

from typing import Any

import pytest

from opic.api.examples import ANSWERS
from opic.messages.frontier import HeldBack
from opic.messages.sentences import TEXT_MAX, certainty, ending, held_back, reasons, waiting


def explained(**changes: Any) -> dict[str, str]:
    answer = {**ANSWERS["Explanation"], **changes}
    return {reason["about"]: " ".join(reason["sentences"]) for reason in reasons(answer)}


def test_each_kind_of_waiting_has_a_sentence() -> None:
    kinds = HeldBack.__struct_fields__
    for kind in (*kinds, "outside"):
        assert waiting({kind: 1})[0].startswith("1 page ")
        assert waiting({kind: 1_200})[0].startswith("1,200 pages ")
    assert waiting(dict.fromkeys(kinds, 0)) == []


def test_an_offered_page_says_when_and_another_one_why_not() -> None:
    assert explained()["When it is offered"].startswith("It may be handed out now. It has place 1 ")
    standing = {**ANSWERS["Explanation"]["frontier"], "next": False, "why_not": ["it is leased"], "place": None}
    said = explained(frontier=standing)["Why it is not offered"]
    assert said == "It is leased. It has no place in the order of pages to fetch."


def test_the_order_by_importance_is_called_so() -> None:
    standing = {**ANSWERS["Explanation"]["frontier"], "order": "exact", "state": "unread", "place": 12}
    assert "place 12 among never-read pages, by importance." in explained(frontier=standing)["When it is offered"]


def test_a_gone_page_and_a_page_without_links_have_sentences() -> None:
    assert explained(gone=True, estimate=None)["Importance"] == "The page is gone: it has none."
    given = explained(given_by={"pages": [], "known": 0, "jump": 1.0})["Who gives it its importance"]
    assert given.startswith("No page that was read links to it.")


def test_long_urls_are_cut() -> None:
    url = "http://a.example/" + "x" * 2_000
    given = {"pages": [{"url": url, "share": 0.5}], "known": 1, "jump": 0.5}
    said = explained(given_by=given)["Who gives it its importance"]
    assert url[:TEXT_MAX] + "…" in said
    assert len(said) < TEXT_MAX + 300


@pytest.mark.parametrize(
    ("ranks", "bound", "said"),
    [
        ([True, True], 0.001, "makes all these ranks certain"),
        ([False], 0.5, "makes none of these ranks certain"),
        ([True, False, True], 0.01, "the ranks of 2 of these 3 pages"),
        ([False], None, "no error bound"),
    ],
)
def test_certainty_counts_the_ranks_that_the_bound_separates(ranks: list[bool], bound: float | None, said: str) -> None:
    assert said in certainty(ranks, bound)


@pytest.mark.parametrize("pace", ["finished", "new", "idle", "growing", "ending"])
def test_every_pace_has_a_sentence(pace: str) -> None:
    terms = {"idle_seconds": 600.0, "reads_per_second": 2.0, "found_per_read": 0.5, "seconds": 7_200.0}
    said = ending({"pace": pace, "to_fetch": 5, **terms})
    assert ("ends in about 2 h" in said) == (pace == "ending")
    assert said.endswith(".")


def test_nothing_to_offer_has_a_reason() -> None:
    nothing = dict.fromkeys(HeldBack.__struct_fields__, 0)
    assert "opic seed" in held_back(nothing, offered=False, known=0)[0]
    assert "was read" in held_back(nothing, offered=False, known=3)[0]
