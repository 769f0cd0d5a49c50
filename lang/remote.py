"""A whole program run on a server, in one request: what `RuntimeEndpoint.run_remote` sends, and the run of what is answered.

The answer brings what every call came to; the program is played again here on that, so that the run is one like any other. A
`RemoteRun` gives the texts of its calls while they come.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from branchpoint.lang.backends.replay import Replayed
from branchpoint.lang.dispatcher import Dispatcher
from branchpoint.lang.errors import BackendError, ProgramMistake
from branchpoint.lang.graph import Compiled
from branchpoint.lang.options import RunConfig
from branchpoint.lang.recording import RecordedRun
from branchpoint.lang.run import Branch, Run
from branchpoint.lang.runner import in_thread
from branchpoint.lang.stream import Replay

if TYPE_CHECKING:
    from branchpoint.lang.program import Program

__all__ = ["Answered", "Remote", "RemotePiece", "RemoteRun", "remote", "stream_piece"]


class Answered(msgspec.Struct, frozen=True):
    """The answer, as far as it is used here."""

    recording: RecordedRun


@dataclass(frozen=True, slots=True)
class RemotePiece:
    """Text of the call that sets `variable` (None: it has no name) in a branch of the program."""

    variable: str | None
    branch: Branch
    text: str


class _Told(msgspec.Struct, frozen=True):
    name: str | None
    branch: Branch
    text: str


class _Problem(msgspec.Struct, frozen=True):
    error: dict[str, Any]


def stream_piece(name: str, data: bytes) -> "RemotePiece | Answered | None":
    """What an event of the server's stream says; None where it is of no use here.

    Raises BackendError for a failed program, and for what can't be read.
    """
    try:
        return _read(name, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackendError(f"The server sent an event that can't be read: {data[:200]!r} ({error}).") from error


def _read(name: str, data: bytes) -> "RemotePiece | Answered | None":
    match name:
        case "delta":
            told = msgspec.json.decode(data, type=_Told)
            return RemotePiece(told.name, told.branch, told.text)
        case "done":
            return msgspec.json.decode(data, type=Answered)
        case "error":
            message = msgspec.json.decode(data, type=_Problem).error.get("message")
            raise BackendError(f"The program failed on the server: {message}", body=data.decode("utf-8", "replace"))
    return None


class RemoteRun:
    """A program that runs on a server: iterate (`for` or `async for`) for the pieces of its texts as they come, each once for
    every reader; `run` is the finished run. `cancel()`, or leaving a `with`, ends what still runs there.
    """

    def __init__(
        self, dispatcher: Dispatcher, asked: "Remote", work: Callable[[Replay[RemotePiece]], Coroutine[Any, Any, Answered]]
    ) -> None:
        self._dispatcher = dispatcher
        self._asked = asked
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._pieces = Replay[RemotePiece]()
        self._outcome = in_thread(lambda: dispatcher.run(self._follow()))
        self._outcome.add_done_callback(self._over)

    async def _follow(self) -> Answered:
        self._task = asyncio.current_task()
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            return await self._work(self._pieces)
        except asyncio.CancelledError:
            raise BackendError("The program on the server was cancelled.") from None

    def _over(self, outcome: "Future[Answered]") -> None:
        """End the pieces, whatever ended the program: who reads them must never wait for ever."""
        failure = outcome.exception()
        self._pieces.end(None if failure is None else lambda: failure)

    def __iter__(self) -> Iterator[RemotePiece]:
        return iter(self._pieces)

    def __aiter__(self) -> AsyncIterator[RemotePiece]:
        return aiter(self._pieces)

    @property
    def run(self) -> Run[Any]:
        """The finished run; waits for it. Raises BackendError where it failed on the server."""
        return self._asked.run(self._outcome.result())

    async def arun(self) -> Run[Any]:
        """As `run`, in an event loop. Cancelling the task that waits ends the program on the server."""
        try:
            answered = await asyncio.wrap_future(self._outcome)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return await asyncio.to_thread(self._asked.run, answered)

    def cancel(self) -> None:
        """End what still runs there."""
        self._cancelled = True
        if self._task is not None:
            self._dispatcher.post(self._task.cancel)

    def __enter__(self) -> "RemoteRun":
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()


class Remote:
    """A program bound to arguments, ready to be sent: `body` is the request, `run` makes a run of what was answered."""

    def __init__(
        self, compiled: Compiled, arguments: Mapping[str, object], config: RunConfig, options: Mapping[str, Any]
    ) -> None:
        self._compiled = compiled
        self._arguments = arguments
        self._config = config
        self._options = options

    def body(self, model: str | None, *, stream: bool = False) -> dict[str, object]:
        """The request, to the server's `model` (None: its first). Raises ProgramMistake for an argument that JSON can't hold."""
        options = {name: value for name, value in self._options.items() if name != "seed"}
        body: dict[str, object] = {
            "model": model,
            "program": msgspec.Raw(self._compiled.to_json().encode()),
            "arguments": self._arguments,
            "options": options,
            "seed": self._options.get("seed"),
            "max_total_tokens": self._config.max_total_tokens,
            "deadline": self._config.deadline,
            "cache_salt": self._config.namespace or None,
            "recording": True,
            "stream": stream,
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
