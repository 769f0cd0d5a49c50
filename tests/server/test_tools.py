"""Tools and reasoning in chat: what the model is shown and held to, what its text becomes, whole and streamed alike."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import JsonSchema
from branchpoint.runtime.messages import Call
from branchpoint.runtime.serving.reply import Arguments, CallStart, Content, Format, Part, Reasoning, ReplyParser
from branchpoint.runtime.tokenizer import Tokenizer
from tests.runtime.serving_site import Site, open_site, refusal, tokenizer

FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"x": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "integer"}}}},
}
TOOLS = [FIND, ADD]
CALL = '<tool_call>\n{"name": "find", "arguments": {"city": "Zürich {\\"x\\"}"}}\n</tool_call>'
TWO = f'{CALL}\n<tool_call>\n{{"name": "add", "arguments": {{"x": 1}}}}\n</tool_call>'


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(context=8192) as ready:
        yield ready


async def message(site: Site, say: str, **body: object) -> tuple[dict, str]:
    """Message and finish reason, which are the same streamed."""
    site.engine.say = say
    answer = await site.chat(tools=TOOLS, **body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    streamed, reason = joined(await events(site, tools=TOOLS, **body))
    whole = choice["message"]
    for call in whole.get("tool_calls", []):
        assert call.pop("id").startswith("call_")
    assert streamed == {key: whole[key] for key in whole if whole[key] is not None}
    assert reason == choice["finish_reason"]
    return whole, choice["finish_reason"]


async def events(site: Site, **body: object) -> list[dict]:
    answer = await site.chat(stream=True, **body)
    return [json.loads(line[6:]) for line in answer.text.split("\n\n") if line and line != "data: [DONE]"]


def joined(chunks: Sequence[dict]) -> tuple[dict, str | None]:
    """The message that deltas make, put together as OpenAI's client does."""
    made: dict = {}
    reason = None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        reason = choice["finish_reason"] or reason
        for key in ("role", "content", "reasoning", "reasoning_content"):
            if delta.get(key):
                made[key] = made.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = made.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["id"].startswith("call_") and call["function"]["arguments"] == ""
                calls.append({"type": call["type"], "function": dict(call["function"])})
            else:
                assert set(call) == {"index", "function"} and call["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    if "content" in made and made.get("tool_calls"):
        made["content"] = made["content"].strip()
    return made, reason


async def test_calls_are_found_in_free_text(site: Site) -> None:
    found, reason = await message(site, f"Let me look.\n{CALL}")
    assert found["content"] == "Let me look." and reason == "tool_calls"
    (call,) = found["tool_calls"]
    assert call["function"]["name"] == "find"
    assert json.loads(call["function"]["arguments"]) == {"city": 'Zürich {"x"}'}


HEAD = '<tool_call>\n{"name": "find", "arguments": '
TAIL = "}\n</tool_call>"


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    ready = GrammarCompiler(tokenizer().vocabulary, 1, CompilerLimits(trial_seconds=0))
    yield ready
    ready.close()


def reads(compiler: GrammarCompiler, site: Site, text: str) -> bool:
    """Whether the last call may say `text`, as a whole."""
    call = site.engine.calls[-1]
    assert isinstance(call, Call)
    matcher, tokens = compiler.compile(call.constraint).result().matcher(), list(text.encode())
    return matcher.advance(tokens) == len(tokens) and matcher.can_end


async def test_with_auto_text_is_free_and_arguments_are_held_to_their_schema(site: Site, compiler: GrammarCompiler) -> None:
    await site.chat(tools=TOOLS)
    good = HEAD + '{"city":"Bern"}' + TAIL
    for text in ("", "No tool is needed.", "a <tool is no call", good, f"Let me look.\n{good}\n{good} done"):
        assert reads(compiler, site, text), text
    for arguments in ("{}", '{"city":7}', "3", '{"city":"Bern"'):
        assert not reads(compiler, site, HEAD + arguments + TAIL), arguments
    for text in ("<tool_call>", "<tool_call>nonsense</tool_call>", good.replace("find", "lose")):
        assert not reads(compiler, site, text), text
    await site.chat(tools=TOOLS, parallel_tool_calls=False)
    assert reads(compiler, site, good) and reads(compiler, site, "none") and not reads(compiler, site, good + good)


async def test_a_tool_that_is_not_strict_takes_any_object(site: Site, compiler: GrammarCompiler) -> None:
    await site.chat(tools=[FIND | {"function": FIND["function"] | {"strict": False}}])
    assert reads(compiler, site, HEAD + '{"town":7}' + TAIL) and not reads(compiler, site, HEAD + "7" + TAIL)


JUDGED = {
    "name": "invite",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"to": {"$ref": "#/definitions/People"}, "cc": {"$ref": "#/properties/to"}},
        "required": ["to"],
        "definitions": {"People": {"type": "array", "items": {"type": "string", "format": "email"}, "uniqueItems": True}},
    },
}


