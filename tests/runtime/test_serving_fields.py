"""Every field that a request may carry acts, describes the caller, or is refused by name: the schemas are walked."""

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from branchpoint.runtime.messages import Call
from branchpoint.runtime.serving.chat import CHAT_RULES, ChatRequest
from branchpoint.runtime.serving.completion import COMPLETION_RULES, CompletionRequest
from branchpoint.runtime.serving.generate import GENERATE_RULES, GenerateRequest
from branchpoint.runtime.serving.native_sampling import SAMPLING_RULES, NativeSampling
from branchpoint.runtime.serving.wire import Rules
from tests.runtime.serving_site import Site, open_site

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{{ mood }}{{ reasoning_effort }}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}\nassistant: {% endif %}{# it thinks: <think> #}"
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(template=TEMPLATE, context=4096, adapters=("sql",)) as ready:
        yield ready


Seen = Callable[[Call, str], bool]

SHARED: dict[str, tuple[dict[str, object], Seen]] = {
    "model": ({"model": "alias"}, lambda call, text: '"fake"' in text),
    "max_tokens": ({"max_tokens": 2}, lambda call, text: call.sampling.max_tokens == 2),
    "close": ({"regex": "a", "close": "steer"}, lambda call, text: call.sampling.close == "steer"),
    "min_tokens": ({"min_tokens": 2}, lambda call, text: call.sampling.min_tokens == 2),
    "temperature": ({"temperature": 0.5}, lambda call, text: call.sampling.temperature == 0.5),
    "top_p": ({"top_p": 0.25}, lambda call, text: call.sampling.top_p == 0.25),
    "top_k": ({"top_k": 7}, lambda call, text: call.sampling.top_k == 7),
    "min_p": ({"min_p": 0.25}, lambda call, text: call.sampling.min_p == 0.25),
    "presence_penalty": ({"presence_penalty": 1}, lambda call, text: call.sampling.presence_penalty == 1),
    "frequency_penalty": ({"frequency_penalty": 1}, lambda call, text: call.sampling.frequency_penalty == 1),
    "repetition_penalty": ({"repetition_penalty": 2}, lambda call, text: call.sampling.repetition_penalty == 2),
    "logit_bias": ({"logit_bias": {"5": -100}}, lambda call, text: call.sampling.logit_bias == ((5, -100.0),)),
    "n": ({"n": 2}, lambda call, text: call.sampling.n == 2),
    "seed": ({"seed": 3}, lambda call, text: call.sampling.seed == 3),
    "stop": ({"stop": "x"}, lambda call, text: call.sampling.stop == ("x",)),
    "stop_token_ids": ({"stop_token_ids": [4]}, lambda call, text: call.sampling.stop_token_ids == (4,)),
    "ignore_eos": ({"ignore_eos": True}, lambda call, text: call.sampling.ignore_eos),
    "include_stop_str_in_output": ({"include_stop_str_in_output": True}, lambda call, text: call.sampling.include_stop),
    "no_stop_trim": ({"no_stop_trim": True}, lambda call, text: call.sampling.include_stop),
    "skip_special_tokens": ({"skip_special_tokens": False}, lambda call, text: not call.sampling.skip_special_tokens),
    "stream": ({"stream": True}, lambda call, text: text.endswith("data: [DONE]\n\n")),
    "stream_options": ({"stream": True, "stream_options": {"include_usage": True}}, lambda call, text: '"choices":[]' in text),
    "request_id": ({"request_id": "mine"}, lambda call, text: '"mine"' in text),
    "rid": ({"rid": "mine"}, lambda call, text: '"mine"' in text),
    "cache_salt": ({"cache_salt": "salt"}, lambda call, text: call.namespace == "salt"),
    "priority": ({"priority": 2}, lambda call, text: call.hints.priority == -2),
    "lora_path": ({"lora_path": "sql"}, lambda call, text: call.adapter == "sql"),
    "prompt_logprobs": ({"prompt_logprobs": 2}, lambda call, text: call.sampling.prompt_logprobs == 2),
    "response_format": ({"response_format": {"type": "json_object"}}, lambda call, text: call.constraint is not None),
    "structured_outputs": ({"structured_outputs": {"regex": "a"}}, lambda call, text: call.constraint is not None),
    "regex": ({"regex": "a"}, lambda call, text: call.constraint is not None),
    "ebnf": ({"ebnf": "a"}, lambda call, text: call.constraint is not None),
    "json_schema": ({"json_schema": {}}, lambda call, text: call.constraint is not None),
    "guided_json": ({"guided_json": {}}, lambda call, text: call.constraint is not None),
    "guided_regex": ({"guided_regex": "a"}, lambda call, text: call.constraint is not None),
    "guided_choice": ({"guided_choice": ["a"]}, lambda call, text: call.constraint is not None),
    "guided_grammar": ({"guided_grammar": "a"}, lambda call, text: call.constraint is not None),
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"properties": {"q": {"type": "string"}}}}}
CHAT = SHARED | {
    "tools": ({"tools": [TOOL]}, lambda call, text: b'"find"' in bytes(call.prompt)),
    "tool_choice": ({"tools": [TOOL], "tool_choice": "required"}, lambda call, text: call.constraint is not None),
    "parallel_tool_calls": (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        lambda call, text: call.constraint is not None and "maxItems" not in call.constraint.schema,
    ),
    "continue_final_message": (
        {"continue_final_message": True, "messages": [{"role": "assistant", "content": "QQ"}]},
        lambda call, text: bytes(call.prompt).endswith(b"QQ"),
    ),
    "chat_template_kwargs": ({"chat_template_kwargs": {"mood": "QQ"}}, lambda call, text: b"QQ" in bytes(call.prompt)),
    "reasoning_effort": ({"reasoning_effort": "low"}, lambda call, text: b"low" in bytes(call.prompt)),
    "separate_reasoning": ({"separate_reasoning": False}, lambda call, text: '"content":"<think>' in text),
    "include_reasoning": ({"include_reasoning": False}, lambda call, text: '"reasoning"' not in text),
    "messages": ({"messages": [{"role": "user", "content": "QQ"}]}, lambda call, text: b"QQ" in bytes(call.prompt)),
    "max_completion_tokens": ({"max_completion_tokens": 2}, lambda call, text: call.sampling.max_tokens == 2),
    "logprobs": ({"logprobs": True}, lambda call, text: call.sampling.logprobs == 0),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, lambda call, text: call.sampling.logprobs == 2),
    "add_generation_prompt": ({"add_generation_prompt": False}, lambda call, text: b"assistant" not in bytes(call.prompt)),
}
COMPLETION = SHARED | {
    "prompt": ({"prompt": "QQ"}, lambda call, text: bytes(call.prompt) == b"QQ"),
    "echo": ({"echo": True}, lambda call, text: '"hi' in text),
    "logprobs": ({"logprobs": 2}, lambda call, text: call.sampling.logprobs == 2),
}
GENERATE: dict[str, tuple[dict[str, object], Seen]] = {
    "text": ({"text": "QQ"}, lambda call, text: bytes(call.prompt) == b"QQ"),
    "input_ids": ({"text": None, "input_ids": [9]}, lambda call, text: call.prompt == (9,)),
    "segments": (
        {"text": None, "segments": [{"type": "ids", "tokens": [9]}, {"type": "text", "text": "Q"}]},
        lambda call, text: call.prompt == (9, 81),
    ),
    "sampling_params": ({"sampling_params": {"n": 2}}, lambda call, text: call.sampling.n == 2),
    "sampling": ({"sampling": {"max_tokens": 2}}, lambda call, text: call.sampling.max_tokens == 2),
    "constraint": ({"constraint": {"type": "regex", "pattern": "a"}}, lambda call, text: call.constraint is not None),
    "hints": ({"hints": {"program": "p", "path": [1]}}, lambda call, text: call.hints.path == (1,)),
    "heal": ({"heal": True}, lambda call, text: call.heal == b"" and call.prompt == (104, 105)),
    "events": ({"events": True, "stream": True}, lambda call, text: '{"type":"completed"' in text),
    "return_logprob": ({"return_logprob": True}, lambda call, text: "output_token_logprobs" in text),
    "logprob_start_len": (
        {"return_logprob": True, "logprob_start_len": 1},
        lambda call, text: call.sampling.prompt_logprobs_start == 1,
    ),
    "top_logprobs_num": ({"return_logprob": True, "top_logprobs_num": 2}, lambda call, text: call.sampling.logprobs == 2),
    "return_text_in_logprobs": ({"return_logprob": True, "return_text_in_logprobs": True}, lambda call, text: '97,"a"]' in text),
    "stream": ({"stream": True}, lambda call, text: text.endswith("data: [DONE]\n\n")),
    "model": ({"model": "alias"}, lambda call, text: True),  # `test_models` has what it chooses
    "rid": ({"rid": "mine"}, lambda call, text: '"mine"' in text),
    "extra_key": ({"extra_key": "salt"}, lambda call, text: call.namespace == "salt"),
    "cache_salt": ({"cache_salt": "salt"}, lambda call, text: call.namespace == "salt"),
    "priority": ({"priority": 2}, lambda call, text: call.hints.priority == 2),
    "lora_path": ({"lora_path": "sql"}, lambda call, text: call.adapter == "sql"),
}
NATIVE: dict[str, tuple[object, Seen]] = {
    "max_new_tokens": (2, lambda call, text: call.sampling.max_tokens == 2),
    "close": ("steer", lambda call, text: call.sampling.close == "steer"),
    "min_new_tokens": (2, lambda call, text: call.sampling.min_tokens == 2),
    "temperature": (0.5, lambda call, text: call.sampling.temperature == 0.5),
    "top_p": (0.25, lambda call, text: call.sampling.top_p == 0.25),
    "top_k": (7, lambda call, text: call.sampling.top_k == 7),
    "min_p": (0.25, lambda call, text: call.sampling.min_p == 0.25),
    "presence_penalty": (1, lambda call, text: call.sampling.presence_penalty == 1),
    "frequency_penalty": (1, lambda call, text: call.sampling.frequency_penalty == 1),
    "repetition_penalty": (2, lambda call, text: call.sampling.repetition_penalty == 2),
    "stop": (["x"], lambda call, text: call.sampling.stop == ("x",)),
    "stop_token_ids": ([4], lambda call, text: call.sampling.stop_token_ids == (4,)),
    "ignore_eos": (True, lambda call, text: call.sampling.ignore_eos),
    "skip_special_tokens": (False, lambda call, text: not call.sampling.skip_special_tokens),
    "no_stop_trim": (True, lambda call, text: call.sampling.include_stop),
    "n": (2, lambda call, text: call.sampling.n == 2 and text.startswith("[")),
    "sampling_seed": (3, lambda call, text: call.sampling.seed == 3),
    "logit_bias": ({"5": 1}, lambda call, text: call.sampling.logit_bias == ((5, 1.0),)),
    "json_schema": ("{}", lambda call, text: call.constraint is not None),
    "regex": ("a", lambda call, text: call.constraint is not None),
    "ebnf": ("a", lambda call, text: call.constraint is not None),
    "structural_tag": ('{"format": {"type": "any_text"}}', lambda call, text: call.constraint is not None),
}
ROUTES = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}, CHAT, ChatRequest, CHAT_RULES),
    "/v1/completions": ({"prompt": "hi", "max_tokens": 5}, COMPLETION, CompletionRequest, COMPLETION_RULES),
    "/generate": ({"text": "hi"}, GENERATE, GenerateRequest, GENERATE_RULES),
}


