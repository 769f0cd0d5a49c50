"""Checks through what programs are built with: LangChain, instructor, LiteLLM, pydantic-ai, DSPy."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, Skipped, need
from branchpoint.runtime.conformance.shapes import QUESTION, TOOL, Person, Place

__all__ = ["CHECKS"]


def _langchain(server: Server, **fields: Any) -> Any:
    options = {"base_url": server.base, "api_key": server.key, "model": server.model, "max_tokens": 200, "temperature": 0}
    return need("langchain_openai").ChatOpenAI(**options | fields)


def _langchain_invokes_and_streams(server: Server) -> None:
    """A chat model answers, tells its usage, and streams the same text."""
    model = _langchain(server, max_tokens=12, stream_usage=True)
    whole = model.invoke("Say hello.")
    equal("".join(str(chunk.content) for chunk in model.stream("Say hello.")), whole.content, "text of the stream")
    expect(whole.usage_metadata["output_tokens"] > 0, f"came {whole.usage_metadata}")


def _langchain_gets_structured_output(server: Server) -> None:
    """`with_structured_output` gives objects by schema and by tool, nested ones too."""
    for method in ("json_schema", "function_calling"):
        for form in (Person, Place):
            came = _langchain(server).with_structured_output(form, method=method).invoke(QUESTION)
            expect(isinstance(came, form), f"{method}: expected a {form.__name__}, came {came!r}")


def _langchain_binds_tools(server: Server) -> None:
    """A bound tool that is required is called with valid arguments, streamed too."""
    model = _langchain(server).bind_tools([Person], tool_choice="required", parallel_tool_calls=False)
    called = model.invoke(QUESTION)
    expect(called.tool_calls and not called.invalid_tool_calls, f"came {called}")
    Person.model_validate(called.tool_calls[0]["args"])
    chunks = list(model.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    equal(whole.tool_calls[0]["args"], called.tool_calls[0]["args"], "arguments of the stream")


def _langchain_embeds(server: Server) -> None:
    """Embeddings of documents, sent as token ids by this client unless told otherwise."""
    options = {"base_url": server.base, "api_key": server.key, "model": server.model, "check_embedding_ctx_length": False}
    equal(len(need("langchain_openai").OpenAIEmbeddings(**options).embed_documents(["a", "b"])), 2, "vectors")


def _instructor(server: Server, mode: str) -> Any:
    instructor = need("instructor")
    return instructor.from_openai(server.openai, mode=getattr(instructor.Mode, mode))


def _instructor_extracts_by_tool_and_by_schema(server: Server) -> None:
    """A response model comes back filled at the first try, in either mode."""
    for mode in ("TOOLS", "JSON_SCHEMA"):
        for form in (Person, Place):
            asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 300}
            came = _instructor(server, mode).chat.completions.create(**asked, response_model=form, max_retries=0)
            expect(isinstance(came, form), f"{mode}: expected a {form.__name__}, came {came!r}")


def _instructor_streams_partial_objects(server: Server) -> None:
    """`create_partial` grows an object from the stream."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200}
    grown = list(_instructor(server, "JSON_SCHEMA").chat.completions.create_partial(**asked, response_model=Person))
    expect(grown and grown[-1].name is not None and grown[-1].age is not None, f"came {grown[-1:]}")


def _litellm(server: Server, **fields: Any) -> Any:
    asked = {"model": f"openai/{server.model}", "api_base": server.base, "api_key": server.key, "max_tokens": 200}
    messages = [{"role": "user", "content": QUESTION}]
    return need("litellm").completion(**asked | {"messages": messages, "temperature": 0} | fields)


def _litellm_completes_and_streams(server: Server) -> None:
    """A completion, and its stream, are the same text."""
    whole = _litellm(server, max_tokens=12).choices[0].message.content
    chunks = list(_litellm(server, max_tokens=12, stream=True))
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), whole, "text of the stream")


def _litellm_parses_and_calls(server: Server) -> None:
    """Formats and tools come through it valid."""
    Person.model_validate_json(_litellm(server, response_format=Person).choices[0].message.content)
    called = _litellm(server, tools=[TOOL], tool_choice="required")
    Person.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)


