"""A topic is written as a word or a pattern, and says which pages are on it."""

import pytest

from opic.errors import BadInput
from opic.sampling.topics import PageContent, parse_topic


@pytest.mark.parametrize(
    ("written", "page", "is_on"),
    [
        ("url:/news/", PageContent("http://a.example/news/1"), True),
        ("url:/News/", PageContent("http://a.example/news/1"), False),
        ("host:a.example", PageContent("http://www.a.example/"), True),
        ("host:uk", PageContent("http://a.co.uk/"), True),
        ("host:a.example", PageContent("http://nota.example/"), False),
        ("tag:sport", PageContent("http://a.example/", ["sport"]), True),
        ("tag:spor", PageContent("http://a.example/", ["sport"]), False),
        ("word:Cycling", PageContent("http://a.example/", text="On cycling."), True),
    ],
)
def test_topic_contains_the_pages_that_its_text_describes(written: str, page: PageContent, is_on: bool) -> None:
    assert parse_topic(written).contains(page) is is_on


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("cycling", "'cycling' is not a topic: topics are url:TEXT"),
        ("urls:a", "did you mean url"),
        ("tag:", "topic 'tag:' is empty: give tag:T"),
        ("host:a/b", "'a/b' is not a host or a domain"),
        ("text:none.json", "none.json can't be read: .*`opic topic-model` trains"),
    ],
)
def test_bad_topic_is_refused_with_the_valid_forms(written: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_topic(written)
