"""What all commands share: common options, and opening a store according to them."""

import functools
import inspect
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_type_hints

import typer

from opic.errors import BadInput, OpicError, SettingsError
from opic.logs import log_to_stderr

if TYPE_CHECKING:
    from opic.service.backend import Backend
    from opic.settings import Settings

FOUND_A_PROBLEM: Final = 1  # The command worked, and what it found is not good.
SIGTERM_STATUS: Final = 128 + int(signal.SIGTERM)

Domain = Annotated[str | None, typer.Option(help="Only pages of this host or domain, including subdomains.")]
ResultAsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the result into this file; see the guide.")
]
HostDelay = Annotated[
    float | None, typer.Option(min=0, help="Seconds between two fetches of a host. [OPIC_HOST_DELAY_SECONDS]")
]
UrlFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read URLs from this file, one a line; - is standard input. Empty lines and # comments are skipped.",
    ),
]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, show_default=False)
]
File = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)]
AllowPrivate = Annotated[
    bool, typer.Option("--allow-private", help="Also fetch from private addresses: for an intranet.")
]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, such as options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def number_or_text(text: str) -> float | str:
    """Return an option as a JSON body has it: rounds and Unix seconds are numbers, durations and dates are strings."""
    try:
        return float(text)
    except ValueError:
        return text


