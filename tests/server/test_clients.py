"""Real clients against a real server: what they send is understood, what they read is what they expect.

The group `clients` of pyproject.toml installs them; each test is skipped where its client isn't there.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.system.served import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # other projects' own deprecations
    pytest.mark.timeout(300),
]


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


QUESTION = "Ann is 31 years old. Who is she?"
PARAMETERS = Person.model_json_schema()
TOOL = {"type": "function", "function": {"name": "note", "description": "Note a person.", "parameters": PARAMETERS}}


def need(module: str) -> Any:
    return pytest.importorskip(module, reason=f"{module} isn't installed: pip install 'branchpoint[clients]'")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-ups in the network
    names = ("--served-model-name", "smollm2", "--served-model-name", "gpt-4o-mini")  # dspy sends schemas to models it knows only
    with served(*names, "--num-pages", "256", "--context-length", "2048", "--cpu-weights", "int4") as server:
        yield server.ready().url


@pytest.fixture(scope="module")
def base(url: str) -> str:
    return f"{url}/v1"


def test_openai_chat_tools_and_streams(base: str) -> None:
    openai = need("openai")
    client = openai.OpenAI(base_url=base, api_key="x")
    choice = {"type": "function", "function": {"name": "note"}}
    asked: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100}
    for tool_choice in ("required", choice):
        whole = client.chat.completions.create(**asked, tools=[TOOL], tool_choice=tool_choice, temperature=0)
        for call in whole.choices[0].message.tool_calls:
            Person.model_validate_json(call.function.arguments)
        streamed = ""
        for chunk in client.chat.completions.create(**asked, tools=[TOOL], tool_choice=tool_choice, temperature=0, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                streamed += call.function.arguments if call.index == 0 else ""
        assert streamed == whole.choices[0].message.tool_calls[0].function.arguments
    free = client.chat.completions.create(**asked, tools=[TOOL])
    assert free.choices[0].message.content or free.choices[0].message.tool_calls


def test_openai_responses(base: str) -> None:
    openai = need("openai")
    client = openai.OpenAI(base_url=base, api_key="x")
    first = client.responses.create(model="smollm2", input="Say hello.", max_output_tokens=12)
    assert first.output_text and first.usage.output_tokens <= 12
    second = client.responses.create(model="smollm2", input="And again.", previous_response_id=first.id, max_output_tokens=12)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with client.responses.stream(model="smollm2", input=QUESTION, text_format=Person, max_output_tokens=100) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
    parsed = client.responses.parse(model="smollm2", input=QUESTION, text_format=Person, max_output_tokens=100)
    assert isinstance(parsed.output_parsed, Person)
    tool = {"type": "function", **TOOL["function"], "strict": False}
    called = client.responses.create(model="smollm2", input=QUESTION, tools=[tool], tool_choice="required", max_output_tokens=200)
    Person.model_validate_json(called.output[0].arguments)


def test_openai_errors_are_its_own_classes(base: str) -> None:
    openai = need("openai")
    client = openai.OpenAI(base_url=base, api_key="x", max_retries=0)
    asked: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
    for error, change in (
        (openai.NotFoundError, {"model": "nope"}),
        (openai.BadRequestError, {"temperature": 9}),
        (
            openai.BadRequestError,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
        ),
        (openai.BadRequestError, {"max_tokens": 10**6}),
    ):
        for stream in (False, True):
            with pytest.raises(error) as caught:
                client.chat.completions.create(**{**asked, **change}, stream=stream)
            assert caught.value.body["code"] == caught.value.status_code


def test_langchain(base: str) -> None:
    langchain = need("langchain_openai")
    model = langchain.ChatOpenAI(base_url=base, api_key="x", model="smollm2", max_tokens=100, temperature=0)
    assert model.invoke("Say hello.").content
    assert "".join(str(chunk.content) for chunk in model.stream("Say hello."))
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Person, method=method).invoke(QUESTION), Person), method
    called = model.bind_tools([Person], tool_choice="required").invoke(QUESTION)
    assert called.tool_calls and not called.invalid_tool_calls


def test_instructor(base: str) -> None:
    instructor, openai = need("instructor"), need("openai")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=base, api_key="x"), mode=mode)
        messages = [{"role": "user", "content": QUESTION}]
        found = client.chat.completions.create(model="smollm2", response_model=Person, messages=messages, max_tokens=100)
        assert isinstance(found, Person), mode


def test_litellm(base: str) -> None:
    litellm = need("litellm")
    asked: dict[str, Any] = {"model": "openai/smollm2", "api_base": base, "api_key": "x", "max_tokens": 100}
    messages = [{"role": "user", "content": QUESTION}]
    assert litellm.completion(**asked, messages=messages).choices[0].message.content
    parsed = litellm.completion(**asked, messages=messages, response_format=Person)
    Person.model_validate_json(parsed.choices[0].message.content)
    called = litellm.completion(**asked, messages=messages, tools=[TOOL], tool_choice="required")
    Person.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)
    chunks = list(litellm.completion(**asked, messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked, messages=[{"role": "user", "content": "word " * 4000}])


def test_pydantic_ai(base: str) -> None:
    pydantic_ai = need("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("smollm2", provider=OpenAIProvider(base_url=base, api_key="x"))
    for output in (Person, pydantic_ai.NativeOutput(Person)):
        agent = pydantic_ai.Agent(model, output_type=output, model_settings={"max_tokens": 150, "temperature": 0.0})
        assert isinstance(agent.run_sync(QUESTION).output, Person)


def test_dspy(base: str) -> None:
    dspy = need("dspy")
    model = dspy.LM("openai/gpt-4o-mini", api_base=base, api_key="x", max_tokens=200, temperature=0.0, cache=False)
    assert model("Say hello.")
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict("question -> age: int")(question=QUESTION).age, int)


def test_anthropic(url: str) -> None:
    anthropic = need("anthropic")
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 100, "messages": [{"role": "user", "content": QUESTION}]}
    cold = {"temperature": 0}  # newer clients have no argument for it
    message = client.messages.create(**asked, system="Be brief.", extra_body=cold)
    assert message.content[0].type == "text" and message.usage.output_tokens > 0
    with client.messages.stream(**asked, system="Be brief.", extra_body=cold) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
    tool = {"name": "note", "input_schema": PARAMETERS}
    called = client.messages.create(**asked, tools=[tool], tool_choice={"type": "tool", "name": "note"})
    assert called.stop_reason == "tool_use"
    Person.model_validate(called.content[0].input)
    with client.messages.stream(**asked, tools=[tool], tool_choice={"type": "any"}) as stream:
        final = stream.get_final_message()
    Person.model_validate(final.content[0].input)
    assert client.messages.count_tokens(model="smollm2", messages=asked["messages"]).input_tokens > 5
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked, extra_body={"temperature": 5})
