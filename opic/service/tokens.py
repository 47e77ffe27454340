"""Tokens: who may make which calls on which crawls; from a TOML file that is read again when it changes.

    [tokens.crawler-7]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    roles = ["crawl"]
    crawls = ["news"]

The file has the SHA-256 of each token, not the token. A slow hash, as for passwords, protects what people choose: of
those there are few enough to try. A token has 256 random bits, too many to try at any speed; and each call pays for the
hash.
"""

import hmac
import json
import logging
import re
import secrets
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from opic.background import repeated
from opic.errors import BadInput, SettingsError
from opic.service.rates import Limiter, Rates, limiter_of
from opic.settings import Settings
from opic.store.keys import CRAWL_NAME

log = logging.getLogger("opic.tokens")

Role = Literal["publish", "crawl", "read", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
# The roles whose calls each may make. A crawler sends seeds to begin with, and ends a lease by the event of its page.
INCLUDED: Final[Mapping[Role, frozenset[Role]]] = {
    "publish": frozenset({"publish"}),
    "crawl": frozenset({"crawl", "publish"}),
    "read": frozenset({"read"}),
    "admin": frozenset(ROLES),
}
OWN_NAME: Final = "OPIC_API_TOKEN"  # What logs and metrics call that token.
PREFIX: Final = "opic_"  # By which people, and scanners for secrets, know what they found.
TOKEN_BYTES: Final = 32
FILE_BYTES_MAX: Final = 1 << 20  # Some 5,000 tokens.
LOOK_SECONDS: Final = 1.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # It stands in logs and metrics.
_Rate = Annotated[float, Meta(ge=0, lt=1e15)]  # Not NaN, nor infinite.
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """What the holder of a token may do.

    Attributes:
        name: shown in logs and metrics.
        digest: the SHA-256 of the token.
        may: the roles whose calls it may make.
        crawls: the crawls on which; None means all.
        limiter: keeps it within its rates; None: it has none.
    """

    name: str
    digest: bytes
    may: frozenset[Role]
    crawls: frozenset[str] | None = None
    limiter: Limiter | None = None

    def refusal(self, role: Role, crawls: Collection[str]) -> str | None:
        """Return why a call of this role, on the crawl of these names, is not for this token; None if it is."""
        if (why := self.lacks(role)) is not None or self.is_for(crawls):
            return why
        return (
            f"this call wants the role {role} on crawl {' or '.join(sorted(crawls))}, and the token {self.name} is for "
            f"{', '.join(sorted(self.crawls or ()))}"
        )

    def lacks(self, role: Role) -> str | None:
        """Return why a call of this role is not for this token; None if it is, on some crawl."""
        if role in self.may:
            return None
        return f"this call wants the role {role}, and the token {self.name} has {self.shown_roles()}"

    def is_for(self, crawls: Collection[str]) -> bool:
        """Return whether the token is for the crawl of these names."""
        return self.crawls is None or not self.crawls.isdisjoint(crawls)

    def shown_roles(self) -> str:
        """Name the roles, without those that another one includes."""
        return ", ".join(
            role
            for role in ROLES
            if role in self.may and not any(role in INCLUDED[other] for other in self.may if other != role)
        )


class _TokenEntry(Struct, forbid_unknown_fields=True):
    sha256: str
    roles: list[str]
    crawls: list[str] | None = None
    calls_per_second: _Rate | None = None
    events_per_second: _Rate | None = None
    bytes_per_second: _Rate | None = None
    concurrent_calls: Annotated[int, Meta(ge=0)] | None = None

    def rates(self, default: Rates) -> Rates:
        """Return the rates; those that are not given are the default ones."""
        return Rates(
            default.calls if self.calls_per_second is None else self.calls_per_second,
            default.events if self.events_per_second is None else self.events_per_second,
            default.bytes if self.bytes_per_second is None else self.bytes_per_second,
            default.concurrent if self.concurrent_calls is None else self.concurrent_calls,
        )


class _TokenFile(Struct, forbid_unknown_fields=True):
    tokens: dict[str, _TokenEntry] = {}


def _token(name: str, entry: _TokenEntry, default: Rates, former: Mapping[str, Limiter | None]) -> Token:
    """Check an entry; take over the former limiter of the name.

    Raises:
        BadInput: a value is not as wanted. It is not shown: it may be a token in the wrong place.
    """
    if not _NAME.fullmatch(name):
        raise BadInput("a token's name is 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit")
    if not _DIGEST.fullmatch(entry.sha256):
        raise BadInput(f"token {name}: sha256 is 64 hexadecimal digits: `opic tokens new` prints them")
    roles = [role for role in ROLES if role in entry.roles]
    if not roles or not set(entry.roles) <= set(ROLES):
        raise BadInput(f"token {name}: roles are one or more of {', '.join(ROLES)}")
    crawls = entry.crawls
    if crawls is not None and not (crawls and all(map(CRAWL_NAME.fullmatch, crawls))):
        raise BadInput(f"token {name}: crawls are names of crawls; without the line it is for all")
    may = frozenset[Role]().union(*(INCLUDED[role] for role in roles))
    limiter = limiter_of(entry.rates(default), former.get(name))
    return Token(name, bytes.fromhex(entry.sha256), may, None if crawls is None else frozenset(crawls), limiter)


def parse_tokens(
    text: bytes,
    where: str,
    default: Rates = Rates(),  # noqa: B008 - frozen
    former: Mapping[str, Limiter | None] = MappingProxyType({}),
) -> list[Token]:
    """Return the tokens of a file.

    Args:
        text: what is in it.
        where: how errors name it.
        default: the rates of tokens for which it has none.
        former: the limiters of tokens by name, whose counts go on where their rates are the same.

    Raises:
        SettingsError: it is not as wanted. The message shows nothing of the file but names.
    """
    if len(text) > FILE_BYTES_MAX:
        raise SettingsError(f"{where} is over {FILE_BYTES_MAX:,} bytes")
    try:
        entries = msgspec.convert(tomllib.loads(text.decode()), _TokenFile).tokens
        tokens = [_token(name, entry, default, former) for name, entry in entries.items()]
    except UnicodeDecodeError:
        raise SettingsError(f"{where} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, BadInput) as error:
        raise SettingsError(f"{where}: {error}") from None
    by_digest = dict[bytes, str]()
    for token in tokens:
        if (other := by_digest.setdefault(token.digest, token.name)) != token.name:
            raise SettingsError(f"{where}: {other} and {token.name} have the same sha256: make a token for each")
    return tokens


def read_tokens(path: Path) -> bytes:
    """Read a file of tokens.

    Raises:
        SettingsError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"OPIC_TOKENS_FILE={path}: {error.strerror or error}") from None


class Tokens:
    """The tokens that an endpoint takes, those of the file as it was when it could last be read."""

    def __init__(self, settings: Settings) -> None:
        """Read the file, if the settings name one.

        Raises:
            SettingsError: it can't be read, or is not as wanted.
        """
        self.path, self.crawl = settings.tokens_file, settings.crawl
        own = settings.api_token
        digest = b"" if own is None else sha256(own.get_secret_value().encode()).digest()
        self._rates = Rates(
            settings.calls_per_second, settings.events_per_second, settings.bytes_per_second, settings.concurrent_calls
        )
        self._own = [] if own is None else [Token(OWN_NAME, digest, INCLUDED["admin"], None, limiter_of(self._rates))]
        self.anonymous = limiter_of(self._rates)  # Of all calls together, where no token is required.
        self.settings_named = " and ".join(
            [*([OWN_NAME] if own is not None else []), *(["OPIC_TOKENS_FILE"] if self.path is not None else [])]
        )
        self.required = bool(self.settings_named)  # Whether calls need a token.
        self._by_digest = {token.digest: token for token in self._own}
        self._text = self._seen = b""  # What was taken, and what was there at the last look.
        self.problem = ""  # Why that was not taken.
        if self.path is not None:
            self._take(read_tokens(self.path))

    @property
    def tokens(self) -> Collection[Token]:
        return self._by_digest.values()

    def limiters(self) -> Iterator[tuple[str, Limiter]]:
        """Yield the limiters with the names of their tokens; `none` is that of calls without one."""
        if self.anonymous is not None and not self.required:
            yield "none", self.anonymous
        for token in self.tokens:
            if token.limiter is not None:
                yield token.name, token.limiter

    def holder(self, given: bytes) -> Token | None:
        """Return what the holder of a token may do, None for a token that is none.

        The lookup is by digest: its time may tell something of the digest of what was given, and nothing of a token.
        """
        digest = sha256(given).digest()
        token = self._by_digest.get(digest)
        return token if token is not None and hmac.compare_digest(token.digest, digest) else None

    def bearer(self, authorization: bytes) -> Token | None:
        """Return what the caller may do whose header, or metadata, `authorization` this is; None without a token."""
        scheme, _, given = authorization.partition(b" ")
        return self.holder(given.strip(b" ")) if scheme.lower() == b"bearer" else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the file again, every LOOK_SECONDS during the block."""
        if self.path is None:
            yield
            return
        with repeated(self._look, LOOK_SECONDS, "opic-tokens"):
            yield

    def _look(self) -> float:
        """Take what is in the file now, by whatever name or link it came there; keep the last where that is no good.

        The content is compared, not the time of the change: a write within the clock's step would be missed. It is
        taken once two looks in a row agree: an editor may be in the middle of writing it.
        """
        assert self.path is not None
        try:
            text = read_tokens(self.path)
            if text == self._seen and (text != self._text or self.problem):
                self._take(text)
                log.info("%s has changed: %d tokens", self.path, len(self._by_digest) - len(self._own))
            self._seen = text
        except SettingsError as error:
            if str(error) != self.problem:
                log.error("the tokens stay as they were: %s", error)
            self.problem = str(error)
        return LOOK_SECONDS

    def _take(self, text: bytes) -> None:
        former = {token.name: token.limiter for token in self.tokens}
        parsed = parse_tokens(text, f"OPIC_TOKENS_FILE={self.path}", self._rates, former)
        tokens = [*parsed, *self._own]  # OPIC_API_TOKEN stays what it is.
        self._by_digest = {token.digest: token for token in tokens}
        self._text, self.problem = text, ""


def new_token(name: str, roles: Collection[str], crawls: Collection[str], **limits: float | None) -> tuple[str, str]:
    """Make a token; return it, and its lines for the file. `limits` are fields of the file; None are left out.

    Raises:
        BadInput: a name is invalid.
    """
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    digest = sha256(token.encode()).hexdigest()
    given: dict[str, Any] = {limit: value for limit, value in limits.items() if value is not None}
    _token(name, _TokenEntry(digest, list(roles), list(crawls) or None, **given), Rates(), {})
    lists = {"roles": list(dict.fromkeys(roles)), **({"crawls": list(dict.fromkeys(crawls))} if crawls else {})}
    head = f"[tokens.{json.dumps(name) if '.' in name else name}]\nsha256 = {json.dumps(digest)}\n"
    return token, head + "".join(f"{field} = {json.dumps(values)}\n" for field, values in {**lists, **given}.items())
