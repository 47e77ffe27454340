"""Bad MessagePack on its way through a real service: a reason each time, neighbours taken, no memory to speak of."""

from collections.abc import Iterator
from pathlib import Path

import curls
import httpx
import msgpack
import pytest
from packed_events import BAD_PACKED, DEEP_PACKED, PACKED, UNENDING_PACKED
from processes import Service, running
from written import written

from opic.ingest.event_log import EventLog
from opic.store import Shard, connect

pytestmark = pytest.mark.slow  # `make check` has the same samples without a service.

GROWTH_BYTES_MAX = 200 << 20  # A body of 16 MiB is held some times over. A list of 2^32 places would be 32 GiB.
BODY_BYTES_MAX = 16 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    here = tmp_path_factory.mktemp("packed")
    with running(here / "data", here / "serve.log") as found:
        yield found


def send(service: Service, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/msgpack"}
    return curls.post(f"{service.url}/v1/events", content=body, headers=headers, timeout=60)


def good(number: int) -> bytes:
    return bytes(msgpack.packb({"url": f"http://good.example/{number}"}))


def test_bad_event_among_good_ones_is_refused_alone(service: Service) -> None:
    bad = [body for body in BAD_PACKED.values() if body != DEEP_PACKED]  # That array is refused whole.
    for number, body in enumerate(bad):
        answer = send(service, b"\x93" + good(2 * number) + body + good(2 * number + 1))
        assert answer.status_code == 202, answer.text
        assert answer.json()["accepted"] == 2
        ((index, reason),) = [(found["index"], found["error"]) for found in answer.json()["rejected"]]
        assert index == 1
        assert 0 < len(reason) < 300
    service.settle()
    assert service.reads([f"http://good.example/{n}" for n in range(2 * len(bad))]) == [1] * 2 * len(bad)


@pytest.mark.parametrize("body", [BAD_PACKED[name] for name in BAD_PACKED if name != "an array"])
def test_bad_event_alone_is_a_422(service: Service, body: bytes) -> None:
    answer = send(service, body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:opic:problem:bad-event")


@pytest.mark.parametrize("body", UNENDING_PACKED.values(), ids=UNENDING_PACKED)
def test_a_truncated_body_is_a_400_and_none_of_it_is_accepted(service: Service, body: bytes) -> None:
    unseen = bytes(msgpack.packb({"url": "http://behind-it.example/"}))
    for whole in (body, b"\x93" + unseen + body + unseen):
        answer = send(service, whole)
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:opic:problem:not-msgpack")
    assert service.reads(["http://behind-it.example/"]) == [0]


def test_last_of_two_equal_keys_counts_as_in_json(service: Service) -> None:
    packed = b"\x82" + PACKED[1:] + b"\xa3url" + msgpack.packb("http://last.example/msgpack")
    assert written(send(service, packed)) == {"accepted": 1, "rejected": []}
    text = b'{"url":"http://a.example/","url":"http://last.example/json"}'
    assert curls.post(f"{service.url}/v1/events", content=text).status_code == 202
    service.settle()
    assert service.reads(["http://last.example/msgpack", "http://last.example/json"]) == [1, 1]


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff" * (BODY_BYTES_MAX // 5),
        b"\xdf\xff\xff\xff\xff" * (BODY_BYTES_MAX // 5),
        b"\xdd\x00\xff\xff\xf0" + b"\xc0" * (BODY_BYTES_MAX - 16),
        b"\x91" * BODY_BYTES_MAX,
        b"\x82" + PACKED[1:] + b"\xa5links\xdd\x00\xff\xff\x00" + b"\xa0" * 0xFFFF00,
        b"\xdd\x00\x00\x00\xa0" + DEEP_PACKED * 160,
    ],
    ids=["arrays in arrays", "maps in maps", "nils", "levels", "links", "deep events"],
)
def test_largest_allowed_body_takes_little_memory(service: Service, body: bytes) -> None:
    assert len(body) <= BODY_BYTES_MAX
    endpoint = service.pids()["endpoint"]
    before = peak_bytes(endpoint)
    assert send(service, body).status_code in (202, 400, 422)
    assert peak_bytes(endpoint) - before < GROWTH_BYTES_MAX
    assert send(service, good(0)).status_code == 202


def test_bad_record_of_the_log_is_a_dead_letter_and_the_next_takes_effect(service: Service) -> None:
    """Whatever got into the log, and however: the worker goes on."""
    bad = [*BAD_PACKED.values(), *UNENDING_PACKED.values()]
    bad.remove(BAD_PACKED["an array"])  # A record may be an array of events.
    client = connect(f"unix://{service.data.absolute()}/store.sock")
    shard = Shard.open(client)
    before = shard.books().dead_letters
    urls = [f"http://next.example/{n}" for n in range(len(bad))]
    values = [value for url, body in zip(urls, bad, strict=True) for value in (body, msgpack.packb({"url": url}))]
    EventLog(client, shard.keys).append(values, 1_790_000_000_000_000)
    service.settle()
    assert shard.books().dead_letters - before == len(bad)
    assert service.reads(urls) == [1] * len(urls)
    assert service.get("/v1/audit").json()["conserved"]
    client.close()