@pytest.mark.parametrize("strict", [None, True])
async def test_what_only_a_judge_can_tell_is_held_too(site: Site, compiler: GrammarCompiler, strict: bool | None) -> None:
    head = HEAD.replace("find", "invite")
    await site.chat(tools=[{"type": "function", "function": JUDGED | {"strict": strict}}])
    assert reads(compiler, site, head + '{"to":["a@b.ch"],"cc":["a@b.ch","b@b.ch"]}' + TAIL)
    for arguments in ('{"to":["a@b.ch"],"cc":["a@b.ch","a@b.ch"]}', '{"to":[7]}'):
        assert not reads(compiler, site, head + arguments + TAIL)


@pytest.mark.parametrize("several", [False, True])
async def test_references_lead_into_the_tools_own_parameters(site: Site, compiler: GrammarCompiler, several: bool) -> None:
    other = JUDGED | {"name": "meet", "parameters": JUDGED["parameters"] | {"definitions": {"People": {"type": "integer"}}}}
    tools = [{"type": "function", "function": each} for each in (JUDGED, other)]
    await site.chat(tools=tools, tool_choice="required", parallel_tool_calls=several)
    for name, good, bad in (("invite", '["a@b.ch"]', "3"), ("meet", "3", '["a@b.ch"]')):
        call = '{"name":"%s","arguments":{"to":%s}}'
        shape = "[%s]" if several else "%s"
        assert reads(compiler, site, shape % (call % (name, good))), name
        assert not reads(compiler, site, shape % (call % (name, bad))), name


async def test_thoughts_are_free_and_the_calls_behind_them_held(compiler: GrammarCompiler) -> None:
    good, bad = HEAD + '{"city":"Bern"}' + TAIL, HEAD + "{}" + TAIL
    async with open_site(template=THINKS, context=4096) as site:
        await site.chat(tools=TOOLS)
        for before in ("", "Yes. ", "<think>Hm, <tool_call> …</think>", "<think></think>Yes. "):
            assert reads(compiler, site, before + good) and not reads(compiler, site, before + bad), before
        await site.chat(tools=TOOLS, chat_template_kwargs={"open": True})
        for before in ("</think>", "Hm, <tool_call> …</think>Yes. "):
            assert reads(compiler, site, before + good) and not reads(compiler, site, before + bad), before
        assert not reads(compiler, site, "still thinking")


async def test_where_the_marks_are_special_tokens_calls_are_found_without_being_held(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "writes_as_text", lambda self, text: text != "</tool_call>")
    found, _ = await message(site, CALL)
    assert len(found["tool_calls"]) == 1 and site.engine.calls[-1].constraint is None


async def test_calls_in_parallel_and_one_where_only_one_may_be(site: Site) -> None:
    found, reason = await message(site, TWO)
    assert found["content"] is None and [call["function"]["name"] for call in found["tool_calls"]] == ["find", "add"]
    assert reason == "tool_calls"
    found, reason = await message(site, TWO, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in found["tool_calls"]] == ["find"] and reason == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "No tool is needed.",
        "A <tool is not a <tool_cal",
        "<tool_call>nonsense</tool_call> went wrong",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": 3}</tool_call>',
        "<tool_call>",
    ],
)
async def test_what_is_no_call_is_content(site: Site, text: str) -> None:
    found, reason = await message(site, text)
    assert found["content"] == text and "tool_calls" not in found and reason == "stop"


