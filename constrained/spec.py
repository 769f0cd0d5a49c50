"""What a caller asks of the output, before any grammar is compiled.

Stands at the door: language and server build one of these; `compiler.py` turns it into a grammar.
The values travel in messages, so they are msgspec structs; they hold text only, never a compiled thing.
"""

from typing import Literal, TypedDict

import msgspec

__all__ = [
    "Choice",
    "Constraint",
    "Demands",
    "Ebnf",
    "JsonSchema",
    "KeyOrder",
    "Narrowing",
    "Regex",
    "Strictness",
    "StructuralTag",
    "Whitespace",
    "Written",
]

EngineName = Literal["llguidance", "outlines"]
KeyOrder = Literal["declared", "any"]
Whitespace = Literal["compact", "flexible"]
"""Between the tokens of JSON: none; or one space, or a newline with up to 32 spaces of indentation."""
Strictness = Literal["exact", "stricter"]
"""Of a schema that can't be held to the last keyword: it is refused, or less is written than it allows, never more."""


class Narrowing(msgspec.Struct, frozen=True):
    """Where outputs are held to less than a constraint allows.

    `pointer` is a JSON pointer into the schema or structural tag, `keyword` the word there that it is about (empty where there is
    none), `how` says in words what isn't written.
    """

    pointer: str
    keyword: str
    how: str


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """Output is one JSON value that `schema` (JSON text) accepts.

    `order`: keys come in declared order, or in any that the model likes; where any would cost too much (objects that `allOf` and
    the like put together, very wide ones) it stays the declared one, and the grammar's `narrowed` says so. `strictness`: what
    comes of keywords that can't be held; with "stricter" whatever they stand in is left out, and `narrowed` says that too.
    """

    schema: str
    whitespace: Whitespace = "compact"
    engine: EngineName | None = None
    order: KeyOrder = "declared"
    strictness: Strictness = "exact"


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """The whole output matches `pattern` (as `re.fullmatch` would)."""

    pattern: str
    engine: EngineName | None = None


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """The output is, byte for byte, one of `options`."""

    options: tuple[str, ...]


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """The output is a sentence of `grammar`, in Lark or GBNF syntax (told apart by the rule arrow `::=`)."""

    grammar: str


class StructuralTag(msgspec.Struct, frozen=True, tag="structural_tag"):
    """Free text in which triggers begin tagged parts that follow grammars of their own, as tool calls do.

    `format` is JSON text, in the shapes that vLLM's and SGLang's clients send; docs/grammars.md lists what may stand in it.
    `whitespace` and `strictness` are those of the JSON within.
    """

    format: str
    whitespace: Whitespace = "compact"
    strictness: Strictness = "exact"


Constraint = JsonSchema | Regex | Choice | Ebnf | StructuralTag


class Written(msgspec.Struct, frozen=True):
    """What stands already of a sentence that an output goes on with. If `whole`, it must be one as it is."""

    text: str
    whole: bool = False


class Demands(TypedDict, total=False):
    """What a call asks of a grammar besides its constraint: see `GrammarCompiler.compile`."""

    steerable: bool
    most: int | None
    written: Written | None
