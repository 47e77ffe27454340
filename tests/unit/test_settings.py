"""Settings that name what this version does not have are refused when they are read."""

from pathlib import Path

import pytest

from opic.errors import NotBuiltYet
from opic.settings import Settings


@pytest.mark.parametrize(("name", "value"), [("OPIC_TRACK", "links"), ("OPIC_BOUND", "0.2")])
def test_setting_of_link_tracking_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(NotBuiltYet, match=f"^{name}={value} .*not built yet"):
        Settings.load()


def test_setting_of_link_tracking_is_refused_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "opic.toml").write_text("bound = 0.05\n")
    with pytest.raises(NotBuiltYet, match=r"OPIC_BOUND=0\.05"):
        Settings.load(tmp_path / "opic.toml")


@pytest.mark.parametrize(("name", "value"), [("OPIC_TRACK", "off"), ("OPIC_BOUND", "0.1")])
def test_default_may_be_given(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    Settings.load()
