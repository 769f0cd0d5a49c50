"""A program as a graph: what `Program.compile` gives, and `load_graph` reads again (LANGUAGE P6).

Traced by `trace.py`, held to `spec.py`, run by `play.py`. A program that isn't a graph says why, and is interpreted.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from branchpoint.lang.caller import failing_line
from branchpoint.lang.calls import gen
from branchpoint.lang.errors import ProgramMistake, UnknownVariable
from branchpoint.lang.nodes import Const, Graph, graph_from_json, graph_to_json
from branchpoint.lang.passes import constant_prefix
from branchpoint.lang.picture import picture
from branchpoint.lang.placeholder import Untraceable
from branchpoint.lang.play import play
from branchpoint.lang.run import Run
from branchpoint.lang.spec import verify
from branchpoint.lang.state import State
from branchpoint.lang.trace import Trace
from branchpoint.lang.types import OutputType

if TYPE_CHECKING:
    from branchpoint.lang.program import Program

__all__ = ["Compiled", "compile_program", "load_graph", "trace_program"]


class Compiled:
    """A compiled program. `graph` is None where it isn't one; `reason` says why, with the line. Runs like a program."""

    def __init__(
        self,
        graph: Graph | None,
        program: "Program[Any]",
        reason: Untraceable | None = None,
    ) -> None:
        self._graph = graph
        self.program = program
        self.reason = reason

    def __repr__(self) -> str:
        what = f"{len(self._graph.nodes)} nodes" if self._graph is not None else "interpreted"
        return f"<Compiled {self.program.name}, {what}>"

    @property
    def traced(self) -> bool:
        """Whether there is a graph."""
        return self._graph is not None

    @property
    def graph(self) -> Graph:
        """The graph. Raises Untraceable where there is none."""
        if self._graph is None:
            assert self.reason is not None, "what isn't traced has its reason"
            raise self.reason
        return self._graph

    def run(self, *args: object, **given: Any) -> Run[Any]:
        """See `Program.run`; `program` has the other ways to run."""
        return self.program.run(*args, **given)

    def warm(self, **given: Any) -> Run[Any]:
        """Compute the text that all runs begin with, so that even the first finds it in the cache. `given` as for `run`, but for
        arguments: a backend, a config. Raises Untraceable where there is no graph, ProgramMistake where no such text is.
        """
        from branchpoint.lang.program import Program

        prefix = constant_prefix(self.graph)
        if not prefix:
            raise ProgramMistake(
                f"Program {self.program.name} begins with something that differs from run to run; nothing to warm."
            )

        def body(s: State) -> None:
            play(msgspec.structs.replace(self.graph, nodes=prefix, variables={}, returns=Const(None)), s, {}, {})
            s += gen(max_tokens=0)

        body.__name__ = self.program.name
        return Program(body).run(**given)

    def show(self) -> str:
        """The graph as text, a node a line; or why there is none."""
        return picture(self._graph) if self._graph is not None else f"{self.program.name}: {self.reason}"

    def to_html(self, path: str | Path | None = None) -> str:
        """The graph as an HTML page, its states as a tree; `path` is where to write it, too. Raises Untraceable as `graph`."""
        from branchpoint.lang.graph_page import graph_page

        page = graph_page(self.graph)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        return self.to_html() if self.traced else None

    def to_json(self) -> str:
        """The graph as JSON, which `load_graph` reads. Raises Untraceable where there is none."""
        return graph_to_json(self.graph)

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")


def trace_program(program: "Program[Any]", given: Mapping[str, object], trace: Trace) -> Graph:
    """Trace a program: parameters neither given nor with a default are placeholders. Raises Untraceable, or what it raises."""
    body, open_names = program.prepare(given, trace.argument)
    if program.asynchronous:
        raise Untraceable("it is `async def`", program.origin)
    try:
        graph = trace.run(body, open_names, program.origin)
    except (Untraceable, UnknownVariable):
        raise
    except Exception as error:  # the boundary to the program's own code: a value that isn't there may be what it stumbled over
        if trace.placeholders.problem is not None:
            raise trace.placeholders.problem from error
        if not len(trace.placeholders):
            raise
        raise Untraceable(f"it raises {type(error).__name__} ({error})", failing_line(error)) from error
    return verify(graph_from_json(graph_to_json(graph)))


def compile_program(program: "Program[Any]", given: Mapping[str, object]) -> Compiled:
    """See `Program.compile`."""
    trace = Trace(program.name)
    try:
        graph = trace_program(program, given, trace)
    except Untraceable as reason:
        return Compiled(None, program.bind(**given), reason)
    return Compiled(graph, _program(graph, trace.outputs))


def load_graph(source: str | Path) -> Compiled:
    """A compiled program from JSON text, or from a file (a Path) that holds it. Raises InvalidGraph where it breaks the spec."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    graph = verify(graph_from_json(text))
    return Compiled(graph, _program(graph, {}))


def _program(graph: Graph, outputs: Mapping[int, OutputType]) -> "Program[Any]":
    from branchpoint.lang.program import Program

    def body(s: State, *values: object) -> object:
        return play(graph, s, dict(zip(graph.parameters, values, strict=True)), outputs)

    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in graph.parameters]
    body.__signature__ = inspect.Signature([kinds("s", kinds.POSITIONAL_ONLY), *parameters])  # type: ignore[attr-defined]  # what inspect looks for
    body.__name__ = graph.program
    return Program(body)