async def test_other_orders_and_arguments_as_text_are_calls_too(site: Site) -> None:
    for body in (
        {"arguments": {"city": "Bern"}, "name": "find"},
        {"name": "find", "parameters": {"city": "Bern"}},
        {"name": "find", "arguments": '{"city": "Bern"}'},
    ):
        found, _ = await message(site, f"<tool_call>{json.dumps(body)}</tool_call>")
        assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == {"city": "Bern"}


async def test_a_call_that_is_cut_ends_with_length(site: Site) -> None:
    found, reason = await message(site, CALL, max_tokens=len(CALL) - 20)
    assert reason == "length" and not found["tool_calls"][0]["function"]["arguments"].endswith("}")
    found, reason = await message(site, CALL, max_tokens=20)
    assert reason == "length" and found["content"] == CALL[:20]


async def test_required_tools_are_held_to_a_list_of_calls(site: Site) -> None:
    say = json.dumps(
        [{"name": "add", "arguments": {"x": 1}}, {"name": "find", "arguments": {"city": "]}"}}], separators=(",", ":")
    )
    found, reason = await message(site, say, tool_choice="required")
    assert reason == "tool_calls" and found["content"] is None
    told = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found["tool_calls"]]
    assert told == [("add", {"x": 1}), ("find", {"city": "]}"})]
    constraint = site.engine.calls[-1].constraint
    assert isinstance(constraint, JsonSchema)
    schema = json.loads(constraint.schema)
    jsonschema.validate(json.loads(say), schema)
    for wrong in (
        [],
        [{"name": "add", "arguments": {"x": "1"}}],
        [{"name": "find", "arguments": {}}],
        [{"name": "x", "arguments": {}}],
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    found, reason = await message(site, '{"name":"add","arguments":{"x":1}}', tool_choice="required", parallel_tool_calls=False)
    assert [call["function"]["name"] for call in found["tool_calls"]] == ["add"] and reason == "tool_calls"
    found, reason = await message(site, say, tool_choice="required", max_tokens=40)
    assert reason == "length"


async def test_a_named_tool_gives_its_arguments_and_stops(site: Site) -> None:
    choice = {"type": "function", "function": {"name": "find"}}
    found, reason = await message(site, '{"city":"Bern"}', tool_choice=choice)
    (call,) = found["tool_calls"]
    assert call["function"] == {"name": "find", "arguments": '{"city":"Bern"}'} and reason == "stop"
    asked = site.engine.calls[-1]
    assert isinstance(asked.constraint, JsonSchema) and json.loads(asked.constraint.schema) == FIND["function"]["parameters"]
    assert bytes(asked.prompt).endswith(b'<tool_call>\n{"name": "find", "arguments": ')


async def test_tools_are_shown_unless_none_are_to_be_called(site: Site) -> None:
    await site.chat(tools=TOOLS)
    assert b"Find a place." in bytes(site.engine.calls[-1].prompt)
    for body in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tool_choice": "auto"}):
        site.engine.say = CALL
        answer = (await site.chat(**body)).json()["choices"][0]
        assert b"Find a place." not in bytes(site.engine.calls[-1].prompt)
        assert answer["message"]["content"] == CALL and answer["finish_reason"] == "stop"


async def test_a_template_that_knows_tools_writes_them_itself() -> None:
    template = (
        "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% for m in messages %}{{ m.role }}"
        "{{ m.tool_calls[0].function.arguments.city if m.tool_calls }}{% endfor %}"
    )
    async with open_site(template=template, context=4096) as site:
        past = {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"city":"Bern"}'}}],
        }
        await site.chat(
            tools=TOOLS, messages=[{"role": "user", "content": "x"}, past, {"role": "tool", "content": "y", "tool_call_id": "a"}]
        )
        assert bytes(site.engine.calls[-1].prompt) == b"[find][add]userassistantBerntool"


