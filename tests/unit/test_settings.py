"""Settings that this version does not know, or does not have, are refused when they are read."""

from pathlib import Path

import pytest

from opic.errors import NotBuiltYet, SettingsError
from opic.model.events import EventLimits
from opic.ops.doctor import run_checks
from opic.settings import Settings


@pytest.mark.parametrize(("name", "value"), [("OPIC_TRACK", "links")])
def test_setting_of_link_tracking_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(NotBuiltYet, match=f"^{name}={value} .*not built yet"):
        Settings.load()


def test_setting_of_link_tracking_is_refused_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "opic.toml").write_text('track = "links"\n')
    with pytest.raises(NotBuiltYet, match="OPIC_TRACK=links"):
        Settings.load(tmp_path / "opic.toml")


def test_default_limits_equal_those_of_an_event() -> None:
    assert Settings().limits() == EventLimits()


@pytest.mark.parametrize(("name", "value"), [("OPIC_TRACK", "off"), ("OPIC_BOUND", "0.01")])
def test_default_value_may_be_given_explicitly(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    Settings.load()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("OPIC_MAX_LINK", "OPIC_MAX_LINK is no setting: did you mean OPIC_MAX_LINKS?"),
        ("OPIC_KAFKA", "OPIC_KAFKA is no setting: did you mean OPIC_"),
        ("opic_hosts", "opic_hosts is no setting: did you mean OPIC_HOST?"),
        ("OPIC_TEAPOT_IS_SHORT", "OPIC_TEAPOT_IS_SHORT is no setting: docs/guide/settings.md lists all"),
    ],
)
def test_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, advice: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError) as refused:
        Settings.load()
    assert str(refused.value).startswith(advice)
    (finding,) = run_checks(Settings.load)
    assert (finding.check, finding.verdict, finding.text) == ("settings", "FAIL", str(refused.value))


@pytest.mark.parametrize(
    "name", ["OPIC_CHILD", "OPIC_CHILD_LOG_LEVEL", "OPIC_BENCH_DATA", "opic_max_links", "OPIC_DATA"]
)
def test_internal_variables_are_accepted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "7")
    Settings.load()


def test_unknown_key_is_refused_with_its_file(tmp_path: Path) -> None:
    toml = tmp_path / "opic.toml"
    toml.write_text("max_link = 5\nOPIC_MAX_URL = 6\n")
    with pytest.raises(SettingsError) as refused:
        Settings.load(toml)
    assert str(refused.value) == (
        f"--config {toml}: no setting is named max_link: did you mean max_links?; "
        "no setting is named OPIC_MAX_URL: did you mean max_urls?"
    )


def test_invalid_value_is_shown_where_it_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toml = tmp_path / "opic.toml"
    toml.write_text("damping = 2\nport = 8080\n")
    with pytest.raises(SettingsError) as refused:
        Settings.load(toml)
    assert str(refused.value).startswith(f"{toml}: damping = 2: input should be less than 1")
    monkeypatch.setenv("OPIC_DAMPING", "3")
    with pytest.raises(SettingsError) as refused:
        Settings.load(toml)
    assert str(refused.value).startswith("OPIC_DAMPING='3': input should be less than 1")


def test_invalid_value_of_an_option_is_shown_as_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPIC_PORT", "80")
    with pytest.raises(SettingsError, match=r"^--port 99999: input should be less than"):
        Settings.load(port=99_999)


def test_error_about_settings_names_their_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toml = tmp_path / "opic.toml"
    toml.write_text("damping = 0.99999999\n")
    with pytest.raises(SettingsError) as refused:
        Settings.load(toml)
    assert str(refused.value).endswith(f" (OPIC_DAMPING comes from damping in {toml})")
    toml.write_text("shards = 4\nmax_n = 7\n")
    monkeypatch.setenv("OPIC_MAX_N", "8")
    found = Settings.load(toml)
    assert found.with_file("OPIC_SHARDS is 4, OPIC_MAX_N 8") == (
        f"OPIC_SHARDS is 4, OPIC_MAX_N 8 (OPIC_SHARDS comes from shards in {toml})"
    )
    assert found.with_file("OPIC_MAX_N 8") == "OPIC_MAX_N 8"


@pytest.mark.parametrize("seconds", [9.0, 10.0])
def test_a_lease_that_ends_before_the_host_delay_is_refused(seconds: float) -> None:
    with pytest.raises(SettingsError, match=f"OPIC_LEASE_SECONDS={seconds:g} is not longer than OPIC_HOST_DELAY_"):
        Settings.load(lease_seconds=seconds, host_delay_seconds=10.0)
    assert Settings.load(lease_seconds=10.5, host_delay_seconds=10.0).lease_seconds == 10.5


def test_pattern_of_a_setting_is_shown_verbatim() -> None:
    with pytest.raises(SettingsError, match=r"OPIC_KAFKA_TOPIC='a b': string should match pattern '\^\[A-Za-z0-9"):
        Settings.load(kafka_topic="a b")


def test_secret_from_a_file_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "opic.toml").write_text("api_token = 90210\n")
    with pytest.raises(SettingsError) as refused:
        Settings.load(tmp_path / "opic.toml")
    assert "api_token = …" in str(refused.value)
    assert "90210" not in str(refused.value)
