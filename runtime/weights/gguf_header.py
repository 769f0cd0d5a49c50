"""Walks the head of a GGUF file (ggml's docs/gguf.md): metadata and where each tensor lies, every length checked.

First step of `weights.gguf`: whatever is cut short or absurd ends here, with an error that names it.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from branchpoint.runtime.errors import ModelError

__all__ = ["Header", "TensorEntry", "read_header"]

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_ITEMS = 4096  # longer arrays (vocabulary, merges) are only measured: they are the tokenizer's to read


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor's bytes lie. `shape` is torch's (rows first), `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata by key (unless all is asked for, an array longer than 4,096 items is an empty tuple), array lengths, tensors."""

    metadata: dict[str, Value]
    lengths: dict[str, int]
    tensors: dict[str, TensorEntry]


class _Cursor:
    """Reads forward through the bytes; raises ModelError past their end."""

    def __init__(self, data: mmap.mmap, path: Path, kept_items: float) -> None:
        self.kept_items = kept_items
        self.data = data
        self.path = path
        self.at = 0

    def skip(self, count: int, what: str) -> int:
        """Move on by `count` bytes and return where they began."""
        begin = self.at
        if count > len(self.data) - begin:
            raise ModelError(
                f"{self.path}: it ends inside {what} (byte {begin} + {count} of {len(self.data)}); it is truncated or corrupt."
            )
        self.at = begin + count
        return begin

    def unpack(self, code: str, what: str) -> Scalar:
        """One scalar of a struct code."""
        begin = self.skip(struct.calcsize("<" + code), what)
        (value,) = struct.unpack_from("<" + code, self.data, begin)
        scalar: Scalar = value
        return scalar

    def count(self, code: str, what: str) -> int:
        """An unsigned number."""
        return int(self.unpack(code, what))

    def string(self, what: str) -> str:
        """A length and that many bytes of UTF-8."""
        length = self.count("Q", what)
        begin = self.skip(length, what)
        return self.data[begin : begin + length].decode("utf-8", errors="replace")


def read_header(path: Path, *, everything: bool = False) -> Header:
    """Metadata (with `everything`, long arrays too) and tensor entries of a GGUF file of version 2 or 3.

    Raises ModelError where it isn't one or is cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _walk(_Cursor(data, path, math.inf if everything else _KEPT_ITEMS))
    except (OSError, ValueError) as error:  # ValueError: an empty file can't be mapped
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"Cannot read {path}: {error}.") from error


def _walk(cursor: _Cursor) -> Header:
    path = cursor.path
    begin = cursor.skip(4, "the magic")
    if cursor.data[begin : begin + 4] != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file: it begins with {cursor.data[:4]!r} instead of b'GGUF'.")
    version = cursor.count("I", "the version")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3 are, little-endian).")
    num_tensors, num_fields = cursor.count("Q", "the counts"), cursor.count("Q", "the counts")
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(num_fields):
        key = cursor.string("a metadata key")
        value, length = _value(cursor, cursor.count("I", key), key)
        metadata[key] = value
        if length is not None:
            lengths[key] = length
    entries = [_entry(cursor) for _ in range(num_tensors)]
    return Header(metadata, lengths, _placed(cursor, metadata, entries))


def _value(cursor: _Cursor, kind: int, key: str) -> tuple[Value, int | None]:
    """A metadata value, and its length if it is an array."""
    if kind == _STRING:
        return cursor.string(key), None
    if kind in _SCALARS:
        return cursor.unpack(_SCALARS[kind], key), None
    if kind != _ARRAY:
        raise ModelError(
            f"{cursor.path}: the metadata field {key!r} has unknown type {kind}; the file is corrupt or newer than GGUF 3."
        )
    inner, length = cursor.count("I", key), cursor.count("Q", key)
    if inner == _STRING:
        if length > cursor.kept_items:
            for _ in range(length):
                cursor.skip(cursor.count("Q", key), key)
            return (), length
        return tuple(cursor.string(key) for _ in range(length)), length
    if inner not in _SCALARS:
        raise ModelError(
            f"{cursor.path}: the array {key!r} holds items of unknown type {inner}; the file is corrupt or newer than GGUF 3."
        )
    code = _SCALARS[inner]
    begin = cursor.skip(struct.calcsize("<" + code) * length, key)
    if length > cursor.kept_items:
        return (), length
    return struct.unpack_from(f"<{length}{code}", cursor.data, begin), length


def _entry(cursor: _Cursor) -> TensorEntry:
    """A tensor's entry, its offset still counted from the start of the tensor data."""
    name = cursor.string("a tensor's name")
    num_dimensions = cursor.count("I", name)
    if num_dimensions > 4:
        raise ModelError(f"{cursor.path}: the tensor {name!r} claims {num_dimensions} dimensions; the file is corrupt.")
    shape = tuple(cursor.count("Q", name) for _ in range(num_dimensions))[::-1]
    number, offset = cursor.count("I", name), cursor.count("Q", name)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelError(f"{cursor.path}: the tensor {name!r} is stored in unknown type {number}.") from None
    block, size = GGML_QUANT_SIZES[kind]
    elements = 1
    for length in shape:
        elements *= length
    if shape and shape[-1] % block:
        raise ModelError(f"{cursor.path}: rows of {name!r} ({shape[-1]}) are not a multiple of {kind.name}'s block of {block}.")
    return TensorEntry(name, shape, kind, offset, elements // block * size)


def _placed(cursor: _Cursor, metadata: dict[str, Value], entries: list[TensorEntry]) -> dict[str, TensorEntry]:
    """The entries by name, their offsets counted from the start of the file, all inside it."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{cursor.path}: general.alignment must be a whole number above 0, got {alignment!r}.")
    start = -(-cursor.at // alignment) * alignment
    placed = dict[str, TensorEntry]()
    for entry in entries:
        offset = start + entry.offset
        if offset + entry.num_bytes > len(cursor.data):
            raise ModelError(
                f"{cursor.path}: the tensor {entry.name!r} needs bytes {offset} to {offset + entry.num_bytes}, "
                f"but the file ends at {len(cursor.data)}; it is truncated."
            )
        placed[entry.name] = TensorEntry(entry.name, entry.shape, entry.kind, offset, entry.num_bytes)
    return placed
