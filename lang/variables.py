"""What a name in a state stands for: a call, a value that was set, what the branches of a fork hold, a stretch of text.

A state binds names to these in program order; reading one waits for what it needs and raises what failed.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from branchpoint.lang.chain import text_of
from branchpoint.lang.errors import Incomplete, Origin, ProgramError, ProgramMistake
from branchpoint.lang.expr import Gen, Select
from branchpoint.lang.ledger import Entry, Pending, Place
from branchpoint.lang.report import Record
from branchpoint.lang.result import Meta, SampleMeta
from branchpoint.lang.stream import Replay
from branchpoint.lang.tools import CLOSE
from branchpoint.runtime.messages import Usage

if TYPE_CHECKING:
    from branchpoint.lang.asking import Answer
    from branchpoint.lang.stretch import Stretch

__all__ = ["CallEntry", "Fixed", "Insert", "Joined", "Scope", "Thoughts", "Variable", "thoughts_of"]


class Variable(Protocol):
    """Something that a name is bound to."""

    def needs(self) -> Iterable[Pending]:
        """The entries that reading waits for."""

    def read(self) -> object:
        """The value. Waits; raises ProgramError or Incomplete."""

    def meta(self) -> Meta:
        """What is known besides the value. Waits; raises ProgramError, or ProgramMistake where no call made the value."""


class CallEntry(Pending):
    """A `gen` or `select` in the ledger; `index` counts the calls of its state, `seen` the output tokens that have come.

    `answers` are the requests of a gen that is staged or within a stretch, with what came of them; `began` is when it was
    performed (`time.perf_counter`), 0 before; `stretch` what it is part of, None outside of any.
    Where thinking is told apart, `said` and `thoughts` are the streams of the two; else `said` is that of the entry.
    """

    __slots__ = ("_lost", "_meta", "_values", "answers", "began", "expr", "index", "said", "seen", "stretch", "thoughts")

    def __init__(
        self, previous: Entry | None, origin: Origin, place: Place, gate: Pending | None, *, expr: Gen | Select, index: int
    ) -> None:
        super().__init__(previous, origin, place, gate)
        self.expr = expr
        self.index = index
        self.stretch: Stretch | None = None
        self.seen = 0
        self.answers: tuple[Answer, ...] = ()
        self.began = 0.0
        reasoning = expr.reasoning if isinstance(expr, Gen) else None
        self.thoughts: Replay[str] | None = Replay(place.context.lock) if reasoning is not None else None
        self.said: Replay[str] = Replay(place.context.lock) if reasoning is not None and reasoning.keep else self.pieces
        self._meta: Meta | None = None
        self._lost: tuple[Usage, float] | None = None
        self._values: tuple[object, ...] | None = None

    @property
    def name(self) -> str | None:
        """The variable that it sets."""
        return self.expr.name

    @property
    def kind(self) -> str:
        """How reports call it: `gen`, or `select` with its method."""
        return f"select {self.expr.method.name}" if isinstance(self.expr, Select) else "gen"

    @property
    def label(self) -> str:
        """How errors call it."""
        kind = "select" if isinstance(self.expr, Select) else "gen"
        return f"{kind} {self.name!r}" if self.name else f"An unnamed {kind}"

    def stream_of(self, name: str) -> Replay[str] | None:
        """The stream of the variable `name`, None where the call doesn't set it."""
        if self.name is None:
            return None
        return self.said if name == self.name else self.thoughts if name == thoughts_of(self.name) else None

    def stream(self, thought: str, said: str) -> None:
        """Pass on a piece of a gen that thinks; empty ones are left out."""
        if thought and self.thoughts is not None:
            self.thoughts.put(thought)
        if said:
            self.said.put(said)

    def say(self, text: str) -> None:
        """Pass on a piece of the answer that goes into the ledger; an empty one is left out."""
        self.stream("", text)
        if text and self.said is not self.pieces:
            self.pieces.put(text)

    def show(self, sample: SampleMeta, text: str) -> None:
        """Pass on a whole sample, of which `text` goes into the ledger."""
        if self.thoughts is not None:
            self.thoughts.put(sample.reasoning)
        if self.said is not self.pieces:
            self.said.put(sample.text)
        self.pieces.put(text)

    def streams(self) -> Iterable[Replay[str]]:
        """The entry's own, that of the thinking, and that of the answer."""
        return [self.pieces, self.said] if self.thoughts is None else [self.pieces, self.said, self.thoughts]

    def needs(self) -> Iterable[Pending]:
        """Itself."""
        return (self,)

    def finish(self, meta: Meta) -> None:
        """Keep what came out; called once, before the entry is settled."""
        self._meta = meta

    def lose(self, usage: Usage, seconds: float) -> None:
        """Keep what it cost, where nothing comes out; called once, before the entry is settled."""
        self._lost = usage, seconds

    def record(self) -> Record | None:
        """What it cost, None where it never cost anything; asked once the entry is settled."""
        if self._meta is not None:
            usage, seconds = self._meta.usage, self._meta.seconds
        elif self._lost is not None:
            usage, seconds = self._lost
        else:
            return None
        wasted = self._lost is not None or self.dropped is not None
        return Record(self.origin, self.name, self.kind, self.place.branch, usage, seconds, wasted)

    def meta(self) -> Meta:
        """What is known of the call."""
        self.wait()
        if self._meta is None:
            raise ProgramError(f"{self.label} ended without a result.", variable=self.name, origin=self.origin)
        return self._meta

    def read(self) -> object:
        """The value, or a list of them where several samples were asked for."""
        meta = self.meta()
        if isinstance(self.expr, Select):
            return meta.text
        if self._values is None:
            self._values = tuple([self._value(self.expr, sample) for sample in meta.samples])
        return list(self._values) if len(self._values) > 1 else self._values[0]

    def _calls(self, sample: SampleMeta) -> bool:
        """Whether a gen with tools came to a call, be it cut: one that the backend made itself, or the request for one."""
        asked = self.answers[-1].request
        return asked.constraint is not None if asked.tools is None else sample.text.endswith(CLOSE)

    def _value(self, expr: Gen, sample: SampleMeta) -> object:
        held = expr.constraint is not None or (expr.tools is not None and self._calls(sample))
        if held and sample.finish_reason != "stop":
            raise Incomplete(
                f"{self.label} ({self.origin}) was cut (finish reason {sample.finish_reason!r}) before its value was whole; "
                f"allow more max_tokens. So far: {sample.text[:200]!r}",
                variable=self.name,
                partial=sample.text,
            )
        if expr.output is None:
            return sample.text
        try:
            return expr.output.parse(sample.text)
        except ValueError as error:
            raise ProgramError(
                f"{self.label} ({self.origin}) gave text that isn't a {expr.output.name}: {sample.text[:200]!r}",
                variable=self.name,
                program=self.place.context.program,
                origin=self.origin,
                branch=self.place.branch,
            ) from error


