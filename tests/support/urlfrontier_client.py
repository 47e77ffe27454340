"""A client of URLFrontier's interface, made from its descriptor, as clients in other languages are."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from processes import environment

from opic.urlfrontier import urlfrontier_pb2 as pb

INTERFACE = pb.DESCRIPTOR.services_by_name["URLFrontier"]
OK, SKIPPED, FAIL = pb.AckMessage.OK, pb.AckMessage.SKIPPED, pb.AckMessage.FAIL


class Stub:
    """The calls, by their names."""

    def __init__(self, channel: grpc.Channel, token: str | None) -> None:
        kinds = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, True): channel.stream_stream,
        }
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        self._calls = {
            method.name: kinds[method.client_streaming, method.server_streaming](
                f"/{INTERFACE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in INTERFACE.methods
        }

    def __getattr__(self, name: str) -> Any:
        return lambda asked: self._calls[name](asked, metadata=self._metadata, timeout=60)

    def put(self, items: Iterable[pb.URLItem]) -> dict[str, int]:
        """Put items; return the status of each by its ID."""
        return {ack.ID: ack.status for ack in self.PutURLs(iter(items))}

    def take(self, **limits: Any) -> list[pb.URLInfo]:
        """Take pages to fetch."""
        return list(self.GetURLs(pb.GetParams(**limits)))

    def refused(self, name: str, asked: Any) -> grpc.StatusCode:
        """Return the status of a call that fails."""
        try:
            answer = getattr(self, name)(asked)
            if name in ("GetURLs", "ListURLs", "PutURLs"):
                list(answer)
        except grpc.RpcError as error:
            return error.code()
        raise AssertionError(f"{name} was answered")


@contextmanager
def connected(address: str, token: str | None = None) -> Iterator[Stub]:
    with grpc.insecure_channel(address) as channel:
        yield Stub(channel, token)


@contextmanager
def served_by_command(
    directory: Path, port: int = 0, *options: str, **settings: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the service as its command; lend the process and the address of the interface."""
    serve = [sys.executable, "-m", "opic", "serve", "--embedded", "--data", str(directory), "--port", str(port)]
    env = environment() | {f"OPIC_{name.upper()}": value for name, value in settings.items()}
    with subprocess.Popen(
        [*serve, "--urlfrontier", "0", *options], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            assert process.stdout is not None
            told = re.search(r"URLFrontier's calls at (\S+)", process.stdout.readline())
            assert told is not None
            yield process, told[1]
        finally:
            process.terminate()


def info(url: str, metadata: dict[str, str | Sequence[str]] | None = None, **more: str) -> pb.URLInfo:
    made = pb.URLInfo(url=url, **more)
    for name, values in (metadata or {}).items():
        made.metadata[name].values.extend([values] if isinstance(values, str) else values)
    return made


def discovered(url: str, metadata: dict[str, str | Sequence[str]] | None = None, **more: str) -> pb.URLItem:
    return pb.URLItem(discovered=pb.DiscoveredURLItem(info=info(url, metadata, **more)))


def known(url: str, metadata: dict[str, str | Sequence[str]] | None = None, date: int = 0, **more: str) -> pb.URLItem:
    return pb.URLItem(known=pb.KnownURLItem(info=info(url, metadata, **more), refetchable_from_date=date))
