"""All checks, client by client."""

from typing import Final

from branchpoint.runtime.conformance import anthropic, chat, completions, errors, formats, frameworks, responses, streams, tools
from branchpoint.runtime.conformance.check import Check

__all__ = ["CHECKS"]

_PARTS: Final = (chat, streams, tools, formats, completions, responses, errors, anthropic, frameworks)
CHECKS: Final[tuple[Check, ...]] = tuple(check for part in _PARTS for check in part.CHECKS)
