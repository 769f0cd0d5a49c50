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
