"""Holds a value to what its grammar is looser than: as soon as it can't become valid any more, and when it is complete.

`verdict` is three-valued: valid whatever follows, invalid whatever follows, or open (None). Complete values are judged by
jsonschema-rs. Values are `partial.py`'s; `reader.py` asks at each key, value and end of a container.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.errors import InvalidSchema, shorten
from branchpoint.constrained.judge_reach import Reach
from branchpoint.constrained.judge_rules import RULES
from branchpoint.constrained.partial import Frame, Node, Open, written_key
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.verdict import Verdict

__all__ = ["Duties", "Judge"]

_DEEPEST = 200
Duties = tuple[SchemaMap, ...]


class Judge:
    """For one normalised schema and the ids of its loose dicts. Shared by cursors; only remembers validators and answers.

    `free` has the ids of dicts whose keys come in any order, with the names that may be (None: any): see `unordered.py`.
    """

    def __init__(self, root: Schema, loose: frozenset[int], free: Mapping[int, frozenset[str] | None] | None = None) -> None:
        self._root = root
        self._loose = loose
        self._free = free or {}
        self.definitions = Definitions(root.get("$defs", {}) if isinstance(root, dict) else {})
        self._validators: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}
        self._concerns: dict[int, bool] = {}
        self._duties: dict[int, Duties] = {}
        self._members: dict[tuple[int, str], Duties] = {}
        self._mark()

    def root_duties(self) -> Duties:
        """What the whole value must satisfy."""
        return self.duties(self._root)

    def is_loose(self, duties: Duties) -> bool:
        """Whether a container with these duties must be judged before it is complete."""
        return any(id(duty) in self._loose for duty in duties)

    @property
    def is_about_values(self) -> bool:
        """Whether anything but brackets and keys is judged."""
        return bool(self._loose)

    def duties(self, schema: Schema) -> Duties:
        """The parts of a schema that always apply in place, as far as something loose lies in them."""
        if isinstance(schema, bool):
            return ()
        if id(schema) not in self._duties:
            found: dict[int, SchemaMap] = {}
            self._collect(schema, found)
            self._duties[id(schema)] = tuple(each for each in found.values() if self._concerns.get(id(each)))
        return self._duties[id(schema)]

    def member_duties(self, frame: Frame) -> Duties:
        """What the member that is being written must satisfy."""
        if len(frame.duties) == 1:
            return self._member_of(frame.duties[0], frame)
        return tuple(each for duty in frame.duties for each in self._member_of(duty, frame))

    def _member_of(self, duty: SchemaMap, frame: Frame) -> Duties:
        if not frame.is_object:
            first = duty.get("prefixItems", ())
            schema = first[frame.count] if frame.count < len(first) else duty.get("items", True)
            return self.duties(schema)
        key = (id(duty), str(frame.key))
        found = self._members.get(key)
        if found is None:
            found = tuple(each for schema in self.property_schemas(duty, str(frame.key)) for each in self.duties(schema))
            if len(self._members) < 10_000:
                self._members[key] = found
        return found

    def property_schemas(self, schema: SchemaMap, name: str) -> list[Schema]:
        """The subschemas for a property, by its name, patterns, or as an additional one."""
        known = schema.get("properties", {})
        found = [known[name]] if name in known else []
        found += [each for pattern, each in schema.get("patternProperties", {}).items() if self.matches(pattern, name)]
        return found or [schema.get("additionalProperties", True)]

    def names_property(self, schema: SchemaMap, name: str) -> bool:
        """Whether a schema names a property, or has a pattern for it."""
        return name in schema.get("properties", {}) or any(
            self.matches(pattern, name) for pattern in schema.get("patternProperties", {})
        )

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern finds something in a name."""
        if pattern not in self._patterns:
            self._patterns[pattern] = jsonschema_rs.Draft202012Validator({"pattern": pattern})
        return bool(self._patterns[pattern].is_valid(name))

    def begins(self, duties: Duties, value: Open) -> bool:
        """Whether a value that has begun may still satisfy its duties."""
        return all(id(duty) not in self._loose or self.verdict(duty, value) is not False for duty in duties)

    def holds(self, duties: Duties, node: Node) -> bool:
        """Whether a complete value satisfies its duties."""
        return all(self._holds_duty(duty, node) for duty in duties)

    def _holds_duty(self, duty: SchemaMap, node: Node) -> bool:
        if id(duty) in self._loose:
            return self.is_valid(duty, node)
        if id(duty) not in self._free or node.kind != "object":
            return True
        return all(name in node.value for name in duty.get("required", ()))

    def needs(self, frame: Frame) -> bool:
        """Whether a free object can't be closed yet, should the member being written be whole."""
        names = frame.names
        return any(
            id(duty) in self._free and not all(name in names or name == frame.key for name in duty.get("required", ()))
            for duty in frame.duties
        )

    def left(self, frame: Frame) -> tuple[bytes, ...] | None:
        """The keys that a free object may still have, as written between quotes, sorted; None where any may come."""
        if ("left", "") not in frame.memo:
            closed = [names for duty in frame.duties if (names := self._free.get(id(duty))) is not None]
            frame.memo["left", ""] = None
            if closed:
                left = frozenset.intersection(*closed) - frame.names.keys() - {frame.key}
                frame.memo["left", ""] = tuple(sorted(written_key(str(name)) for name in left))
        found: tuple[bytes, ...] | None = frame.memo["left", ""]
        return found

    def stands(self, frame: Frame, child: Open | None) -> bool:
        """Whether an open container, and all that hold it, may still satisfy their duties."""
        at: Frame | None = frame
        view = Open("object" if frame.is_object else "array", frame, child)
        while at is not None and at.loose:
            if not self.begins(at.duties, view):
                return False
            at = at.above
            if at is not None:
                view = Open("object" if at.is_object else "array", at, view)
        return True

    def is_sensitive(self, frame: Frame, kind: str) -> bool:
        """Whether the content of a primitive, the member being written in a loose frame, may matter to anyone."""
        known = frame.memo.get(("sensitive", kind))
        if known is None:
            reach, whole = self._reach(frame)
            known = frame.memo["sensitive", kind] = whole or self._member_reach(reach, frame).sees(kind)
        return bool(known)

    def seeing(self, frame: Frame) -> tuple[frozenset[str], Duties] | None:
        """What is seen of a string, a loose frame's member: values told apart, and schemas that look at it otherwise.

        None where it is compared with others.
        """
        if ("seeing", "") not in frame.memo:
            reach, whole = self._reach(frame)
            frame.memo["seeing", ""] = None if whole else self._member_reach(reach, frame).strings()
        found: tuple[frozenset[str], Duties] | None = frame.memo["seeing", ""]
        return found

    def told(self, duties: Duties) -> frozenset[str]:
        """The strings that duties tell apart from all others."""
        reach = Reach(self.definitions)
        reach.add(duties)
        return reach.strings()[0]

    def _member_reach(self, reach: Reach, frame: Frame) -> Reach:
        below = Reach(self.definitions)
        below.add(self._below(reach, frame))
        return below

    def refuses_keys(self, frame: Frame) -> bool:
        """Whether some key that a loose object tells apart can't come next; taken for granted where patterns tell."""
        known = frame.memo.get(("refuses", ""))
        if known is None:
            names = self.telling_names(frame)
            known = names is None or not all(
                self.stands(frame.at_key(name), Open(None)) for name in names if name not in frame.names
            )
            frame.memo["refuses", ""] = known
        return bool(known)

    def telling_names(self, frame: Frame) -> frozenset[str] | None:
        """The keys of an object that something tells apart from all others, None where any may be."""
        if ("names", "") not in frame.memo:
            frame.memo["names", ""] = self._reach(frame)[0].names()
        names: frozenset[str] | None = frame.memo["names", ""]
        return names

    def _reach(self, frame: Frame) -> tuple[Reach, bool]:
        """What may apply to a frame, and whether something compares it, or what holds it, as a whole."""
        reach, whole = Reach(self.definitions), False
        if frame.above is not None and frame.above.loose:
            above, whole = self._reach(frame.above)
            reach = self._member_reach(above, frame.above)
        reach.add(frame.duties)
        return reach, whole or reach.sees_whole

    def _below(self, reach: Reach, frame: Frame) -> Iterable[Schema]:
        for schema in reach.schemas.values():
            if frame.is_object:
                yield from self.property_schemas(schema, str(frame.key))
                yield schema.get("unevaluatedProperties", True)
            else:
                first = schema.get("prefixItems", ())
                yield first[frame.count] if frame.count < len(first) else schema.get("items", True)
                yield schema.get("unevaluatedItems", True)

    def is_valid(self, schema: Schema, node: Node) -> bool:
        """What the validator says of a complete value."""
        if isinstance(schema, bool):
            return schema
        known = node.verdicts.get(id(schema))
        if known is None:
            known = node.verdicts[id(schema)] = bool(self._validator(schema).is_valid(node.value))
        return known

    def _validator(self, schema: SchemaMap) -> Any:
        validator = self._validators.get(id(schema))
        if validator is None:
            whole = self.definitions.whole({key: value for key, value in schema.items() if key != "$defs"})
            try:
                validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
            except ValueError as error:
                raise InvalidSchema(f"Expected a schema that values can be judged by: {shorten(error)}") from error
            self._validators[id(schema)] = validator
        return validator

    def verdict(self, schema: Schema, value: Open | Node, depth: int = 0) -> Verdict:
        """Whether `value` satisfies `schema` whatever follows (True), never (False), or that depends (None)."""
        if isinstance(schema, bool):
            return schema
        if isinstance(value, Node):
            return self.is_valid(schema, value)
        if depth > _DEEPEST:
            return None
        if id(schema) not in value.verdicts:
            value.verdicts[id(schema)] = None  # while it is asked for, a reference back to it doesn't tell
            value.verdicts[id(schema)] = self._by_rules(schema, value, depth)
        return value.verdicts[id(schema)]

    def _by_rules(self, schema: SchemaMap, value: Open, depth: int) -> Verdict:
        result: Verdict = True
        for keyword in schema:
            rule = RULES.get(keyword)
            found = rule(self, schema, value, depth + 1) if rule else True
            if found is False:
                return False
            if found is None:
                result = None
        return result

    def _collect(self, schema: Schema, found: dict[int, SchemaMap]) -> None:
        if isinstance(schema, bool) or id(schema) in found:
            return
        found[id(schema)] = schema
        for each in _in_place(schema, self.definitions):
            self._collect(each, found)

    def _mark(self) -> None:
        """Which dicts have something loose in parts that always apply: themselves, or below; a fixed point over references."""
        places: dict[int, SchemaMap] = {}
        waiting: list[Schema] = [self._root]
        below: dict[int, list[int]] = {}
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, bool) or id(schema) in places:
                continue
            places[id(schema)] = schema
            parts = [each for each in (*_in_place(schema, self.definitions), *_parts(schema)) if isinstance(each, dict)]
            waiting += parts
            for each in parts:
                below.setdefault(id(each), []).append(id(schema))
        for number in self._loose & places.keys():  # made now, so that what is wrong with one is the compiler's error
            self._validator(places[number])
        marked = [number for number in places if number in self._loose or number in self._free]
        while marked:
            number = marked.pop()
            if not self._concerns.get(number):
                self._concerns[number] = True
                marked += below.get(number, ())


def _in_place(schema: SchemaMap, definitions: Definitions) -> Iterable[Schema]:
    yield from schema.get("allOf", ())
    if "$ref" in schema:
        yield definitions[schema["$ref"]]


def _parts(schema: SchemaMap) -> Iterable[Schema]:
    yield from schema.get("prefixItems", ())
    for keyword in ("properties", "patternProperties"):
        yield from schema.get(keyword, {}).values()
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield schema[keyword]
