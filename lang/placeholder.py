"""Values that a traced program doesn't have yet: its arguments, and what its calls come to.

`trace.py` hands them to the program. They may be added to states and put into texts, by `+`, `str()` and f-strings; whatever else
is done with one needs the value, so it is refused, with the line.
"""

import contextvars
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from branchpoint.lang import nodes as op
from branchpoint.lang.caller import caller
from branchpoint.lang.errors import Origin, ProgramMistake
from branchpoint.lang.expr import Slot

__all__ = ["PRIVATE", "TRACED", "Placeholder", "Placeholders", "Untraceable"]

_MARK = re.compile("\ue000aB([0-9]+)\ue001")  # a letter of each case: what changes the text of a placeholder breaks its mark
PRIVATE = "\ue000"
"""Begins the mark of a placeholder in a text."""


class Untraceable(ProgramMistake):
    """Something that a graph can't hold; `origin` is its line. The program can be run, just not as a graph."""

    def __init__(self, what: str, origin: Origin) -> None:
        super().__init__(f"{origin}: {what}; such a program isn't a graph, and runs by interpretation.")
        self.origin = origin


class Placeholders:
    """The placeholders of one trace, and their marks in its texts.

    `problem` is the first thing that was refused; `after` is what to name as its line once the program is over.
    """

    def __init__(self) -> None:
        self._known: list[Placeholder] = []
        self.problem: Untraceable | None = None
        self.after: Origin | None = None

    def __len__(self) -> int:
        return len(self._known)

    def make(self, template: op.Of | op.Parameter, label: str) -> "Placeholder":
        """A new one. `label` is how errors call it."""
        placeholder = Placeholder(self, len(self._known), template, label)
        self._known.append(placeholder)
        return placeholder

    def refuse(self, what: str) -> NoReturn:
        """Raise Untraceable for the program's current line."""
        error = Untraceable(what, self.after or caller())
        self.problem = self.problem or error
        raise error

    def split(self, text: str) -> Iterator["str | Placeholder"]:
        """The parts of a text that has marks in it, empty ones left out. Raises Untraceable where a mark is broken."""
        for number, part in enumerate(_MARK.split(text)):
            if number % 2:
                yield self._known[int(part)]
            elif PRIVATE in part or "\ue001" in part:
                self.refuse("it changes the text of a value that isn't there yet")
            elif part:
                yield part

    def template(self, value: object) -> op.Template:
        """What a result is made of. Raises Untraceable for what JSON doesn't have."""
        match value:
            case Placeholder():
                return value.template
            case str():
                parts = tuple(part.template if isinstance(part, Placeholder) else op.Const(part) for part in self.split(value))
                return parts[0] if len(parts) == 1 else op.Words(parts) if parts else op.Const("")
            case None | bool() | int() | float():
                return op.Const(value)
            case list() | tuple():
                return op.Items(tuple(map(self.template, value)))
            case dict() if all(isinstance(name, str) for name in value):
                return op.Fields({name: self.template(each) for name, each in value.items()})
            case _:
                return self.refuse(f"it sets or returns a value of type {type(value).__name__}, which isn't JSON")


TRACED: contextvars.ContextVar[Placeholders | None] = contextvars.ContextVar("branchpoint_traced", default=None)
"""Those of the program that is traced here, None where none is."""


class Placeholder(Slot):
    """One value that isn't there yet."""

    __slots__ = ("_all", "_label", "_number", "template")

    def __init__(self, known: Placeholders, number: int, template: op.Of | op.Parameter, label: str) -> None:
        for name, value in (("_all", known), ("_label", label), ("_number", number), ("template", template), ("source", None)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return f"\ue000aB{self._number}\ue001"

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse(f"formats {self._label} by {spec!r}")

    def __repr__(self) -> str:
        return self._refuse(f"asks for the representation of {self._label}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"asks for {self._label}.{name}")

    def _refuse(self, what: str) -> NoReturn:
        self._all.refuse(f"it {what}, which isn't there before the program runs")


def _refusing(what: str) -> Callable[..., NoReturn]:
    def method(self: Placeholder, *args: object) -> NoReturn:
        self._refuse(what.format(self._label))

    return method


def _refuse_all(methods: Sequence[str], what: str) -> None:
    for method in methods:
        setattr(Placeholder, f"__{method}__", _refusing(what))


_refuse_all(("bool",), "decides by {}")
_refuse_all(("eq", "ne", "lt", "le", "gt", "ge"), "compares {}")
_refuse_all(("len", "iter", "contains", "getitem", "hash"), "looks into {}")
_refuse_all(("int", "float", "index"), "counts with {}")
