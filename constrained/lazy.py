"""A thing that is made when it is first needed, whichever threads need it. The compiler's engines are."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Lazy"]

Made = TypeVar("Made")


class Lazy(Generic[Made]):
    """Makes a thing at the first call, once, whichever threads ask."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Made | None = None

    def __call__(self) -> Made:
        """The thing."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
