"""The root of the error tree. Every room hangs its own errors under it, beside a fitting builtin.

BranchpointError
├── runtime.errors      InvalidRequest (ValueError), ModelError (ValueError), CapacityError (MemoryError), …
├── constrained.errors  GrammarError (ValueError) and what a grammar can be refused for
├── radix.pool          OutOfPages (MemoryError)
└── lang.errors         ProgramError (RuntimeError), Incomplete (ValueError), …
"""

__all__ = ["BranchpointError"]


class BranchpointError(Exception):
    """Base of every error that Branchpoint raises; its message says what was expected, what came, what to do."""
