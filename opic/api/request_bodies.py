"""Read request bodies: size limit, media type, content encoding (gzip, zstd) and Idempotency-Key."""

import json
import re
from contextlib import suppress
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from opic.api.access import LIMITER, header
from opic.api.problems import JSON, Problem
from opic.api.validation import Asked, checked
from opic.compressed import decoded
from opic.urls.canonical import shown

LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MSGPACK: Final = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
CODINGS: Final = ("identity", "gzip", "zstd")
UTF8: Final = ("utf-8", "utf8", "us-ascii")
BOM: Final = b"\xef\xbb\xbf"

_KEY = re.compile(r"[ -~]{1,255}")


def media_type(request: Request, *, events: bool = False) -> str:
    """Return the body's media type, if it is supported; without the header it is JSON.

    Args:
        request: the request; its body is not read yet.
        events: whether the body has events, so that JSON Lines and MessagePack are supported too.

    Returns:
        JSON, LINES[0] or MSGPACK[0].

    Raises:
        Problem: another type, or a character set that is not UTF-8.
    """
    given = (header(request, b"content-type") or "").strip().lower()
    if given in {"", JSON}:
        return JSON
    name, *parameters = (part.strip() for part in given.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "charset" and value.strip().strip('"') not in UTF8:
            raise Problem("wrong-media-type", f"charset {shown(value.strip())} is not taken: send UTF-8")
    for form in ((JSON,), LINES, MSGPACK) if events else ((JSON,),):
        if name in form:
            return form[0]
    taken = (JSON, LINES[0], MSGPACK[0]) if events else (JSON,)
    raise Problem(
        "wrong-media-type",
        f"Content-Type {shown(name)} is not taken: send {' or '.join(taken)}",
        headers={"Accept": ", ".join(taken)},
    )


def idempotency_key(request: Request) -> str | None:
    """Return the Idempotency-Key, or None if the call has none.

    Raises:
        Problem: there are several keys, or the key is invalid.
    """
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise Problem("bad-input", "Idempotency-Key: one, of 1 to 255 printable ASCII characters")
    return keys[0]


async def read_body(request: Request, bytes_max: int, form: str = JSON) -> bytes:
    """Read the body, or refuse it as soon as it is known to be too large.

    Raises:
        Problem: the body exceeds `bytes_max`, compressed or decoded; it is empty; or its coding is not supported.
    """
    coding = (header(request, b"content-encoding") or "identity").strip().lower()
    if coding not in CODINGS:
        raise Problem(
            "wrong-media-type",
            f"Content-Encoding {shown(coding)} is not taken: send {', '.join(CODINGS)}",
            headers={"Accept-Encoding": ", ".join(CODINGS)},
        )
    declared = header(request, b"content-length")
    if declared is not None and declared.isdecimal() and int(declared[:20]) > bytes_max:
        raise _too_large(bytes_max)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(part)
    body = b"".join(parts)
    if declared is None and (limiter := request.scope.get(LIMITER)) is not None:
        limiter.owe(0, size)  # It was not known when the call began.
    if coding != "identity":
        try:
            body = await run_in_threadpool(decoded, body, coding, bytes_max)
        except OverflowError:
            raise _too_large(bytes_max) from None
        except ValueError as error:
            raise Problem("not-decoded", f"the body is not {coding}: {error}") from None
    if form == MSGPACK[0]:
        if not body:
            raise Problem("not-msgpack", "the body is empty: send MessagePack")
        return body
    body = body.removeprefix(BOM)
    if not body.strip():
        raise Problem("not-json", "the body is empty: send JSON")
    return body


def _too_large(bytes_max: int) -> Problem:
    return Problem("too-large", f"the body is over OPIC_MAX_BODY_BYTES {bytes_max:,}: send it in several calls")


def read_asked(body: bytes, kind: type[Asked]) -> Asked:
    """Parse a body that is one JSON object, and check it.

    Raises:
        Problem: the body is not JSON, or not of this kind.
    """
    try:
        return checked(msgspec.json.decode(body), kind)
    except RecursionError:
        raise Problem("not-json", "the body is not JSON: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        with suppress(ValueError, RecursionError):
            checked(json.loads(body.decode()), kind)  # Says of a NaN, which JSON does not have, where it is.
        raise Problem("not-json", f"the body is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
