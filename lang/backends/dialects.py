"""What servers of OpenAI's API have beyond it, and how each wants it written: `openai.py` asks here what may be sent.

OpenAI itself holds output to JSON objects only; vLLM, SGLang and Branchpoint hold it to anything, and know more options.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.lang.backends.wrapped import WRAPPABLE
from branchpoint.lang.errors import ProgramMistake

__all__ = ["Dialect", "dialect_of", "json_format"]

Body = dict[str, object]

_COMMON = frozenset(
    {"max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "n", "logprobs"}
)
_MORE = _COMMON | {"top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"}
_ALL = frozenset({"json_schema", "regex", "choice", "ebnf", "structural_tag"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """`native` writes a constraint as the server takes it; None: constraints are wrapped into JSON objects, in chat only.

    `options` are the names of SamplingParams that it knows. `prefill`: an answer may begin with given text. `scores_with` is the
    `max_tokens` with which it only scores a prompt. `tools`: calls of tools have fields of their own; else they are text, held to
    the tools' schemas.
    """

    name: str
    options: frozenset[str]
    native: Callable[[Constraint], Body] | None = None
    prefill: bool = False
    scores_with: int = 0
    tools: bool = False

    def constraints(self, *, chat: bool) -> frozenset[str]:
        """The tags of constraints that it enforces."""
        return _ALL if self.native is not None else WRAPPABLE if chat else frozenset()


def json_format(schema: Mapping[str, object], *, strict: bool) -> Body:
    """OpenAI's `response_format` for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": schema, "strict": strict}}


def _structured(constraint: Constraint) -> Body:
    match constraint:
        case JsonSchema(schema=schema):
            return {"structured_outputs": {"json": json.loads(schema)}}
        case Regex(pattern=pattern):
            return {"structured_outputs": {"regex": pattern}}
        case Choice(options=options):
            return {"structured_outputs": {"choice": list(options)}}
        case Ebnf(grammar=grammar):
            return {"structured_outputs": {"grammar": grammar}}
        case StructuralTag(format=tag):
            return {"structured_outputs": {"structural_tag": tag}}


def _own(constraint: Constraint) -> Body:
    """As vLLM's clients send it, and what this server knows more of."""
    if not isinstance(constraint, JsonSchema | StructuralTag):
        return _structured(constraint)
    told: Body = {"disable_any_whitespace": constraint.whitespace == "compact", "strictness": constraint.strictness}
    if isinstance(constraint, JsonSchema):
        return {"structured_outputs": {"json": json.loads(constraint.schema), "order": constraint.order, **told}}
    return {"structured_outputs": {"structural_tag": constraint.format, **told}}


def _flat(constraint: Constraint) -> Body:
    match constraint:
        case JsonSchema(schema=schema):
            return {"response_format": json_format(json.loads(schema), strict=True)}
        case Regex(pattern=pattern):
            return {"regex": pattern}
        case Choice(options=options):
            return {"regex": "|".join(f"({re.escape(option)})" for option in options)}
        case Ebnf(grammar=grammar):
            return {"ebnf": grammar}
        case StructuralTag(format=tag):
            return {"response_format": {"type": "structural_tag", **json.loads(tag)}}


def dialect_of(name: str) -> Dialect:
    """The dialect of this name. Raises ProgramMistake naming the known ones."""
    known = (
        Dialect("openai", _COMMON, tools=True),
        Dialect("vllm", _MORE, _structured, prefill=True),
        Dialect("sglang", _MORE, _flat, prefill=True, scores_with=1),
        Dialect("branchpoint", _MORE | {"close"}, _own),
    )
    for dialect in known:
        if dialect.name == name:
            return dialect
    raise ProgramMistake(f"dialect must be one of {', '.join(dialect.name for dialect in known)}, got {name!r}.")
