"""Settings: one frozen object with all settings, read and validated once at the start.

A setting comes from the first of: the command line, an environment variable OPIC_<NAME>, the TOML file named by
`--config` or OPIC_CONFIG, its default. Rules that are stored with a crawl, such as damping, are read from the store if
they are not set; if they are set, they must match the store.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from opic.errors import BadInput, MissingExtra, NotBuiltYet, SettingsError, nearest_name
from opic.model.cash import GRANT_GRAINS, MILLION, damping_ppm
from opic.redaction import HIDDEN, without_secret
from opic.urls.canonical import URL_BYTES_MAX
from opic.urls.normalization import Normalization
from opic.urls.scope import Scope

if TYPE_CHECKING:
    from opic.model.events import EventLimits, KeptLimits

TOPIC: Final = "crawl.events"
CRAWL: Final = "default"
PREFIX: Final = "OPIC_"
# Variables that are no settings: the file of settings, and what our own processes, benchmarks and tests tell children.
NO_SETTINGS: Final = ("config", "child", "child_log_level", "child_endpoint", "bench_data", "chaos_seed", "doom")
OPTIONS: Final = {"kafka_bootstrap": "kafka"} | {
    name: name for name in ("store", "data", "crawl", "host", "port", "processes")
}
# The settings that a store keeps as rules of its crawl, with their names there.
RULES: Final = {
    "damping": "q",
    "regrant": "regrant_ppm",
    "history_measures": "measures_max",
    **{name: name for name in ("inflow", "virtual", "normalize", "shards")},
}
KAFKA_MODULES: Final = ("kafka", "lz4", "cramjam")  # What the extra `kafka` brings, beside faster checksums.
SECRETS: Final = ("api_token", "kafka_sasl_password", "kafka_ssl_password", "kafka_signing_key")


def topic_of(crawl: str) -> str:
    """Return the default topic of a crawl: one of its own, since a worker applies all events of its topic.

    >>> topic_of("default"), topic_of("news")
    ('crawl.events', 'crawl.events.news')
    """
    return TOPIC if crawl == CRAWL else f"{TOPIC}.{crawl}"


def check_regrant(share: float) -> None:
    """Check the size of further grants.

    Raises:
        SettingsError: it is less than a grain.
    """
    if share and share * GRANT_GRAINS < 1:
        raise SettingsError(f"OPIC_REGRANT={share} of a grant is less than a grain: use 0, or 0.000001")


class Settings(BaseSettings):
    """All settings; docs/guide/settings.md describes each. Durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix="OPIC_", frozen=True, extra="forbid", env_ignore_empty=True)

    store: Annotated[str, Field(repr=False)] = "embedded"  # Its URL may have a password.
    data: Path = Path("opic-data")
    kafka_bootstrap: str | None = None
    crawl: str = CRAWL
    shards: Annotated[int, Field(ge=1, le=4096)] = 1  # Of a new crawl.

    kafka_topic: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._-]{1,240}$", default_factory=lambda given: topic_of(given.get("crawl", "")))
    ]
    kafka_session_seconds: Annotated[float, Field(ge=0.5, le=1_800)] = (
        45.0  # A worker silent for this long counts as dead.
    )
    kafka_group_instance_id: str | None = None  # Static membership: one for each worker, kept over restarts.
    kafka_isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    kafka_skip_lost: bool = False  # Continue if retention deleted events before they were read.
    kafka_signing_key: Annotated[SecretStr, Field(min_length=16)] | None = None  # The default is the store's secret.
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    kafka_sasl_username: str | None = None
    kafka_sasl_password: SecretStr | None = None
    kafka_ssl_cafile: Path | None = None
    kafka_ssl_certfile: Path | None = None
    kafka_ssl_keyfile: Path | None = None
    kafka_ssl_password: SecretStr | None = None
    kafka_ssl_check_hostname: bool = True

    durability: Literal["server", "fsync"] = "server"
    wait_replicas: Annotated[int, Field(ge=0, le=16)] = 0
    wait_seconds: Annotated[float, Field(gt=0, le=600)] = 5.0
    journal_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20  # Total over all shards of a crawl.

    damping: Annotated[float, Field(gt=0, lt=1)] = 0.85
    virtual: Literal["grants", "continuous"] = "grants"
    regrant: Annotated[float, Field(ge=0, le=1)] = 0.01
    history_measures: Annotated[int, Field(ge=1, le=64)] = 4
    normalize: str | None = None  # Names of normalization rules, or none; the default is the crawl's.
    inflow: bool = True
    yields: bool = True
    keep_links: bool = True
    max_links_bytes: Annotated[int, Field(ge=1_024)] | None = None  # The default is half of the machine's memory.
    track: Literal["off", "links"] = "off"
    bound: Annotated[float, Field(gt=0, lt=2)] = 0.01
    policy: Literal["exact", "static", "interpolation", "fixed", "variable", "improved", "loaded"] | None = (
        None  # The default depends on `virtual`.
    )
    window_rounds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8.0

    scope: str | None = None  # Hosts, domains and beginnings of URLs that may be offered; None for all.
    strategy: Literal["exact", "greedy", "random", "cycle"] | None = None  # See `by_importance` and `order_by`.
    seed_share: Annotated[float, Field(ge=0, le=1)] = 0.2  # Of the teleport, in the order of pages never read.
    discovery_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    discovery_share: Annotated[float, Field(ge=0, le=1)] | None = (
        None  # Share of suggestions of mode any; None ranks by cash only.
    )
    host_delay_seconds: Annotated[float, Field(ge=0, le=86_400)] = 1.0
    politeness_by: Literal["host", "domain", "address"] = "address"  # Whose hosts share one delay.
    host_in_flight: Annotated[int, Field(ge=0)] = 0  # Leased pages per host; 0 means no limit.
    revisit_seconds: Annotated[float, Field(ge=0, le=31_536_000)] = 3_600.0  # 0 means no wait.
    retry_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    max_failures: Annotated[int, Field(ge=0, le=254)] = 8  # Failed fetches in a row of a page; 0 never gives up.
    # Pages never read are forgotten when their importance is below this share of all, and they are known for so long.
    expire_below: Annotated[float, Field(ge=0, lt=1)] = 0.0  # 0: no page is.
    expire_after_seconds: Annotated[float, Field(ge=60, le=315_360_000)] = 604_800.0
    retry_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20  # For back-offs, over all shards of a crawl.
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0

    service: Annotated[str, Field(pattern=r"^https?://")] | None = None  # What commands ask; see docs/guide/cli.md.
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    processes: Annotated[int, Field(ge=1, le=64)] = 1  # That answer calls on the port.
    start_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0  # A worker's patience at its start; 0: no limit.
    worker_port: Annotated[int, Field(ge=0, le=65_535)] = 0  # Port of a worker's metrics and readiness; 0 disables it.
    api_token: SecretStr | None = None
    tokens_file: Path | None = None  # See `opic.service.tokens`.
    # For each token whose file does not say otherwise, and for all calls together where none is required; 0: no limit.
    calls_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    events_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    bytes_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    concurrent_calls: Annotated[int, Field(ge=0)] = 0
    log_format: Literal["text", "json"] = "text"
    log_requests: bool = False  # A line for each request, not only for those that fail.
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    # Also of an event on Kafka. The limit is half of what the store takes as one string.
    max_body_bytes: Annotated[int, Field(ge=1_024, le=256 << 20)] = 16 << 20
    max_links: Annotated[int, Field(ge=1, le=100_000)] = 10_000  # LINKS_MAX of opic/model/events.py, slow to import.
    max_pages_per_host: Annotated[int, Field(ge=0)] = 0  # Known pages of a host; 0 means no limit.
    max_url_bytes: Annotated[int, Field(ge=64, le=65_536)] = URL_BYTES_MAX
    max_n: Annotated[int, Field(ge=1)] = 1_000
    max_urls: Annotated[int, Field(ge=1)] = 10_000
    domain_cache_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    max_keys_bytes: Annotated[int, Field(ge=1_024)] = 1 << 30  # For the Idempotency-Keys of a day.
    max_dead_letter_bytes: Annotated[int, Field(ge=1 << 10)] = 256 << 20  # In the store, in all shards of a crawl.
    max_meta_bytes: Annotated[int, Field(ge=0)] = 1 << 30  # Of all pages' metadata, in all shards of a crawl.
    max_crawls: Annotated[int, Field(ge=1, le=100)] = 8  # Open at once at an endpoint, OPIC_CRAWL among them.
    max_lag: Annotated[int, Field(ge=1)] = (
        1_000_000  # Accepted events not applied yet; above it the endpoint returns 503.
    )

    _file: "tuple[Path, Collection[str]] | None" = None  # The TOML file, and the settings that come from it.

    @classmethod
    def load(cls, config: Path | None = None, **given: Any) -> "Settings":
        """Read and check all settings.

        Args:
            config: a TOML file; OPIC_CONFIG if None.
            given: settings from the command line; None means not given.

        Raises:
            SettingsError: a value is invalid, or a name in the environment or the file is unknown.
            MissingExtra: Kafka is configured, but its client is not installed.
            NotBuiltYet: a value is part of the public contract, but this version does not support it.
        """
        path = config or (Path(os.environ["OPIC_CONFIG"]) if os.environ.get("OPIC_CONFIG") else None)
        _refuse_unknown_variables()
        values = {} if path is None else _read_file(path)
        given = {k: v for k, v in given.items() if v is not None}
        elsewhere = {*given, *(name[len(PREFIX) :].lower() for name, value in _variables() if value)}
        file = None if path is None else (path, values.keys() - elsewhere)
        try:
            settings = _with_file(values)(**given)
        except ValidationError as error:
            raise SettingsError("; ".join(_invalid(e, given, file) for e in error.errors())) from None
        settings._file = file
        try:
            settings._check()
        except (SettingsError, NotBuiltYet) as error:
            raise type(error)(settings.with_file(str(error))) from None
        return settings

    def _check(self) -> None:
        damping_ppm(self.damping)
        try:
            Normalization.of(self.normalize or "")
        except BadInput as error:
            raise SettingsError(f"OPIC_NORMALIZE={self.normalize}: {error}") from None
        try:
            Scope.of(self.scope or "")
        except BadInput as error:
            raise SettingsError(f"OPIC_SCOPE={self.scope}: {error}") from None
        if self.kafka_bootstrap is not None and None in map(find_spec, KAFKA_MODULES):
            raise MissingExtra("the Kafka client", "kafka")
        check_regrant(self.regrant)
        if self.strategy not in {None, "greedy"} and self.discovery_weight != 1:
            raise SettingsError(
                f"OPIC_DISCOVERY_WEIGHT={self.discovery_weight:g} multiplies cash, and OPIC_STRATEGY={self.strategy} "
                "does not order by cash: leave one of them out, or use OPIC_DISCOVERY_SHARE"
            )
        if self.lease_seconds <= self.host_delay_seconds:
            raise SettingsError(
                f"OPIC_LEASE_SECONDS={self.lease_seconds:g} is not longer than OPIC_HOST_DELAY_SECONDS="
                f"{self.host_delay_seconds:g}: a crawler that waits between two pages of a host would lose the second"
            )
        if self.track != "off":
            raise NotBuiltYet("OPIC_TRACK=links is not built yet: use off")

    @property
    def by_importance(self) -> bool:
        """Whether pages are suggested by exact importance where links are kept; a weight of cash is about cash."""
        return self.strategy == "exact" or (self.strategy is None and self.discovery_weight == 1)

    @property
    def order_by(self) -> str:
        """The strategy that orders pages where exact importance does not."""
        return "greedy" if self.strategy in {None, "exact"} else str(self.strategy)

    @property
    def on_loopback(self) -> bool:
        """Whether OPIC_HOST is one of the usual names of this machine's loopback."""
        return self.host in ("127.0.0.1", "::1", "localhost")

    def data_dir(self) -> Path:
        """Return the directory of the embedded store: that of `embedded:DIR`, or OPIC_DATA."""
        return Path(self.store.removeprefix("embedded:")) if self.store.startswith("embedded:") else self.data

    @property
    def names_a_store(self) -> bool:
        """Whether the environment, a file or a caller names the store, so that it is not the default one."""
        return bool({"store", "data"} & self.model_fields_set)

    def store_shown(self) -> str:
        """Name the store for people, without its password."""
        return f"the embedded store in {self.data_dir()}" if self.embedded else without_secret(self.store)

    def kept_dir(self) -> Path | None:
        """Return the directory for files beside the store: of the embedded store, or OPIC_DATA where that is set."""
        return self.data_dir() if self.embedded or "data" in self.model_fields_set else None

    @property
    def embedded(self) -> bool:
        """Whether the store is the bundled server."""
        return self.store == "embedded" or self.store.startswith("embedded:")

    def with_file(self, message: str) -> str:
        """Add to a message that names settings which of them come from the TOML file."""
        if self._file is None:
            return message
        path, names = self._file
        there = [name for name in sorted(names) if re.search(rf"\b{PREFIX}{name.upper()}\b", message)]
        said = [f"{PREFIX}{name.upper()} comes from {name} in {path}" for name in there]
        return f"{message} ({', '.join(said)})" if said else message

    def rules_given(self, names: Collection[str] | None = None) -> dict[str, int | bool | str]:
        """Return the rules that the user set explicitly, or those of these names, as a store keeps them.

        Raises:
            SettingsError: a value is invalid.
        """
        rules: dict[str, int | bool | str] = {
            "damping": damping_ppm(self.damping),
            "regrant": round(self.regrant * MILLION),
            "history_measures": self.history_measures,
            "inflow": self.inflow,
            "virtual": self.virtual,
            "normalize": Normalization.of(self.normalize or "").text,
            "shards": self.shards,
        }
        wanted = self.model_fields_set if names is None else names
        return {RULES[name]: value for name, value in rules.items() if name in wanted}

    def with_crawl(self, name: str) -> "Settings":
        """Return these settings for the crawl that took the place of theirs: with its own rules, and the same topic."""
        other = self.model_copy(update={"crawl": name, "kafka_topic": self.kafka_topic})
        other.model_fields_set.difference_update(RULES)
        return other

    def limits(self) -> "EventLimits":
        """Return the limits of one event; the store, where there is one, knows the normalization rules."""
        from opic.model.events import EventLimits

        normalization = Normalization.of(self.normalize or "")
        return EventLimits(self.max_links, self.max_url_bytes, normalization, self.max_pages_per_host)

    def kept_limits(self) -> "KeptLimits":
        """Return the limits of what a crawl keeps of events in the store."""
        from opic.model.events import KeptLimits

        return KeptLimits(self.max_dead_letter_bytes, self.max_meta_bytes)

    def environment(self) -> dict[str, str]:
        """Return the given settings as environment variables for a child process, without the API token.

        They include the Kafka passwords, because a worker connects to Kafka itself.
        """
        given = self.model_dump(include=self.model_fields_set - {"api_token"}, exclude_none=True)
        plain = {k: v.get_secret_value() if isinstance(v, SecretStr) else v for k, v in given.items()}
        return {f"OPIC_{name.upper()}": str(value) for name, value in plain.items()}


