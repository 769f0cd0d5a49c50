"""What programs written for SGLang spell differently, and what still must run after the import is changed."""

import inspect

import pytest

import branchpoint as sgl
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.sampling import SamplingParams


@sgl.function
def chat(s: sgl.State, question: str) -> None:
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_new_tokens=4, top_k=-1, dtype=str))


def test_streams_are_asked_for_by_variable_name() -> None:
    state = chat.run("?", backend=sgl.Fake("abcd"), stream=True)
    assert "".join(state.text_iter(var_name="answer")) == "abcd" == state["answer"]
    assert state.get_meta_info("answer")["completion_tokens"] == 4


async def test_streams_are_asked_for_by_variable_name_in_a_loop() -> None:
    state = chat.run("?", backend=sgl.Fake("abcd"), stream=True)
    assert "".join([piece async for piece in state.text_async_iter(var_name="answer")]) == "abcd"


def test_top_k_may_be_switched_off_by_minus_one() -> None:
    fake = sgl.Fake("abcd")
    chat.run("?", backend=fake, top_k=-1)
    (request,) = fake.requests
    assert request.sampling.top_k == SamplingParams().top_k == 0  # type: ignore[union-attr]  # a gen's request


def test_a_runtime_is_given_its_model_path_and_shut_down() -> None:
    with pytest.raises(InvalidRequest, match="are one option"):
        sgl.Runtime("a", model_path="b")
    with pytest.raises(ValueError, match="Unknown model '/nowhere'"):
        sgl.Runtime(model_path="/nowhere")
    assert inspect.isfunction(sgl.Runtime.shutdown)


@pytest.mark.parametrize("name", ["image", "video"])
def test_media_say_that_they_are_not_there(name: str) -> None:
    with pytest.raises(sgl.NotSupported, match=f"branchpoint.{name} is not supported"):
        getattr(sgl, name)("picture.png")


NAMES = [
    "function",
    "gen",
    "gen_int",
    "gen_float",
    "gen_bool",
    "gen_string",
    "select",
    "system",
    "user",
    "assistant",
    "tool",
    "image",
    "separate_reasoning",
    "set_default_backend",
    "flush_cache",
    "get_server_info",
    "Engine",
    "Runtime",
    "RuntimeEndpoint",
    "OpenAI",
    "Anthropic",
    "LiteLLM",
    "regex",
    "ebnf",
    "json_schema",
    "substring",
    "RunConfig",
    "Incomplete",
    "ProgramError",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "tool_begin",
    "tool_end",
]


def test_all_names_of_the_language_are_the_packages_own() -> None:
    assert [name for name in NAMES if name not in sgl.__all__ or not hasattr(sgl, name)] == [
        "image"
    ]  # which says that it isn't there
    assert callable(sgl.image) and sgl.Runtime is sgl.Engine and callable(sgl.State.fork)
