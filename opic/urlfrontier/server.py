"""The gRPC server of URLFrontier's interface, in a thread with an event loop of its own."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import aclosing, contextmanager
from inspect import isasyncgenfunction
from typing import Any, Final

from opic.errors import BadInput, MissingExtra, OpicError, SettingsError

try:
    import grpc
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from opic.urlfrontier import urlfrontier_pb2 as pb
    from opic.urlfrontier.crawls import CallRefused, Crawls, caller
    from opic.urlfrontier.service import UrlFrontier
    from opic.urlfrontier.urlfrontier_pb2 import DESCRIPTOR
except ModuleNotFoundError as error:
    raise MissingExtra(f"what --urlfrontier needs, such as {error.name},", "urlfrontier") from None

from opic.api.metrics import Metrics
from opic.service.rates import Limiter
from opic.service.service import EmbeddedService
from opic.service.standing import StandingService
from opic.service.tokens import Role, Tokens

log = logging.getLogger("opic.urlfrontier")

INTERFACE: Final = DESCRIPTOR.services_by_name["URLFrontier"]
KINDS: Final[dict[tuple[bool, bool], Any]] = {  # By whether requests and answers are streams.
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
ROLE_OF: Final[dict[str, Role]] = {  # By the name of a call: what a token must have to make it.
    "PutURLs": "publish",
    "PutDiscovered": "publish",
    "GetURLs": "crawl",
    "SetDelay": "crawl",  # As a crawler may tell the crawl-delay of a host with POST /v1/next,
    "BlockQueueUntil": "crawl",  # and a pause that a host asks for with the event of a fetch.
    "ListNodes": "read",
    "ListCrawls": "read",
    "ListQueues": "read",
    "ListURLs": "read",
    "CountURLs": "read",
    "GetStats": "read",
    "GetURLStatus": "read",
    "GetActive": "read",
    "SetActive": "admin",
    "SetCrawlLimit": "admin",
    "SetLogLevel": "admin",
    "DeleteQueue": "admin",
    "DeleteCrawl": "admin",
    "PurgeURLs": "admin",
}
MESSAGE_BYTES_MAX: Final = 4 << 20
START_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 5.0


@contextmanager
def serving(
    service: EmbeddedService | StandingService,
    port: int,
    metrics: Metrics,
    tokens: Tokens | None = None,
    *,
    allow_delete: bool = False,
) -> Iterator[str]:
    """Answer URLFrontier's calls on a port of OPIC_HOST; lend the address.

    Args:
        service: the open service.
        port: the port, 0 for any free one.
        metrics: counts items and the pages handed out.
        tokens: those of the process; by default what the settings say now.
        allow_delete: whether clients may forget all pages of the crawl.

    Raises:
        SettingsError: the port can't be had, or the interface would be open to other machines without a token.
    """
    host, tokens = service.settings.host, tokens or Tokens(service.settings)
    if not tokens.required and not service.settings.on_loopback:
        raise SettingsError(f"--urlfrontier on {host} is open to other machines: set OPIC_API_TOKEN, or OPIC_HOST")
    crawls, started, loop, end = Crawls(service.crawls), Future[str](), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        server = grpc.aio.server(
            interceptors=[_Guard(tokens)] if tokens.required else [],
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)],
        )
        bound = server.add_insecure_port(f"{f'[{host}]' if ':' in host else host}:{port}")
        frontier = UrlFrontier(crawls, f"{host}:{bound}", metrics, allow_delete=allow_delete)
        await _start(server, frontier, tokens)
        started.set_result(f"{host}:{bound}")
        await end.wait()
        await server.stop(GRACE_SECONDS)
        crawls.close()

    thread = threading.Thread(target=_work, args=(loop, run, started), name="opic-urlfrontier")
    thread.start()
    wait([started], START_SECONDS)
    if error := started.exception() if started.done() else "no answer":
        raise SettingsError(f"--urlfrontier can't listen on {host}:{port}: {error}")
    try:
        yield started.result()
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()


def _work(loop: asyncio.AbstractEventLoop, run: Callable[[], Coroutine[Any, Any, None]], started: Future[str]) -> None:
    """Run the server in its thread; an error goes to who waits for it to start, later ones to the log."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    except Exception as error:
        if started.done():
            log.exception("URLFrontier's calls are not answered any more")
        else:
            started.set_exception(error)
    finally:
        loop.close()


