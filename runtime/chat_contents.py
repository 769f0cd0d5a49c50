"""What a chat template does with the contents of messages, read from its source. Used by `chat_template.py`.

Most templates only write contents out. For those the text of a conversation is known without rendering it: the text with other
contents in it. Whatever isn't understood here counts as doing something else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from jinja2 import Environment, TemplateSyntaxError, nodes

__all__ = ["ContentUse", "content_use"]

_LOOP = {"first", "last", "index", "index0", "revindex", "revindex0", "length"}  # `loop` also gives the messages around one
_TYPE_TESTS = {"defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "boolean"}


@dataclass(frozen=True, slots=True)
class ContentUse:
    """`written`: contents are written out, and but for whether they are blank they decide nothing. `trimmed`: some without blanks
    at their ends."""

    written: bool
    trimmed: bool = False

    def writes_whole(self, contents: Sequence[str]) -> bool:
        """Whether these contents stand in the text as they are, and any others there would leave all other text the same."""
        return self.written and not (self.trimmed and any(content != content.strip() for content in contents))


def content_use(source: str) -> ContentUse:
    """Read the template `source`, for messages that have a `role` and a `content`, both texts."""
    try:
        template = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
        return _Reader().read(template)
    except (TemplateSyntaxError, _Unknown):
        return ContentUse(written=False)


class _Unknown(Exception):
    """Something that may look into a content."""


class _Kind(Enum):
    PLAIN = "the same whatever messages say"
    CONTENT = "a content, or text with contents in it"
    MESSAGE = "a message"
    MESSAGES = "a list of messages"


class _Reader:
    """Finds the kind of every expression. A name has one kind all over the template."""

    def __init__(self) -> None:
        self._names = {"messages": _Kind.MESSAGES}
        self._trimmed = False

    def read(self, template: nodes.Template) -> ContentUse:
        known: dict[str, _Kind] = {}
        while known != self._names:  # a name may be used above the place that tells its kind
            known = dict(self._names)
            self._statements(template.body)
        return ContentUse(written=True, trimmed=self._trimmed)

    def _statements(self, body: Sequence[nodes.Node]) -> None:
        for node in body:
            match node:
                case nodes.Output():
                    for part in node.nodes:
                        self._expect(part, _Kind.PLAIN, _Kind.CONTENT)
                case nodes.If():
                    self._decides(node.test)
                    for branch in (node.body, node.elif_, node.else_):
                        self._statements(branch)
                case nodes.For(recursive=False):
                    self._loop(node)
                case nodes.Assign():
                    self._bind(node.target, self._kind(node.node))
                case nodes.ExprStmt():
                    self._expect(node.node, _Kind.PLAIN)
                case nodes.Break() | nodes.Continue():
                    pass
                case _:
                    raise _Unknown

    def _loop(self, node: nodes.For) -> None:
        over = self._expect(node.iter, _Kind.PLAIN, _Kind.MESSAGES)
        self._bind(node.target, _Kind.MESSAGE if over is _Kind.MESSAGES else over)
        if node.test is not None:
            self._decides(node.test)
        self._statements(node.body)
        self._statements(node.else_)

    def _bind(self, target: nodes.Node, kind: _Kind) -> None:
        match target:
            case nodes.Name(name=name):
                before = self._names.get(name, kind)
                if before is not kind and {before, kind} != {_Kind.PLAIN, _Kind.CONTENT}:
                    raise _Unknown
                self._names[name] = kind if before is kind else _Kind.CONTENT
            case nodes.Tuple() if kind is _Kind.PLAIN:
                for item in target.items:
                    self._bind(item, kind)
            case nodes.NSRef() if kind is _Kind.PLAIN:
                pass
            case _:
                raise _Unknown

    def _expect(self, node: nodes.Node, *kinds: _Kind) -> _Kind:
        kind = self._kind(node)
        if kind not in kinds:
            raise _Unknown
        return kind

    def _kind(self, node: nodes.Node) -> _Kind:
        match node:
            case nodes.Name(name="loop" | "self" | "caller" | "varargs" | "kwargs"):
                raise _Unknown
            case nodes.Name(name=name):
                return self._names.get(name, _Kind.PLAIN)
            case nodes.Getattr(node=of, attr=key) | nodes.Getitem(node=of, arg=nodes.Const(value=key)):
                return self._part(of, key)
            case nodes.Getitem(node=of, arg=place):
                return self._item(of, place)
            case nodes.Add(left=left, right=right) | nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
                return self._joined(left, right)
            case nodes.Concat(nodes=parts):
                return self._joined(*parts)
            case nodes.CondExpr(test=test, expr1=one, expr2=other):
                self._decides(test)
                kind = self._kind(one)
                return kind if other is not None and self._kind(other) is kind else self._joined(one, *([other] if other else []))
            case nodes.Not(node=inner):
                self._decides(inner)
            case nodes.Test(name=name, node=of) if name in _TYPE_TESTS:
                self._kind(of)
            case nodes.Compare(expr=nodes.Const(), ops=[nodes.Operand(op="in" | "notin", expr=of)]):
                self._expect(of, _Kind.PLAIN, _Kind.MESSAGE)
            case nodes.Filter(name="length" | "count", node=nodes.Expr() as of, args=[], kwargs=[]):
                self._expect(of, _Kind.PLAIN, _Kind.MESSAGES)
            case (
                nodes.Filter(name="trim", node=nodes.Expr() as of, args=[], kwargs=[], dyn_args=None, dyn_kwargs=None)
                | nodes.Call(node=nodes.Getattr(attr="strip", node=of), args=[], kwargs=[], dyn_args=None, dyn_kwargs=None)
            ):
                kind = self._joined(of)
                self._trimmed |= kind is _Kind.CONTENT
                return kind
            case _:
                for child in node.iter_child_nodes():
                    self._expect(child, _Kind.PLAIN)
        return _Kind.PLAIN

    def _decides(self, test: nodes.Node) -> None:
        """A condition. Whether a content is blank may decide: that much of it is known."""
        match test:
            case nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
                self._decides(left)
                self._decides(right)
            case _:
                self._kind(test)

    def _joined(self, *parts: nodes.Node) -> _Kind:
        """Of texts that become one, or of which one is taken."""
        kinds = {self._expect(part, _Kind.PLAIN, _Kind.CONTENT) for part in parts}
        return _Kind.CONTENT if _Kind.CONTENT in kinds else _Kind.PLAIN

    def _part(self, of: nodes.Node, key: object) -> _Kind:
        """`of.key`, or `of[key]` with a constant. A template gets at methods, too."""
        if isinstance(of, nodes.Name) and of.name == "loop" and key in _LOOP:
            return _Kind.PLAIN
        kind = self._kind(of)
        if kind is _Kind.MESSAGE and isinstance(key, str) and not hasattr(dict, key):
            return _Kind.CONTENT if key == "content" else _Kind.PLAIN
        if kind is _Kind.MESSAGES and isinstance(key, int):
            return _Kind.MESSAGE
        if kind is not _Kind.PLAIN:
            raise _Unknown
        return kind

    def _item(self, of: nodes.Node, place: nodes.Node) -> _Kind:
        """`of[place]`, where `place` is computed."""
        self._expect(place, _Kind.PLAIN)
        kind = self._expect(of, _Kind.PLAIN, _Kind.MESSAGES)
        if kind is _Kind.MESSAGES and isinstance(place, nodes.Neg | nodes.Sub):  # numbers; a text could name a method
            return _Kind.MESSAGE
        if kind is _Kind.MESSAGES and not isinstance(place, nodes.Slice):
            raise _Unknown
        return kind
