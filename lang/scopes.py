"""What `with` opens in a state: a role, or a stretch of text that becomes a variable.

`State.user()` and its like give a `RoleScope`, `State.var_scope` a `TextScope`.
"""

from typing import TYPE_CHECKING

from branchpoint.lang.errors import ProgramError
from branchpoint.lang.expr import RoleBegin, RoleEnd
from branchpoint.lang.variables import Scope

if TYPE_CHECKING:
    from branchpoint.lang.state import State

__all__ = ["RoleScope", "TextScope"]


class RoleScope:
    """`with s.user():` opens the role, and closes it also when an exception passes."""

    def __init__(self, state: "State", name: str) -> None:
        self._state = state
        self._name = name

    def __enter__(self) -> "State":
        self._state += RoleBegin(self._name)
        return self._state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._state += RoleEnd(self._name)
        except ProgramError:
            if error is None:  # else the exception that passes says what happened
                raise


class TextScope:
    """`with s.var_scope("x"):`."""

    def __init__(self, state: "State", name: str) -> None:
        self._state = state
        self._name = name

    def __enter__(self) -> "State":
        self._base = self._state.here()[0]
        return self._state

    def __exit__(self, *exception: object) -> None:
        self._state.bind(self._name, Scope(self._name, self._base, *self._state.here()))
