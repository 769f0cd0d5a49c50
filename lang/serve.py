"""POST /v1/programs: runs a graph with arguments next to the scheduler, one request for a program of many calls.

Given to the server by the command line as one more route. Each call goes through the gateway as a request's does, under the
caller's limits; what a program may be is bounded before it runs, what it may spend while it does.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from branchpoint.errors import BranchpointError
from branchpoint.lang.backends.engine import EngineBackend
from branchpoint.lang.errors import Incomplete, OutOfBudget, ProgramError, ProgramMistake
from branchpoint.lang.nodes import Graph, graph_from_json
from branchpoint.lang.options import RunConfig, SamplingOptions, option_names, sampling_params
from branchpoint.lang.play import Called, play
from branchpoint.lang.recording import record
from branchpoint.lang.run import Run
from branchpoint.lang.runner import Job, run_streaming
from branchpoint.lang.serve_client import PROGRAMS_PATH, GatewayClient
from branchpoint.lang.spec import GraphLimits, verify
from branchpoint.lang.state import State
from branchpoint.lang.stream import Replay
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.adapters import adapter_of
from branchpoint.runtime.serving.app import Endpoint
from branchpoint.runtime.serving.errors import ApiError, api_error, bad_request, clip, error_body
from branchpoint.runtime.serving.fields import salt_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.wire import Json, Rules, as_request, json_response

__all__ = ["ProgramRequest", "programs_endpoint"]

_RULES = Rules()
Number = TypeVar("Number", int, float)


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/programs. `program` is a graph's JSON (`Compiled.to_json`), `options` are sampling options of the whole run.

    `max_total_tokens` and `deadline` (seconds) are the run's budget, within the server's own. `recording` asks for what
    `run_remote` makes a run of.
    """

    program: Json
    arguments: Json = {}
    options: Json = {}
    model: str | None = None
    seed: int | None = None
    max_total_tokens: int | None = None
    deadline: float | None = None
    cache_salt: str | None = None
    stream: bool = False
    recording: bool = False


class _Programs:
    """The programs of one server. Belongs to its event loop; each runs in a thread of its own, at most so many at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._client: GatewayClient | None = None
        self._backend: EngineBackend | None = None
        self._running = 0

    def start(self, graph: Graph, fields: ProgramRequest, request: Request, called: Replay[Called]) -> Run[object]:
        """Begin a run; whoever gets it calls `leave` when it is over. Raises ApiError 503, InvalidRequest."""
        settings = self._gateway.settings
        if self._running >= settings.max_programs:
            raise ApiError(503, f"{self._running} programs run, as many as max_programs allows.", retry_after=1)
        if self._client is None or self._backend is None:
            self._client = GatewayClient(self._gateway)
            self._backend = EngineBackend(self._client, self._gateway.loaded.tokenizer)
        space = self._client.enter(caller_of(request.scope), salt_of(fields.cache_salt), adapter_of(request.scope))
        try:
            config = RunConfig(
                namespace=space,
                max_total_tokens=_least(fields.max_total_tokens, settings.max_program_tokens),
                deadline=_least(fields.deadline, settings.max_program_seconds),
            )
            job = Job(graph.program, lambda s: _played(graph, s, fields.arguments, called), False, _options(fields), config)
            run = run_streaming(job, self._backend)
        except BaseException:  # whatever it is, it goes on up
            self._client.leave(space)
            raise
        self._running += 1
        loop, client, ended = asyncio.get_running_loop(), self._client, self._gateway.program()

        def over(outcome: Future[object]) -> None:  # in the run's thread
            ended("done" if outcome.exception() is None else "failed")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._leave, client, space)

        run.outcome.add_done_callback(over)
        return run

    def _leave(self, client: GatewayClient, space: str) -> None:
        self._running -= 1
        client.leave(space)


def _played(graph: Graph, s: State, arguments: Mapping[str, object], called: Replay[Called]) -> object:
    try:
        return play(graph, s, arguments, {}, called)
    finally:
        called.end()


def _least(asked: Number | None, most: Number) -> Number:
    return most if asked is None else min(asked, most)


def _options(fields: ProgramRequest) -> SamplingOptions:
    for name in fields.options.keys() - option_names():
        raise bad_request(f"options has no {clip(name, 40)}; known are {', '.join(sorted(option_names()))}.", "options")
    try:
        options = msgspec.convert(fields.options, SamplingOptions, strict=False)
        sampling_params(options)
    except (msgspec.ValidationError, ProgramMistake) as error:
        raise bad_request(f"options: {error}", "options") from error
    return options if fields.seed is None else {**options, "seed": fields.seed}


def _graph(fields: ProgramRequest, nodes: int) -> Graph:
    """The graph, held to the spec and to the server's limits. Raises InvalidRequest."""
    try:
        graph = verify(graph_from_json(msgspec.json.encode(fields.program)), GraphLimits(nodes=nodes, states=nodes))
    except (ProgramMistake, RecursionError) as error:
        raise bad_request(f"program: {error}", "program") from error
    if set(graph.parameters) != fields.arguments.keys():
        wanted = ", ".join(graph.parameters) or "none"
        raise bad_request(
            f"arguments must be those of the program ({wanted}), got {', '.join(fields.arguments)[:200]}.", "arguments"
        )
    return graph


