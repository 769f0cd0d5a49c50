"""The backend for the `litellm` package: against a stand-in of what it uses of the package."""

import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

import branchpoint as bp


class Failure(Exception):
    status_code = 429


class Package(ModuleType):
    """Chunks in the form that the package gives them."""

    def __init__(self, *texts: str, failure: Exception | None = None, schemas: bool = True) -> None:
        super().__init__("litellm")
        self.texts, self.failure, self.schemas = list(texts), failure, schemas
        self.asked: list[dict[str, Any]] = []

    def supports_response_schema(self, model: str) -> bool:
        return self.schemas

    async def acompletion(self, **asked: Any) -> AsyncIterator[Any]:
        self.asked.append(asked)
        if self.failure is not None:
            raise self.failure
        return self._stream(self.texts.pop(0))

    async def _stream(self, text: str) -> AsyncIterator[Any]:
        ends: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": text, "role": "assistant"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}},
        ]
        for end in ends:
            yield SimpleNamespace(model_dump=lambda end=end: end)


def install(monkeypatch: pytest.MonkeyPatch, package: Package) -> Package:
    monkeypatch.setitem(sys.modules, "litellm", package)
    return package


@bp.function
def program(s: bp.State) -> None:
    s += bp.user("Hi") + bp.assistant(bp.gen("x", max_tokens=5, stop="!"))
    s += bp.user("Pick") + bp.assistant(bp.gen("y", Literal["a", "b"]))


def test_requests_and_answers_go_through_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(monkeypatch, Package("Hello", '{"value": "b"}'))
    run = program.run(backend=bp.LiteLLM("groq/llama", api_key="k", retries=1), temperature=0.5)
    assert (run["x"], run["y"], run.meta("x").prompt_tokens) == ("Hello", "b", 5)
    first, second = package.asked
    assert first == {
        "model": "groq/llama",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["!"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "num_retries": 1,
        "api_key": "k",
    }
    assert second["messages"][1] == {"role": "assistant", "content": "Hello"}
    assert second["response_format"]["json_schema"]["schema"]["properties"]["value"]["enum"] == ["a", "b"]


def test_a_model_without_schemas_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(monkeypatch, Package("Hello", schemas=False))
    with pytest.raises(bp.ProgramError, match="can't hold output to a choice"):
        program.run(backend=bp.LiteLLM("groq/llama"))
    assert len(package.asked) == 1


def test_its_errors_have_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Package(failure=Failure("slow down")))
    with pytest.raises(bp.ProgramError, match="status 429: LiteLLM: slow down") as caught:
        program.run(backend=bp.LiteLLM("groq/llama"))
    assert isinstance(caught.value.__cause__, bp.BackendError)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(bp.NotSupported, match="pip install"):
        bp.LiteLLM("groq/llama")


def test_tools_are_offered_in_their_own_fields_whatever_a_model_is_held_to(monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(monkeypatch, Package("No need.", schemas=False))
    one = bp.Tool("one", "One.", {"type": "object", "properties": {}}, lambda: 1)
    asks = bp.function(lambda s: s.__iadd__(bp.user("Hi") + bp.assistant(bp.gen("x", tools=[one]))) and None)
    assert asks.run(backend=bp.LiteLLM("groq/llama"))["x"] == "No need."
    assert package.asked[0]["tools"][0]["function"]["name"] == "one"
