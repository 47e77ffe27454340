"""All settings in one frozen object, read once and checked whole at the start.

A setting comes from, first found: the command line, an environment variable OPIC_<NAME>, the TOML file named by
`--config` or OPIC_CONFIG, its default. Rules that a store keeps (damping and the like) are taken from the store unless
they were given; given ones must agree with it.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from opic.cash import GRANT_GRAINS, MILLION, damping_ppm
from opic.errors import NotBuiltYet, SettingsError
from opic.events import LINKS_MAX, Limits
from opic.urls import URL_BYTES_MAX


class Settings(BaseSettings):
    """See the table of settings in README.md. Durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix="OPIC_", frozen=True, extra="forbid", env_ignore_empty=True)

    store: str = "embedded"
    data: Path = Path("opic-data")
    kafka_bootstrap: str | None = None
    crawl: str = "default"
    shards: Annotated[int, Field(ge=1, le=4096)] = 1

    damping: Annotated[float, Field(gt=0, lt=1)] = 0.85
    virtual: Literal["grants", "continuous"] = "grants"
    regrant: Annotated[float, Field(ge=0, le=1)] = 0.01
    history_measures: Annotated[int, Field(ge=1, le=64)] = 4
    inflow: bool = True
    track: Literal["off", "links"] = "off"
    bound: Annotated[float, Field(gt=0, lt=2)] = 0.1
    policy: Literal["static", "interpolation", "fixed", "variable", "improved"] | None = None  # As the payout wants.
    window_rounds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8.0

    discovery_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    host_delay_seconds: Annotated[float, Field(ge=0, le=86_400)] = 1.0
    retry_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    api_token: SecretStr | None = None
    max_body_bytes: Annotated[int, Field(ge=1_024)] = 16 << 20
    max_links: Annotated[int, Field(ge=1, le=100_000)] = LINKS_MAX
    max_url_bytes: Annotated[int, Field(ge=64, le=65_536)] = URL_BYTES_MAX
    max_n: Annotated[int, Field(ge=1)] = 1_000
    max_urls: Annotated[int, Field(ge=1)] = 10_000
    max_keys: Annotated[int, Field(ge=1)] = 1_000_000  # Idempotency-Keys remembered, about 300 bytes each.
    max_lag: Annotated[int, Field(ge=1)] = 1_000_000  # Accepted events that wait; past it the endpoint says 503.

    @classmethod
    def load(cls, config: Path | None = None, **given: Any) -> "Settings":
        """Read and check all settings.

        Args:
            config: a TOML file; OPIC_CONFIG if None.
            given: from the command line; None is not given.

        Raises:
            SettingsError: a value can't be taken, or a name in the file is unknown.
            NotBuiltYet: a value that the public contract names and this version does not have.
        """
        path = config or (Path(os.environ["OPIC_CONFIG"]) if os.environ.get("OPIC_CONFIG") else None)
        try:
            settings = _with_file(path)(**{k: v for k, v in given.items() if v is not None})
        except ValidationError as error:
            problems = "; ".join(
                f"OPIC_{'.'.join(str(p) for p in e['loc']).upper()}={_shown(e)}: {e['msg'].lower()}"
                for e in error.errors()
            )
            raise SettingsError(problems) from None
        settings._check()
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the command line first, then the environment; the file comes last, as a source of its own."""
        return init_settings, env_settings

    def _check(self) -> None:
        damping_ppm(self.damping)
        if self.regrant and self.regrant * GRANT_GRAINS < 1:
            raise SettingsError(f"OPIC_REGRANT={self.regrant} of a grant is less than a grain: use 0, or 0.000001")
        if self.track != "off":
            raise NotBuiltYet("OPIC_TRACK=links is not built yet: use off")
        if self.shards != 1:
            raise NotBuiltYet(f"OPIC_SHARDS={self.shards} is not built yet: use 1")
        if self.kafka_bootstrap:
            raise NotBuiltYet("OPIC_KAFKA_BOOTSTRAP is not built yet: events come in over HTTP or by `opic replay`")

    def data_dir(self) -> Path:
        """Return the directory of the embedded store: that of `embedded:DIR`, or OPIC_DATA."""
        return Path(self.store.removeprefix("embedded:")) if self.store.startswith("embedded:") else self.data

    @property
    def embedded(self) -> bool:
        """Tell whether the store is the bundled one."""
        return self.store == "embedded" or self.store.startswith("embedded:")

    def rules_given(self) -> dict[str, int | bool | str]:
        """Return the rules that the user gave by name, as a store keeps them."""
        rules: dict[str, int | bool | str] = {
            "damping": damping_ppm(self.damping),
            "regrant": round(self.regrant * MILLION),
            "history_measures": self.history_measures,
            "inflow": self.inflow,
            "virtual": self.virtual,
            "shards": self.shards,
        }
        names = {"damping": "q", "regrant": "regrant_ppm", "history_measures": "measures_max"}
        return {names.get(k, k): v for k, v in rules.items() if k in self.model_fields_set}

    def limits(self) -> Limits:
        """Return the limits of one event."""
        return Limits(self.max_links, self.max_url_bytes)

    def environment(self) -> dict[str, str]:
        """Return what was given as environment variables, for a process of our own; without the API token."""
        given = self.model_dump(include=self.model_fields_set - {"api_token"}, exclude_none=True)
        return {f"OPIC_{name.upper()}": str(value) for name, value in given.items()}


def _with_file(path: Path | None) -> type[Settings]:
    if path is None:
        return Settings
    try:
        values = {k.removeprefix("OPIC_").lower(): v for k, v in tomllib.loads(path.read_text()).items()}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--config {path}: {error}") from None
    if unknown := values.keys() - Settings.model_fields.keys():
        raise SettingsError(f"--config {path}: no setting is named {', '.join(sorted(unknown))}")

    class _File(PydanticBaseSettingsSource):
        def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
            return values.get(field_name), field_name, False

        def __call__(self) -> dict[str, Any]:
            return values

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return named["init_settings"], named["env_settings"], _File(settings_cls)

    return _WithFile


def _shown(error: Any) -> str:
    return "…" if "token" in str(error["loc"]) else repr(error.get("input"))