async def seen(site: Site, path: str, body: dict[str, object]) -> tuple[Call, str]:
    site.engine.say = "<think>w</think>abcde" if path.startswith("/v1/chat") else ""
    response = await site.post(path, **body)
    assert response.status_code == 200, response.text
    call = site.engine.calls[-1]
    assert isinstance(call, Call)
    return call, response.text


@pytest.mark.parametrize("path", list(ROUTES))
async def test_every_field_acts(site: Site, path: str) -> None:
    base, fields, _, _ = ROUTES[path]
    plain = await seen(site, path, base)
    for field, (given, acted) in fields.items():
        assert acted(*await seen(site, path, base | given)), f"{field} changed nothing"
        if field not in base and field not in ("model", "heal", "echo"):
            assert not acted(*plain), f"{field} acts without being given"


async def test_every_native_sampling_field_acts(site: Site) -> None:
    plain = await seen(site, "/generate", {"text": "hi"})
    for field, (value, acted) in NATIVE.items():
        assert acted(*await seen(site, "/generate", {"text": "hi", "sampling_params": {field: value}})), field
        assert not acted(*plain), field


@pytest.mark.parametrize("path", list(ROUTES))
def test_no_field_is_left_out_of_this_walk(path: str) -> None:
    _, fields, form, rules = ROUTES[path]
    names = {field.encode_name for field in msgspec.structs.fields(form)}
    assert names == set(fields)
    assert not names & (set(rules.refused) | rules.inert)