async def test_calls_and_results_of_earlier_turns_reach_a_plain_template(site: Site) -> None:
    past = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
    }
    await site.chat(
        tools=TOOLS, messages=[{"role": "user", "content": "x"}, past, {"role": "tool", "content": "sunny", "tool_call_id": "a"}]
    )
    prompt = bytes(site.engine.calls[-1].prompt).decode()
    assert '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>' in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt
    wrong = past | {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "find", "arguments": "{"}}]}
    refusal(await site.chat(messages=[wrong]), 400, "messages[0].tool_calls[0].function.arguments")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "tool_choice"),
        ({"tools": [FIND, FIND]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search", "function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "tools[0].function.name"),
        ({"tools": [FIND] * 600}, "tools"),
    ],
)
async def test_tools_that_cant_be_meant_are_named(site: Site, fields: dict[str, object], param: str) -> None:
    refusal(await site.chat(**fields), 400, param)


async def test_an_output_format_and_free_tools_go_together(site: Site) -> None:
    answer = await site.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert answer.status_code == 200 and site.engine.calls[-1].constraint is not None


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if open }}{# <think> #}"


async def test_reasoning_is_told_apart() -> None:
    async with open_site(template=THINKS, context=4096) as site:
        found, _ = await message(site, f"<think>\nHm, <tool_call> …</think>\n\nYes. {CALL}")
        assert found["reasoning"] == found["reasoning_content"] == "Hm, <tool_call> …" and found["content"] == "Yes."
        assert len(found["tool_calls"]) == 1
        found, _ = await message(site, "deep</think>Yes", chat_template_kwargs={"open": True})
        assert found["reasoning"] == "deep" and found["content"] == "Yes"
        found, _ = await message(site, "deep</think>Yes")
        assert found["content"] == "deep</think>Yes" and "reasoning" not in found
        site.engine.say = "<think>abc</think>Yes"
        usage = (await site.chat()).json()["usage"]
        assert 3 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 11
        formatted = await site.chat(response_format={"type": "json_object"}, chat_template_kwargs={"open": True})
        assert formatted.json()["choices"][0]["message"]["content"] == site.engine.say, "a format holds from the first token"


async def test_efforts_that_no_template_knows_are_refused(site: Site) -> None:
    refusal(await site.chat(reasoning_effort="high"), 400, "reasoning_effort")
    refusal(await site.chat(reasoning_effort="huge"), 400, "reasoning_effort")
    assert (await site.chat(reasoning_effort="none")).status_code == 200
    async with open_site(template="{{ enable_thinking }}") as switched:
        for effort, told in (("none", b"False"), ("high", b"True")):
            await switched.chat(reasoning_effort=effort)
            assert bytes(switched.engine.calls[-1].prompt) == told


NAMES = frozenset({"find", "add"})
FORMS = (
    Format(),
    Format("tagged", NAMES),
    Format("tagged", NAMES, reasons=True),
    Format("bare", NAMES),
    Format("list", NAMES),
    Format("arguments", NAMES, "find", reasons=True, thinking=True),
)
PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            '{"name": "find", "arguments": ',
            '{"city": "a}"}',
            "{}",
            "}",
            "[",
            "]",
            ",",
            "\n",
            " ",
            "<",
            "to",
            'x"',
            "\\",
            "ä",
        ]
    ),
    max_size=14,
)


def flat(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Parts with neighbours of one kind joined."""
    ready: list[tuple[str, str]] = []
    for part in parts:
        kind = type(part).__name__
        text = part.name if isinstance(part, CallStart) else part.text
        if ready and ready[-1][0] == kind and not isinstance(part, CallStart):
            ready[-1] = (kind, ready[-1][1] + text)
        elif text or isinstance(part, CallStart):
            ready.append((kind, text))
    return ready


@settings(max_examples=300, deadline=None)
@given(pieces=PIECES, form=st.sampled_from(FORMS), data=st.data())
def test_however_text_is_cut_its_parts_are_the_same(pieces: list[str], form: Format, data: st.DataObject) -> None:
    text = "".join(pieces)
    whole = ReplyParser(form)
    expected = flat([*whole.feed(text), *whole.end()])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parser, parts = ReplyParser(form), list[Part]()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += parser.feed(text[begin:end])
    parts += parser.end()
    assert flat(parts) == expected
    assert all(isinstance(part, Content | Reasoning | CallStart | Arguments) for part in parts)
    if form == Format():
        assert expected == ([("Content", text)] if text else [])
