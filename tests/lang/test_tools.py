"""Tools: made of typed functions, offered by a gen, called in a loop, or those of an MCP server."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

import branchpoint as bp
from branchpoint.constrained.spec import JsonSchema
from branchpoint.lang.backends.base import Capabilities, GenerateRequest
from branchpoint.lang.tools import Tool


class Place(BaseModel):
    city: str
    country: str = "France"


@bp.tool
def weather(place: Place, unit: Literal["C", "F"] = "C", days: Annotated[int, Field(ge=1, le=7)] = 1) -> str:
    """The weather of a city.

    As the nearest station has it.

    Args:
        place: where
        days (int): how many days ahead

    Returns:
        a line of text
    """
    return f"{place.city}: {days} days of rain, {unit}"


@bp.tool
def add(a: int, b: int = 1) -> int:
    """Add numbers.

    :param a: the first
    """
    return a + b


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def run(body: Callable[..., Any], script: Any, **options: Any) -> bp.Run[Any]:
    return bp.function(body).run(backend=script if isinstance(script, bp.Fake) else bp.Fake(script), **options)


def test_a_tool_is_told_by_its_signature_and_docstring() -> None:
    assert weather.name == "weather"
    assert weather.description == "The weather of a city.\n\nAs the nearest station has it."
    properties: Any = weather.parameters["properties"]
    assert properties["place"]["description"] == "where"
    assert properties["unit"] == {"default": "C", "enum": ["C", "F"], "type": "string"}
    assert properties["days"] == {
        "default": 1,
        "description": "how many days ahead",
        "maximum": 7,
        "minimum": 1,
        "type": "integer",
    }
    assert weather.parameters["required"] == ["place"]
    assert add.parameters["properties"]["a"]["description"] == "the first"  # type: ignore[index]  # a schema
    assert "title" not in json.dumps(weather.parameters)
    assert add(2, b=3) == 5  # still a function
    assert bp.tool(weather) is weather


def test_a_property_may_be_called_title_and_a_parameter_like_a_models_own() -> None:
    @bp.tool
    def file(title: str, model_config: str, schema: str = "s") -> str:
        return title + model_config + schema

    assert list(file.parameters["properties"]) == ["title", "model_config", "schema"]  # type: ignore[call-overload]  # a schema
    assert (
        run(
            lambda s: s.__iadd__(bp.gen("x", tools=[file], tool_choice="file")) and s["x"].run(),
            [call("file", title="a", model_config="b")],
        ).value
        == "abs"
    )


def test_what_is_no_tool_is_refused_on_its_line() -> None:
    def untyped(a) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # that is the mistake
        return None

    def starred(*a: int) -> None:
        return None

    with pytest.raises(bp.ProgramMistake, match=r"must be typed; write untyped\(a: str"):
        bp.tool(untyped)
    with pytest.raises(bp.ProgramMistake, match="must have names"):
        bp.tool(starred)
    with pytest.raises(bp.ProgramMistake, match="Two tools are called 'add'"):
        bp.gen("x", tools=[add, add])
    with pytest.raises(bp.ProgramMistake, match="list of functions"):
        bp.gen("x", tools=add)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(bp.ProgramMistake, match="tool_choice must be"):
        bp.gen("x", tools=[add], tool_choice="sub")
    with pytest.raises(bp.ProgramMistake, match="tool_choice must be"):
        bp.gen("x", tools=[], tool_choice="required")
    with pytest.raises(bp.ProgramMistake, match="1 to 64 letters"):
        Tool("a b", "", {}, add)
    with pytest.raises(bp.ProgramMistake, match="one of a type"):
        bp.gen("x", int, tools=[add])
    with pytest.raises(bp.ProgramError, match="leave n out"):
        run(lambda s: s.__iadd__(bp.gen("x", tools=[add])) and None, "x", n=2)


def test_the_model_may_answer_or_call() -> None:
    def body(s: bp.State) -> None:
        s += "2+3? " + bp.gen("x", tools=[weather, add])

    assert run(body, "Five.")["x"] == "Five."
    found = run(body, ["I'll add. <tool_call>ignored", call("add", a=2, b=3)])
    value: bp.ToolCall = found["x"]
    assert (value.name, value.arguments, value.run()) == ("add", {"a": 2, "b": 3}, 5)
    assert str(value) == call("add", a=2, b=3)
    assert found.text() == f"2+3? I'll add. <tool_call>\n{call('add', a=2, b=3)}\n</tool_call>"
    assert found.report().total.calls == 1


def test_a_call_is_held_to_the_tools_schemas_after_free_text() -> None:
    def body(s: bp.State) -> Any:
        s += bp.gen("x", tools=[weather, add], max_tokens=200, stop="STOP") + " then" + bp.gen("y")
        return s["x"].run()

    fake = bp.Fake(["Hm <tool_call>", call("weather", place={"city": "Pau"}), "end"])
    assert run(body, fake).value == "Pau: 1 days of rain, C"
    free, held, after = (request for request in fake.requests if isinstance(request, GenerateRequest))
    assert free.constraint is None and set(free.sampling.stop) == {"STOP", "<tool_call>"}
    assert isinstance(held.constraint, JsonSchema) and held.sampling.stop == ()
    assert held.sampling.max_tokens == 200 - len("Hm ")
    assert "".join(segment.text for segment in held.segments) == "Hm <tool_call>\n"
    assert after.segments[:1] == held.segments[:1]  # the ids that were made
    schema = json.loads(held.constraint.schema)
    for good in (call("add", a=1), call("weather", place={"city": "x", "country": "y"}, days=7)):
        jsonschema.validate(json.loads(good), schema)
    for bad in (call("sub", a=1), call("add"), call("add", a="1"), call("weather", place={"city": 1}), call("add", a=1, c=2)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(bad), schema)


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_call_can_be_required(choice: str) -> None:
    fake = bp.Fake([call("add", a=1)])
    found = run(lambda s: s.__iadd__(bp.gen("x", tools=[add, weather], tool_choice=choice)) and None, fake)
    assert found["x"].run() == 2
    (request,) = fake.requests
    assert isinstance(request, GenerateRequest) and isinstance(request.constraint, JsonSchema)
    assert ("weather" in request.constraint.schema) is (choice == "required")


def test_tools_can_be_switched_off() -> None:
    fake = bp.Fake("<tool_call> is a tag.")
    assert run(lambda s: s.__iadd__(bp.gen("x", tools=[add], tool_choice="none")) and None, fake)["x"] == "<tool_call> is a tag."


def test_a_call_that_was_cut_is_incomplete_and_one_that_is_wrong_fails() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x", tools=[add], max_tokens=20)

    found = run(body, ["<tool_call>", call("add", a=2)])
    with pytest.raises(bp.Incomplete) as cut:
        found["x"]
    assert cut.value.partial == "<tool_call>\n" + call("add", a=2)[:20]
    found = run(body, ["12345678901234567890<tool_call>", "never asked"])
    assert found["x"] == "12345678901234567890"
    found = run(body, ["<tool_call>", '{"name": "add"}'])
    with pytest.raises(bp.ProgramError, match="isn't a tool call"):
        found["x"]
    found = run(body, ["<tool_call>", '{"name":"no"}'])
    with pytest.raises(bp.ProgramError, match="isn't a tool call"):
        found["x"]


def test_a_call_streams_as_it_stands_in_the_text() -> None:
    def body(s: bp.State) -> None:
        s += "Q " + bp.gen("x", tools=[add])

    found = bp.function(body).stream(backend=bp.Fake(["so <tool_call>", call("add", a=2)]))
    assert "Q " + "".join(found.text_iter("x")) == "".join(found.text_iter()) == found.text()


def test_a_model_may_think_before_it_calls() -> None:
    def body(s: bp.State) -> None:
        s += "Q " + bp.separate_reasoning(bp.gen("x", tools=[add]))

    found = run(body, ["hm</think>", "so <tool_call>", call("add", a=2)])
    assert found["x"].run() == 3
    assert found["x_reasoning_content"] == "hm"
    assert found.text() == f"Q so <tool_call>\n{call('add', a=2)}\n</tool_call>"


def test_a_backend_without_ids_is_asked_for_the_call_alone() -> None:
    capabilities = Capabilities(ids=False, constraints=frozenset({"json_schema"}))
    fake = bp.Fake(["so <tool_call>", call("add", a=2)], capabilities=capabilities)
    found = run(lambda s: s.__iadd__(bp.user("Q") + bp.assistant(bp.gen("x", tools=[add]))) and None, fake)
    assert found["x"].run() == 3
    first, second = fake.requests
    assert second.messages == first.messages is not None
    plain = bp.Fake("x", capabilities=Capabilities(constraints=frozenset({"regex"})))
    with pytest.raises(bp.ProgramError, match="json_schema"):
        run(lambda s: s.__iadd__(bp.gen("x", tools=[add])) and None, plain)
    assert not plain.requests  # said before anything was sent


def test_a_saved_run_plays_its_calls_again_and_a_graph_says_that_it_is_none(tmp_path: Path) -> None:
    def body(s: bp.State) -> Any:
        s += "Q " + bp.gen("x", tools=[add])
        return s["x"].run()

    program = bp.function(body)
    program.run(backend=bp.Fake(["so <tool_call>", call("add", a=2)])).save(tmp_path / "run.json")
    assert program.run(backend=bp.replay(tmp_path / "run.json")).value == 3
    assert "tools" in str(program.compile().reason)


def shop(s: bp.State, question: str, **options: Any) -> str:
    s += bp.system("You are a shop.\n" + bp.tool_prompt([add, weather])) + bp.user(question)
    return bp.use_tools(s, [add, weather], **options)


def test_the_loop_calls_tools_until_the_model_answers() -> None:
    fake = bp.Fake(["<tool_call>", call("add", a=2), "<tool_call>", call("add", a=3, b=4), "Done."])
    found = run(shop, fake, question="?")
    assert found.value == found["answer"] == "Done."
    assert [message["content"] for message in found.messages() if message["role"] == "tool"] == ["3", "7"]
    assert '"name": "add", "description": "Add numbers."' in fake.prompts[0]


def test_the_loop_ends_with_an_answer_after_its_turns() -> None:
    script = ["<tool_call>", call("add", a=2), "<tool_call> is what I would write."]
    assert run(shop, script, question="?", max_turns=1, name="said").value == "<tool_call> is what I would write."


def test_the_first_turn_can_be_made_to_call() -> None:
    assert run(shop, [call("add", a=2), "3"], question="?", tool_choice="required").value == "3"


def test_what_a_tool_raises_is_raised_or_told_to_the_model() -> None:
    @bp.tool
    def broken(a: int) -> str:
        raise LookupError("no such thing")

    def body(s: bp.State, /, **options: Any) -> str:
        s += bp.user("?")
        return bp.use_tools(s, [broken], **options)

    script = ["<tool_call>", call("broken", a=2), "Sorry."]
    with pytest.raises(LookupError):
        run(body, script)
    found = run(body, script, on_error="tell")
    assert found.value == "Sorry."
    assert "Error: no such thing" in found.text()
    with pytest.raises(bp.ProgramMistake, match="'raise' or 'tell', got 'return'"):
        run(body, script, on_error="return")


async def test_async_tools_are_for_async_programs() -> None:
    @bp.tool
    async def slow(a: int) -> Place:
        await asyncio.sleep(0)
        return Place(city=str(a))

    @bp.tool
    def quick(a: int) -> str:
        if a < 0:
            raise LookupError("negative")
        return str(a)

    async def body(s: bp.State) -> str:
        s += bp.user("?")
        return await bp.ause_tools(s, [slow, quick], on_error="tell")

    script = []
    for name, number in (("slow", 2), ("quick", 5), ("quick", -1)):
        script += ["<tool_call>", call(name, a=number)]
    found = await bp.function(body).arun(backend=bp.Fake([*script, "ok"]))
    told = [message["content"] for message in found.messages() if message["role"] == "tool"]
    assert told == ['{"city":"2","country":"France"}', "5", "Error: negative"]
    with pytest.raises(bp.ProgramMistake, match="arun"):
        bp.ToolCall(slow, {"a": 1}).run()

    async def turns(s: bp.State) -> str:
        s += bp.user("?")
        return await bp.ause_tools(s, [slow], max_turns=0)

    once: bp.Run[Any] = await bp.function(turns).arun(backend=bp.Fake("at once"))
    assert once.value == "at once"


async def test_tools_of_an_mcp_server() -> None:
    mcp = pytest.importorskip("mcp")
    server = pytest.importorskip("mcp.server.mcpserver").MCPServer("shop")

    def price(item: str) -> int:
        """What an item costs."""
        if item == "ghost":
            raise ValueError("no price")
        return len(item)

    server.tool()(price)
    logging.getLogger("mcp.server.mcpserver.server").setLevel(logging.CRITICAL)  # it tells of the failure that is meant

    async def body(s: bp.State, tools: Any) -> str:
        s += bp.user("What does it cost?")
        return await bp.ause_tools(s, tools)

    async with mcp.Client(server) as client:
        (tool,) = await bp.mcp_tools(client)
        assert (tool.name, tool.description) == ("price", "What an item costs.")
        assert await bp.mcp_tools(client, names=["other"]) == ()
        script = ["<tool_call>", call("price", item="apple"), "Five."]
        found: bp.Run[Any] = await bp.function(body).arun(tools=[tool], backend=bp.Fake(script))
        assert found.value == "Five."
        assert found.messages()[2] == {"role": "tool", "content": "5"}
        with pytest.raises(bp.McpToolError, match="'price' failed"):
            await bp.ToolCall(tool, {"item": "ghost"}).arun()


def test_definitions_of_two_tools_do_not_meet() -> None:
    defined = {"$defs": {"T": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/T"}}, "type": "object"}
    other = {"definitions": {"T": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/T"}}, "type": "object"}
    tools = [Tool("one", "", defined, lambda x: x), Tool("two", "", other, lambda x: x)]
    fake = bp.Fake([call("one", x=1)])
    run(lambda s: s.__iadd__(bp.gen("x", tools=tools, tool_choice="required")) and None, fake)
    (request,) = fake.requests
    assert isinstance(request, GenerateRequest) and isinstance(request.constraint, JsonSchema)
    schema = json.loads(request.constraint.schema)
    jsonschema.validate({"name": "one", "arguments": {"x": 1}}, schema)
    jsonschema.validate({"name": "two", "arguments": {"x": "1"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "two", "arguments": {"x": 1}}, schema)
