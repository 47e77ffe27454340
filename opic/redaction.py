"""Takes user names and passwords out of what is shown: in errors, in logs, and in what commands print."""

import re
from typing import Final

HIDDEN: Final = "…"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+]{0,19}", re.IGNORECASE)
_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix", "http", "https")
_AUTHORITY: Final = re.compile(r"[^/?#]*")
_HOST: Final = re.compile(r"(\[[0-9a-f:.%]*\]|[\w.-]*)(:\d{0,5})?", re.IGNORECASE)
_WITH_PATHS: Final = ("unix", "http", "https")
_DATABASE: Final = re.compile(r"/\d*")
# A browser takes what precedes the last @ before the path for the login.
_LOGIN: Final = re.compile(r"(?<=://)[^\s/?#]*@")


def without_secret(url: str) -> str:
    """Return the URL of a server, or a list of brokers, without user, password and options.

    It may be anything that a person typed: where it is uncertain what belongs to a password, nothing of that is shown.

    >>> without_secret("redis://user:secret@host:6379/0?password=secret")
    'redis://host:6379/0'
    >>> without_secret("redis+cluster://user:s/e@c?r#et@host:6379,host:6380")
    'redis+cluster://…'
    >>> without_secret("kafka-1:9092,user:secret@kafka-2:9092")
    'kafka-2:9092'
    """
    if url.split(":", 1)[0] == "embedded":
        return url
    scheme, colon, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    login, at_sign, shown = rest.rpartition("@")
    if colon and not _SCHEME.fullmatch(scheme):  # The :// is inside of a password.
        return HIDDEN
    if at_sign and scheme.lower() not in _SCHEMES:  # It may be the beginning of a login without a scheme.
        scheme = colon and HIDDEN
    start = scheme + colon
    if not _AUTHORITY.fullmatch(login):  # Its / ? or # may belong to the password, or the @ to an option.
        return start + HIDDEN
    authority = _AUTHORITY.match(shown)
    assert authority is not None
    hosts = (host if _HOST.fullmatch(host) else HIDDEN for host in authority[0].split(","))
    path = shown[authority.end() :].partition("?")[0]
    return start + ",".join(hosts) + (path if scheme in _WITH_PATHS or _DATABASE.fullmatch(path) else "")


def without_logins(text: str) -> str:
    """Return a text with … in place of the user and password of every URL in it.

    >>> without_logins("http://user:secret@host/@a and http://host/b@c")
    'http://…@host/@a and http://host/b@c'
    """
    return _LOGIN.sub(f"{HIDDEN}@", text) if "@" in text else text  # Most have none: a twentieth of the time.
