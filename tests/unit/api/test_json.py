"""Answers are JSON in ASCII, whatever text a message has."""

import json

import pytest

from opic.api.problems import Json
from opic.messages.events import Rejected
from opic.messages.frontier import Page

PAGE = {"url": "http://a.org/", "cash": 1, "importance": 0.5, "fetched_before": False, "lease": "x", "lease_until": 1.5}


@pytest.mark.parametrize("text", ["plain", "\u00fc \U0001f600", "\ud800"])
def test_message_with_any_text_is_sent(text: str) -> None:
    assert json.loads(Json(Rejected(0, text)).body) == {"index": 0, "error": text}
    answer = {"pages": [Page(**PAGE, meta={"title": text})]}
    assert json.loads(Json(answer).body) == {"pages": [{**PAGE, "meta": {"title": text}}]}
    assert bytes(Json(answer).body).isascii()