def event_files(help: str) -> Any:
    """Return an option for files of crawl events; its parameter is a list of paths."""
    return typer.Option(metavar="FILE", exists=True, dir_okay=False, help=help)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The store or the service that a command works on, from the options that all commands share."""

    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="embedded, embedded:DIR, redis://…, rediss://… or redis+cluster://… [OPIC_STORE]"
        ),
    ] = None
    kafka: Annotated[
        str | None, typer.Option(metavar="BOOTSTRAP", help="Kafka brokers, HOST:PORT,… [OPIC_KAFKA_BOOTSTRAP]")
    ] = None
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of settings. [OPIC_CONFIG]")] = None
    crawl: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the crawl in the store. [OPIC_CRAWL]")] = (
        None
    )
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Short for --store embedded:DIR; default opic-data. [OPIC_DATA]")
    ] = None

    @property
    def names_a_store(self) -> bool:
        """Whether the command line names a store, rather than the environment or a file."""
        return self.store is not None or self.data is not None

    def settings(self, **own: Any) -> "Settings":
        """Read the settings, a command's own among them; None is not given.

        Here --data DIR is short for --store embedded:DIR.
        """
        from opic.settings import Settings

        store = self.store
        if self.data is not None:
            if store not in (None, "embedded", f"embedded:{self.data}"):
                raise SettingsError(f"--data {self.data} and --store contradict each other: leave one out")
            store = "embedded"
        return Settings.load(
            self.config, store=store, data=self.data, kafka_bootstrap=self.kafka, crawl=self.crawl, **own
        )


@dataclass(frozen=True, slots=True)
class ResultChosen(Chosen):
    """The same for a command that prints a result."""

    as_json: ResultAsJson = False


@dataclass(frozen=True, slots=True)
class ServiceChosen(ResultChosen):
    """The same for a command that makes calls of the HTTP API, which a running service answers."""

    service: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask the service at this URL, with OPIC_API_TOKEN if set. [OPIC_SERVICE]"),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON of the HTTP API.")] = False


def is_group(context: typer.Context, chosen: ServiceChosen) -> bool:
    """Return whether a command that shows something was named only for one below it, which has the options."""
    if context.invoked_subcommand is None:
        return False
    if chosen != ServiceChosen():
        raise BadInput(f"put options after the command: {context.command_path} {context.invoked_subcommand} …")
    return True


def _name_file(error: OpicError, chosen: Chosen) -> None:
    """Add to an error that names a setting the file that it comes from."""
    if isinstance(error.__cause__, OpicError):  # The service said so, and has settings of its own.
        return
    try:
        settings = chosen.settings()
    except OpicError:  # That is the error, and it names the file.
        return
    error.args = (settings.with_file(str(error)), *error.args[1:])


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command options in the place of each parameter that is a dataclass: its fields, which become its value.

    One of these parameters is `chosen`. A parameter of the command's own, and a field of another dataclass, comes
    before an option of `chosen` of the same name.
    """
    own = inspect.signature(command, eval_str=True)
    kinds: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in own.parameters.values()
        if is_dataclass(parameter.annotation)
    }
    taken = {*own.parameters, *(field.name for name in kinds if name != "chosen" for field in fields(kinds[name]))}
    parameters, options = list[inspect.Parameter](), dict[str, list[str]]()
    for parameter in own.parameters.values():
        if (kind := kinds.get(parameter.name)) is None:
            parameters.append(parameter)
            continue
        own_fields = [field for field in fields(kind) if parameter.name != "chosen" or field.name not in taken]
        own_fields.sort(key=lambda field: field.name == "as_json")  # Last.
        options[parameter.name] = [field.name for field in own_fields]
        parameters += [_option(field, get_type_hints(kind, include_extras=True)[field.name]) for field in own_fields]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        values = {name: kinds[name](**{option: given.pop(option) for option in ones}) for name, ones in options.items()}
        try:
            command(**values, **given)
        except OpicError as error:
            _name_file(error, values["chosen"])
            raise

    # What typer looks at: it knows no other way for commands to share options.
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _option(field: "Field[Any]", annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def tell_source(chosen: Chosen, crawl: str, source: str) -> None:
    """Say on stderr which crawl answers, and where; not with --json, as a program may read both streams as one."""
    if not (isinstance(chosen, ResultChosen) and chosen.as_json):
        print(f"opic: crawl {crawl} of {source}", file=sys.stderr, flush=True)


def own_settings(chosen: Chosen) -> "Settings":
    """Return the settings of a command that works on a store itself, and say which.

    Raises:
        SettingsError: only a service is named, which this command can't ask: its crawl may be another one.
    """
    settings = chosen.settings()
    if settings.service is not None and not chosen.names_a_store and not settings.names_a_store:
        raise SettingsError(
            f"OPIC_SERVICE names a service ({settings.service}), which this command can't ask, since it works on the "
            "store itself: name the store of the service with --store URL, or with --data DIR if it is embedded"
        )
    tell_source(chosen, settings.crawl, settings.store_shown())
    return settings


@contextmanager
def working(chosen: Chosen) -> "Iterator[tuple[Settings, ExitStack]]":
    """Lend the settings of a command that works on a store itself, and a stack of what it closes at its end."""
    settings = own_settings(chosen)
    log_to_stderr(logging.WARNING)
    with ending_in_order(), ExitStack() as stack:
        yield settings, stack


@contextmanager
def opened(chosen: Chosen) -> "Iterator[Backend]":
    """Lend the store of a command that asks questions of its own."""
    from opic.service.service import open_backend

    with working(chosen) as (settings, stack):
        yield open_backend(settings, stack)


def open_to_feed(settings: "Settings", stack: ExitStack) -> "Backend":
    """Open a store, made if it is not there, whose records take effect here where no worker runs."""
    from opic.service.service import has_worker, open_backend

    backend = open_backend(settings, stack, create=True)
    backend.works_here = not has_worker(settings)
    return backend


@contextmanager
def ending_in_order() -> Iterator[None]:
    """End in order on SIGTERM, and when the terminal is closed, so that a store that we started does not outlive us."""

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Once is enough.
        raise SystemExit(SIGTERM_STATUS)

    before = signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # Not under nohup.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Return the URLs of a `UrlFile`, each with the number of its line."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--file {file}: {error}") from None
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return ((number, line) for number, line in lines if line and not line.startswith("#"))


def moment_us(option: str, text: str) -> int:
    """Read the time that an option has: Unix seconds, or an ISO date or time, UTC unless it says otherwise.

    Raises:
        BadInput: it is neither.
    """
    try:
        if text.replace(".", "", 1).isdigit():
            return round(float(text) * 1e6)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{option} {text} is neither Unix seconds nor a time such as 2024-05-01 or 2024-05-01T12:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1e6)
