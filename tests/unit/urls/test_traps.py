"""Traps: shapes of URLs that are held back, and sites that get no cash from other sites."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadInput
from opic.urls.traps import Shapes, Traps, Verdict, check_traps, goes_round, outgrown

YEAR = 2026


def judged(path: str, **traps: int) -> Verdict:
    return Shapes(Traps(**traps), YEAR).judge("http://a.example" + path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("/", Verdict.FREE),
        ("/" + "x" * 1_007, Verdict.FREE),
        ("/" + "x" * 1_008, Verdict.LONG),
        ("/".join(["", *map(str, range(20))]), Verdict.FREE),
        ("/".join(["", *map(str, range(20)), ""]), Verdict.FREE),
        ("/".join(["", *map(str, range(21))]), Verdict.DEEP),
        ("/?q=" + "/x" * 30, Verdict.FREE),
        ("/a/b/a/b/a/b/", Verdict.FREE),
        ("/a/b/a/b/a/b/a/b/", Verdict.ROUND),
        ("/x/a/a/a/a", Verdict.ROUND),
        ("/a////////b", Verdict.FREE),
        ("/?" + "&".join("abcdefghijklmnopqrst"), Verdict.FREE),
        ("/?" + "&".join("abcdefghijklmnopqrstu"), Verdict.PARAMETERS),
    ],
)
def test_a_url_of_a_strange_shape_is_held_back(path: str, verdict: Verdict) -> None:
    assert judged(path) == verdict


@pytest.mark.parametrize(
    "path",
    [
        "/2031/07/",
        "/events/2031-7-1",
        "/calendar?month=7&year=2031",
        "/calendar?date=20310701&view=week",
        "/calendar?y=2031",
        "/31-12-2031/",
        "/2031/07/01/a-title",
        "/day/2031-07-01.html",
    ],
)
def test_a_url_with_a_date_years_ahead_is_held_back(path: str) -> None:
    assert judged(path) == Verdict.FAR_DATE
    assert judged(path.replace("2031", "2028")) == Verdict.FREE
    assert judged(path, years_ahead=0) == Verdict.FREE


@pytest.mark.parametrize(
    "path",
    [
        "/questions/27960605/find-all",  # Eight digits that could be a day, of a question.
        "/wire/wire_484505_2361_2_1.html",
        "/fishing%20reports%2098/9july98.html",  # A space, then '98.
        "/abs/2301.01234",
        "/item/20311231",
        "/?from=2020-01-01&to=2100-12-31",  # One end of the span is in reach.
        "/wiki/2063",
        "/x2031-07abc",
        "/12031-07-01",
    ],
)
def test_numbers_that_are_not_future_dates_are_allowed(path: str) -> None:
    assert judged(path) == Verdict.FREE


def test_the_first_dates_of_an_endless_calendar_are_allowed() -> None:
    shapes = Shapes(Traps(dates=30), YEAR)
    months = [f"http://a.example/cal?month={m}&year={y}&show=all" for y in range(1900, 1910) for m in range(1, 13)]
    assert [shapes.judge(url) for url in months] == [Verdict.FREE] * 30 + [Verdict.CALENDAR] * 90
    assert shapes.judge("http://b.example/cal?month=1&year=1900&show=all") == Verdict.FREE


def test_articles_under_a_date_are_not_a_calendar() -> None:
    shapes = Shapes(Traps(dates=1), YEAR)
    articles = [f"http://a.example/2004/{m}/{d}/article-{d}" for m in range(1, 13) for d in range(1, 29)]
    stories = [f"http://a.example/story?id={n}&date=2004-05-12" for n in range(30)]
    assert {shapes.judge(url) for url in articles + stories} == {Verdict.FREE}


def test_memory_for_calendars_is_bounded_and_the_longest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opic.urls.traps.TEMPLATES_MAX", 100)
    shapes = Shapes(Traps(dates=20), YEAR)
    for day in range(1, 21):
        shapes.judge(f"http://a.example/2004-05-{day:02}")
    for other in range(1_000):
        shapes.judge(f"http://a.example/{other}/2004-05-12")
    assert len(shapes._dates) <= 100
    assert shapes.judge("http://a.example/2004-05-21") == Verdict.CALENDAR


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(2, 4))
def test_repeated_path_segments_in_a_row_are_a_trap(segments: list[str], times: int) -> None:
    spans = range(1, len(segments) // times + 1)
    rounds = (
        segments[at : at + n] * times == segments[at : at + n * times] for n in spans for at in range(len(segments))
    )
    assert goes_round(segments, times) == any(rounds)


@given(st.text("/ab?&=-0123", max_size=60), st.sampled_from([0, 2, 3]), st.sampled_from([0, 1, 5]))
def test_every_url_gets_a_verdict_and_switched_off_traps_hold_nothing(path: str, repeats: int, segments: int) -> None:
    judged("/" + path, repeats=repeats, segments=segments)
    off = dict.fromkeys(("url_bytes", "segments", "repeats", "parameters", "years_ahead", "dates"), 0)
    assert judged("/" + path, **off) == Verdict.FREE


@pytest.mark.parametrize(
    ("reads", "others", "inflow", "verdict"),
    [
        (10_000, 50_000, 0.0, False),
        (10_001, 50_000, 0.0, True),
        (10_001, 9_999, 0.0, False),  # Too few others were read to have paid.
        (20_001, 50_000, 100.0, True),  # 100 grants pay for 10,000 pages.
        (20_000, 50_000, 100.0, False),
    ],
)
def test_a_site_may_be_read_in_proportion_to_cash_from_others(
    reads: int, others: int, inflow: float, verdict: bool
) -> None:
    assert outgrown(reads, others, inflow, 1.0, Traps()) == verdict


def test_without_the_threshold_no_site_is_held_back() -> None:
    assert not outgrown(10**9, 10**9, 0, 1.0, Traps(site_reads=0))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([], "an object with thresholds"),
        ({"depth": 3}, "traps has no 'depth'"),
        ({"on": 1}, "on '1' is neither"),
        ({"segments": -1}, "segments '-1' is no whole number from 0"),
        ({"segments": True}, "segments 'True' is no whole number"),
        ({"segments": 2.5}, "no whole number"),
        ({"url_bytes": 10**10}, "to 1,000,000,000"),
        ({"repeats": 1}, "repeats 1 would hold back every page"),
        ({"host_share": 0}, "no share from 0.01 to 1"),
        ({"site_share": float("nan")}, "no share from 0.01 to 1"),
        ({"site_share": "half"}, "no share from 0.01 to 1"),
    ],
    ids=str,
)
def test_a_bad_threshold_is_refused_by_name(given: Any, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        check_traps(given)


def test_thresholds_are_shown_in_the_form_that_is_accepted() -> None:
    assert check_traps(Traps().shown()) == Traps()
    assert check_traps({"on": False, "dates": 5, "host_share": 1}) == Traps(on=False, dates=5, host_share=1)
