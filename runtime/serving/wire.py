"""Bodies on their way in: bytes → checked JSON object → a typed request, once; and objects on their way out.

First thing a handler calls. A field either acts (it is in the request's struct), says something about the caller only
(`inert`), or is refused by name unless its value is neutral. Nothing is ignored in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.errors import ApiError, bad_request, clip

__all__ = ["Json", "Rules", "as_request", "decode_object", "json_response", "read_body"]

Json = dict[str, object]

T = TypeVar("T", bound=msgspec.Struct)

MAX_CONTAINERS = 2**18


@dataclass(frozen=True, slots=True)
class Rules:
    """Fields that a request may carry without being part of its struct.

    `refused` maps a name to the values that ask for nothing (accepted); any other value is a 400 that names the field.
    `inert` fields describe the caller and never change an answer.
    """

    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body` as JSON; numbers that JSON doesn't know are null."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body, at most `limit` bytes.

    Raises ApiError 400 where it isn't declared as JSON, 415 where it is compressed, 413 where it is longer.
    """
    declared = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if declared != "application/json" and not declared.endswith("+json"):
        raise ApiError(400, f"Content-Type must be application/json, got {clip(declared, 80) or 'none'}.")
    coded = request.headers.get("content-encoding", "identity").strip().lower()
    if coded != "identity":
        raise ApiError(415, f"Content-Encoding {clip(coded, 40)} isn't read by this server; send the body as it is.")
    too_long = ApiError(413, f"The request body is longer than this server's limit of {limit} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:18]) > limit:
        raise too_long
    parts, total = list[bytes](), 0
    try:
        async for part in request.stream():
            total += len(part)
            if total > limit:
                raise too_long
            parts.append(part)
    except ClientDisconnect as gone:
        raise ApiError(499, "The client closed the connection before its request was read.") from gone
    return b"".join(parts)


def decode_object(raw: bytes) -> Json:
    """A JSON object. Raises InvalidRequest for anything else: broken or too deep JSON, lone surrogates, numbers out of range."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:  # each costs far more time and memory than its two bytes
        raise bad_request(f"The request body holds more than {MAX_CONTAINERS} lists and objects.")
    try:
        value = msgspec.json.decode(raw)
    except RecursionError as error:
        raise bad_request("The request body is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body isn't valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request(f"The request body must be a JSON object, got {type(value).__name__}.")
    return value


def as_request(value: Mapping[str, object], form: type[T], rules: Rules, where: str = "") -> T:
    """`value` as a `form`. Nulls mean absent. Raises InvalidRequest naming the field (with `where` in front of its name)."""
    kept = Json()
    for name, item in value.items():
        if item is None or name in rules.inert:
            continue
        if name in rules.refused:
            if not _is_neutral(item, rules.refused[name]):
                shown = clip(where + name, 80)
                raise bad_request(f"{shown} is not supported by this server; leave it out.", shown)
        elif name not in form.__struct_encode_fields__:
            shown = clip(where + name, 80)
            raise bad_request(f"{shown} is no field that this server knows; such fields are refused, not ignored.", shown)
        else:
            kept[name] = item
    try:
        return msgspec.convert(kept, form)
    except msgspec.ValidationError as error:
        raise _named(error, where) from error
    except RecursionError as error:
        raise bad_request("The request body is nested too deeply.") from error


def _is_neutral(item: object, neutral: tuple[object, ...]) -> bool:
    return any(type(item) is type(value) and item == value for value in neutral) or (
        isinstance(item, int | float)
        and not isinstance(item, bool)
        and any(type(v) in (int, float) and item == v for v in neutral)
    )


def _named(error: msgspec.ValidationError, where: str) -> InvalidRequest:
    """msgspec tells the place as JSON path (`… - at `$.a.b``); it becomes `param`. A refusal of our own goes through."""
    if isinstance(error.__cause__, InvalidRequest):
        return error.__cause__
    text, _, place = str(error).partition(" - at `")
    param = (where + place.rstrip("`").removeprefix("$").removeprefix(".")).rstrip(".")
    for told in ("required field `", "unknown field `"):
        if told in text:
            param = ".".join(part for part in (param, text.partition(told)[2].rstrip("`")) if part)
    param = clip(param, 80)
    if "required field `" in text:
        return bad_request(f"{param} is missing.", param)
    return bad_request(f"{param}: {text}." if param else f"{text}.", param or None)
