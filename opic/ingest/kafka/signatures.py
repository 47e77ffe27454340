"""Signatures of the records on a topic that control a crawl: classes of pages, trust of seeds, pages to forget.

Every producer on a topic may send crawl events. Weights and trust decide where all cash goes, and what is forgotten is
lost, so they are taken only from an endpoint of the crawl. It signs them with OPIC_KAFKA_SIGNING_KEY, or else with the
store's secret, which its endpoints and workers alone can read. Others become dead letters. A copy of a signed record
has no effect either: its Idempotency-Key makes it a repeat for a day, and after a day it is too old.
"""

import hmac
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from opic.ingest.kafka.connection import INDEX, KEY, KIND, headers_of
from opic.model.cash import DAY_US
from opic.model.events import CALL_KEY_BYTES, Record, decode_seeds
from opic.settings import Settings

SIGNATURE: Final = "opic-signature"
SIGNED_AT: Final = "opic-signed-at"
SIGNATURE_BYTES: Final = 16
DIGITS_MAX: Final = 16
PERSON: Final = b"opic control"  # Keeps other uses of the store's secret apart.

Headers = list[tuple[str, bytes]]


def is_control(kind: str, value: bytes) -> bool:
    """Return whether a record controls the crawl, and so has to be signed. Plain seeds do no more than links do."""
    if kind != "seeds":
        return kind in ("classes", "classify", "forget", "expire")
    try:
        return decode_seeds(value).trust is not None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # A dead letter in any case.


class Signatures:
    """Signs the control records of one topic, and checks them."""

    def __init__(self, settings: Settings, secret: Callable[[], bytes]) -> None:
        """Use the key of the settings, or else `secret`, that of the store; it is asked for each time."""
        self._topic = settings.kafka_topic.encode()
        given = settings.kafka_signing_key
        self._secret = secret if given is None else given.get_secret_value().encode

    def headers(self, kind: str, value: bytes, time_us: int) -> Headers:
        """Return the headers of a control record that is sent at a time."""
        signed = [*headers_of(kind, secrets.token_bytes(CALL_KEY_BYTES)), (SIGNED_AT, str(time_us).encode())]
        return [*signed, (SIGNATURE, self._of(dict(signed), value))]

    def checked(self, message: Any, record: Record) -> Record:
        """Return a record as it came, or with the problem that makes it a dead letter."""
        if record.problem or not is_control(record.kind, record.value):
            return record
        headers = {name: value or b"" for name, value in message.headers or ()}
        record.problem = self._problem(headers, record)
        return record

    def _problem(self, headers: dict[str, bytes], record: Record) -> str:
        what = f"a record of {record.kind}{' with trust' if record.kind == 'seeds' else ''}"
        if SIGNATURE not in headers:
            return f"{what} is not signed: set it through an endpoint of this crawl"
        signed_at = headers.get(SIGNED_AT, b"")
        if not hmac.compare_digest(self._of(headers, record.value), headers[SIGNATURE]):
            return f"{what} is signed with another key: see OPIC_KAFKA_SIGNING_KEY"
        if not (signed_at.isdigit() and len(signed_at) <= DIGITS_MAX and abs(record.time_us - int(signed_at)) < DAY_US):
            return f"{what} was signed more than a day before or after the record's time: a copy of an old one"
        return ""

    def _of(self, headers: dict[str, bytes], value: bytes) -> bytes:
        key = blake2b(self._secret(), person=PERSON).digest()
        digest = blake2b(key=key, digest_size=SIGNATURE_BYTES)
        for part in (self._topic, *(headers.get(name, b"") for name in (KIND, KEY, INDEX, SIGNED_AT)), value):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()
