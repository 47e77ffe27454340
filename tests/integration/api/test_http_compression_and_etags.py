"""Compressed answers and bodies, ETags, and request ids over HTTP."""

import gzip
import json
from collections.abc import Iterator

import httpx
import msgpack
import pytest
import zstandard
from processes import wait_until
from serving import serving

from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

BODY_BYTES_MAX = 100_000
ZSTD, UNZSTD = zstandard.ZstdCompressor().compress, zstandard.ZstdDecompressor().decompressobj


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = Settings.load(data=tmp_path_factory.mktemp("kept"), max_body_bytes=BODY_BYTES_MAX)
    with EmbeddedService(settings) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        urls = [f"http://kept.example/{n}" for n in range(200)]
        assert client.post("/v1/seeds", json={"urls": urls}).json()["new"] == 200
        wait_until(lambda: len(client.get("/v1/top?n=300").json()["pages"]) == 200)
        yield client


def raw(client: httpx.Client, path: str, coding: str) -> tuple[httpx.Response, bytes]:
    """An answer, and its body as it came."""
    with client.stream("GET", path, headers={"accept-encoding": coding}) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip", "gzip"), ("zstd", "zstd"), ("br, gzip;q=0.5, zstd", "zstd"), ("gzip, zstd;q=0", "gzip"), ("br", None)],
)
def test_a_large_answer_is_compressed_as_asked(client: httpx.Client, accepted: str, coding: str | None) -> None:
    plain, whole = raw(client, "/v1/top", "identity")
    assert "content-encoding" not in plain.headers
    answer, body = raw(client, "/v1/top", accepted)
    assert answer.headers.get("content-encoding") == coding
    for one in (plain, answer):
        assert "Accept-Encoding" in one.headers["vary"]
    read = {"gzip": gzip.decompress, "zstd": lambda body: UNZSTD().decompress(body), None: bytes}[coding](body)
    assert json.loads(read)["pages"] == json.loads(whole)["pages"]
    assert coding is None or len(body) < len(whole) / 4


def test_a_small_answer_is_not_compressed(client: httpx.Client) -> None:
    answer, body = raw(client, "/v1/top?n=1", "gzip, zstd")
    assert "content-encoding" not in answer.headers
    assert json.loads(body)["pages"]


@pytest.mark.parametrize("path", ["/v1/top?n=50", "/v1/hosts", "/openapi.json", "/docs/files/swagger-ui.css"])
def test_an_unchanged_answer_is_a_304(client: httpx.Client, path: str) -> None:
    first = client.get(path)
    tag = first.headers["etag"]
    for known in (tag, f'"x", {tag}', "*") if not path.endswith("css") else (tag,):
        again = client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    assert client.head(path, headers={"if-none-match": tag}).status_code == 304
    if "css" not in path:
        assert first.headers["cache-control"] == "no-cache"


def test_a_changed_answer_is_sent_with_a_new_etag(client: httpx.Client) -> None:
    tag = client.get("/v1/top").headers["etag"]
    client.post("/v1/events", json={"url": "http://kept.example/0", "links": ["http://kept.example/1"]})
    moved = wait_until(lambda: (a := client.get("/v1/top", headers={"if-none-match": tag})).status_code == 200 and a)
    assert moved.headers["etag"] != tag
    wrong = client.get("/v1/top?n=0", headers={"if-none-match": "*"})
    assert (wrong.status_code, wrong.headers["cache-control"], "etag" in wrong.headers) == (422, "no-store", False)


def test_other_answers_are_marked_no_store(client: httpx.Client) -> None:
    for answer in (
        client.post("/v1/next", json={"n": 1}),
        client.get("/v1/importance", params={"url": "http://kept.example/0"}),
        client.get("/v1/stats"),
        client.get("/v1/nope"),
    ):
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers


EVENTS = [{"url": f"http://packed.kept.example/{n}"} for n in range(100)]
TWO = json.dumps(EVENTS).encode()


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack"])
@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("zstd", ZSTD),
        ("GZIP", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
        ("zstd", lambda body: ZSTD(body[:9]) + ZSTD(body[9:])),
    ],
    ids=["gzip", "zstd", "two of gzip", "two of zstd"],
)
def test_a_compressed_body_is_accepted(client: httpx.Client, coding: str, pack: object, kind: str) -> None:
    body = TWO if kind == "application/json" else msgpack.packb(EVENTS)
    headers = {"content-encoding": coding, "content-type": kind}
    answer = client.post("/v1/events", content=pack(body), headers=headers)  # type: ignore[operator]
    assert (answer.status_code, answer.json()["accepted"]) == (202, 100)


@pytest.mark.parametrize("pack", [gzip.compress, ZSTD], ids=["gzip", "zstd"])
@pytest.mark.parametrize("size", [BODY_BYTES_MAX + 1, 400_000_000])
def test_a_body_that_is_too_large_once_decoded_is_refused(client: httpx.Client, pack: object, size: int) -> None:
    coding = "gzip" if pack is gzip.compress else "zstd"
    body = pack(bytes(size))[:BODY_BYTES_MAX]  # type: ignore[operator]
    answer = client.post("/v1/events", content=body, headers={"content-encoding": coding})
    assert answer.status_code == 413
    assert "OPIC_MAX_BODY_BYTES 100,000" in answer.json()["detail"]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:20] + b"\xff" * 9 + b[29:]])
def test_a_body_that_cannot_be_decompressed_is_refused(client: httpx.Client, coding: str, spoil: object) -> None:
    body = gzip.compress(TWO) if coding == "gzip" else ZSTD(TWO)
    answer = client.post("/v1/events", content=spoil(body), headers={"content-encoding": coding})  # type: ignore[operator]
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:opic:problem:not-decoded")


def test_a_valid_request_id_of_the_caller_is_kept(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"x-request-id": "mine-1.2_3"}).headers["x-request-id"] == "mine-1.2_3"
    for bad in ("a b", "a" * 65, "é".encode(), "a;b", ""):
        given = client.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"]
        assert len(given) == 16
        assert given.isalnum()
