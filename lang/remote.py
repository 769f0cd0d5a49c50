"""A whole program run on a server, in one request: what `RuntimeEndpoint.run_remote` sends, and the run of what is answered.

The answer brings what every call came to; the program is played again here on that, so that the run is one like any other.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from branchpoint.lang.backends.replay import Replayed
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.graph import Compiled
from branchpoint.lang.options import RunConfig
from branchpoint.lang.recording import RecordedRun
from branchpoint.lang.run import Run

if TYPE_CHECKING:
    from branchpoint.lang.program import Program

__all__ = ["Answered", "Remote", "remote"]


class Answered(msgspec.Struct, frozen=True):
    """The answer, as far as it is used here."""

    recording: RecordedRun


class Remote:
    """A program bound to arguments, ready to be sent: `body` is the request, `run` makes a run of what was answered."""

    def __init__(
        self, compiled: Compiled, arguments: Mapping[str, object], config: RunConfig, options: Mapping[str, Any]
    ) -> None:
        self._compiled = compiled
        self._arguments = arguments
        self._config = config
        self._options = options

    @property
    def body(self) -> dict[str, object]:
        """The request. Raises ProgramMistake for an argument that JSON can't hold."""
        options = {name: value for name, value in self._options.items() if name != "seed"}
        body: dict[str, object] = {
            "program": msgspec.Raw(self._compiled.to_json().encode()),
            "arguments": self._arguments,
            "options": options,
            "seed": self._options.get("seed"),
            "max_total_tokens": self._config.max_total_tokens,
            "deadline": self._config.deadline,
            "cache_salt": self._config.namespace or None,
            "recording": True,
        }
        try:
            msgspec.json.encode(body)
        except TypeError as error:
            raise ProgramMistake(f"The arguments of a program on a server must be JSON: {error}.") from None
        return body

    def run(self, answered: Answered) -> Run[Any]:
        """The run that the server had."""
        program = self._compiled.program
        backend = Replayed(answered.recording)
        options = {name: value for name, value in self._options.items() if name != "seed"}
        with backend:
            return program.run(backend=backend, config=RunConfig(**options), **self._arguments)


def remote(program: "Program[Any] | Compiled", args: tuple[object, ...], given: Mapping[str, Any]) -> Remote:
    """`program` with these arguments and options. Raises Untraceable where it isn't a graph, ProgramMistake as `Program.run`."""
    if isinstance(program, Compiled):
        program.graph  # noqa: B018  # raises where there is none
        arguments, config, options = program.program.apart(args, given)
        return Remote(program, arguments, config, options)
    arguments, config, options = program.apart(args, given)
    compiled = program.compile(**arguments)
    compiled.graph  # noqa: B018  # as above
    return Remote(compiled, {}, config, options)
