"""The backend for a Branchpoint server elsewhere: `RuntimeEndpoint`.

Speaks the server's native routes, so that programs mean the same there as on an engine in this process: segments and ids,
healing, seeds, hints, and the engine's own events, streamed. `connection.py` below it sends and retries.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, Message, ScoreRequest
from branchpoint.lang.backends.connection import Connection, LinkOptions, bearer
from branchpoint.lang.backends.generation import checked
from branchpoint.lang.backends.sse import server_events
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import BackendError
from branchpoint.runtime.messages import Completed, Event, Scored

if TYPE_CHECKING:
    from branchpoint.lang.graph import Compiled
    from branchpoint.lang.program import Program
    from branchpoint.lang.remote import Answered, RemotePiece, RemoteRun
    from branchpoint.lang.run import Run
    from branchpoint.lang.stream import Replay

__all__ = ["RuntimeEndpoint"]

_RENDERED = 1024  # texts of a chat template that are kept
_ENDED = 256  # ended programs that a request tells of, at most


class RuntimeEndpoint(Dispatched):
    """A Branchpoint server at `url`, as a backend. Close it with `shutdown()`, or use it as a context manager.

    `options` are those of `LinkOptions`: timeout, connect_timeout, retries, transport. A request is sent again only where nothing
    can have happened: the connection was refused, or the server said 503 and when to come again. `model` names one of a server's
    several models; without it the first is meant.
    Raises BackendError, with the answer's status and body, where a request fails.
    """

    capabilities = Capabilities()  # everything but stretches

    def __init__(self, url: str, api_key: str | None = None, model: str | None = None, **options: Unpack[LinkOptions]) -> None:
        self._model = model
        self._connection = Connection(url, headers=bearer(api_key), hint=" Is it a Branchpoint server?", **options)
        self._rendered: OrderedDict[bytes, str] = OrderedDict()
        self._ended: deque[tuple[str, str]] = deque(maxlen=_ENDED)  # namespaces and programs

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`. Leaving it early closes the connection, by which the server knows that it is to abort."""
        body = {
            **self._common(request),
            "sampling": request.sampling,
            "constraint": request.constraint,
            "heal": request.heal,
            "stream": True,
            "events": True,
        }
        terminal: Event | None = None
        async with aclosing(self._events(body)) as events:
            async for event in events:
                if isinstance(event, Completed):
                    terminal = event  # given once the stream has ended, so that the connection can be used again
                else:
                    yield event
        if terminal is None:
            raise BackendError(f"{self.url}/generate ended before its last event; the server may have gone.")
        yield terminal

    def end_program(self, program: str, namespace: str = "") -> None:
        """See `Ending`. The next request in `namespace` tells the server."""
        self._ended.append((namespace, program))

    def _common(self, request: GenerateRequest | ScoreRequest) -> dict[str, object]:
        told = [self._ended.popleft() for _ in range(len(self._ended))]
        self._ended.extend(one for one in told if one[0] != request.namespace)
        ended = tuple(program for namespace, program in told if namespace == request.namespace)
        hints = msgspec.structs.replace(request.hints, ended=ended) if ended else request.hints
        return {
            "model": self._model,
            "segments": request.segments,
            "hints": hints,
            "rid": request.id,
            "cache_salt": request.namespace or None,
        }

    async def _events(self, body: dict[str, object]) -> AsyncGenerator[Event, None]:
        decoder = msgspec.json.Decoder[Event](Event)
        async with self._connection.open("POST", "/generate", body) as response:
            rest = b""
            async for piece in response.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield _event(decoder, line)
            if rest.strip():
                yield _event(decoder, rest)

    async def score(self, request: ScoreRequest) -> Scored:
        """See `Backend`."""
        body = {
            **self._common(request),
            "options": request.options,
            "with_end": request.with_end,
            "unconditional": request.unconditional,
        }
        return await self._connection.ask("POST", "/branchpoint/score", Scored, body)

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """See `Backend`. What was rendered once isn't asked again."""
        body = {"model": self._model, "messages": messages, "add_generation_prompt": add_generation_prompt}
        key = msgspec.json.encode(body)
        text = self._rendered.get(key)
        if text is None:
            text = (await self._connection.ask("POST", "/branchpoint/render", _Rendered, body)).prompt
            self._rendered[key] = text
            if len(self._rendered) > _RENDERED:
                self._rendered.popitem(last=False)
        else:
            self._rendered.move_to_end(key)
        return text

    def run_remote(self, program: "Program[Any] | Compiled", *args: object, **given: Any) -> "Run[Any]":
        """Run a whole program on the server, in one request, and give the finished run; `given` as for `Program.run`.

        The program must be a graph (see `Program.compile`): raises Untraceable, with the line, where it isn't. Raises
        BackendError, with status and body, where it fails there.
        """
        from branchpoint.lang.remote import Answered, remote

        asked = remote(program, args, given)
        answer = self.dispatcher.run(self._connection.ask("POST", "/v1/programs", Answered, asked.body(self._model)))
        return asked.run(answer)

    async def arun_remote(self, program: "Program[Any] | Compiled", *args: object, **given: Any) -> "Run[Any]":
        """As `run_remote`, in an event loop. Cancelling the task that waits ends the program on the server."""
        return await self.stream_remote(program, *args, **given).arun()

    def stream_remote(self, program: "Program[Any] | Compiled", *args: object, **given: Any) -> "RemoteRun":
        """As `run_remote`, giving the texts of the program's calls as they come; its `run` is the run. One request, too."""
        from branchpoint.lang.remote import RemoteRun, remote

        asked = remote(program, args, given)
        body = asked.body(self._model, stream=True)
        return RemoteRun(self.dispatcher, asked, lambda pieces: self._followed(body, pieces))

    async def _followed(self, body: dict[str, object], pieces: "Replay[RemotePiece]") -> "Answered":
        from branchpoint.lang.remote import Answered, stream_piece

        answered: Answered | None = None
        async with (
            self._connection.open("POST", "/v1/programs", body) as response,
            aclosing(server_events(response.aiter_bytes())) as events,
        ):
            async for event in events:
                match stream_piece(event.name, event.data):
                    case Answered() as answered:
                        pass
                    case piece if piece is not None:
                        pieces.put(piece)
        if answered is None:
            raise BackendError(f"{self.url}/v1/programs ended before its last event; the server may have gone.")
        return answered

    async def flush_cache(self) -> None:
        """Forget all prefixes that no request uses. Raises BackendError while requests run."""
        await self._connection.ask("POST", "/flush_cache", dict[str, object])

    async def server_info(self) -> dict[str, object]:
        """What the server says of itself."""
        return await self._connection.ask("GET", "/get_server_info", dict[str, object])

    async def close(self) -> None:
        """Close the connections; the server aborts what still runs."""
        await self._connection.close()


class _Rendered(msgspec.Struct, frozen=True):
    prompt: str


def _event(decoder: "msgspec.json.Decoder[Event]", line: bytes) -> Event:
    """The event of one line. Raises what failed."""
    try:
        event = decoder.decode(line)
    except msgspec.DecodeError as error:
        raise BackendError(f"The server sent a line that is no event: {line[:200]!r} ({error}).") from error
    return checked(event)
