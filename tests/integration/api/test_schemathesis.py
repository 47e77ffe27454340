"""Schemathesis reads the endpoint's own OpenAPI document, and asks what that describes and what it does not.

Its cases are the document's examples, the edges of each schema, and some at random from a fixed seed. None may be
answered with what the document does not say: a status, a media type, a header, a shape; nor with a 5xx, a 503 among
them, for nothing is wrong here. `pytest -s` shows what was asked.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import curls
import msgpack
import pytest
import schemathesis
from hypothesis import reject
from processes import wait_until
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import derive_operation_seed
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from serving import serving

from opic.api.request_bodies import LINES, MSGPACK
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

EXAMPLES = 15  # At random, of each operation; the edges of the schemas are many more.
CONFIG = {
    # Hypothesis also draws on constants of the modules that are loaded: beside other tests some cases are others.
    "seed": 20030524,
    "generation": {"max-examples": EXAMPLES, "no-shrink": True, "database": "none"},
    "request-timeout": 30,
    # A schema can't say what a URL, a host or a lease is, nor a limit that is a setting: what fits it may be a 422.
    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "412", "422"]}},
}
PAGES = ["https://a.example/", "https://a.example/b", "https://b.example/"]  # Those of the document's examples.
KEY = "Idempotency-Key"


@schemathesis.serializer(MSGPACK[0])
def packed(_: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return bytes(msgpack.packb(value))
    except OverflowError:  # MessagePack has 64 bits for a whole number, the schema knows no end.
        reject()


@schemathesis.serializer(LINES[0])
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()


@dataclass
class Report:
    """What was asked, and how it was answered."""

    url: str
    cases: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    good: int = 0
    keys: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        cases = self.cases.total()
        told = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        return (
            f"schemathesis {schemathesis.__version__}: {len(self.cases)} operations, {cases:,} cases, "
            f"{cases - self.good:,} failures; {told}"
        )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    settings = Settings.load(data=tmp_path_factory.mktemp("schemathesis"), host_delay_seconds=0.0)
    with EmbeddedService(settings) as service, serving(service) as url:
        sent = [{"url": page, "links": PAGES} for page in PAGES[:2]]
        assert curls.post(f"{url}/v1/events", json=sent).json()["accepted"] == len(sent)
        wait_until(lambda: curls.get(f"{url}/v1/stats").json()["lag"] == 0)
        yield Report(url)


@pytest.fixture(scope="module")
def document(report: Report) -> Any:
    return schemathesis.openapi.from_url(f"{report.url}/openapi.json", config=schemathesis.Config.from_dict(CONFIG))


def test_every_answer_matches_the_document(document: Any, report: Report, subtests: pytest.Subtests) -> None:
    load_all_checks()

    def ask(case: schemathesis.Case) -> None:
        spare_key(case, report.keys)
        answer = case.call()
        report.cases[case.operation.label] += 1
        report.statuses[answer.status_code] += 1
        excluded = [CHECKS.get_one("negative_data_rejection")] if lists_what_it_refused(answer) else []
        case.validate_response(answer, excluded_checks=excluded)
        report.good += 1

    for found in document.get_all_operations():
        operation = found.ok()
        with subtests.test(operation.label):
            # What its plugin for pytest does, which does not know pytest 9.
            config = HypothesisTestConfig(
                project=document.config,
                modes=list(HypothesisTestMode),
                settings=document.config.get_hypothesis_settings(operation=operation, phase="fuzzing"),
                seed=derive_operation_seed(document.config.seed, operation.label),
            )
            create_test(operation=operation, test_func=ask, config=config)()
    print(f"\n{report}")
    paths = curls.get(f"{report.url}/openapi.json").json()["paths"]
    assert report.cases.keys() == {f"{method.upper()} {path}" for path, calls in paths.items() for method in calls}
    assert report.good == report.cases.total() > 1_000
    assert curls.get(f"{report.url}/readyz").status_code == 200
    assert curls.get(f"{report.url}/v1/audit").json()["conserved"] is True


def spare_key(case: schemathesis.Case, seen: set[str]) -> None:
    """Leave out a key that came before: with it the body would not be looked at."""
    key = case.headers.get(KEY)
    if key in seen:
        del case.headers[KEY]
    elif isinstance(key, str) and re.fullmatch(r"[ -~]{1,255}", key):
        seen.add(key)


def lists_what_it_refused(answer: schemathesis.Response) -> bool:
    """Whether bad events among several were refused one by one, which is a 202 all the same."""
    return answer.status_code == 202 and bool(answer.json()["rejected"])
