"""Reads a file of an adapter whole: a regular one, of a bounded size, from within some folders alone where those are named.

Asked by `peft`. Where links lead is looked at once, and what was looked at is what is opened.
"""

import os
import stat
from pathlib import Path

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.lora.adapter import WEIGHTS

__all__ = ["read_file", "shown"]

_FILE = os.O_RDONLY | os.O_NONBLOCK  # a pipe without a writer would hold the reader up for ever
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


def shown(path: Path) -> str:
    """A file as messages name it, which may go to clients: with its folder's own name, not where that lies."""
    return f"{path.parent.name}/{path.name}"


def read_file(path: Path, most: int, within: tuple[str, ...] = ()) -> bytes:
    """What a file holds, which lies in one of the folders `within`, wherever links lead; anywhere where there are none.

    Raises ModelError where it can't be read so, or holds more than `most` bytes.
    """
    try:
        with open(path, "rb", opener=lambda _name, _flags: _opened(path, within)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelError(f"{shown(path)} must be a regular file.")
            data = file.read(most + 1)
    except OSError as error:
        only = " Only safetensors weights are read." if path.name == WEIGHTS else ""
        raise ModelError(f"{shown(path)} can't be read: {error.strerror}.{only}") from error
    if len(data) > most:
        raise ModelError(
            f"{shown(path)} has more than {most} bytes, more than an adapter of the largest rank allowed here can have."
        )
    return data


def _opened(path: Path, within: tuple[str, ...]) -> int:
    """Its descriptor. Raises OSError, and ModelError where it lies in none of the folders."""
    if not within:
        return os.open(path, _FILE)
    real = Path(os.path.realpath(path, strict=True))
    root = next((root for root in map(os.path.realpath, within) if Path(root) in real.parents), None)
    if root is None:
        raise ModelError(f"{shown(path)} leads out of the folders that this server loads from.")
    *folders, name = real.relative_to(root).parts
    place = os.open(root, _FOLDER)
    try:
        for folder in folders:  # none of these is a link, unless it became one since
            inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=place)
    finally:
        os.close(place)
