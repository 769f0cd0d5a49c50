"""The root of the error tree. Every room hangs its own errors under it, beside a fitting builtin.

BranchpointError
├── runtime.errors      InvalidRequest (ValueError), ModelError (ValueError), CapacityError (MemoryError), …
├── constrained.errors  GrammarError (ValueError) and what a grammar can be refused for
├── radix.pool          OutOfPages (MemoryError)
└── lang.errors         ProgramError (RuntimeError), Incomplete (ValueError), …
"""

__all__ = ["BranchpointError"]


class BranchpointError(Exception):
    """Base of every error that Branchpoint raises; its message says what was expected, what came, what to do.

    Errors survive pickling, as between processes: with all that they know, but for their causes.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[BranchpointError], args: tuple[object, ...]) -> BranchpointError:
    """An error as it was, whatever its own `__init__` asks for."""
    return kind.__new__(kind, *args)
