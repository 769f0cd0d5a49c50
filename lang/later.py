"""Names of the language that this version doesn't serve yet: they import, and say so by name when they are used."""

from typing import NoReturn

from branchpoint.lang.errors import NotSupported

__all__ = ["LATER", "Later"]

LATER = {
    "image": "images need a vision model, which no engine here runs yet",
    "video": "videos need a vision model, which no engine here runs yet",
}
"""Name → why not, and what to do."""


class Later:
    """Stands for a name of `LATER`; calling it raises NotSupported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}: not supported yet>"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise NotSupported, with what to do instead."""
        raise NotSupported(f"branchpoint.{self._name} is not supported: {LATER[self._name]}.")
