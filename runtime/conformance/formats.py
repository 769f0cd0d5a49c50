"""Checks of structured output, OpenAI's and in the names of vLLM and SGLang, through the `openai` client."""

import json
import re
from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, Mismatch, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, need
from branchpoint.runtime.conformance.shapes import QUESTION, SCHEMA, Person, Place

__all__ = ["CHECKS"]

_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
_CHOICES: Final = ("red", "green", "blue")
_GBNF: Final = 'root ::= ("red" | "green") "!"'


def _said(server: Server, **fields: Any) -> str:
    return str(server.chat(QUESTION, **{"max_tokens": 200, **fields}).choices[0].message.content)


def _body(**fields: object) -> dict[str, object]:
    return {"extra_body": fields}


def _a_json_schema_is_held(server: Server) -> None:
    """response_format json_schema gives text of the schema, at any temperature."""
    for seed in range(3):
        Person.model_validate_json(_said(server, response_format=_FORMAT, temperature=1, seed=seed))


def _a_json_schema_is_held_without_strict(server: Server) -> None:
    """The schema holds whatever `strict` says: clients leave it out."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    Person.model_validate_json(_said(server, response_format=form))


def _a_json_object_is_one(server: Server) -> None:
    """response_format json_object gives an object, or the beginning of one where the limit cuts it."""
    choice = server.chat(QUESTION, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    expect(choice.message.content.startswith("{"), f"came {choice.message.content!r}")
    if choice.finish_reason == "stop":
        expect(isinstance(json.loads(choice.message.content), dict), f"came {choice.message.content!r}")


def _the_client_parses_a_model(server: Server) -> None:
    """`chat.completions.parse` makes a pydantic object: references, enumerations, optional fields and lists."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 300, "temperature": 0}
    for form in (Person, Place):
        parsed = server.openai.chat.completions.parse(**asked, response_format=form).choices[0].message.parsed
        expect(isinstance(parsed, form), f"expected a {form.__name__}, came {parsed!r}")


def _a_streamed_format_is_whole(server: Server) -> None:
    """A stream under a schema is the same JSON."""
    chunks = server.chat(QUESTION, max_tokens=200, response_format=_FORMAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    Person.model_validate_json(text)
    equal(text, _said(server, response_format=_FORMAT), "text of the stream")


def _a_cut_format_ends_with_length(server: Server) -> None:
    """JSON that reaches the limit ends with `length`, an error of the client's own; or the limit is refused, as too small."""
    openai, asked = need("openai"), {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 2}
    try:
        whole = server.openai.chat.completions.parse(**asked, response_format=Person)
    except openai.LengthFinishReasonError:
        return
    except openai.BadRequestError as error:
        equal(error.param, "max_tokens", "param")
    else:
        raise Mismatch(f"JSON that is cut: came an answer: {whole.choices[0]}")


def _json_holds_no_run_of_whitespace(server: Server) -> None:
    """A model that likes spaces can't fill its limit with them."""
    text = _said(server, response_format=_FORMAT, temperature=1, seed=11)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    expect(not re.search(r"\s{9}", outside), f"came {text!r}")


def _samples_under_a_schema_are_each_held(server: Server) -> None:
    """With n each choice is valid on its own."""
    choices = server.chat(QUESTION, response_format=_FORMAT, n=3, temperature=1, max_tokens=200).choices
    equal(len(choices), 3, "choices")
    for choice in choices:
        Person.model_validate_json(choice.message.content)


def _a_bad_schema_is_refused_before_the_first_byte(server: Server) -> None:
    """A schema that means nothing is a 400, streams too."""
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    for stream in (False, True):
        refused(need("openai").BadRequestError, "a bad schema", server.chat, response_format=wrong, stream=stream)


def _vllms_structured_outputs_are_held(server: Server) -> None:
    """`structured_outputs` of vLLM: choice, regex, grammar and json."""
    expect(_said(server, **_body(structured_outputs={"choice": list(_CHOICES)})) in _CHOICES, "choice isn't held")
    expect(re.fullmatch("[a-c]{3}", _said(server, **_body(structured_outputs={"regex": "[a-c]{3}"}))), "regex isn't held")
    expect(_said(server, **_body(structured_outputs={"grammar": _GBNF})) in ("red!", "green!"), "grammar isn't held")
    Person.model_validate_json(_said(server, **_body(structured_outputs={"json": SCHEMA})))


def _guided_fields_are_held_or_refused(server: Server) -> None:
    """`guided_*`, vLLM's older names, act or are refused; they are never dropped in silence."""
    error = need("openai").BadRequestError
    asked: tuple[tuple[str, object, str], ...] = (
        ("guided_choice", list(_CHOICES), "red|green|blue"),
        ("guided_regex", "[a-c]{3}", "[a-c]{3}"),
        ("guided_json", SCHEMA, r"(?s)\{.*\}"),
    )
    for name, value, pattern in asked:
        try:
            text = _said(server, **_body(**{name: value}))
        except error:
            continue
        expect(re.fullmatch(pattern, text), f"{name} was dropped: came {text!r}")


def _sglangs_fields_are_held(server: Server) -> None:
    """`regex` and `ebnf` of SGLang, beside the other fields."""
    expect(re.fullmatch("[a-c]{3}", _said(server, **_body(regex="[a-c]{3}"))), "regex isn't held")
    expect(_said(server, **_body(ebnf=_GBNF)) in ("red!", "green!"), "ebnf isn't held")


def _a_structural_tag_is_held(server: Server) -> None:
    """A structural tag holds what stands between its marks."""
    tag = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}
    text = _said(server, response_format={"type": "structural_tag", "format": tag})
    expect(re.fullmatch("<n>[0-9]{2}</n>", text), f"came {text!r}")


def _two_constraints_are_refused(server: Server) -> None:
    """Two constraints on one output are a 400."""
    asked = {"response_format": _FORMAT, **_body(regex="a")}
    refused(need("openai").BadRequestError, "two constraints", _said, server, **asked)


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _a_json_schema_is_held,
    _a_json_schema_is_held_without_strict,
    _a_json_object_is_one,
    _the_client_parses_a_model,
    _a_streamed_format_is_whole,
    _a_cut_format_ends_with_length,
    _json_holds_no_run_of_whitespace,
    _samples_under_a_schema_are_each_held,
    _a_bad_schema_is_refused_before_the_first_byte,
    _vllms_structured_outputs_are_held,
    _guided_fields_are_held_or_refused,
    _sglangs_fields_are_held,
    _a_structural_tag_is_held,
    _two_constraints_are_refused,
)