def _variables() -> list[tuple[str, str]]:
    return [(name, value) for name, value in os.environ.items() if name.upper().startswith(PREFIX)]


def _refuse_unknown_variables() -> None:
    known = [PREFIX + name.upper() for name in (*Settings.model_fields, "config")]
    others = {PREFIX + name.upper() for name in NO_SETTINGS}
    unknown = sorted(name for name, _ in _variables() if name.upper() not in (*known, *others))
    if unknown:
        raise SettingsError("; ".join(f"{name} is no setting: {_advice(name, known)}" for name in unknown))


def _advice(name: str, known: Iterable[str]) -> str:
    return f"did you mean {near}?" if (near := nearest_name(name, known)) else "docs/guide/settings.md lists all"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--config {path}: {error}") from None
    values = {name.removeprefix(PREFIX).lower(): value for name, value in table.items()}
    unknown = [name for name in table if name.removeprefix(PREFIX).lower() not in Settings.model_fields]
    if unknown:
        advice = [f"no setting is named {name}: {_advice(name, Settings.model_fields)}" for name in unknown]
        raise SettingsError(f"--config {path}: {'; '.join(advice)}")
    return values


def _with_file(values: Mapping[str, Any]) -> type[Settings]:
    """Return settings that take what is given nowhere else from the values of a file."""
    if not values:
        return Settings

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return named["init_settings"], named["env_settings"], InitSettingsSource(settings_cls, dict(values))

    return _WithFile


def _invalid(error: Any, given: Collection[str], file: tuple[Path, Collection[str]] | None) -> str:
    """Say what is wrong with a value, and where it was given: on the command line, in the file or the environment."""
    setting, name = str(error["loc"][0]).lower(), ".".join(map(str, error["loc"])).lower()
    given_value = error.get("input")
    shown = without_secret(given_value) if setting == "service" and isinstance(given_value, str) else given_value
    value = HIDDEN if any(secret in name for secret in SECRETS) else repr(shown)
    where = f"{PREFIX}{name.upper()}={value}"
    if setting in given and setting in OPTIONS:
        where = f"--{OPTIONS[setting]} {value}"
    elif file is not None and setting in file[1]:
        where = f"{file[0]}: {name} = {value}"
    return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"
