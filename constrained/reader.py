"""Reads JSON byte by byte as the grammar lets it be written, and asks the judge at each key, value and end of a container.

`engines/judged.py` keeps one state for each token. The grammar sees to it that the text is JSON; this only keeps track.
"""

from collections.abc import Callable
from enum import Enum

from branchpoint.constrained.judge import Judge
from branchpoint.constrained.judge_duties import Duties
from branchpoint.constrained.partial import Frame, Node, Open, is_endless, read_primitive

__all__ = ["At", "Reader", "State"]

_SPACE = frozenset(b" \t\n\r")
_QUOTE, _BACKSLASH, _COMMA = b'"'[0], b"\\"[0], b","[0]
_OPENING = {b"{"[0]: True, b"["[0]: False}
_CLOSING = frozenset(b"}]")
_IN_NUMBER = frozenset(b"0123456789+-.eE")
_LITERALS = (b"true", b"false", b"null")
_KINDS = {ord("t"): "boolean", ord("f"): "boolean", ord("n"): "null", _QUOTE: "string"}


class At(Enum):
    """What comes next."""

    PREFIX = "the text before the value"
    VALUE = "a value, or the end of an array"
    KEY = "a key, or the end of an object"
    IN_KEY = "the rest of a key"
    COLON = "a colon"
    IN_STRING = "the rest of a string"
    IN_SCALAR = "the rest of a number or a literal"
    AFTER = "a comma, or the end of a container"
    END = "nothing"


class State:
    """Where the text stands: the innermost open container, the primitive being written, and what it must satisfy.

    `skip` counts the bytes before the value that are still to come. Not to be changed.
    """

    __slots__ = ("at", "duties", "frame", "skip", "text")

    def __init__(self, at: At, frame: Frame | None, duties: Duties, text: bytes = b"", skip: int = 0) -> None:
        self.at = at
        self.frame = frame
        self.duties = duties
        self.text = text
        self.skip = skip

    @property
    def is_watched(self) -> bool:
        """Whether what the current primitive turns out to be matters to anyone."""
        frame = self.frame
        return bool(self.duties) or (frame is not None and (frame.loose or (self.at is At.IN_KEY and bool(frame.duties))))


