"""S5: what a typed gen asks for, and the values that its text becomes."""

import dataclasses
import datetime
import enum
import json
import re
import typing
import uuid
from typing import Annotated, Any, Literal, NewType, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

import branchpoint as bp
from branchpoint.constrained.spec import Choice, Ebnf, JsonSchema, Regex
from branchpoint.lang.types import FLOAT, INT, output_type


class Color(enum.Enum):
    RED = "red"
    NONE = 0


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "l"


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)
    friends: list["Person"] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    properties: dict[str, int]


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str] = dataclasses.field(default_factory=set)


class Row(typing.TypedDict):
    id: int
    note: typing.NotRequired[str]


class Table(typing.TypedDict, total=False):
    rows: list[Row]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: int


@dataclasses.dataclass(frozen=True)
class Node:
    value: int
    next: Optional["Node"] = None


T = typing.TypeVar("T")


class Pair(BaseModel, typing.Generic[T]):
    left: T
    right: T


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


def schema_of(wanted: Any) -> Any:
    constraint = output_type(wanted).constraint
    assert isinstance(constraint, JsonSchema)
    return json.loads(constraint.schema)


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (int, "-42", -42),
        (int, "0", 0),
        (float, "1.5e-3", 0.0015),
        (float, "-0", 0.0),
        (float, "7", 7.0),
        (bool, "true", True),
        (bool, "false", False),
        (str, " any text\n", " any text\n"),
        (Literal["a", "b c"], "b c", "b c"),
        (Literal[1, "x", True, None], "true", True),
        (Literal[1, "x", True, None], "1", 1),
        (Literal[1, "x", True, None], "null", None),
        (Color, "red", Color.RED),
        (Color, "0", Color.NONE),
        (Size, "l", Size.LARGE),
        (NewType("UserId", int), "7", 7),
        (list[int], "[1,2]", [1, 2]),
        (dict[str, float], '{"a":0.5}', {"a": 0.5}),
        (tuple[int, str], '[1,"a"]', (1, "a")),
        (Optional[int], "null", None),  # noqa: UP045  # both spellings are meant
        (int | None, "3", 3),
        (Union[int, list[str]], '["a"]', ["a"]),  # noqa: UP007  # as above
        (Annotated[int, Field(ge=1, le=5)], "4", 4),
        (Person, '{"name":"A","age":3}', Person(name="A", age=3)),
        (Point, '{"x":1,"tags":["a","a"]}', Point(1, {"a"})),
        (Row, '{"id":1}', {"id": 1}),
        (Table, '{"rows":[{"id":1,"note":"n"}]}', {"rows": [{"id": 1, "note": "n"}]}),
        (list[Row] | None, '[{"id":2}]', [{"id": 2}]),
        (list[Color], '["red",0]', [Color.RED, Color.NONE]),
        (dict[str, Person | None], '{"a":null,"b":{"name":"B","age":1}}', {"a": None, "b": Person(name="B", age=1)}),
        (Cat | Dog, '{"kind":"dog","barks":2}', Dog(kind="dog", barks=2)),
        (Node, '{"value":1,"next":{"value":2,"next":null}}', Node(1, Node(2))),
        (Pair[int], '{"left":1,"right":2}', Pair[int](left=1, right=2)),
        (Level, "3", Level.HIGH),
        (frozenset[int], "[1,2,2]", frozenset({1, 2})),
        (list[Literal["x", 1]], '[1,"x"]', [1, "x"]),
        (list[list[int]], "[[1],[]]", [[1], []]),
        (datetime.date, '"2026-11-30"', datetime.date(2026, 11, 30)),
        (uuid.UUID, '"123e4567-e89b-12d3-a456-426614174000"', uuid.UUID("123e4567-e89b-12d3-a456-426614174000")),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        (JsonSchema("{}"), "[1]", [1]),
        (Regex("a+"), "aa", "aa"),
        (Ebnf("start: /a/"), "a", "a"),
        (Choice(("a", "b")), "b", "b"),
    ],
)
def test_texts_become_values(wanted: Any, text: str, value: object) -> None:
    parsed = output_type(wanted).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (int, "4.0"),
        (int, "042"),
        (int, "1_000"),
        (int, "٣"),
        (int, ""),
        (float, "nan"),
        (float, ".5"),
        (float, "1e999"),
        (bool, "True"),
        (Literal["a", "b"], "A"),
        (Color, "NONE"),
        (Person, '{"name":"A"}'),
        (Person, '{"name":"A","age":-1}'),
        (Person, '{"name":"A"'),
        (list[int], "[1,]"),
        (Row, "{}"),
    ],
)
def test_other_texts_are_value_errors(wanted: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        output_type(wanted).parse(text)


def test_errors_of_plain_types_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"expected an int such as 42, got 'forty'"):
        output_type(int).parse("forty")
    with pytest.raises(ValueError, match=r"expected one of red, 0, got 'blue'"):
        output_type(Color).parse("blue")


