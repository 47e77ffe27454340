"""URLFrontier's calls with tokens: each with each role, by real clients of gRPC."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from urlfrontier_client import INTERFACE, OK, Stub, connected, discovered

from opic.api.metrics import Metrics
from opic.service.service import EmbeddedService
from opic.service.tokens import INCLUDED, ROLES, new_token
from opic.settings import Settings
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.server import ROLE_OF, serving

pytestmark = pytest.mark.slow

A, B = "http://a.example/", "http://b.example/"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """An address with two crawls, and the secret of each token."""
    folder, secrets, lines = tmp_path_factory.mktemp("urlfrontier"), dict[str, str](), ""
    for name, roles, crawls in (*((role, [role], []) for role in ROLES), ("of-news", ["admin", "crawl"], ["news"])):
        secrets[name], more = new_token(name, roles, crawls)
        lines += more
    (folder / "tokens.toml").write_text(lines)
    terms: dict[str, Any] = {"host_delay_seconds": 0, "max_crawls": 3, "tokens_file": folder / "tokens.toml"}
    with (
        EmbeddedService(Settings.load(data=folder / "data", **terms)) as service,
        serving(service, 0, Metrics(service.backend)) as address,
    ):
        yield address, secrets


def status_of(stub: Stub, name: str) -> grpc.StatusCode | None:
    """Return the status of a call that asks for nothing much; None if it is answered."""
    method = INTERFACE.methods_by_name[name]
    empty = GetMessageClass(method.input_type)()
    try:
        answer = getattr(stub, name)(iter([]) if method.client_streaming else empty)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_every_call_of_the_interface_has_a_role() -> None:
    assert ROLE_OF.keys() == {method.name for method in INTERFACE.methods}


@pytest.mark.parametrize("role", [*ROLES, None])
def test_every_call_is_made_with_the_roles_that_include_its_own_alone(
    served: tuple[str, dict[str, str]], role: str | None
) -> None:
    address, secrets = served
    with connected(address, secrets.get(str(role))) as stub:
        for name, wanted in ROLE_OF.items():
            status = status_of(stub, name)
            if role is None:
                assert status == grpc.StatusCode.UNAUTHENTICATED, name
            elif wanted not in INCLUDED[role]:  # type: ignore[index]
                assert status == grpc.StatusCode.PERMISSION_DENIED, name
            elif name != "DeleteCrawl":  # Which is off here, for all.
                assert status not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), name


def test_refusal_names_the_role_and_the_token(served: tuple[str, dict[str, str]]) -> None:
    address, secrets = served
    with connected(address, secrets["read"]) as stub, pytest.raises(grpc.RpcError) as refused:
        list(stub.GetURLs(pb.GetParams()))
    assert refused.value.details() == "this call wants the role crawl, and the token read has read"


def test_token_of_one_crawl_reaches_no_other(served: tuple[str, dict[str, str]]) -> None:
    address, secrets = served
    denied = grpc.StatusCode.PERMISSION_DENIED
    with connected(address, secrets["of-news"]) as stub, connected(address, secrets["admin"]) as admin:
        admin.SetActive(pb.Active(state=True))
        assert stub.put([discovered(A, crawlID="news")]) == {A: OK}
        assert stub.refused("PutURLs", iter([discovered(B)])) == denied
        assert stub.refused("PutURLs", iter([discovered(B, crawlID="more")])) == denied
        assert admin.put([discovered(B)]) == {B: OK}
        assert stub.refused("GetURLs", pb.GetParams()) == denied
        assert [one.url for one in stub.take(anyCrawlID=pb.AnyCrawlID())] == [A]
        assert [one.url for one in admin.take(anyCrawlID=pb.AnyCrawlID())] == [B]
        assert list(stub.ListCrawls(pb.Local()).values) == ["news"]
        assert list(admin.ListCrawls(pb.Local()).values) == ["default", "news"]
        for name, asked in (("DeleteQueue", pb.QueueWithinCrawlParams()), ("SetActive", pb.Active()),
                            ("SetLogLevel", pb.LogLevelParams())):  # fmt: skip
            assert stub.refused(name, asked) == denied
        assert stub.DeleteQueue(pb.QueueWithinCrawlParams(key="a.example", crawlID="news")).value == 1


def test_health_needs_no_token_and_reflection_any(served: tuple[str, dict[str, str]]) -> None:
    address, secrets = served
    with grpc.insecure_channel(address) as channel:
        check = health_pb2.HealthCheckRequest(service=INTERFACE.full_name)
        assert health_pb2_grpc.HealthStub(channel).Check(check).status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as refused:
            list(reflect(iter([asked])))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert list(reflect(iter([asked]), metadata=[("authorization", f"bearer {secrets['publish']}")]))


def test_calls_over_the_rate_are_refused_and_streams_held_back(tmp_path: Path) -> None:
    secrets, lines = dict[str, str](), ""
    limits = {"few-calls": {"calls_per_second": 1.0}, "few-items": {"events_per_second": 50.0}}
    for name, given in limits.items():
        secrets[name], more = new_token(name, ["admin"], [], **given)
        lines += more
    (tmp_path / "tokens.toml").write_text(lines)
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", tokens_file=tmp_path / "tokens.toml")) as service,
        serving(service, 0, Metrics(service.backend)) as address,
        connected(address, secrets["few-calls"]) as calls,
        connected(address, secrets["few-items"]) as items,
    ):
        for _ in range(5):
            calls.GetActive(pb.Local())
        with pytest.raises(grpc.RpcError) as refused:
            calls.GetActive(pb.Local())
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 calls a second are allowed" in refused.value.details()
        began, pages = time.monotonic(), [f"http://a.example/{number}" for number in range(350)]
        assert items.put([discovered(url) for url in pages]) == dict.fromkeys(pages, OK)
        assert time.monotonic() - began > (350 - 250 - 1) / 50  # The burst is that of five seconds.
