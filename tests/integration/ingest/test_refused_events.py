"""A crawler finds in `explain` why the event of a leased page was refused, and metrics count what is left out."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import wait_until
from prometheus_client.parser import text_string_to_metric_families
from serving import serving
from written import written

from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

PAGE = "http://a.example/"
LEASE_SECONDS = 0.2


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EmbeddedService]:
    settings = Settings.load(data=tmp_path, host_delay_seconds=0.0, retry_seconds=60.0, max_links=2)
    with EmbeddedService(settings) as opened:
        yield opened


@pytest.fixture
def client(service: EmbeddedService) -> Iterator[httpx.Client]:
    with serving(service) as url, httpx.Client(base_url=url, timeout=30) as found:
        found.post("/v1/seeds", json={"urls": [PAGE]}).raise_for_status()
        yield found


def lease(client: httpx.Client, seconds: float = 60.0) -> str:
    found = client.post("/v1/next", json={"n": 1, "lease_seconds": seconds}).raise_for_status().json()
    (page,) = found["pages"]
    assert page["url"] == PAGE
    return str(page["lease"])


def explained(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/explain", params={"url": PAGE}).raise_for_status().json()["frontier"]
    return found


@pytest.mark.parametrize("body", [{"url": PAGE, "link": []}, [{"url": PAGE, "link": []}]], ids=["alone", "in an array"])
def test_explain_says_that_the_event_of_a_leased_page_was_refused(client: httpx.Client, body: Any) -> None:
    lease(client)
    before = explained(client)
    assert before["refused"] is None
    assert not any("refused" in reason for reason in before["why_not"])
    answer = client.post("/v1/events", json=body)
    assert "unknown field 'link'" in answer.text
    found = explained(client)
    assert found["refused"] == "unknown field 'link': did you mean links?"
    (reason,) = found["why_not"]
    assert reason.startswith("its event was refused: unknown field 'link': did you mean links?; it is leased")


def test_waiting_page_shows_its_refused_event_until_an_event_is_accepted(
    service: EmbeddedService, client: httpx.Client
) -> None:
    lease(client, LEASE_SECONDS)
    assert client.post("/v1/events", json={"url": PAGE, "links": "http://b.example/"}).status_code == 422
    wait_until(lambda: explained(client)["lease_until"] is None)
    for swept in (False, True):
        found = explained(client)
        assert (found["failures"], found["next"]) == (1, False)
        assert found["waits_until"] == pytest.approx(time.time() + 60, abs=10)
        assert any("its event was refused: invalid field" in reason for reason in found["why_not"]), swept
        assert client.post("/v1/next", json={"n": 1}).json()["pages"] == []  # It sweeps the expired lease.
    assert client.post("/v1/events", json={"url": PAGE, "status": 500}).status_code == 202
    service.backend.await_effect(service.backend.log.ends())
    found = explained(client)
    assert (found["failures"], found["refused"]) == (2, None)
    assert any("its fetch failed, or its lease expired" in reason for reason in found["why_not"])


def test_refused_event_of_a_page_that_is_not_leased_says_nothing_of_a_later_lease(client: httpx.Client) -> None:
    assert client.post("/v1/events", json={"url": PAGE, "link": []}).status_code == 422
    assert explained(client)["refused"] is None
    given_back = lease(client)
    assert client.post("/v1/events", json={"url": PAGE, "link": []}).status_code == 422
    assert explained(client)["refused"] is not None
    assert client.post("/v1/release", json={"leases": [given_back]}).json() == {"released": 1}
    lease(client)
    assert explained(client)["refused"] is None


def test_explain_shows_a_dead_letter_too(service: EmbeddedService, client: httpx.Client) -> None:
    lease(client)
    positions = service.backend.log.append(
        [b'{"url": "http://A.example", "v": 99}', b"nonsense"], time.time_ns() // 1000
    )
    service.backend.await_effect(positions)
    found = wait_until(lambda: explained(client)["refused"])
    assert "schema version v=99 is unknown" in found


def test_links_left_out_are_counted_in_the_metrics(service: EmbeddedService, client: httpx.Client) -> None:
    def sample(name: str) -> float | None:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return next((s.value for family in families for s in family.samples if s.name == name), None)

    links = [f"{PAGE}#{n}" for n in range(20_000)] + [f"http://b.example/{n}" for n in range(5)]
    answer = client.post("/v1/events", json={"url": PAGE, "links": links})
    assert (answer.status_code, written(answer)) == (202, {"accepted": 1, "rejected": [], "links_left_out": 3})
    few = client.post("/v1/events", json={"url": PAGE, "links": links[:20_002]})
    assert written(few) == {"accepted": 1, "rejected": []}
    wait_until(lambda: sample("opic_links_left_out_total") == 3)
    service.backend.await_effect(service.backend.log.ends())
    found = client.post("/v1/importance", json={"urls": links[20_000:]}).json()["pages"]
    assert [page["importance"] is not None for page in found] == [True, True, False, False, False]