def thoughts_of(name: str) -> str:
    """The name under which the thinking before `name` is kept."""
    return f"{name}_reasoning_content"


class Thoughts:
    """The thinking before the value of `entry`."""

    def __init__(self, entry: CallEntry) -> None:
        self.entry = entry

    def needs(self) -> Iterable[Pending]:
        """The call."""
        return (self.entry,)

    def read(self) -> object:
        """The text, or a list of them where several samples were asked for."""
        texts = [sample.reasoning for sample in self.meta().samples]
        return texts if len(texts) > 1 else texts[0]

    def meta(self) -> Meta:
        """That of the call."""
        return self.entry.meta()


class Insert(Pending):
    """The text of a variable, of this state or another, put into the ledger when it is there."""

    __slots__ = ("variable",)

    def __init__(self, previous: Entry | None, origin: Origin, place: Place, gate: Pending | None, *, variable: Variable) -> None:
        super().__init__(previous, origin, place, gate)
        self.variable = variable

    @property
    def label(self) -> str:
        """How errors call it."""
        return "The text of a value"


class Fixed:
    """A value that the program set."""

    def __init__(self, name: str, value: object) -> None:
        self._name = name
        self._value = value

    def needs(self) -> Iterable[Pending]:
        """Nothing."""
        return ()

    def read(self) -> object:
        """The value."""
        return self._value

    def meta(self) -> Meta:
        """There is none."""
        raise ProgramMistake(f"Variable {self._name!r} was set by the program; only gen and select have metadata.")


class Joined:
    """A variable of the branches of a fork, in their order; None where a branch hasn't set it."""

    def __init__(self, name: str, variables: Sequence[Variable | None], on_error: Literal["raise", "return"]) -> None:
        self._name = name
        self._variables = tuple(variables)
        self._on_error = on_error

    def needs(self) -> Iterable[Pending]:
        """What the branches' variables need."""
        return [need for variable in self._variables if variable is not None for need in variable.needs()]

    def read(self) -> object:
        """The list of values."""
        return [self._one(variable) for variable in self._variables]

    def _one(self, variable: Variable | None) -> object:
        if variable is None or _given_up(variable):
            return None
        try:
            return variable.read()
        except (ProgramError, Incomplete) as error:
            if self._on_error == "raise":
                raise
            return error

    def meta(self) -> Meta:
        """There is one for each branch."""
        raise ProgramMistake(f"Variable {self._name!r} was joined from a fork; read the metadata of each branch.")


def _given_up(variable: Variable) -> bool:
    """Whether it belongs to a branch that lost a race before the variable was there."""
    return any(need.place.ended and need.dropped for need in variable.needs())


class Scope:
    """The text that a ledger holds after `base`, up to `tail`."""

    def __init__(self, name: str, base: Entry | None, tail: Entry | None, gate: Pending | None) -> None:
        self._name = name
        self._base = base
        self._tail = tail
        self._gate = gate

    def needs(self) -> Iterable[Pending]:
        """The last entry that has to be waited for."""
        return (self._gate,) if self._gate is not None else ()

    def read(self) -> object:
        """The text."""
        if self._gate is not None:
            self._gate.wait()
        return text_of(self._tail, self._base)

    def meta(self) -> Meta:
        """There is none."""
        raise ProgramMistake(f"Variable {self._name!r} is a stretch of text; only gen and select have metadata.")