async def _start(server: grpc.aio.Server, frontier: UrlFrontier, tokens: Tokens) -> None:
    """Start a server of these calls, with reflection and the health service."""
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = (INTERFACE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    server.add_generic_rpc_handlers([handlers(frontier, tokens)])
    await checks.set(INTERFACE.full_name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()


def handlers(frontier: UrlFrontier, tokens: Tokens) -> Any:
    """Return the handlers of all calls of the interface."""
    return grpc.method_handlers_generic_handler(
        INTERFACE.full_name,
        {
            method.name: KINDS[method.client_streaming, method.server_streaming](
                _translated(getattr(frontier, method.name), _each if method.client_streaming else _readable, tokens),
                request_deserializer=_reader(GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in INTERFACE.methods
        },
    )


def _reader(kind: Any) -> Callable[[bytes], Any]:
    """Return what reads a message; it returns an error for bytes that are none.

    An exception here would reach the caller as UNKNOWN without a reason, and the log with a traceback.
    """

    def read(packed: bytes) -> Any:
        try:
            return kind.FromString(packed)
        except DecodeError:
            return CallRefused(grpc.StatusCode.INVALID_ARGUMENT, f"the bytes are no {kind.DESCRIPTOR.full_name}")

    return read


def _readable(message: Any, limiter: Limiter | None) -> Any:
    if isinstance(message, CallRefused):
        raise message
    if limiter is not None:
        limiter.owe(0, message.ByteSize())
    return message


async def _each(messages: AsyncIterator[Any], limiter: Limiter | None) -> AsyncIterator[Any]:
    """Check the messages of a stream; read the next one when the rates allow, so that gRPC holds the client back."""
    async for message in messages:
        readable = _readable(message, None)
        yield readable
        if limiter is not None:
            batch = isinstance(readable, pb.DiscoveredBatch)
            wait = limiter.pause(len(readable.items) if batch else 1, readable.ByteSize())
            if wait > 0:
                await asyncio.sleep(wait)


@contextmanager
def _within_rates(tokens: Tokens) -> Iterator[Limiter | None]:
    """Count a call, of the caller's token if one is required; lend what keeps it within its rates.

    Raises:
        CallRefused: it is over one.
    """
    limiter = tokens.anonymous if (token := caller.get()) is None else token.limiter
    if limiter is None:
        yield None
        return
    if (over := limiter.begin()) is not None:
        raise CallRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, str(over))
    try:
        yield limiter
    finally:
        limiter.end()


def _translated(
    call: Callable[[Any], Any], checked: Callable[[Any, Limiter | None], Any], tokens: Tokens
) -> Callable[[Any, Any], Any]:
    """Return a call as gRPC makes it: what it is asked is checked, and errors become statuses.

    The status is set: an abort is an exception that gRPC keeps, with the frames that it passed, and their message.
    """

    def fail(error: Exception, context: Any) -> None:
        if isinstance(error, CallRefused):
            status = error.status
        else:
            status = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, BadInput) else grpc.StatusCode.UNAVAILABLE
        context.set_code(status)
        context.set_details(str(error))

    async def answer_call(asked: Any, context: Any) -> Any:
        try:
            with _within_rates(tokens) as limiter:
                return await call(checked(asked, limiter))
        except (OpicError, CallRefused) as error:
            fail(error, context)

    async def many(asked: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with _within_rates(tokens) as limiter:
                async with aclosing(call(checked(asked, limiter))) as answers:
                    async for answer in answers:
                        yield answer
        except (OpicError, CallRefused) as error:
            fail(error, context)

    return many if isasyncgenfunction(call) else answer_call


class _Guard(grpc.aio.ServerInterceptor):
    """Refuses calls without a token that fits, but those of the health service.

    Which crawls the token is for is checked where a call names one: `opic.urlfrontier.crawls`.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        handler = await continuation(call)
        if call.method.startswith(f"/{health.SERVICE_NAME}/"):
            return handler
        token = self._tokens.bearer(str(dict(call.invocation_metadata).get("authorization", "")).encode())
        if token is None:
            why = f"send a token of {self._tokens.settings_named} as the metadata authorization: Bearer TOKEN"
            return _refusing(handler, grpc.StatusCode.UNAUTHENTICATED, why)
        caller.set(token)
        role = ROLE_OF.get(call.method.removeprefix(f"/{INTERFACE.full_name}/"))  # None: of reflection, or unknown.
        if role is not None and (lacks := token.lacks(role)) is not None:
            return _refusing(handler, grpc.StatusCode.PERMISSION_DENIED, lacks)
        return handler


def _refusing(handler: Any, status: grpc.StatusCode, why: str) -> Any:
    """Return a handler that refuses the calls of another one."""

    async def refuse(_: Any, context: Any) -> None:
        await context.abort(status, why)

    async def refuse_stream(_: Any, context: Any) -> Any:
        await refuse(_, context)
        yield  # pragma: no cover - makes this a generator

    if handler is None or not handler.response_streaming:
        return grpc.unary_unary_rpc_method_handler(refuse)
    return KINDS[handler.request_streaming, True](refuse_stream)