def _litellm_knows_the_errors(server: Server) -> None:
    """It tells a context that is too small from other refusals, by the server's words."""
    litellm = need("litellm")
    long = [{"role": "user", "content": "word " * 300_000}]
    refused(litellm.ContextWindowExceededError, "a prompt beyond the context", _litellm, server, messages=long)
    refused(litellm.NotFoundError, "an unknown model", _litellm, server, model="openai/no-such-model")


def _litellm_embeds(server: Server) -> None:
    """Embeddings come through it."""
    asked = {"model": f"openai/{server.model}", "api_base": server.base, "api_key": server.key, "input": ["a", "b"]}
    equal(len(need("litellm").embedding(**asked).data), 2, "vectors")


def _agent(server: Server, output: object) -> Any:
    pydantic_ai, models = need("pydantic_ai"), need("pydantic_ai.models.openai")
    provider = need("pydantic_ai.providers.openai").OpenAIProvider(base_url=server.base, api_key=server.key)
    model = models.OpenAIChatModel(server.model, provider=provider)
    return pydantic_ai.Agent(model, output_type=output, model_settings={"max_tokens": 200, "temperature": 0.0})


def _pydantic_ai_gets_typed_output(server: Server) -> None:
    """An agent's output has its type, by tool and by the server's own schemas."""
    for output in (Person, need("pydantic_ai").NativeOutput(Person)):
        came = _agent(server, output).run_sync(QUESTION).output
        expect(isinstance(came, Person), f"expected a Person, came {came!r}")


def _pydantic_ai_speaks_responses(server: Server) -> None:
    """The same through the Responses API."""
    pydantic_ai, models = need("pydantic_ai"), need("pydantic_ai.models.openai")
    provider = need("pydantic_ai.providers.openai").OpenAIProvider(base_url=server.base, api_key=server.key)
    model = models.OpenAIResponsesModel(server.model, provider=provider)
    agent = pydantic_ai.Agent(model, output_type=Person, model_settings={"max_tokens": 200, "temperature": 0.0})
    expect(isinstance(agent.run_sync(QUESTION).output, Person), "expected a Person")


_KNOWN: Final = "gpt-4o-mini"


def _dspy(server: Server, model: str) -> Any:
    options = {"api_base": server.base, "api_key": server.key, "max_tokens": 200, "temperature": 0.0, "cache": False}
    return need("dspy").LM(f"openai/{model}", **options)


def _dspy_completes(server: Server) -> None:
    """A language model of DSPy answers."""
    expect(isinstance(_dspy(server, server.model)("Say hello.")[0], str), "expected a text")


def _dspy_predicts_by_schema(server: Server) -> None:
    """A typed prediction comes back typed. DSPy sends schemas only to models whose names it knows."""
    dspy = need("dspy")
    if _KNOWN not in [model.id for model in server.openai.models.list()]:
        raise Skipped(f"the server has no name that DSPy knows: --served-model-name {_KNOWN}")
    with dspy.context(lm=_dspy(server, _KNOWN), adapter=dspy.JSONAdapter()):
        came = dspy.Predict("question -> age: int")(question=QUESTION).age
    expect(isinstance(came, int), f"expected an int, came {came!r}")


CHECKS: Final[tuple[Check, ...]] = (
    *checks(
        "langchain-openai",
        _langchain_invokes_and_streams,
        _langchain_gets_structured_output,
        _langchain_binds_tools,
        _langchain_embeds,
    ),
    *checks("instructor", _instructor_extracts_by_tool_and_by_schema, _instructor_streams_partial_objects),
    *checks("litellm", _litellm_completes_and_streams, _litellm_parses_and_calls, _litellm_knows_the_errors, _litellm_embeds),
    *checks("pydantic-ai", _pydantic_ai_gets_typed_output, _pydantic_ai_speaks_responses),
    *checks("dspy", _dspy_completes, _dspy_predicts_by_schema),
)
