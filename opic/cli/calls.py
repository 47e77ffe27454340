"""Calls of the HTTP API from the command line: answered by the running service, else by this process on the store.

Both ways give the same JSON. A service answers with its own settings, such as the duration of leases; without one, the
handlers of the API run here, on a store opened with the settings of the command.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from opic.cli.options import ServiceChosen, ending_in_order, open_to_feed, tell_source, without_none
from opic.errors import BadInput, BadUrl, OpicError, SettingsError, StoreError
from opic.logs import log_to_stderr
from opic.service.service_file import Address, address_of

if TYPE_CHECKING:
    from opic.client import Client
    from opic.service.backend import Backend
    from opic.settings import Settings

RETRY_SECONDS: Final = 5.0  # A store that is restarted is back by then; a person does not wait much longer.
PROBE_SECONDS: Final = 5.0
UNAUTHORIZED: Final = 401
BAD_VALUES: Final = {"bad-input": BadInput, "bad-url": BadUrl}


Given = Mapping[str, object] | None
# Makes a call, given its method, path, query parameters and body: returns the JSON of the answer. Parameters that are
# None are left out. Raises BadInput for an invalid value, Refusal for any other problem.
ApiCall = Callable[..., dict[str, Any]]


class Refusal(OpicError):
    """The API refused a call; `kind` is the kind of the problem, like unknown-page."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@contextmanager
def asking(chosen: ServiceChosen, *, feeds: bool = False) -> Iterator[ApiCall]:
    """Lend a function that makes calls of the HTTP API, on the running service or on the store.

    Args:
        chosen: what the command line says.
        feeds: the calls change the crawl: a store that is not there is made, and records take effect here where no
            worker runs.
    """
    settings = chosen.settings(service=chosen.service)
    log_to_stderr(logging.WARNING)
    address = service_address(chosen, settings)
    with ending_in_order():
        yield from (_of_store(chosen, settings, feeds) if address is None else _of_service(chosen, settings, address))


def asked(
    chosen: ServiceChosen, method: str, path: str, parameters: Given = None, body: Given = None
) -> dict[str, Any]:
    """Make a single call, as `asking`; it changes nothing."""
    with asking(chosen) as ask:
        return ask(method, path, parameters, body)


def service_address(chosen: ServiceChosen, settings: "Settings") -> Address | None:
    """Return the address of the service to ask, or None if there is none and the store is to be opened.

    It is that of --service; else of OPIC_SERVICE, unless the command line names a store; else what a running service
    wrote into the data directory. Its crawl is the one that --crawl or OPIC_CRAWL names here, and where none does, that
    of the service. A crawl that the store of the data directory has not is left to the command, which says so, or makes
    it.
    """
    if chosen.service is not None and (chosen.store is not None or chosen.data is not None):
        raise SettingsError("--service answers for its own store: leave --store and --data out")
    if settings.service is not None and (chosen.service is not None or not chosen.names_a_store):
        return Address(settings.service, "", settings.crawl if "crawl" in settings.model_fields_set else "")
    if not settings.embedded:
        return None
    address = address_of(settings.data_dir())
    if address is None or _instance_at(address) != address.instance:  # Another program may have its port now.
        return None
    if address.crawl == settings.crawl:
        return replace(address, crawl="")
    return replace(address, crawl=settings.crawl) if _is_stored(settings) else None


def _is_stored(settings: "Settings") -> bool:
    from opic.service.embedded import EmbeddedServer
    from opic.store import connect
    from opic.store.connection import store_errors
    from opic.store.keys import Keys

    if (url := EmbeddedServer.running(settings.data_dir())) is None:
        return False
    with closing(connect(url)) as client, store_errors():
        return bool(client.exists(Keys(settings.crawl, 0).meta))


def _instance_at(address: Address) -> str | None:
    """Return what the service at an address calls itself, None where none of ours answers."""
    from opic.client import BadAnswer, CallFailed, Unreachable

    with _client(address, retry_seconds=0, timeout_seconds=PROBE_SECONDS) as client:
        try:
            return client.call("GET", "/healthz").get("instance")
        except (Unreachable, BadAnswer, CallFailed):
            return None


def _client(address: Address, **options: Any) -> "Client":
    import httpx

    from opic.client import Client

    # A proxy from the environment does not reach an address of this machine.
    transport = httpx.HTTPTransport() if address.instance else None
    return Client(address.url, crawl=address.crawl or None, transport=transport, **options)


def tell_service(chosen: ServiceChosen, address: Address) -> None:
    """Say on stderr which service and which of its crawls answer."""
    with _client(address, retry_seconds=RETRY_SECONDS) as client:
        _tell_service(chosen, address, client)


def _tell_service(chosen: ServiceChosen, address: Address, client: "Client") -> None:
    crawl = address.crawl or client.call("GET", "/healthz")["crawl"]
    tell_source(chosen, crawl, f"the service at {address.url}")


def _of_service(chosen: ServiceChosen, settings: "Settings", address: Address) -> Iterator[ApiCall]:
    from opic.client import CallFailed

    token = settings.api_token.get_secret_value() if settings.api_token is not None else None
    with _client(address, token=token, retry_seconds=RETRY_SECONDS) as client:
        _tell_service(chosen, address, client)

        def make(method: str, path: str, parameters: Given = None, body: Given = None) -> dict[str, Any]:
            try:
                return client.call(method, path, parameters=without_none(parameters or {}), body=body)
            except CallFailed as error:
                if error.status == UNAUTHORIZED:
                    wrong = "is not the one of" if token else "is not set here, and it is wanted by"
                    raise SettingsError(f"OPIC_API_TOKEN {wrong} the service at {address.url}") from error
                raise _refusal(error.type.rpartition(":")[2], error.detail or str(error)) from error

        yield make


def _of_store(chosen: ServiceChosen, settings: "Settings", feeds: bool) -> Iterator[ApiCall]:
    from opic.api.in_process import InProcess
    from opic.api.problems import Problem

    tell_source(chosen, settings.crawl, settings.store_shown())
    with ExitStack() as stack:
        answer = InProcess(open_to_feed(settings, stack) if feeds else _opened(settings, stack))

        def make(method: str, path: str, parameters: Given = None, body: Given = None) -> dict[str, Any]:
            try:
                return answer(method, path, without_none(parameters or {}), body)
            except Problem as problem:
                raise _refusal(problem.kind, problem.detail) from problem

        yield make


def _opened(settings: "Settings", stack: ExitStack) -> "Backend":
    """Open the store for questions; where an embedded one is not here but a service answers, say so."""
    from opic.service.service import open_backend

    try:
        return open_backend(settings, stack)
    except StoreError as error:
        url = f"http://{settings.host}:{settings.port}"
        if settings.embedded and not (settings.data_dir() / "store").is_dir() and _instance_at(Address(url, "?", "")):
            raise StoreError(f"{error}; or ask the service at {url}: --service {url}, or OPIC_SERVICE={url}") from None
        raise


def _refusal(kind: str, detail: str) -> OpicError:
    """Return the exception for a problem, the same that a handler in this process raises for a bad value."""
    detail = detail.removeprefix("query.")  # The place of a parameter, which here is an option.
    bad = BAD_VALUES.get(kind)
    return Refusal(kind, detail) if bad is None else bad(detail)
