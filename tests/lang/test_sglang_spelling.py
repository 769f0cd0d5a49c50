"""What programs written for SGLang spell differently, and what still must run after the import is changed."""

import inspect

import pytest

import branchpoint as sgl
from branchpoint.lang.errors import ProgramMistake
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


def test_a_program_that_is_called_outside_of_programs_is_run() -> None:
    fake = sgl.Fake("abcd")
    state = chat("?", backend=fake, temperature=0)
    state.sync()
    assert state["answer"] == "abcd" == "".join(chat(question="?", backend=fake, stream=True).text_iter("answer"))
    state["answer"] = "other"
    assert (state["answer"], state.text().count("abcd")) == ("other", 1)


def test_guessing_ahead_of_an_api_is_refused_by_name() -> None:
    with pytest.raises(ProgramMistake, match=r"num_api_spec_tokens must be left out.*a turn of its own"):
        sgl.function(num_api_spec_tokens=64)
    assert isinstance(sgl.function(num_api_spec_tokens=None)(lambda s: None), sgl.Program)


def test_a_role_without_an_expression_is_an_empty_message() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.system() + sgl.user("Q") + sgl.assistant(sgl.gen("a")) + sgl.user() + sgl.assistant()

    messages = program.run(backend=sgl.Fake("A")).messages()
    assert [message["content"] for message in messages] == ["", "Q", "A", "", ""]


def test_logprobs_have_sglangs_names_and_shapes() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "ab" + sgl.gen("x", max_tokens=2, return_logprob=True, top_logprobs_num=1, logprob_start_len=0)
        s += sgl.select("y", ["no", "yes"])

    state = program.run(backend=sgl.Fake("cd", scores={"no": [-1.0, -2.0]}))
    told = state.get_meta_info("x")
    assert told["input_token_logprobs"] == [(None, 97, "a"), (-1.0, 98, "b")]
    assert told["output_token_logprobs"] == [(-0.5, 99, "c"), (-0.5, 100, "d")] and told["output_top_logprobs"] == [[], []]
    chosen = state.get_meta_info("y")
    assert chosen["input_token_logprobs"][0] == [(-1.0, None, None), (-2.0, None, None)]  # type: ignore[index]  # a list
    assert chosen["normalized_prompt_logprobs"] == [-1.5, -1.0]


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
