"""Check what callers send against its type, and say what is wrong: each value by itself, with its place."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields

from opic.api.problems import Problem
from opic.api.queries import FieldError
from opic.errors import instead_of
from opic.urls.canonical import shown

ERRORS_MAX: Final = 20  # A list of 10,000 wrong URLs is one mistake.
ERRORS_IN_DETAIL: Final = 3
RELATIONS: Final = {
    ">=": "greater than or equal to", ">": "greater than", "<=": "less than or equal to", "<": "less than",
}  # fmt: skip
TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "array": "list"}
_BOUND = re.compile(r"Expected `\w+`( of length)? (>=|>|<=|<) ([-+.e\d]+)")
_TYPES = re.compile(r"Expected `([\w |]+)`, got")

Asked = TypeVar("Asked", bound=msgspec.Struct)
Place = tuple[int | str, ...]


def checked(value: object, kind: type[Asked], location: Place = (), *, strict: bool = True) -> Asked:
    """Convert a decoded value to a type of request.

    Args:
        value: the value.
        kind: the type.
        location: the place of the value in the request.
        strict: whether a string can't stand for a number; in a query it does.

    Raises:
        Problem: the value is not of this type: `detail` for people, `errors` for programs.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        errors = list(islice(_errors(value, kind, location, strict), ERRORS_MAX))
    said = [f"{'.'.join(map(str, error['loc'])) or 'the body'}: {error['msg']}" for error in errors[:ERRORS_IN_DETAIL]]
    if len(errors) > ERRORS_IN_DETAIL:
        said.append("and more")
    raise Problem("bad-input", "; ".join(said), errors=errors)


def _errors(value: object, kind: Any, location: Place, strict: bool) -> Iterator[dict[str, Any]]:
    """Yield what is wrong in a value: in its parts, or else in the whole."""
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        said, cause = str(error), error.__cause__  # Not the error: its traceback would hold this frame.
    else:
        return
    plain, whole = _plain(kind), True
    for name, part, its_kind in _parts(value, plain):
        for part_error in _errors(part, its_kind, (*location, name), strict):
            whole = False
            yield part_error
    for name, message in _wrong_names(value, plain):
        whole = False
        yield _error((*location, shown(name)[1:-1]), message)
    if whole:
        yield _error(
            (*location, cause.name) if isinstance(cause, FieldError) else location, _message(said, value, plain)
        )


def _error(location: Place, message: str) -> dict[str, Any]:
    return {"loc": list(location), "msg": message[:1].lower() + message[1:]}


def _message(said: str, value: object, kind: Any) -> str:
    """Say in plain words what msgspec says of a value.

    >>> _message("Expected `int | null`, got `str` - at `$.n`", "1", int), _message("Expected `int` >= 1", 0, int)
    ('input should be a valid integer', 'input should be greater than or equal to 1')
    """
    if get_origin(kind) is Literal:
        *others, last = map(repr, get_args(kind))
        return f"input should be {', '.join(others)} or {last}"
    if kind is float and str(value).lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return "input should be a finite number"
    if match := _BOUND.match(said):
        length, relation, bound = match.groups()
        have = "have a length" if length else "be"
        return f"input should {have} {RELATIONS[relation]} {bound.removesuffix('.0')}"
    if match := _TYPES.match(said):
        names = [TYPES.get(name, name) for name in match[1].split(" | ") if name != "null"]
        return f"input should be a valid {' or '.join(names)}"
    return said.partition(" - at `")[0]


def _plain(kind: Any) -> Any:
    """Return a type without its description and without null."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        some = [part for part in get_args(kind) if part not in (NoneType, msgspec.UnsetType)]
        return _plain(some[0]) if len(some) == 1 else kind
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _parts(value: object, kind: Any) -> Iterator[tuple[int | str, object, Any]]:
    """Yield the known parts of a value, each with its name and its type."""
    if isinstance(value, list) and get_origin(kind) is list:
        yield from ((index, part, get_args(kind)[0]) for index, part in enumerate(value))
    elif isinstance(value, Mapping) and get_origin(kind) is dict:
        yield from ((shown(name)[1:-1], part, get_args(kind)[1]) for name, part in value.items())
    elif isinstance(value, Mapping) and _is_struct(kind):
        known = {field.encode_name: field.type for field in fields(kind)}
        yield from ((name, value[name], its_kind) for name, its_kind in known.items() if name in value)


def _wrong_names(value: object, kind: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields that a value has and should not have, and those that it should have and has not."""
    if not (isinstance(value, Mapping) and _is_struct(kind)):
        return
    known = {field.encode_name: field.required for field in fields(kind)}
    for name in value:
        if name not in known:
            yield name, f"no such field, {instead_of(name, known) if known else 'check its spelling'}"
    for name, required in known.items():
        if required and name not in value:
            yield name, "field required"
