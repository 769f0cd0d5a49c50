"""What the checks ask for: small objects, as pydantic models, a schema and a tool. Their JSON is short whatever the model."""

from enum import Enum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["QUESTION", "SCHEMA", "TOOL", "Kind", "Part", "Person", "Place"]

QUESTION: Final = "Ann is 31 years old. Who is she?"


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


class Kind(Enum):
    """What a place is."""

    CITY = "city"
    RIVER = "river"


class Part(BaseModel):
    """A part of a place."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    size: int | None = Field(ge=0, le=99)


class Place(BaseModel):
    """Somewhere, with what clients' schemas hold: references, enumerations, alternatives, lists."""

    model_config = ConfigDict(extra="forbid")
    kind: Kind
    side: Literal["left", "right"]
    parts: list[Part] = Field(max_length=2)


SCHEMA: Final = Person.model_json_schema()
TOOL: Final = {"type": "function", "function": {"name": "note", "description": "Note a person.", "parameters": SCHEMA}}
