"""What numpy tells of many URLs at once is what a look at each says."""

from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import BadUrl
from opic.urls.canonical import canonical_url
from opic.urls.traps import Shapes, Traps
from opic.urls.url_batch import UrlBatch

YEAR = 2026
PARTS = ("a", "b", "1999", "2031", "07", "7", "1", "2100-01", "31/12", "20310701", "x" * 30)
BETWEEN = ("/", "-", "=", "&", "?", ";", ".", "", "year=", "?date=", "&y=", "/./", "%2F", "ü")
HOSTS = ("a.example", "user@a.example:81", "user:2031@b.example", "[::1]", "1-7-2031.example", "2031.example")


@st.composite
def urls(draw: st.DrawFn) -> list[str]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        host = draw(st.sampled_from(HOSTS))
        rest = draw(st.lists(st.sampled_from(PARTS) | st.sampled_from(BETWEEN), max_size=12))
        try:
            found.append(canonical_url(f"http{draw(st.sampled_from(('', 's')))}://{host}/{''.join(rest)}"))
        except BadUrl:
            continue
    return found


THRESHOLDS = st.builds(
    Traps,
    url_bytes=st.sampled_from([0, 40, 1_024]),
    segments=st.sampled_from([0, 2, 20]),
    repeats=st.sampled_from([0, 2, 4]),
    parameters=st.sampled_from([0, 1, 20]),
    years_ahead=st.sampled_from([0, 2]),
    dates=st.sampled_from([0, 1, 1_000]),
)


@given(urls=urls(), traps=THRESHOLDS)
@example(urls=["http://a.example/2031-07"], traps=Traps())
@example(urls=["http://a.example/1-7-2031", "http://a.example/?y=2031"], traps=Traps(dates=1))
def test_shapes_of_a_batch_equal_those_of_single_urls(urls: list[str], traps: Traps) -> None:
    one_by_one = Shapes(traps, YEAR)
    assert list(Shapes(traps, YEAR).judge_all(urls)) == [one_by_one.judge(url) for url in urls]


@given(urls=urls())
def test_authorities_are_between_the_second_slash_and_the_third(urls: list[str]) -> None:
    assert UrlBatch(urls).authorities() == [url.split("/", 3)[2] for url in urls]
