"""Holds a value to what its grammar is looser than: as soon as it can't become valid any more, and when it is complete.

`verdict` is three-valued: valid whatever follows, invalid whatever follows, or open (None). Complete values are judged by
jsonschema-rs. Values are `partial.py`'s; `reader.py` asks at each key, value and end of a container.
"""

from collections.abc import Iterable, Mapping

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.judge_duties import Duties, DutyBook, judged_words
from branchpoint.constrained.judge_numbers import NumberSets
from branchpoint.constrained.judge_reach import Reach
from branchpoint.constrained.judge_rules import rules_for
from branchpoint.constrained.judge_validators import Validators
from branchpoint.constrained.partial import Frame, Node, Open, unwritten, written_key
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.verdict import Rule, Verdict, alike
from branchpoint.constrained.work import Work

__all__ = ["Judge"]

_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_DEEPEST = 200


class Judge:
    """For one normalised schema; `loose` has the ids of its loose dicts, and which of their words are to be judged.

    `free` has the ids of dicts whose keys come in any order, with the names that may be (None: any): see `unordered.py`.
    `bounds_numbers` tells whether any number has bounds. What is spent counts on `work`. Shared by cursors; only remembers
    validators and answers.
    """

    def __init__(
        self,
        root: Schema,
        loose: Mapping[int, frozenset[str]],
        free: Mapping[int, frozenset[str] | None] | None = None,
        work: Work | None = None,
    ) -> None:
        self.work = work or Work()
        self._root = root
        self._loose = loose
        self._free = free or {}
        self.definitions = Definitions(root.get("$defs", {}) if isinstance(root, dict) else {})
        self._validators = Validators(self.definitions)
        self._numbers = NumberSets(self.definitions)
        self._unwritten: dict[int, Verdict] = {}
        self._rules: dict[tuple[int, str | None], tuple[Rule, ...]] = {}
        self._told: dict[tuple[int, ...], frozenset[str]] = {}
        self._members: dict[tuple[int, str], Duties] = {}
        self._book = DutyBook(root, self.definitions, loose.keys() | self._free.keys())
        places = self._book.places
        for number in loose.keys() & places.keys():  # made now, so that what is wrong with one is the compiler's error
            self._validators.make(places[number])
        self.bounds_numbers = not all(map(_BOUNDS.isdisjoint, places.values()))
        self._open = {number: judged_words(places[number], loose[number]) for number in loose.keys() & places.keys()}

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
        """The parts of a schema that always apply in place, as far as something loose or free lies in them."""
        return self._book.duties(schema)

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
        found += [
            each for pattern, each in schema.get("patternProperties", {}).items() if self._validators.matches(pattern, name)
        ]
        return found or [schema.get("additionalProperties", True)]

    def names_property(self, schema: SchemaMap, name: str) -> bool:
        """Whether a schema names a property, or has a pattern for it."""
        return name in schema.get("properties", {}) or any(
            self._validators.matches(pattern, name) for pattern in schema.get("patternProperties", {})
        )

    def begins(self, duties: Duties, value: Open) -> bool:
        """Whether a value that has begun may still satisfy its duties."""
        if value.kind is None:
            return all(self.verdict(duty, value) is not False for duty in duties)
        if value.kind == "number" and any(self._numbers.verdict(duty, value.text) is False for duty in duties):
            return False
        return all(id(duty) not in self._open or self._may_hold(id(duty), value) for duty in duties)

    def _may_hold(self, number: int, value: Open) -> bool:
        """Whether the loose words of a dict may come true."""
        settled = value.settled if value.frame is not None else None
        depth = value.frame.depth if value.frame is not None else 0
        if settled is not None and settled.get((depth, ~number)):
            return True
        found = self._by_rules(self._open[number], value, 0)
        if found and settled is not None and value.storing:
            settled[depth, ~number] = True
        return found is not False

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
        storing = child is None or child.kind is None  # else what is said holds for this child only
        while at is not None and at.loose:
            view.settled, view.storing = frame.settled, storing
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
        key = tuple(map(id, duties))
        if key not in self._told:
            reach = Reach(self.definitions)
            reach.add(self._open[id(duty)] for duty in duties if id(duty) in self._open)
            self._told[key] = reach.strings()[0]
        return self._told[key]

    def _member_reach(self, reach: Reach, frame: Frame) -> Reach:
        below = Reach(self.definitions)
        below.add(self._below(reach, frame))
        return below

    def telling_names(self, frame: Frame) -> frozenset[str] | None:
        """The keys of an object that something tells apart from all others, None where any may be."""
        if ("names", "") not in frame.memo:
            frame.memo["names", ""] = self._reach(frame)[0].names()
        names: frozenset[str] | None = frame.memo["names", ""]
        return names

    def _reach(self, frame: Frame) -> tuple[Reach, bool]:
        """What may apply to a frame, and whether something compares it, or what holds it, as a whole."""
        found: tuple[Reach, bool] | None = frame.memo.get(("reach", ""))
        if found is None:
            reach, whole = Reach(self.definitions), False
            if frame.above is not None and frame.above.loose:
                above, whole = self._reach(frame.above)
                reach = self._member_reach(above, frame.above)
            reach.add(self._open[id(duty)] for duty in frame.duties if id(duty) in self._open)
            found = frame.memo["reach", ""] = reach, whole or reach.sees_whole
        return found

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
        return self._validators.is_valid(schema, node)

    def verdict(self, schema: Schema, value: Open | Node, depth: int = 0) -> Verdict:
        """Whether `value` satisfies `schema` whatever follows (True), never (False), or that depends (None)."""
        if isinstance(schema, bool):
            return schema
        self.work.spend()
        if isinstance(value, Node):
            return self.is_valid(schema, value)
        if depth > _DEEPEST:
            return None
        if value.kind is None:
            return self._of_any(schema)
        number = id(schema)
        if number in value.verdicts:
            return value.verdicts[number]
        if value.settled is not None and value.frame is not None:
            settled = value.settled.get((value.frame.depth, number))
            if settled is not None:
                return settled
        value.verdicts[number] = None  # while it is asked for, a reference back to it doesn't tell
        found = value.verdicts[number] = self._by_rules(schema, value, depth)
        if found is not None and value.storing and value.frame is not None and value.settled is not None:
            value.settled[value.frame.depth, number] = found
        return found

    def _of_any(self, schema: SchemaMap) -> Verdict:
        """What a schema says of a value of which nothing is written: what it says of each type, where that is the same."""
        if id(schema) not in self._unwritten:
            self._unwritten[id(schema)] = alike([self._by_rules(schema, value, 0) for value in unwritten()])
        return self._unwritten[id(schema)]

    def _by_rules(self, schema: SchemaMap, value: Open, depth: int) -> Verdict:
        result: Verdict = self._numbers.verdict(schema, value.text) if value.kind == "number" else None
        if result is not None:
            return result
        key = (id(schema), value.kind)
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = rules_for(schema, value.kind)
        result = True
        for rule in rules:
            found = rule(self, schema, value, depth + 1)
            if found is False:
                return False
            if found is None:
                result = None
        return result
