"""What a constraint can be refused for, and what a matcher can fail with.

GrammarError (BranchpointError, ValueError)
├── InvalidSchema, InvalidRegex, InvalidGrammar, InvalidVocabulary    the text itself is wrong
├── UnsupportedKeyword      well-formed, but not expressible yet; knows `keyword` and JSON `pointer`
├── EmptyLanguage           well-formed, but nothing satisfies it
├── LimitExceeded           too large, too deep or too slow to compile
├── TooFewTokens            no complete output that is known fits into the tokens that an output may have
├── NotInGrammar            text that a program wrote, and that the grammar it stands in can't take, or not end with
├── CompilerBusy         too many others are being compiled; nothing is wrong with it
├── CompilerClosed          asked after `close()`
└── MatcherError            a cursor that reached a dead end or was misused
"""

from branchpoint.errors import BranchpointError

__all__ = [
    "CompilerBusy",
    "CompilerClosed",
    "EmptyLanguage",
    "GrammarError",
    "InvalidGrammar",
    "InvalidRegex",
    "InvalidSchema",
    "InvalidVocabulary",
    "LimitExceeded",
    "MatcherError",
    "NotInGrammar",
    "TooFewTokens",
    "UnsupportedKeyword",
    "shorten",
]

_LONGEST_DETAIL = 300


class GrammarError(BranchpointError, ValueError):
    """A constraint that can't be compiled or followed."""


class InvalidSchema(GrammarError):
    """Text that is no JSON, or JSON that is no schema."""


class InvalidRegex(GrammarError):
    """A pattern that doesn't parse, or that no automaton can express."""


class InvalidGrammar(GrammarError):
    """A Lark or GBNF grammar that doesn't parse."""


class InvalidVocabulary(GrammarError):
    """A tokenizer whose tokens' bytes are unknown."""


class UnsupportedKeyword(GrammarError):
    """A schema keyword that would have to be ignored; `keyword` and `pointer` (RFC 6901) say which and where."""

    def __init__(self, keyword: str, pointer: str, reason: str) -> None:
        super().__init__(f"The schema keyword {keyword!r} at {pointer or '/'} is not supported here: {reason}")
        self.keyword = keyword
        self.pointer = pointer


class EmptyLanguage(GrammarError):
    """Nothing satisfies the constraint, so that no output could ever be complete."""


class LimitExceeded(GrammarError):
    """A constraint beyond a limit on size, depth or work; the message has both numbers."""


class TooFewTokens(GrammarError):
    """Asked to steer to an end (`close="steer"`) within fewer tokens than any complete output that is known has."""

    param = "max_tokens"


class NotInGrammar(GrammarError):
    """A stretch of text that no sentence of the grammar goes on from, or that ends before a sentence does."""

    param = "written"


class CompilerBusy(GrammarError):
    """As many constraints as may be are being compiled; the same one may be asked for again later."""


class CompilerClosed(GrammarError):
    """The compiler was closed before it came to this constraint."""


class MatcherError(GrammarError):
    """A cursor that can't go on: a dead end in the grammar, an engine's limit, or a rollback past the start."""


def shorten(detail: object) -> str:
    """An engine's own message on one line, without its dumps, at most 300 characters."""
    text = str(detail).split("<state>", 1)[0].split("<backtrace>", 1)[0]
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 1] + "…"
