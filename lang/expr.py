"""Expressions: what a program adds to its state. Immutable values, made once, added to any number of states.

`+` joins expressions and texts; `flatten` gives the leaves (text, role edges, gen, select) that a state's ledger is made of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from branchpoint.constrained.spec import Constraint
from branchpoint.lang.choices import ChoicesMethod
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.options import Pick, SamplingOptions
from branchpoint.lang.tools import ToolUse
from branchpoint.lang.types import OutputType

__all__ = [
    "Expr",
    "ExprLike",
    "Gen",
    "Join",
    "Leaf",
    "Literal",
    "Reasoning",
    "RoleBegin",
    "RoleEnd",
    "Select",
    "Slot",
    "check_roles",
    "flatten",
    "role",
]


class Expr:
    """Base of all expressions."""

    __slots__ = ()

    def __add__(self, other: "ExprLike") -> "Join":
        return _join(self, other)

    def __radd__(self, other: str) -> "Join":
        return _join(other, self)

    def __format__(self, spec: str) -> str:
        """Refused: the prompt would hold the expression's name for ever, and nothing would be generated."""
        raise ProgramMistake(f'{self!r} isn\'t text yet. Write "..." + gen(...) instead of f"...{{gen(...)}}"; {{x!r}} shows it.')


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """Constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """Opens a role."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """Closes a role."""

    role: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model marks its thinking. `opened`: its output begins within it; `keep`: later prompts hold the thinking."""

    start: str
    end: str
    opened: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Generate. `output` turns the text into the value (None: the text itself); `constraint` is what the output is held to.

    `reasoning` tells the thinking before it apart, and `tools` may be called, where they aren't None.
    """

    name: str | None
    output: OutputType | None = None
    constraint: Constraint | None = None
    options: SamplingOptions = field(default_factory=SamplingOptions)
    pick: Pick = 0
    reasoning: Reasoning | None = None
    tools: ToolUse | None = None

    @property
    def held_to(self) -> Constraint | None:
        """The constraint that a backend must know for it."""
        return self.constraint if self.tools is None else self.tools.call.constraint

    @property
    def staged(self) -> bool:
        """Whether more than one request may be needed for it."""
        return self.reasoning is not None or self.tools is not None

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """Choose one of `choices` by their likelihood."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Join(Expr):
    """Expressions one after another."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Expr):
    """Text that is known later: the value of `source`, a variable of any state. Adding it never waits."""

    source: object


Leaf = Literal | RoleBegin | RoleEnd | Gen | Select | Slot
ExprLike = Expr | str


def flatten(expression: ExprLike) -> Iterator[Leaf]:
    """The leaves in order; empty texts are left out. Raises ProgramMistake where something isn't an expression."""
    match expression:
        case str():
            if expression:
                yield Literal(str(expression))
        case Join():
            for part in expression.parts:
                yield from flatten(part)
        case Literal() | RoleBegin() | RoleEnd() | Gen() | Select() | Slot():
            yield expression
        case _:
            raise ProgramMistake(_not_an_expression(expression))


def role(name: str, expression: ExprLike) -> Join:
    """`expression` as a message of role `name`."""
    return Join((RoleBegin(name), *flatten(expression), RoleEnd(name)))


def check_roles(leaves: tuple[Leaf, ...], current: str | None) -> None:
    """Raise ProgramMistake where leaves begin or end a role that they can't, while `current` is open."""
    for leaf in leaves:
        if isinstance(leaf, RoleBegin):
            if current is not None:
                raise ProgramMistake(f"Role {leaf.role!r} begins while {current!r} is open; close that one first.")
            current = leaf.role
        elif isinstance(leaf, RoleEnd):
            if current != leaf.role:
                raise ProgramMistake(f"Role {leaf.role!r} ends, but {current or 'no role'!r} is open.")
            current = None


def _join(left: object, right: object) -> Join:
    parts: list[Expr] = []
    for side in (left, right):
        if isinstance(side, Join):
            parts.extend(side.parts)
        elif isinstance(side, Expr):
            parts.append(side)
        elif isinstance(side, str):
            parts.append(Literal(side))
        else:
            raise ProgramMistake(_not_an_expression(side))
    return Join(tuple(parts))


def _not_an_expression(came: object) -> str:
    hint = " Write bp.gen(...), not bp.gen." if isinstance(came, Callable) else " Write it as text: str(...) or an f-string."  # type: ignore[arg-type]  # Callable is a class at run time
    return f"A state takes text and expressions (gen, select, roles, …), got {type(came).__name__} {str(came)[:60]!r}.{hint}"