@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_every_int_of_18_digits_can_be_written(value: int) -> None:
    assert re.fullmatch(INT, str(value))
    assert output_type(int).parse(str(value)) == value


@given(st.from_regex(re.compile(FLOAT, re.ASCII), fullmatch=True))
def test_every_float_text_is_a_finite_number(text: str) -> None:
    value = output_type(float).parse(text)
    assert value == float(text)
    assert abs(value) < float("inf")


def test_numbers_are_patterns_and_values_are_choices() -> None:
    assert output_type(int).constraint == Regex(INT)
    assert output_type(float).constraint == Regex(FLOAT)
    assert output_type(bool).constraint == Choice(("true", "false"))
    assert output_type(Literal["a", 2]).constraint == Choice(("a", "2"))
    assert output_type(Color).constraint == Choice(("red", "0"))
    assert output_type(str).constraint is None


def test_objects_hold_no_undeclared_keys_unless_the_type_says_so() -> None:
    schema = schema_of(Person)
    assert schema["$defs"]["Person"]["additionalProperties"] is False
    assert schema_of(Open)["additionalProperties"] is True
    assert schema_of(Open)["properties"]["properties"]["additionalProperties"] == {"type": "integer"}
    assert schema_of(dict[str, int])["additionalProperties"] == {"type": "integer"}
    assert schema_of(Table)["$defs"]["Row"]["additionalProperties"] is False
    assert schema_of(Row)["required"] == ["id"]


def test_a_schema_that_the_user_wrote_stays_as_it_is() -> None:
    wanted = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert schema_of(wanted) == wanted


def test_sets_ask_for_nothing_that_masks_can_not_hold() -> None:
    assert "uniqueItems" not in schema_of(Point)["properties"]["tags"]


class _Undefined(BaseModel):
    later: "Nowhere"  # type: ignore[name-defined]  # noqa: F821  # what is tested


class _Same(enum.Enum):
    A = "1"
    B = 1


class _Odd(enum.Enum):
    A = (1, 2)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (object(), "JSON schema"),
        (lambda: None, "needs a type"),
        ("int", "needs a type"),
        (_Undefined, "JSON schema"),
        (_Same, "written '1'"),
        (_Odd, "texts, numbers"),
        (Literal[""], "empty text"),
        (enum.Enum("Empty", {}), "at least one value"),
    ],
)
def test_what_can_not_be_a_type_is_refused_by_the_line_that_asks(wanted: Any, told: str) -> None:
    with pytest.raises(bp.ProgramMistake, match=told):
        bp.gen("x", wanted)


def test_a_program_reads_typed_values() -> None:
    @bp.function
    def program(s: bp.State) -> list[object]:
        s += bp.gen("n", int) + " " + bp.gen("ok", bool) + " " + bp.gen("who", Person) + bp.gen("rows", list[Row], n=2)
        return [s["n"], s["ok"], s["who"].name, s["rows"]]

    fake = bp.Fake(["12", "true", '{"name":"Ada","age":36}', ['[{"id":1}]', "[]"]])
    assert program.run(backend=fake).value == [12, True, "Ada", [[{"id": 1}], []]]
