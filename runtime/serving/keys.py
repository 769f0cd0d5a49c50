"""Who may ask: API keys from options, environment and a file, each with limits and a cache namespace of its own.

Read once at the start; `auth` finds a request's `Caller` with it. Keys are kept as digests only.
"""

import hashlib
import hmac
import logging
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.types import Scope

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import OWNER_END, Call, ScoreCall
from branchpoint.runtime.serving.errors import clip
from branchpoint.runtime.serving.quota import KeyLimits, Quota

__all__ = ["ANYONE", "CALLER", "Caller", "KeyEntry", "KeyRing", "caller_of", "key_ring"]

CALLER = "branchpoint.caller"
"""Where the ASGI scope holds the request's `Caller`."""

DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is: the key's `name`, its `namespace` of cached prefixes, whether it may manage the server, its quota, and
    whether it may look at what others have cached.
    """

    name: str = ""
    namespace: str = ""
    admin: bool = True
    quota: Quota | None = None
    oversees: bool = False

    def space(self, namespace: str) -> str:
        """The namespace that a call of this caller gets where its request asks for `namespace`."""
        return f"{self.namespace}{OWNER_END}{namespace}" if self.namespace else namespace

    def sees(self, namespace: str) -> bool:
        """Whether what is cached in `namespace` may be shown to this caller: its own, whatever the salt."""
        if self.oversees:
            return True
        return namespace.startswith(self.namespace + OWNER_END) if self.namespace else OWNER_END not in namespace

    def own(self, call: Call | ScoreCall, adapter: str = "") -> Call | ScoreCall:
        """`call` with `adapter`, in this caller's namespace, which the names of programs lie in too: no one ends another's."""
        return msgspec.structs.replace(call, namespace=self.space(call.namespace), adapter=adapter)


ANYONE = Caller()
"""Whoever asks a server without keys."""


class KeyEntry(KeyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[key]]` of a key file: the key itself, or the hex SHA-256 of it.

    `cache` names its namespace of cached prefixes: keys with the same one share KV (its own where left out and there are
    others). `admin` keys may flush the cache and end other keys' requests; where no key is one, all are.
    """

    name: str
    key: str | None = None
    sha256: str | None = None
    cache: str | None = None
    admin: bool = False


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: list[KeyEntry]


class KeyRing:
    """All keys of a server; empty: whoever asks is served."""

    def __init__(self, entries: Iterable[KeyEntry] = ()) -> None:
        entries = tuple(entries)
        everyone = not any(entry.admin for entry in entries)
        alone = len(entries) == 1  # nobody to be kept apart from
        self._callers = tuple(
            (_digest_of(entry), _caller(entry, "" if alone else entry.name, admin=entry.admin or everyone)) for entry in entries
        )

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, key: bytes) -> Caller | None:
        """The caller with this key. All keys are compared, each in constant time: how long it takes tells nothing."""
        given, found = hashlib.sha256(key).digest(), None
        for digest, caller in self._callers:
            if hmac.compare_digest(given, digest):
                found = caller
        return found


def key_ring(keys: tuple[str, ...], file: str | None) -> KeyRing:
    """The keys of options and file together. Raises InvalidRequest for a file that isn't one, or names that occur twice."""
    entries = [KeyEntry(name=f"key-{place}", key=key) for place, key in enumerate(keys, 1)]
    if file is not None:
        entries += _read(Path(file))
    names = [entry.name for entry in entries]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidRequest(f"Each API key needs a name of its own, got {min(twice)!r} twice.", param="api_key_file")
    digests = [_digest_of(entry) for entry in entries]
    if len(set(digests)) < len(digests):
        raise InvalidRequest("The same API key is given twice; each must be another.", param="api_key_file")
    return KeyRing(entries)


def caller_of(scope: Scope) -> Caller:
    """Whose request an ASGI scope is."""
    caller = scope.get(CALLER, ANYONE)
    assert isinstance(caller, Caller)
    return caller


def _read(path: Path) -> list[KeyEntry]:
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            logging.getLogger("branchpoint.serving").warning("%s can be read by others than its owner: chmod 600 it.", path)
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _KeyFile).key
    except OSError as error:
        raise InvalidRequest(f"The key file {path} can't be read: {error.strerror}.", param="api_key_file") from error
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        told = clip(str(error), 200)
        raise InvalidRequest(f"The key file {path} should hold [[key]] tables: {told}.", param="api_key_file") from error
    for entry in entries:
        _check(entry, path)
    if not entries:
        raise InvalidRequest(f"The key file {path} holds no key; leave it out to serve without keys.", param="api_key_file")
    return entries


def _check(entry: KeyEntry, path: Path) -> None:
    where = f"The key {clip(entry.name, 40)!r} in {path}"
    if not (entry.name.isprintable() and 0 < len(entry.name) <= 128):
        raise InvalidRequest(f"{where} needs a name of 1 to 128 printable characters.", param="api_key_file")
    if entry.cache is not None and not entry.cache.isprintable():  # what ends an owner's name could lead into another's
        raise InvalidRequest(f"{where} needs a cache of printable characters.", param="api_key_file")
    if (entry.key is None) == (entry.sha256 is None):
        raise InvalidRequest(f"{where} needs exactly one of key and sha256.", param="api_key_file")
    if entry.key is not None and not entry.key.strip():
        raise InvalidRequest(f"{where} is empty.", param="api_key_file")
    if entry.sha256 is not None and not _is_digest(entry.sha256):
        raise InvalidRequest(f"{where} needs a sha256 of {DIGEST_LENGTH} hex digits.", param="api_key_file")
    for name in KeyLimits.__struct_fields__:
        value = getattr(entry, name)
        if value is not None and value < 1:
            raise InvalidRequest(
                f"{where}: {name} must be at least 1, got {value}; leave it out for no limit.", param="api_key_file"
            )


def _is_digest(text: str) -> bool:
    return len(text) == DIGEST_LENGTH and all(char in "0123456789abcdefABCDEF" for char in text)


def _digest_of(entry: KeyEntry) -> bytes:
    return (
        bytes.fromhex(entry.sha256) if entry.sha256 is not None else hashlib.sha256((entry.key or "").strip().encode()).digest()
    )


def _caller(entry: KeyEntry, space: str, *, admin: bool) -> Caller:
    limits = KeyLimits(**{name: getattr(entry, name) for name in KeyLimits.__struct_fields__})
    return Caller(entry.name, space if entry.cache is None else entry.cache, admin, Quota(limits), oversees=entry.admin)
