"""Request bodies: read once, never past the limit, and of the types that are taken."""

import re
import zlib
from typing import Any, Final, TypeVar

import zstandard
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from opic.api.problems import Problem, from_validation
from opic.urls.canonical import shown

JSON: Final = "application/json"
LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
MSGPACK: Final = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
CODINGS: Final = ("identity", "gzip", "zstd")
STEP_BYTES: Final = 256  # Of a compressed body at a time: of zstd, some 8 MB may come of them.
WINDOW_BYTES_MAX: Final = 1 << 24
UTF8: Final = ("utf-8", "utf8", "us-ascii")
BOM: Final = b"\xef\xbb\xbf"

_KEY = re.compile(r"[ -~]{1,255}")

Asked = TypeVar("Asked", bound=BaseModel)


def media_type(request: Request, *, events: bool = False) -> str:
    """Return the body's media type, one of those taken; without the header it is JSON.

    Args:
        request: whose body is not read yet.
        events: these are, so JSON Lines and MessagePack are taken too.

    Returns:
        JSON, LINES[0] or MSGPACK[0].

    Raises:
        Problem: another type, or a character set that is not UTF-8.
    """
    header = request.headers.get("content-type", "")
    if not header.strip():
        return JSON
    name, *parameters = (part.strip() for part in header.lower().split(";"))
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
        Problem: several, or one that is no key.
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
        Problem: larger than `bytes_max`, as it comes or decoded; empty; or its coding is none that is taken.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in CODINGS:
        raise Problem(
            "wrong-media-type",
            f"Content-Encoding {shown(coding)} is not taken: send {', '.join(CODINGS)}",
            headers={"Accept-Encoding": ", ".join(CODINGS)},
        )
    too_large = Problem("too-large", f"the body is over OPIC_MAX_BODY_BYTES {bytes_max:,}: send it in several calls")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > bytes_max:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise too_large
        parts.append(part)
    body = b"".join(parts)
    if coding != "identity":
        try:
            body = await run_in_threadpool(decoded, body, coding, bytes_max)
        except OverflowError:
            raise too_large from None
    if form == MSGPACK[0]:
        if not body:
            raise Problem("not-msgpack", "the body is empty: send MessagePack")
        return body
    body = body.removeprefix(BOM)
    if not body.strip():
        raise Problem("not-json", "the body is empty: send JSON")
    return body


def decoded(body: bytes, coding: str, bytes_max: int) -> bytes:
    """Decode a body, in steps that are small: a few bytes may stand for very many.

    Raises:
        Problem: it is not of that coding, or it breaks off.
        OverflowError: it is more than `bytes_max`; only one step more was decoded.
    """
    parts, size, rest = [], 0, memoryview(body)
    try:
        while rest:  # Several compressed texts one after the other are one text.
            decoder = _gunzip() if coding == "gzip" else _unzstd()
            while not decoder.eof:
                if not rest:
                    raise Problem("not-decoded", f"the body is not {coding}: it breaks off")
                step, rest = rest[:STEP_BYTES], rest[STEP_BYTES:]
                parts.append(decoder.decompress(step))
                size += len(parts[-1])
                if size > bytes_max:
                    raise OverflowError
            left = len(decoder.unused_data)
            rest = memoryview(body)[len(body) - len(rest) - left :]
    except (zlib.error, zstandard.ZstdError) as error:
        raise Problem("not-decoded", f"the body is not {coding}: {error}") from None
    return b"".join(parts)


def _gunzip() -> Any:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _unzstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()


def read_asked(body: bytes, model: type[Asked]) -> Asked:
    """Read a body that is one JSON object and check it.

    Raises:
        Problem: not JSON, or not what `model` asks for.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False, include_input=False)) from None