def programs_endpoint() -> Endpoint:
    """The route, for `build_app`."""
    known: dict[Gateway, _Programs] = {}

    async def parse(gateway: Gateway, body: Json, request: Request) -> Response:
        fields = as_request(body, ProgramRequest, _RULES)
        name = gateway.check_model(fields.model)
        graph = await gateway.aside(lambda: _graph(fields, gateway.settings.max_program_nodes))
        called = Replay[Called]()
        run = known.setdefault(gateway, _Programs(gateway)).start(graph, fields, request, called)
        own = f"program-{secrets.token_hex(12)}"
        if fields.stream:
            return StreamingResponse(_events(run, called, own, name, fields.recording), media_type="text/event-stream")
        return json_response(await _whole(run, request, own, name, fields.recording))

    return Endpoint((PROGRAMS_PATH,), ProgramRequest, _RULES, parse)


async def _whole(run: Run[object], request: Request, own: str, model: str, recording: bool) -> Json:
    """The result of a run; a client that goes meanwhile ends it. Raises ApiError."""
    gone = asyncio.create_task(_gone(request))
    done = asyncio.wrap_future(run.outcome)
    both: tuple[asyncio.Future[Any], ...] = (gone, done)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            run.cancel()
            raise ApiError(499, "The client closed the connection.")
        return _result(run, own, model, recording)
    finally:
        gone.cancel()
        with contextlib.suppress(Exception):  # it was told, or nobody is left to be told
            await done


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _result(run: Run[object], own: str, model: str, recording: bool) -> Json:
    try:
        value = run.value
    except BranchpointError as error:
        raise _problem(error) from error
    variables, incomplete = Json(), Json()
    for name in run.variables():
        try:
            variables[name] = run[name]
        except Incomplete as error:
            incomplete[name] = error.partial
        except ProgramError as error:
            raise _problem(error) from error
    body: Json = {"id": own, "object": "program", "model": model, "program": run.program, "seed": run.seed, "value": value}
    body |= {"variables": variables, "incomplete": incomplete, "text": run.text(), "messages": run.messages()}
    body["usage"] = run.report().total
    if recording:
        body["recording"] = record(run.context)
    return body


def _problem(error: BranchpointError) -> ApiError:
    """The answer that a failed run becomes: the status of what a call failed with, the message of the program."""
    if isinstance(error, OutOfBudget):
        return ApiError(400, str(error), param="max_total_tokens")
    cause = error.__cause__
    status = api_error(cause).status if isinstance(cause, BranchpointError) else api_error(error).status
    return ApiError(status, str(error), param=cause.param if isinstance(cause, InvalidRequest) else None)


async def _events(run: Run[object], called: Replay[Called], own: str, model: str, recording: bool) -> AsyncIterator[bytes]:
    """`delta` for each piece of a variable's text, `value` when it is whole, at the end `done` or `error`."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    tasks = set[asyncio.Task[None]]()

    async def follow(one: Called) -> None:
        told: Json = {"name": one.entry.name, "node": one.node, "branch": one.branch}
        with contextlib.suppress(ProgramError):  # the run's end tells it
            async for piece in one.entry.pieces:
                queue.put_nowait(_event("delta", told | {"text": piece}))
            await one.entry.done.reached()
            with contextlib.suppress(Incomplete):
                queue.put_nowait(_event("value", told | {"value": one.entry.read()}))

    async def follow_all() -> None:
        async for one in called:
            tasks.add(asyncio.create_task(follow(one)))
        await asyncio.gather(*tasks)
        with contextlib.suppress(Exception):  # told below, as the last event
            await asyncio.wrap_future(run.outcome)
        queue.put_nowait(None)

    whole = asyncio.create_task(follow_all())
    try:
        while (line := await queue.get()) is not None:
            yield line
        try:
            yield _event("done", _result(run, own, model, recording))
        except ApiError as error:
            yield _event("error", error_body(error))
    finally:
        run.cancel()
        for task in (whole, *tasks):
            task.cancel()


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
