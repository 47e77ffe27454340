"""docs/asyncapi.yaml says what the decoder of crawl events takes, and nothing else."""

from typing import Any

import msgspec
import pytest
import yaml
from asyncapi_document import DOCUMENT, written
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validators

from opic.errors import BadEvent
from opic.model.events import decode_any_event
from opic.settings import Settings

# JSON Schema takes 200.0 for an integer, and the decoder does not, as the document says.
integers = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
Validator = validators.extend(Draft202012Validator, type_checker=integers)
DOCUMENTED: dict[str, Any] = yaml.safe_load(DOCUMENT.read_text())
EVENT = DOCUMENTED["components"]["schemas"]["CrawlEvent"]
MESSAGES = DOCUMENTED["components"]["messages"]

anything = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5), st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.text(), max_size=2),
    st.sampled_from([0, 200, 65_534, 65_535, -1, 1.0, 1.5, [1], {"a": 1}]),
)  # fmt: skip
events = st.builds(
    lambda url, fields: {**({} if url is None else {"url": url}), **fields},
    st.one_of(st.none(), st.just("http://a.example/"), anything),
    st.dictionaries(st.sampled_from([*EVENT["properties"], "other"]), anything, max_size=4),
)


def decodes(value: object) -> bool:
    try:
        decode_any_event(msgspec.json.encode(value))
    except BadEvent:
        return False
    return True


@examples(10_000)
@given(events)
def test_schema_accepts_what_the_decoder_accepts(value: dict[str, Any]) -> None:
    assert decodes(value) == Validator(EVENT).is_valid(value)


def test_schema_is_generated_from_the_decoder() -> None:
    assert DOCUMENT.read_text() == written(), "run: python tests/support/asyncapi_document.py"


def test_examples_are_valid_events() -> None:
    payloads = [example["payload"] for example in MESSAGES["crawlEvent"]["examples"]]
    assert len(payloads) == 3
    assert all(map(decodes, payloads))


@pytest.mark.parametrize("channel", ["crawlEvents", "deadLetters"])
def test_references_resolve(channel: str) -> None:
    for message in DOCUMENTED["channels"][channel]["messages"].values():
        at: Any = DOCUMENTED
        for name in message["$ref"].removeprefix("#/").split("/"):
            at = at[name]
        assert at["name"]
    assert DOCUMENTED["channels"]["crawlEvents"]["address"] == Settings.load().kafka_topic