def test_no_native_sampling_field_is_left_out_of_this_walk() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(NativeSampling)}
    assert names == set(NATIVE) and not names & set(SAMPLING_RULES.refused)


@pytest.mark.parametrize("path", list(ROUTES))
async def test_fields_that_are_not_served_are_refused_by_name_unless_neutral(site: Site, path: str) -> None:
    base, _, _, rules = ROUTES[path]
    for field, neutral in rules.refused.items():
        response = await site.post(path, **(base | {field: {"surprising": 12345}}))
        assert response.status_code == 400 and response.json()["error"]["param"] == field and field in response.text
        for value in (None, *neutral):
            assert (await site.post(path, **(base | {field: value}))).status_code == 200, (field, value)


@pytest.mark.parametrize("path", list(ROUTES))
async def test_unknown_fields_are_refused_and_nulls_are_accepted(site: Site, path: str) -> None:
    base, fields, _, rules = ROUTES[path]
    response = await site.post(path, **(base | {"temprature": 1}))
    assert response.status_code == 400 and response.json()["error"]["param"] == "temprature"
    nulls: dict[str, object] = dict.fromkeys([*fields, *rules.refused, *rules.inert])
    assert (await site.post(path, **(nulls | base))).status_code == 200
    described: dict[str, object] = dict.fromkeys(rules.inert, "x")
    assert (await site.post(path, **(base | described))).status_code == 200


def test_neutral_values_are_told_apart_by_type() -> None:
    from branchpoint.runtime.errors import InvalidRequest
    from branchpoint.runtime.serving.wire import as_request

    class Empty(msgspec.Struct):
        pass

    rules = Rules({"one": (1,), "off": (False,)})
    for good in ({"one": 1}, {"one": 1.0}, {"off": False}):
        as_request(good, Empty, rules)
    for bad in ({"one": True}, {"off": 0}, {"one": "1"}):
        with pytest.raises(InvalidRequest):
            as_request(bad, Empty, rules)