class Reader:
    """Steps from state to state; None where the judge refuses."""

    def __init__(self, judge: Judge, prefix: int) -> None:
        self._judge = judge
        self._prefix = prefix

    def start(self) -> State:
        """Before the first byte. The first `prefix` bytes are not the value's."""
        return State(At.PREFIX if self._prefix else At.VALUE, None, self._judge.root_duties(), skip=self._prefix)

    def read(self, state: State, text: bytes) -> State | None:
        """The state after `text`, None where the value can't become valid any more. What comes after the value isn't read."""
        return self.read_value(state, text)[0]

    def read_value(self, state: State, text: bytes) -> tuple[State | None, int]:
        """The state after as many bytes of `text` as belong to the value, and how many these are."""
        at: State | None = state
        place = 0
        while at is not None and place < len(text) and at.at is not At.END:
            if at.at in (At.IN_STRING, At.IN_KEY):
                end = _closing_quote(at.text, text, place)
                if end is None:
                    return self._grown(at, text[place:]), len(text)
                at = self._string(at, at.text + text[place : end + 1])
                place = end + 1
            elif at.at is At.IN_SCALAR and text[place] not in _IN_NUMBER and at.text[0] in _IN_NUMBER:
                at = self._complete(at)
            else:
                at = self._byte(at, text[place])
                place += 1
        return at, place

    def is_blind(self, state: State) -> bool:
        """Whether nobody looks at what the string that is being written says, so that only what follows it counts."""
        if state.text.endswith(b"\\"):
            return False
        frame = state.frame
        if state.at is At.IN_KEY:
            return not state.is_watched
        return not state.duties and (frame is None or not frame.loose or not self._judge.is_sensitive(frame, "string"))

    def labels(self, state: State) -> Callable[[bytes], object]:
        """A name for each text such that texts of one name are read alike from `state`."""
        if state.at is At.IN_KEY and state.frame is not None:
            telling = self._judge.telling_names(state.frame)
            if telling is not None and self._judge.left(state.frame) is None:
                known = {name.encode() for name in (*telling, *state.frame.names)}
                return lambda text: _key_label(state.text, text, known)
        if state.at is At.IN_STRING and not state.duties and state.frame is not None and state.frame.loose:
            seeing = self._judge.seeing(state.frame)
            if seeing is not None:
                return lambda text: self._string_label(state.text, text, *seeing)
        return lambda text: text

    def told(self, state: State) -> frozenset[str] | None:
        """The values that something tells apart from all others in the string being written, None where any may be."""
        told = self._judge.told(state.duties)
        if state.frame is not None and state.frame.loose:
            seeing = self._judge.seeing(state.frame)
            return None if seeing is None else told | seeing[0]
        return told

    def _string_label(self, before: bytes, text: bytes, told: frozenset[str], seeing: Duties) -> object:
        """A string by its value where that is told apart, by what each schema that looks at it says, and what follows it."""
        end = _closing_quote(before, text, 0)
        node = read_primitive(before + text[: end + 1]) if end is not None else None
        if end is None or node is None:
            return text
        said = tuple(self._judge.is_valid(schema, node) for schema in seeing)
        return node.value if node.value in told else None, said, text[end:]

    def may_end(self, state: State) -> bool:
        """Whether the whole value is complete and valid here."""
        if state.at is At.IN_SCALAR and state.frame is None:
            return self._complete(state) is not None
        return state.at is At.END

    def _grown(self, state: State, more: bytes) -> State | None:
        grown = State(state.at, state.frame, state.duties, state.text + more)
        if state.at is At.IN_STRING:
            return grown if self._begins(grown, "string") else None
        left = self._judge.left(state.frame) if state.frame is not None else None
        return grown if left is None or any(name.startswith(grown.text[1:]) for name in left) else None

    def _begins(self, state: State, kind: str) -> bool:
        """Whether the primitive that is being written may still become valid."""
        if not state.is_watched:
            return True
        frame = state.frame
        if kind == "number" and is_endless(state.text) and ((frame and frame.loose) or self._judge.is_loose(state.duties)):
            return False
        value = Open(kind, text=state.text)
        if state.duties and not self._judge.begins(state.duties, value):
            return False
        if frame is None or not frame.loose:
            return True
        if self._judge.is_sensitive(frame, kind):
            return self._judge.stands(frame, value)
        known = frame.memo.get(("begins", kind))
        if known is None:
            known = frame.memo["begins", kind] = self._judge.stands(frame, value)
        return bool(known)

    def _byte(self, state: State, byte: int) -> State | None:
        at = state.at
        if at is At.PREFIX:
            return State(At.PREFIX if state.skip > 1 else At.VALUE, None, state.duties, skip=state.skip - 1)
        if at is At.IN_SCALAR:
            return self._scalar(state, byte)
        if byte in _SPACE:
            return state
        if byte in _CLOSING:
            return self._close(state)
        if at is At.VALUE:
            return self._value(state, byte)
        if at is At.KEY:
            return State(At.IN_KEY, state.frame, (), b'"') if byte == _QUOTE else state
        if at is At.COLON:
            return State(At.VALUE, state.frame, state.duties)
        if at is At.AFTER and byte == _COMMA and state.frame is not None:
            return self._next(state.frame)
        return state

    def _next(self, frame: Frame) -> State | None:
        """After a comma, or the opening of a container."""
        if frame.is_object and frame.cell is not None and self._judge.left(frame) == ():
            return None
        if frame.is_object:
            return State(At.KEY, frame, ())
        return State(At.VALUE, frame, self._judge.member_duties(frame) if frame.duties else ())

    def _value(self, state: State, byte: int) -> State | None:
        if byte in _OPENING:
            is_object = _OPENING[byte]
            loose = self._judge.is_loose(state.duties) or (state.frame is not None and state.frame.loose)
            frame = Frame(state.frame, state.duties, is_object=is_object, loose=loose)
            return self._next(frame) if not loose or self._judge.stands(frame, None) else None
        kind = _KINDS.get(byte, "number")
        begun = State(At.IN_STRING if kind == "string" else At.IN_SCALAR, state.frame, state.duties, bytes((byte,)))
        return begun if self._begins(begun, kind) else None

    def _scalar(self, state: State, byte: int) -> State | None:
        grown = State(At.IN_SCALAR, state.frame, state.duties, state.text + bytes((byte,)))
        if grown.text in _LITERALS:
            return self._complete(grown)
        return grown if self._begins(grown, _KINDS.get(grown.text[0], "number")) else None

    def _string(self, state: State, text: bytes) -> State | None:
        if state.at is At.IN_STRING:
            return self._complete(State(At.IN_STRING, state.frame, state.duties, text))
        frame = state.frame
        assert frame is not None, "a key stands in an object"
        if not frame.duties and not frame.loose:
            return State(At.COLON, frame, ())
        node = read_primitive(text)
        left = self._judge.left(frame)
        if node is None or node.value in frame.names or (left is not None and text[1:-1] not in left):
            return None
        keyed = frame.at_key(node.value)
        if frame.loose and not self._judge.stands(keyed, Open(None)):
            return None
        duties = self._judge.member_duties(keyed)
        return State(At.COLON, keyed, duties) if self._judge.begins(duties, Open(None)) else None

    def _complete(self, state: State) -> State | None:
        """A primitive is complete."""
        if not state.is_watched and (state.frame is None or not state.frame.duties):
            return self._after(state.frame, None)
        node = read_primitive(state.text)
        if node is None or not self._judge.holds(state.duties, node):
            return None
        return self._after(state.frame, node)

    def _close(self, state: State) -> State | None:
        frame = state.frame
        assert frame is not None, "only an open container is closed"
        watched = frame.duties or frame.loose or (frame.above is not None and bool(frame.above.duties))
        if not watched:
            return self._after(frame.above, None)
        node = frame.close()
        return self._after(frame.above, node) if self._judge.holds(frame.duties, node) else None

    def _after(self, frame: Frame | None, node: Node | None) -> State | None:
        """A value is complete in `frame`; `node` is None where nobody looks at it."""
        if frame is None:
            return State(At.END, None, ())
        if node is None:
            return State(At.AFTER, frame, ())
        grown = frame.with_member(node)
        return State(At.AFTER, grown, ()) if not frame.loose or self._judge.stands(grown, None) else None


def _closing_quote(before: bytes, text: bytes, start: int) -> int | None:
    """Where the string that was begun in `before` ends in `text`, from `start` on."""
    escaped = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1
    for at in range(start, len(text)):
        byte = text[at]
        if escaped:
            escaped = False
        elif byte == _BACKSLASH:
            escaped = True
        elif byte == _QUOTE:
            return at
    return None


def _key_label(before: bytes, text: bytes, known: set[bytes]) -> object:
    """A key by what follows it, and by itself where it is known (or may be, by an escape)."""
    end = _closing_quote(before, text, 0)
    if end is None:
        return b""
    name = before[1:] + text[:end]
    return text[end:] if name not in known and b"\\" not in name else (name, text[end:])
