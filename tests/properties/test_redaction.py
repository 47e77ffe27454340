"""No part of a password is shown, whatever characters it has and however it was typed."""

import json
import logging
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import OpicError, SettingsError
from opic.ingest.kafka import KafkaCluster
from opic.logs import TEXT, JsonLines, TextLines
from opic.redaction import without_logins, without_secret
from opic.settings import Settings
from opic.store import connect

LETTERS = "QXZJ"  # In no scheme, host or message below, so that each that is shown comes from a password.
HOSTILE = st.text(LETTERS + "/#?@:[]%,&=+ \\\"'$\n\té", min_size=1, max_size=12).map(lambda text: f"Q{text}X")
SCHEMES = ["redis", "rediss", "redis+cluster", "rediss+cluster", "unix", "foo"]
# How each is read is known, so that it must be shown in spite of the password.
GOOD = ["redis://{}host:63/0", "rediss://{}host:63", "redis+cluster://{}host:63,host:64", "unix://{}/tmp/socket"]


def shows(text: str) -> set[str]:
    return set(text) & set(LETTERS)


@given(HOSTILE, st.sampled_from(SCHEMES), st.sampled_from(["u:{}@h:1", ":{}@h", "{}@h", "h:1/?password={}"]))
@example("Q/X", "redis", "u:{}@h:1")
@example("Q#X", "redis+cluster", "u:{}@h:1")
@example("63/X", "redis", "u:{}@h:1")  # It would be taken for the host u and the port 63.
@example("QX@", "redis", "h:1/?password={}")
@example("Q://X", "redis", "{}@h")  # Typed without a scheme, it would be taken for one.
@example("Q://X", "redis", "h:1/?password={}")
def test_no_part_of_a_password_in_the_url_of_a_store_is_shown(password: str, scheme: str, form: str) -> None:
    for url in (f"{scheme}://{form.format(password)}", form.format(password), f"{scheme}:/{form.format(password)}"):
        assert not shows(without_secret(url)), url


def test_password_without_a_host_is_not_taken_for_a_port() -> None:
    assert without_secret("redis://user:QX") == "redis://…"


@given(HOSTILE, st.sampled_from(GOOD))
def test_quoted_password_is_hidden_and_the_rest_is_shown(password: str, form: str) -> None:
    assert without_secret(form.format(f"user:{quote(password, safe='')}@")) == form.format("")


@given(HOSTILE, st.sampled_from(["redis", "rediss", "foo", "redis+cluster"]))
@example("Q/X", "redis+cluster")
@example("[Q", "redis")
def test_error_about_an_unusable_url_shows_no_password(password: str, scheme: str) -> None:
    try:
        connect(f"{scheme}://user:{password}@host:notaport").close()
    except OpicError as error:
        chain, seen = error, []
        while chain is not None:
            seen.append(str(chain))
            chain = None if chain.__suppress_context__ else chain.__context__  # type: ignore[assignment]
        assert not shows("".join(seen))
    else:
        pytest.fail("it was taken")


@pytest.mark.parametrize("password", ["63/79", "a#b", "a?b", "a/b@c"])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_password_that_must_be_quoted_is_refused_with_the_quoting(scheme: str, password: str) -> None:
    with pytest.raises(SettingsError, match="%2F") as refused:
        connect(f"{scheme}://user:{password}@127.0.0.1:1")
    assert password not in str(refused.value)


@given(HOSTILE)
def test_password_among_the_brokers_is_refused_and_not_shown(password: str) -> None:
    settings = Settings.load(kafka_bootstrap=f"one:9092,user:{password}@two:9092")
    with pytest.raises(SettingsError, match="OPIC_KAFKA_SASL_PASSWORD") as refused:
        KafkaCluster(settings)
    assert not shows(str(refused.value))


@given(HOSTILE)
def test_settings_show_no_password(password: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.load(service=f"user:{password}@host", kafka_sasl_password=password, port="far")
    secrets = {"kafka_sasl_password": password, "kafka_ssl_password": password, "api_token": password}
    settings = Settings.load(store=f"redis://{password}@host", **secrets)
    assert not shows(str(refused.value) + repr(settings).replace("PLAINTEXT", ""))


@given(st.text(LETTERS + ":[]%,&=+$@", min_size=1))
def test_login_in_the_url_of_a_page_is_in_no_error_and_no_log(login: str) -> None:
    url = f"https://{login}@host.example/@path?a=b@c"
    assert without_logins(url) == str(OpicError(url)) == "https://…@host.example/@path?a=b@c"
    record = logging.LogRecord("opic", logging.INFO, "", 0, "fetching %s", (url,), None)
    assert TextLines(TEXT).format(record).endswith("fetching https://…@host.example/@path?a=b@c")
    assert json.loads(JsonLines().format(record))["message"] == "fetching https://…@host.example/@path?a=b@c"
